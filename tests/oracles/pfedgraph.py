"""pFedGraph (Ye et al. 2023): a collaboration graph from the models' cosines, and a local cosine penalty.

state = {"models": [w_i], "initial": g}; a round also returns "xi" [M, M] and "cloud" [u_i], which it never reads.
g, the parameters that the first round started from, never changes. Row i of xi solves

    min over x in the simplex of  <x, d_i> + lam ||x - p||^2,    d_ij = -cos(w_i - g, w_j - g),  p_j = n_j / sum n,

over the online clients, i included. A difference of zero has cosine 0 with everything, itself included.
The authors' code (`released`) takes a cosine above 0.9 as 1, and adds the similarity to the local loss, which pushes
models apart; its lam is called alpha (0.8), its mu is called lam (0.01). It has no penalty in the first round.
"""

import numpy as np

from .model import accepted, sizes, train
from .trees import add, combine, dot, flatten, scale, sub, zeros


def projection(v):
    """Euclidean projection of v onto {x >= 0, sum x = 1}: x = max(v - t, 0), with t from the sum, by bisection."""
    v = np.asarray(v, np.float64)
    low, high = v.max() - 1, v.max()  # the sum is >= 1 at `low` and 0 at `high`
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if np.maximum(v - middle, 0).sum() > 1 else (low, middle)
    support = v > high
    return np.where(support, v - (v[support].sum() - 1) / support.sum(), 0.0)


def cosine(a, b):
    """Cosine of two vectors; 0 where one of them is zero."""
    norms = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / norms) if norms > 0 else 0.0


def weights(models, g, fractions, lam, *, released=False, online=None):
    """Collaboration graph; `fractions` in any scale, as they are divided by their sum over the online clients.

    The identity's row for an offline client.
    """
    m = len(models)
    present = [i for i in range(m) if online is None or online[i]]
    moved = [flatten(sub(model, g)) for model in models]
    p = np.array([fractions[j] for j in present], np.float64)
    xi = np.eye(m)
    for i in present:
        d = np.array([-cosine(moved[i], moved[j]) for j in present])
        if released:
            d[d < -0.9] = -1.0
        xi[i] = 0.0
        xi[i, present] = projection(p / p.sum() - d / (2 * lam))
    return xi


def cosine_gradient(w, u):
    """Gradient of cos(w, u) with respect to w: u / (|w| |u|) - cos(w, u) w / |w|^2; zero where one of them is zero."""
    ww, uu, wu = dot(w, w), dot(u, u), dot(w, u)
    if ww * uu == 0:
        return zeros(w)
    norms = np.sqrt(ww * uu)
    return sub(scale(1 / norms, u), scale(wu / norms / ww, w))


def penalty_gradient(w, u, mu, *, released=False):
    """Gradient of -mu cos(w, u); of +mu cos(w, u) in the authors' code."""
    return scale(mu if released else -mu, cosine_gradient(w, u))


def neighbours_gradient(w, row, models, mu, *, released=False):
    """Gradient of -mu sum_j xi_ij cos(w, w_j), the penalty before u_i takes the neighbours' place."""
    total = zeros(w)
    for weight, model in zip(row, models, strict=True):
        if weight != 0:
            total = add(total, scale(weight, penalty_gradient(w, model, mu, released=released)))
    return total


def round(
    state,
    clients,
    batches,
    online,
    k,
    *,
    optimizer,
    lam,
    mu,
    released=False,
    penalty="cloud",
    penalize_first=False,
    start="cloud",
    rejected=None,
):
    """Row i of the graph, u_i = sum_j xi_ij w_j, then steps from u_i (or from w_i, start="personal") on F_i - mu cos.

    penalty: "cloud", cos(w, u_i), as the authors' pfedgraph_approx.py has it, or "neighbours", sum_j xi_ij cos(w, w_j),
    as their pfedgraph_cosine.py has it.
    A rejected client has received u_i, and the others its model from before the round.
    """
    models, g = state["models"], state["initial"]
    xi = weights(models, g, sizes(clients), lam, released=released, online=online)
    u = [combine(row, models) for row in xi]
    first = {"cloud": u, "personal": models}[start]
    new = list(models)
    for i, client in enumerate(clients):
        if not accepted(online, rejected)[i]:
            continue

        def extra(w, i=i):
            if k == 0 and not penalize_first:
                return zeros(w)
            if penalty == "cloud":
                return penalty_gradient(w, u[i], mu, released=released)
            return neighbours_gradient(w, xi[i], models, mu, released=released)

        new[i] = train(first[i], client, batches[i], optimizer, extra=extra)
    return {"models": new, "initial": g, "xi": xi, "cloud": u}
