"""FedRoD with linear heads (Chen and Chao 2022).

state = {"model": tree, "own": [tree of a head]}: the global body and generic head, and personal heads.

    generic loss:  -log q_y,  q_c = n_ic exp(g_c(h)) / sum_c' n_ic' exp(g_c'(h)),  n_ic counts ALL examples of client i,
    personal loss: -log r_y,  r = softmax(g(h) + p_i(h)) over the client's classes, whose gradient only p_i takes.

Personal models have the logits g(h) + p_i(h).
"""

import numpy as np

from .model import accepted, features, sizes
from .trees import add, average


def _slope(weights, y):
    """The derivative of the mean of -log(weights_y / sum of weights) by the logits, [n, C]."""
    q = weights / weights.sum(axis=1, keepdims=True)
    q[np.arange(len(y)), y] -= 1.0
    return q / len(y)


def gradient(model, own, client, rows):
    """Gradients of both losses over the examples `rows`: (body and generic head, personal head)."""
    x, y = np.asarray(client["x"], np.float64)[rows], client["y"][rows]
    classes = model["head"]["bias"].shape[0]
    counts = np.array([(client["y"] == c).sum() for c in range(classes)])
    h = features(model, x)
    g = h @ model["head"]["kernel"] + model["head"]["bias"]
    z = g + h @ own["kernel"] + own["bias"]
    generic = _slope(counts * np.exp(g - g.max(axis=1, keepdims=True)), y)
    personal = _slope((np.arange(classes) < client["classes"]) * np.exp(z - z.max(axis=1, keepdims=True)), y)
    back = (generic @ model["head"]["kernel"].T) * (1.0 - h**2)
    body = {"kernel": x.T @ back, "bias": back.sum(axis=0)}
    head, mine = ({"kernel": h.T @ slope, "bias": slope.sum(axis=0)} for slope in (generic, personal))
    return {"body": body, "head": head}, mine


def round(state, clients, batches, online, k, *, optimizer, rejected=None):
    """One round: local steps on both losses at the same time; bodies and generic heads are averaged by size."""
    online = accepted(online, rejected)
    heads, sent = list(state["own"]), [None] * len(clients)
    for i, client in enumerate(clients):
        if online[i]:
            both, update = {"model": state["model"], "own": heads[i]}, optimizer()
            for rows in batches[i]:
                generic, personal = gradient(both["model"], both["own"], client, np.asarray(rows))
                both = update(both, {"model": generic, "own": personal})
            sent[i], heads[i] = both["model"], both["own"]
    return {"model": average(sent, sizes(clients), online, otherwise=state["model"]), "own": heads}


def personalize(state):
    """The sum of both heads over the global body."""
    return [{**state["model"], "head": add(state["model"]["head"], own)} for own in state["own"]]
