"""IFCA (Ghosh et al. 2020, Algorithm 1, option II: model averaging).

state = {"models": [theta_j]}; a round also returns "taken" [j_i] and "xi" [M, M], which it never reads.

    j_i = argmin_j F_i(theta_j), the mean loss over all examples; the first of equal ones,
    theta~_i = theta_{j_i} after local steps, theta_j <- mean of theta~_i over the clients with j_i = j.

In the paper all clients have n examples; here means weigh by size, which is then the same.
"""

import numpy as np

from .model import accepted, loss_and_gradient, sizes, train
from .trees import average


def choose(models, client):
    """argmin_j F_i(theta_j)."""
    return int(np.argmin([loss_and_gradient(m, client["x"], client["y"], client["classes"])[0] for m in models]))


def shares(cluster, sizes, counts):
    """The weights of the mean that each client's model became part of; the identity's row without one."""
    xi = np.eye(len(sizes))
    for i in np.flatnonzero(counts):
        row = [n if here and cluster[j] == cluster[i] else 0 for j, (n, here) in enumerate(zip(sizes, counts))]
        xi[i] = np.array(row) / sum(row)
    return xi


def means(trained, clients, cluster, counts, otherwise):
    """The mean of what the clients of each cluster that count have; of none of them, `otherwise` of the cluster."""
    return [
        average(trained, sizes(clients), [here and j == c for here, j in zip(counts, cluster)], otherwise=model)
        for c, model in enumerate(otherwise)
    ]


def round(state, clients, batches, online, k, *, optimizer, rejected=None):
    """One round. A model that nobody took stays. "taken": j_i of all clients, whether they count or not."""
    models, counts = state["models"], accepted(online, rejected)
    taken = [choose(models, client) for client in clients]
    trained = [train(models[j], *each, optimizer) for j, *each in zip(taken, clients, batches)]
    new = means(trained, clients, taken, counts, models)
    return {"models": new, "taken": taken, "xi": shares(taken, sizes(clients), counts)}


def personalize(state, clients):
    """j_i, chosen again, and the clients' models."""
    taken = [choose(state["models"], client) for client in clients]
    return taken, [state["models"][j] for j in taken]
