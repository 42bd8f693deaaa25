"""APFL (Deng, Kamani, Mahdavi 2020, Algorithm 1), with the mixing weights alpha_i fixed or adaptive.

state = {"global": w, "local": [v_i], "alpha": [alpha_i]}
The paper averages w_i uniformly over the sampled clients; here by size, so that alpha = 0 is FedAvg.
The adaptive alpha_i moves once per round, on the round's first batch, as in the authors' code (which also mixes
outputs instead of weights, has taken both other steps already, and adds 0.02 alpha_i to the gradient: not followed).
"""

import numpy as np

from .model import accepted, gradient, sizes
from .trees import add, average, dot, scale, sub


def mix(alpha, v, w):
    """The personalized model v_bar = alpha v + (1 - alpha) w."""
    return add(scale(alpha, v), scale(1 - alpha, w))


def round(state, clients, batches, online, k, *, lr, adapt=None, alpha_lr=None, rejected=None):
    """One round of SGD. adapt: None (alpha fixed), "round" (first batch of the round only) or "step" (every batch).

    All three updates of a step use the values before it: w_i, v_i and alpha_i of t - 1 and the batch of t.
    """
    online = accepted(online, rejected)
    v, alpha = list(state["local"]), list(state["alpha"])
    sent = [None] * len(clients)
    for i, client in enumerate(clients):
        if not online[i]:
            continue
        w = state["global"]
        for step, rows in enumerate(batches[i]):
            g = gradient(mix(alpha[i], v[i], w), client, rows)  # of f_i at v_bar_i
            new_alpha = alpha[i]
            if adapt == "step" or (adapt == "round" and step == 0):  # d f_i(v_bar_i) / d alpha_i = <v_i - w_i, g>
                rate = lr if alpha_lr is None else alpha_lr
                new_alpha = float(np.clip(alpha[i] - rate * dot(sub(v[i], w), g), 0.0, 1.0))
            v[i] = sub(v[i], scale(lr * alpha[i], g))  # nabla_v f_i(v_bar_i) = alpha_i g
            w = sub(w, scale(lr, gradient(w, client, rows)))
            alpha[i] = new_alpha
        sent[i] = w
    w = average(sent, sizes(clients), online, otherwise=state["global"])
    return {"global": w, "local": v, "alpha": alpha}


def personalize(state):
    """Mixtures alpha_i v_i + (1 - alpha_i) w, w being the aggregated global model."""
    return [mix(alpha, v, state["global"]) for alpha, v in zip(state["alpha"], state["local"], strict=True)]
