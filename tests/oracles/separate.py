"""Separate training: every client trains its own model, and nobody talks to anybody.

state = {"models": [params of client 0, ...]}
"""

from .model import accepted, train


def round(state, clients, batches, online, k, *, optimizer, rejected=None):
    """One round: online clients train on batches[i], offline ones keep their model."""
    online = accepted(online, rejected)
    models = [
        train(model, client, batches[i], optimizer) if online[i] else model
        for i, (model, client) in enumerate(zip(state["models"], clients, strict=True))
    ]
    return {"models": models}
