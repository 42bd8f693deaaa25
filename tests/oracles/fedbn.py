"""FedBN (Li et al. 2021, Algorithm 1).

state = {"models": [tree]}. The equations are by layer l: where l is no normalization layer, every client gets the mean
of w_i^l over the clients of the round, here by size; where it is one, the client keeps its own. A layer is here a pair
of names, (part, leaf).
"""

from .model import accepted, sizes, train
from .trees import average


def round(state, clients, batches, online, k, *, optimizer, layers, rejected=None):
    """One round; `layers`: the normalization layers."""
    counts, models = accepted(online, rejected), state["models"]
    after = [train(*each, optimizer) if here else each[0] for here, *each in zip(counts, models, clients, batches)]
    if not any(counts):
        return state
    mean = average(after, sizes(clients), counts, otherwise=None)
    return {"models": [
        {part: {leaf: (own if (part, leaf) in layers else mean)[part][leaf] for leaf in mean[part]} for part in mean}
        for own in after
    ]}  # fmt: skip
