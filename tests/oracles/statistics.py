"""Running statistics that follow the training batches, as BatchNorm's do, and what a server makes of them.

stats = {"mean": [F]}, one per client. They depend on the batches only, never on the parameters.
"""

import numpy as np

from .model import accepted, sizes
from .trees import average, combine


def follow(stats, client, batches):
    """After every batch: mean <- 0.9 mean + 0.1 (mean of the batch's rows)."""
    mean = np.asarray(stats["mean"], np.float64)
    for rows in batches:
        mean = 0.9 * mean + 0.1 * np.asarray(client["x"], np.float64)[np.asarray(rows)].mean(axis=0)
    return {"mean": mean}


def round(stats, clients, batches, online, *, policy, xi=None, weights=None, rejected=None):
    """Every client's statistics after a round.

    "local": an online client's own follow its batches; those of an offline or rejected one stay.
    "mix" without `xi`: everybody, online or not, has the mean of those that count, weighted by size, or by `weights`.
    "mix" with `xi`: the online clients start from sum_j xi_ij stats_j, and keep what they end with.
    """
    counts = accepted(online, rejected)
    start = [combine(row, stats) for row in xi] if policy == "mix" and xi is not None else stats
    after = [follow(start[i], client, batches[i]) if counts[i] else stats[i] for i, client in enumerate(clients)]
    if policy == "local" or xi is not None:
        return after
    mean = average(after, sizes(clients) if weights is None else weights, counts, otherwise=None)
    return list(stats) if mean is None else [mean] * len(clients)
