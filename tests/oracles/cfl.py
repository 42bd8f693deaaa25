"""CFL (Sattler, Müller and Samek 2021, Algorithms 1 and 2): clusters that are divided where updates disagree.

state = {"models": [theta_c], "cluster": [c of client i, or -1], "largest": norm}; there are max(cluster) + 1 clusters,
and unused models behind theirs. A round also returns "begin", the clusters that clients trained in, "norms"
{c: (||mean update||, largest ||update||)} and "xi" [M, M], which it never reads.

    dw_i = theta_c after local steps - theta_c,     theta_c <- theta_c + sum_i n_i dw_i / sum_i n_i,
    divide c if ||sum_i n_i dw_i / sum_i n_i|| < eps1 and max_i ||dw_i|| > eps2, into
    c1, c2 = argmin max {cos(dw_i, dw_j): i in c1, j in c2}, of which each has a mean of its own already.

Here one cluster is divided in a round: that with the largest update. `relative`: eps1 and eps2 are in units of the
largest norm of an update so far. The part with the first client keeps the number. A client without a cluster (-1), also
one that was absent when its cluster was divided, takes the one whose model has the least loss.
"""

import itertools

import numpy as np

from .ifca import choose, means, shares
from .model import accepted, sizes, train
from .trees import flatten, sub

NOWHERE = -1


def cosine(a, b):
    """Cosine of two vectors."""
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def bipartition(updates):
    """Positions of the part without the first one, of the best of all divisions, each of which is tried."""
    n = len(updates)
    similar = np.array([[cosine(a, b) for b in updates] for a in updates])
    parts = [set(part) for size in range(1, n) for part in itertools.combinations(range(1, n), size)]
    return min(parts, key=lambda part: max(similar[i, j] for i in part for j in set(range(n)) - part))


def located(state, clients):
    """Each client's cluster; of those without one, the cluster of least loss."""
    known = state["models"][: max([*state["cluster"], 0]) + 1]
    return [choose(known, client) if c == NOWHERE else c for c, client in zip(state["cluster"], clients)]


def round(state, clients, batches, online, k, *, optimizer, eps1, eps2, relative=True, rejected=None):
    """One round; eps1, eps2: functions of k."""
    models, counts, n = state["models"], accepted(online, rejected), sizes(clients)
    begin = located(state, clients)
    trained = [train(models[c], *each, optimizer) for c, *each in zip(begin, clients, batches)]
    update = [flatten(sub(new, models[c])) for c, new in zip(begin, trained)]
    length = [float(np.sqrt(u @ u)) for u in update]
    largest = max([state["largest"], *(one for one, here in zip(length, counts) if here)])
    unit, number = largest if relative else 1.0, max([*state["cluster"], 0]) + 1

    norms, ready = {}, []
    for c in range(number):
        members = [i for i, here in enumerate(counts) if here and begin[i] == c]
        if not members:
            continue
        mean = sum(n[i] * update[i] for i in members) / sum(n[i] for i in members)
        norms[c] = float(np.sqrt(mean @ mean)), max(length[i] for i in members)
        if len(members) > 1 and norms[c][0] < eps1(k) * unit and norms[c][1] > eps2(k) * unit and number < len(models):
            ready.append((norms[c][1], c, members))

    end, cluster = list(begin), [c if here else old for c, here, old in zip(begin, counts, state["cluster"])]
    if ready:
        _, c, members = max(ready)
        for position in bipartition([update[i] for i in members]):
            end[members[position]] = cluster[members[position]] = number
        cluster = [
            NOWHERE if old == c and not here else new for old, here, new in zip(state["cluster"], counts, cluster)
        ]
    return {"models": means(trained, clients, end, counts, models), "cluster": cluster, "largest": largest,
            "begin": begin, "norms": norms, "xi": shares(end, n, counts)}  # fmt: skip


def personalize(state, clients):
    """The clients' models."""
    return [state["models"][c] for c in located(state, clients)]
