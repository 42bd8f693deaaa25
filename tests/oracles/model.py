"""A two-layer classifier with hand-derived gradients, and local training on given minibatches.

params = {"body": {"kernel" [F, H], "bias" [H]}, "head": {"kernel" [H, C], "bias" [C]}}
client = {"x": [n, F], "y": [n], "classes": number of classes, <= C}
Logits with index >= the client's number of classes take no part in the softmax.
"""

import numpy as np

from .trees import add, scale, sub

PARTS = ("body", "head")


def features(params, x):
    """Features tanh(x W_b + b_b), [n, H]."""
    return np.tanh(np.asarray(x, np.float64) @ params["body"]["kernel"] + params["body"]["bias"])


def logits(params, x):
    """Logits features W_h + b_h, [n, C]; nothing is masked here."""
    return features(params, x) @ params["head"]["kernel"] + params["head"]["bias"]


def loss_and_gradient(params, x, y, classes):
    """Mean softmax cross-entropy over the rows of (x, y), and its gradient as a tree like params."""
    x = np.asarray(x, np.float64)
    h = features(params, x)
    z = (h @ params["head"]["kernel"] + params["head"]["bias"])[:, :classes]
    z = z - z.max(axis=1, keepdims=True)
    p = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    rows = np.arange(len(y))
    loss = float(np.mean(np.log(np.exp(z).sum(axis=1)) - z[rows, y]))
    dz = np.zeros((len(y), params["head"]["kernel"].shape[1]))  # columns >= classes stay 0
    dz[:, :classes] = p
    dz[rows, y] -= 1.0
    dz /= len(y)
    da = (dz @ params["head"]["kernel"].T) * (1.0 - h**2)  # through the tanh
    return loss, {
        "body": {"kernel": x.T @ da, "bias": da.sum(axis=0)},
        "head": {"kernel": h.T @ dz, "bias": dz.sum(axis=0)},
    }


def gradient(params, client, rows=None):
    """Gradient of the client's loss over the examples `rows`; over all of them where `rows` is None."""
    rows = np.arange(len(client["y"])) if rows is None else np.asarray(rows)
    return loss_and_gradient(params, client["x"][rows], client["y"][rows], client["classes"])[1]


def train(params, client, batches, optimizer, *, parts=PARTS, pull=0.0, centre=None, extra=None):
    """One step of a fresh `optimizer` per batch on loss + pull / 2 * ||w - centre||^2, on `parts` only.

    extra(params): the gradient of a further term of the objective.
    """
    update = optimizer()
    for rows in batches:
        grads = gradient(params, client, rows)
        if centre is not None:
            grads = add(grads, scale(pull, sub(params, centre)))
        if extra is not None:
            grads = add(grads, extra(params))
        params = {**params, **update({p: params[p] for p in parts}, {p: grads[p] for p in parts})}
    return params


def sizes(clients):
    """Number of examples of each client, n_i."""
    return [len(client["y"]) for client in clients]


def accepted(online, rejected):
    """Clients whose result counts: online, and not `rejected` (trained, but the result was thrown away).

    A rejected client keeps everything of its own and counts as offline in every step of the server.
    """
    return [bool(here) and not (rejected is not None and rejected[i]) for i, here in enumerate(online)]
