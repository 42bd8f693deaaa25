"""FedAMP and HeurFedAMP (Huang et al. 2021, Algorithm 1, Eq. 5-8).

state = {"models": [params]}; a round also returns "xi" [M, M] and "cloud" [params], which it never reads.
Under stale="include" an offline client's row of xi is computed like any other, but the client does not train.
"""

from .attention import cloud, heuristic_weights, weights
from .model import train


def decaying(start=1e4, factor=0.1, every=30):
    """alpha_k of Appendix C: start * factor^floor(k / every)."""
    return lambda k: start * factor ** (k // every)


def proximal(state, xi, clients, batches, online, *, optimizer, pull, start):
    """Eq. 6 approximately: steps on F_i(w) + pull / 2 * ||w - u_i||^2 from u_i ("cloud") or from w_i ("personal")."""
    u = cloud(xi, state["models"])
    first = {"cloud": u, "personal": state["models"]}[start]
    models = [
        train(first[i], client, batches[i], optimizer, pull=pull, centre=u[i]) if online[i] else state["models"][i]
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
):
    """FedAMP. `alpha` is a function of the 0-based round; the penalty is lam / (2 alpha_k) * ||w - u_i||^2."""
    xi = weights(
        state["models"], alpha=alpha(k), sigma=sigma, kind=kind, self_weight=self_weight, online=online, stale=stale
    )
    return proximal(state, xi, clients, batches, online, optimizer=optimizer, pull=lam / alpha(k), start=start)


def heuristic_round(
    state, clients, batches, online, k, *, optimizer, alpha, lam, sigma, self_weight, start="cloud", stale="exclude"
):
    """HeurFedAMP: Eq. 8 instead of Eq. 7, everything else the same; alpha_k remains in the penalty."""
    xi = heuristic_weights(state["models"], sigma=sigma, self_weight=self_weight, online=online, stale=stale)
    return proximal(state, xi, clients, batches, online, optimizer=optimizer, pull=lam / alpha(k), start=start)
