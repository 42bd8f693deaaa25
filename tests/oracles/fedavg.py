"""FedAvg (McMahan et al. 2017, Algorithm 1) and FedProx (Li et al. 2020, Algorithm 2).

state = {"global": params}
FedProx as published samples clients by size and averages uniformly; here both average by size over the online clients.
"""

from .model import accepted, sizes, train
from .trees import average


def fedprox(state, clients, batches, online, k, *, optimizer, mu, rejected=None):
    """Local objective f_i(w) + mu / 2 * ||w - w^t||^2 from w^t, then w^{t+1} = sum_i n_i w_i / sum_i n_i, i online."""
    online = accepted(online, rejected)
    start = state["global"]
    local = [
        train(start, client, batches[i], optimizer, pull=mu, centre=start) if online[i] else None
        for i, client in enumerate(clients)
    ]
    return {"global": average(local, sizes(clients), online, otherwise=start)}


def fedavg(state, clients, batches, online, k, *, optimizer, rejected=None):
    """w_i from w^t on f_i alone, then w^{t+1} = sum_i n_i w_i / sum_i n_i over the online clients."""
    online = accepted(online, rejected)
    start = state["global"]
    local = [train(start, client, batches[i], optimizer) if online[i] else None for i, client in enumerate(clients)]
    return {"global": average(local, sizes(clients), online, otherwise=start)}
