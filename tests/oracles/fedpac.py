"""FedPAC (Xu et al. 2023).

state = {"body": tree, "heads": [tree], "centroids": {c: [H]}}; a round also returns "xi" [M, M], which it never reads.
batches[i] = [head phase, body phase].

    s_i = concatenation over c of p_ic mu_ic, V_i = (1 / n_i) (mean of ||h||^2 - sum_c ||p_ic mu_ic||^2),
    with h of the global body, the class frequencies p_ic and the mean features mu_ic of client i,
    head steps on F_i, then body steps on F_i + lam R_i, where R_i is FedProto's with the centroids,
    centroids and body: means by numbers of examples,
    head_i <- sum_j a_ij head_j, a_i the minimum of sum_j a_j^2 V_j + ||s_i - sum_j a_j s_j||^2 over the simplex,
    over the clients that count.

The minimum is exact: of each support it is the solution of a linear system, and the best feasible one is taken.
"""

import itertools

import numpy as np

from .fedproto import means, pooled
from .fedproto import train as train_aligned
from .model import accepted, features, sizes, train
from .trees import average, combine


def statistics(params, client, classes):
    """s_i and V_i."""
    h, y = features(params, client["x"]), client["y"]
    s = np.stack([h[y == c].sum(axis=0) / len(y) for c in range(classes)])
    return s.ravel(), (np.mean(np.sum(h**2, axis=1)) - np.sum(s**2)) / len(y)


def minimum(i, s, v, online):
    """Row i of the weights; the identity's where client i does not count."""
    best, weights = np.inf, np.eye(len(s))[i]
    if not online[i]:
        return weights
    there = np.flatnonzero(online)
    for some in (c for size in range(1, len(there) + 1) for c in itertools.combinations(there, size)):
        some = list(some)
        apart = s[some] - s[i]
        p = np.diag(v[some]) + apart @ apart.T
        a = np.linalg.solve(np.block([[2 * p, np.ones((len(some), 1))], [np.ones((1, len(some))), np.zeros((1, 1))]]),
                            np.append(np.zeros(len(some)), 1))[: len(some)]  # fmt: skip
        value = a @ p @ a
        if (a >= 0).all() and value < best:
            best, weights = value, np.zeros(len(s))
            weights[some] = a
    return weights


def round(state, clients, batches, online, k, *, optimizer, lam, head_optimizer=None, rejected=None):
    """One round; `lam`: a number, or one per client."""
    counts, m = accepted(online, rejected), len(clients)
    lam, classes = np.broadcast_to(lam, m), state["heads"][0]["bias"].shape[0]
    heads, bodies, found = list(state["heads"]), [None] * m, [{}] * m
    s, v = map(np.stack, zip(*(statistics(state, client, classes) for client in clients)))
    for i, client in enumerate(clients):
        if counts[i]:
            first, second = batches[i]
            after = {"body": state["body"], "head": heads[i]}
            after = train(after, client, first, head_optimizer or optimizer, parts=("head",))
            after = train_aligned(after, client, second, optimizer, state["centroids"], lam[i], parts=("body",))
            bodies[i], heads[i], found[i] = after["body"], after["head"], means(after, client)
    xi = np.stack([minimum(i, s, v, counts) for i in range(m)])
    return {
        "body": average(bodies, sizes(clients), counts, otherwise=state["body"]),
        "heads": [combine(row, heads) for row in xi],
        "centroids": pooled(found, counts, state["centroids"]),
        "xi": xi,
    }
