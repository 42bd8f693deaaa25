"""FedProto (Tan et al. 2022).

state = {"models": [w_i], "prototypes": {c: [H]}}; a class that no client had yet is not among the prototypes.

    w_i <- local steps on F_i(w) + lam * R_i(w),
    R_i: the mean over a minibatch of ||h(x) - P_y||^2 / H, 0 for an example whose class has no P_y,
    P_ic = mean of h(x) over client i's examples of class c under its new model,
    P_c <- sum_i n_ic P_ic / sum_i n_ic over the clients that have the class.

R_i is the authors' program's: an example's features take the place of the minibatch's prototype. The paper's P_c has
one more factor, 1 / number of clients that have the class; the authors' program takes the plain mean of the P_ic.
"""

import numpy as np

from .model import PARTS, accepted, features, gradient
from .trees import add, zeros


def pull(params, client, rows, prototypes):
    """The gradient of R_i over the examples `rows`."""
    x, y = np.asarray(client["x"], np.float64)[rows], client["y"][rows]
    h = features(params, x)
    slope = np.zeros_like(h)
    for n, c in enumerate(y):
        if int(c) in prototypes:
            slope[n] = 2 * (h[n] - prototypes[int(c)]) / (len(y) * h.shape[1])
    back = slope * (1 - h**2)
    return {**zeros(params), "body": {"kernel": x.T @ back, "bias": back.sum(axis=0)}}


def means(params, client):
    """{c: (P_ic, n_ic)} of the classes that the client has."""
    h = features(params, client["x"])
    return {int(c): (h[client["y"] == c].mean(axis=0), int(np.sum(client["y"] == c))) for c in np.unique(client["y"])}


def pooled(found, counts, otherwise):
    """P_c over the clients that count; `otherwise` for classes that none of them has."""
    result = dict(otherwise)
    for c in {c for each in found for c in each}:
        of_class = [each[c] for each, here in zip(found, counts) if here and c in each]
        if of_class:
            result[c] = sum(n * mean for mean, n in of_class) / sum(n for _, n in of_class)
    return result


def train(params, client, batches, optimizer, prototypes, lam, parts=PARTS):
    """Local steps on both terms, of `parts`."""
    update = optimizer()
    for rows in batches:
        rows = np.asarray(rows)
        extra = pull(params, client, rows, prototypes)
        g = add(gradient(params, client, rows), {p: {n: lam * a for n, a in extra[p].items()} for p in extra})
        params = {**params, **update({p: params[p] for p in parts}, {p: g[p] for p in parts})}
    return params


def round(state, clients, batches, online, k, *, optimizer, lam, rejected=None):
    """One round; `lam`: a number, or one per client."""
    counts, lam = accepted(online, rejected), np.broadcast_to(lam, len(clients))
    models = list(state["models"])
    for i, client in enumerate(clients):
        if counts[i]:
            models[i] = train(models[i], client, batches[i], optimizer, state["prototypes"], lam[i])
    found = [means(*each) for each in zip(models, clients)]
    return {"models": models, "prototypes": pooled(found, counts, state["prototypes"])}


def nearest(state, i, x):
    """The nearest prototype's class, [n]."""
    h = features(state["models"][i], x)
    far = {c: ((h - mean) ** 2).sum(axis=1) for c, mean in state["prototypes"].items()}
    classes = sorted(far)
    return np.array(classes)[np.argmin(np.stack([far[c] for c in classes]), axis=0)]
