"""LG-FedAvg (Liang et al. 2020, Algorithm 1).

state = {"bodies": [tree], "head": tree}: representations l_i, which never leave the client, and the global head g.

    (l_i, g_i) <- local steps on F_i(l, g) from (l_i, g), both trained at the same time,
    g <- sum_i n_i / n g_i.
"""

from .model import accepted, sizes, train
from .trees import average


def round(state, clients, batches, online, k, *, optimizer, rejected=None):
    """One round."""
    online = accepted(online, rejected)
    bodies, heads = list(state["bodies"]), [None] * len(clients)
    for i, client in enumerate(clients):
        if online[i]:
            after = train({"body": bodies[i], "head": state["head"]}, client, batches[i], optimizer)
            bodies[i], heads[i] = after["body"], after["head"]
    return {"bodies": bodies, "head": average(heads, sizes(clients), online, otherwise=state["head"])}


def personalize(state):
    """Each client's own body under the global head."""
    return [{"body": body, "head": state["head"]} for body in state["bodies"]]
