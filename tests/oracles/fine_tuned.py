"""FedAvg-FT and FedProx-FT (Wang et al. 2019): a federated global model, fine-tuned by each client on its own data.

state = {"global": params}. The rounds are those of fedavg.py (mu = 0: FedAvg; mu > 0: FedProx).
"""

from .fedavg import fedprox
from .model import train


def round(state, clients, batches, online, k, *, optimizer, mu=0.0, rejected=None):
    """One round of the global method."""
    return fedprox(state, clients, batches, online, k, optimizer=optimizer, mu=mu, rejected=rejected)


def personalize(state, clients, batches, *, optimizer, pull=0.0):
    """Every client's model: the global one x after its steps on batches[i].

    They are on f_i alone, as in the FedAMP paper, or on f_i + pull / 2 * ||w - x||^2 (L2-SP, Li et al. 2018).
    """
    x = state["global"]
    return [train(x, client, batches[i], optimizer, pull=pull, centre=x) for i, client in enumerate(clients)]
