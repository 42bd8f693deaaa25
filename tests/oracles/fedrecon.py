"""Federated Reconstruction (Singhal et al. 2021, Algorithm 1): heads are rebuilt every round and never stored.

state = {"body": global tree, "head": the head every reconstruction starts from, never updated}
batches[i] = [batches of the support set, batches of the query set]; the caller decides whether the two overlap.
The paper weights clients by the size of their query set; here by n_i unless `weights` are given.
"""

from .model import accepted, sizes, train
from .trees import add, average, scale, sub


def round(
    state,
    clients,
    batches,
    online,
    k,
    *,
    optimizer,
    reconstruction_optimizer=None,
    server_step=1.0,
    weights=None,
    rejected=None,
):
    """Reconstruct the head with the body frozen, update the body with the head frozen, average the body's changes."""
    online = accepted(online, rejected)
    start, deltas = {"body": state["body"], "head": state["head"]}, [None] * len(clients)
    for i, client in enumerate(clients):
        if online[i]:
            local = train(start, client, batches[i][0], reconstruction_optimizer or optimizer, parts=("head",))
            local = train(local, client, batches[i][1], optimizer, parts=("body",))
            deltas[i] = sub(local["body"], start["body"])
    if not any(online):
        return dict(state)
    mean = average(deltas, sizes(clients) if weights is None else weights, online, otherwise=None)
    return {"body": add(state["body"], scale(server_step, mean)), "head": state["head"]}


def personalize(state, clients, batches, *, optimizer):
    """Every client's model: the global body, and a head reconstructed from the initial one on batches[i]."""
    return [train(state, client, batches[i], optimizer, parts=("head",)) for i, client in enumerate(clients)]
