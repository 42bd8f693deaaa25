"""FedALA (Zhang et al. 2023), with the head as the upper layers.

state = {"global": w, "models": [w_i], "weights": [W_i], "turns": [how often client i has trained]}.

    in all but a client's first round, for minibatches of a share of its examples, with v = w_i + (w - w_i) W_i:
        W_i <- clip(W_i - eta grad F_i(body of w, v) * (w - w_i), 0, 1),
    w_i <- local steps from (body of w, w_i + (w - w_i) W_i), all of the global model in the first round,
    w <- sum_i n_i / n w_i.

All products are element by element. `passes(i, many)`: the minibatches of the share, for the first time or for later.
"""

import numpy as np

from .model import accepted, gradient, sizes, train
from .trees import average, tree_map


def mixed(own, glob, weights):
    """The body of the global model under the mixture of both heads."""
    head = tree_map(lambda a, b, w: a + (b - a) * w, own["head"], glob["head"], weights)
    return {"body": glob["body"], "head": head}


def learn(own, glob, weights, client, batches, eta):
    """W_i after the steps."""
    for rows in batches:
        g = gradient(mixed(own, glob, weights), client, rows)["head"]
        weights = tree_map(
            lambda w, g, a, b: np.clip(w - eta * g * (b - a), 0, 1), weights, g, own["head"], glob["head"]
        )
    return weights


def round(state, clients, batches, online, k, *, optimizer, eta, passes, rejected=None):
    """One round; `eta`: a number, or one per client."""
    counts, w, eta = accepted(online, rejected), state["global"], np.broadcast_to(eta, len(clients))
    models, weights, turns = list(state["models"]), list(state["weights"]), list(state["turns"])
    for i, client in enumerate(clients):
        if counts[i]:
            own = models[i] if turns[i] else w
            if turns[i]:
                weights[i] = learn(own, w, weights[i], client, passes(i, turns[i] == 1), eta[i])
            models[i] = train(mixed(own, w, weights[i]), client, batches[i], optimizer)
            turns[i] += 1
    new = average(models, sizes(clients), counts, otherwise=w)
    return {"global": new, "models": models, "weights": weights, "turns": turns}


def personalize(state):
    """Each client's model after its last training; the global one before the first."""
    return [own if turn else state["global"] for own, turn in zip(state["models"], state["turns"])]
