"""FedAvg-FT and FedProx-FT (Wang et al. 2019): a federated global model, fine-tuned by each client on its own data.

state = {"global": params}. The rounds are those of fedavg.py (mu = 0: FedAvg; mu > 0: FedProx).
"""

from .fedavg import fedprox
from .model import train


def round(state, clients, batches, online, k, *, optimizer, mu=0.0, rejected=None):
    """One round of the global method."""
    return fedprox(state, clients, batches, online, k, optimizer=optimizer, mu=mu, rejected=rejected)


def personalize(state, clients, batches, *, optimizer):
    """Every client's model: the global one after its steps on batches[i], on f_i alone (no proximal term)."""
    return [train(state["global"], client, batches[i], optimizer) for i, client in enumerate(clients)]
