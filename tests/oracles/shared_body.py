"""Shared body, separate heads: FedPer (Arivazhagan 2019), FedRep (Collins 2021), FedBABU (Oh 2022, all Algorithm 1).

FedPer, FedRep: state = {"body": tree, "heads": [tree]}. FedBABU: state = {"body": tree, "head": tree}.
FedRep as published averages bodies uniformly (equal sizes are assumed); here by size, like the others.
"""

from .model import accepted, sizes, train
from .trees import average


def fedper(state, clients, batches, online, k, *, optimizer, rejected=None):
    """Body and own head trained jointly from (global body, own head); bodies averaged, heads kept."""
    online = accepted(online, rejected)
    heads, bodies = list(state["heads"]), [None] * len(clients)
    for i, client in enumerate(clients):
        if online[i]:
            after = train({"body": state["body"], "head": heads[i]}, client, batches[i], optimizer)
            bodies[i], heads[i] = after["body"], after["head"]
    return {"body": average(bodies, sizes(clients), online, otherwise=state["body"]), "heads": heads}


def fedrep(state, clients, batches, online, k, *, optimizer, body_optimizer=None, rejected=None):
    """batches[i] = [head phase, body phase]: head steps with the global body, then body steps with the new head."""
    online = accepted(online, rejected)
    heads, bodies = list(state["heads"]), [None] * len(clients)
    for i, client in enumerate(clients):
        if online[i]:
            after = train({"body": state["body"], "head": heads[i]}, client, batches[i][0], optimizer, parts=("head",))
            after = train(after, client, batches[i][1], body_optimizer or optimizer, parts=("body",))
            bodies[i], heads[i] = after["body"], after["head"]
    return {"body": average(bodies, sizes(clients), online, otherwise=state["body"]), "heads": heads}


def personalize(state):
    """FedPer, FedRep: the global body under each client's own head."""
    return [{"body": state["body"], "head": head} for head in state["heads"]]


def fedbabu(state, clients, batches, online, k, *, optimizer, rejected=None):
    """Body trained under the common head, which never changes; bodies averaged."""
    online = accepted(online, rejected)
    bodies = [
        train(state, client, batches[i], optimizer, parts=("body",))["body"] if online[i] else None
        for i, client in enumerate(clients)
    ]
    return {"body": average(bodies, sizes(clients), online, otherwise=state["body"]), "head": state["head"]}


def fedbabu_personalize(state, clients, batches, *, optimizer, parts=("body", "head")):
    """Fine-tuning from the global body and the fixed head on batches[i]: everything, or parts=("head",)."""
    return [train(state, client, batches[i], optimizer, parts=parts) for i, client in enumerate(clients)]
