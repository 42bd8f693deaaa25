"""FedAMP (Huang et al. 2021, Algorithm 1, Eq. 5-7), and what HeurFedAMP shares with it.

state = {"models": [params]}; a round also returns "xi" [M, M] and "cloud" [params], which it never reads.
Under stale="include" an offline client's model is sent to the others; it receives nothing itself, u_i = w_i.
A rejected client has received u_i, and the others its model from before the round.
"""

from .attention import cloud, weights
from .model import accepted, train


def decaying(start=1e4, factor=0.1, every=30):
    """alpha_k of Appendix C: start * factor^floor(k / every)."""
    return lambda k: start * factor ** (k // every)


def proximal(state, xi, clients, batches, online, *, optimizer, pull, start, rejected=None):
    """Eq. 6 approximately: steps on F_i(w) + pull / 2 * ||w - u_i||^2 from u_i ("cloud") or from w_i ("personal")."""
    u = cloud(xi, state["models"])
    keep = accepted(online, rejected)
    first = {"cloud": u, "personal": state["models"]}[start]
    models = [
        train(first[i], client, batches[i], optimizer, pull=pull, centre=u[i]) if keep[i] else state["models"][i]
        for i, client in enumerate(clients)
    ]
    return {"models": models, "xi": xi, "cloud": u}


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
    kind="neg_exp",
    self_weight=None,
    start="cloud",
    stale="exclude",
    rejected=None,
):
    """FedAMP. `alpha` is a function of the 0-based round; the penalty is lam / (2 alpha_k) * ||w - u_i||^2."""
    xi = weights(
        state["models"], alpha=alpha(k), sigma=sigma, kind=kind, self_weight=self_weight, online=online, stale=stale
    )
    pull = lam / alpha(k)
    return proximal(state, xi, clients, batches, online, optimizer=optimizer, pull=pull, start=start, rejected=rejected)
