"""HeurFedAMP (Huang et al. 2021, Section 6): Algorithm 1 with the weights of Eq. 8. States as in fedamp.py."""

from .attention import heuristic_weights
from .fedamp import proximal


def round(
    state,
    clients,
    batches,
    online,
    k,
    *,
    optimizer,
    alpha,
    lam,
    sigma,
    self_weight,
    start="cloud",
    stale="exclude",
    rejected=None,
):
    """HeurFedAMP: Eq. 8 instead of Eq. 7, everything else the same; alpha_k remains in the penalty."""
    xi = heuristic_weights(state["models"], sigma=sigma, self_weight=self_weight, online=online, stale=stale)
    pull = lam / alpha(k)
    return proximal(state, xi, clients, batches, online, optimizer=optimizer, pull=pull, start=start, rejected=rejected)
