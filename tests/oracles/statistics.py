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


def round(stats, trained, clients, batches, online, *, policy, xi=None, weights=None, rejected=None):
    """Every client's statistics after a round, and who has trained so far, given who had before.

    "own": an online client's own follow its batches; those of an offline or rejected one stay.
    "local": likewise; but one that has not trained has the mean of those that count, weighted by size, or by `weights`.
    "mix" without `xi`: everybody, online or not, has this mean.
    With `xi` "local" clients in their first training, and "mix" clients always, start from sum_j xi_ij stats_j, and
    keep what they end with.
    """
    counts = accepted(online, rejected)
    start = stats
    if xi is not None:
        mixed = [combine(row, stats) for row in xi]
        start = [mixed[i] if policy == "mix" or not trained[i] else stats[i] for i in range(len(clients))]
    after = [follow(start[i], client, batches[i]) if counts[i] else stats[i] for i, client in enumerate(clients)]
    now = [a or b for a, b in zip(trained, counts)]
    if policy == "own" or xi is not None or not any(counts):
        return after, now
    mean = average(after, sizes(clients) if weights is None else weights, counts, otherwise=None)
    return [after[i] if policy == "local" and now[i] else mean for i in range(len(clients))], now
