"""Ditto (Li et al. 2021, Algorithm 1 with FedAvg as the global solver).

state = {"global": w, "models": [v_i]}; batches[i] = [batches of the global phase, batches of the personal phase].
"""

from .model import accepted, sizes, train
from .trees import average


def round(state, clients, batches, online, k, *, optimizer, lam, personal_optimizer=None, rejected=None):
    """One FedAvg round of w; v_i takes steps on f_i(v) + lam / 2 * ||v - w^t||^2, w^t as received BEFORE that round."""
    online = accepted(online, rejected)
    w = state["global"]
    models, local = list(state["models"]), [None] * len(clients)
    for i, client in enumerate(clients):
        if online[i]:
            local[i] = train(w, client, batches[i][0], optimizer)
            models[i] = train(models[i], client, batches[i][1], personal_optimizer or optimizer, pull=lam, centre=w)
    return {"global": average(local, sizes(clients), online, otherwise=w), "models": models}
