"""Message weights xi of FedAMP (Huang et al. 2021, Eq. 7) and HeurFedAMP (Eq. 8), and what they make of models (Eq. 5).

A is one of three attention-inducing functions of t = ||w_i - w_j||^2, scaled so that A'(0) = 1 / sigma.
They are used literally: exp(-t / sigma) underflows to 0 beyond t / sigma = 745.
"""

import numpy as np
from scipy.optimize import brentq

from .trees import combine, flatten

SCAD_A, MCP_GAMMA = 3.7, 2.0


def slope(t, sigma, kind="neg_exp"):
    """A'(t) at t = ||w_i - w_j||^2."""
    if kind == "neg_exp":
        return np.exp(-t / sigma) / sigma
    if kind == "scad":  # Fan & Li (2001): p_lambda(t) / sigma^2 at lambda = sigma
        if t <= sigma:
            return 1 / sigma
        return (SCAD_A * sigma - t) / ((SCAD_A - 1) * sigma**2) if t <= SCAD_A * sigma else 0.0
    if kind == "mcp":  # Zhang (2010): p_lambda(t) / sigma^2 at lambda = sigma
        return max(0.0, 1 - t / (MCP_GAMMA * sigma)) / sigma
    raise ValueError(kind)


def attention(t, sigma, kind="neg_exp"):
    """A(t), the antiderivative of `slope` with A(0) = 0."""
    if kind == "neg_exp":
        return 1 - np.exp(-t / sigma)
    if kind == "scad":
        s = min(t, SCAD_A * sigma)
        if s <= sigma:
            return s / sigma
        return 1 + (SCAD_A * sigma * (s - sigma) - (s**2 - sigma**2) / 2) / ((SCAD_A - 1) * sigma**2)
    if kind == "mcp":
        s = min(t, MCP_GAMMA * sigma)
        return s / sigma - s**2 / (2 * MCP_GAMMA * sigma**2)
    raise ValueError(kind)


def _fill(scores, self_weight, online, stale):
    """Rows of xi from scores[i, j]: an online i receives from every other j that is online; from all ("include")."""
    m = len(scores)
    receives = [True] * m if online is None else list(online)
    sends = [True] * m if stale == "include" else receives
    xi = np.eye(m)
    for i in range(m):
        others = [j for j in range(m) if j != i and sends[j]]
        total = sum(scores[i, j] for j in others)
        if not receives[i] or (self_weight is not None and total == 0):
            continue  # absent, or nobody to listen to: u_i = w_i
        own = 1 - total if self_weight is None else np.broadcast_to(self_weight, m)[i]
        for j in others:
            xi[i, j] = scores[i, j] if self_weight is None else scores[i, j] / total * (1 - own)
        xi[i, i] = own
    return xi


def weights(models, *, alpha, sigma, kind="neg_exp", self_weight=None, online=None, stale="exclude"):
    """Eq. 7: xi_ij = alpha A'(||w_i - w_j||^2), xi_ii = 1 - sum; or off-diagonals normalised to 1 - self_weight."""
    w = [flatten(model) for model in models]
    scores = np.array([[alpha * slope(np.sum((a - b) ** 2), sigma, kind) for b in w] for a in w])
    return _fill(scores, self_weight, online, stale)


def heuristic_weights(models, *, sigma, self_weight, online=None, stale="exclude"):
    """Eq. 8: xi_ij = (1 - xi_ii) exp(sigma cos(w_i, w_j)) / sum_{h != i} exp(sigma cos(w_i, w_h))."""
    w = [flatten(model) for model in models]
    cosine = np.array([[a @ b / np.sqrt((a @ a) * (b @ b)) for b in w] for a in w])
    return _fill(np.exp(sigma * (cosine - 1)), self_weight, online, stale)  # e^-sigma cancels in the ratio


def perplexity_weights(t, k, self_weight):
    """Rows p_j ~ exp(-t_j / sigma_i) whose perplexity exp(-sum p log p) is k (Hinton and Roweis 2002), in float64.

    t is a matrix of distances; sigma_i is found with SciPy's root finder.
    """
    m = len(t)
    xi = np.diag(np.broadcast_to(self_weight, m).astype(np.float64))
    for i in range(m):
        others = np.delete(np.arange(m), i)
        away = t[i, others] - t[i, others].min()

        def row(log_sigma, away=away):
            p = np.exp(-away / np.exp(log_sigma))
            return p / p.sum()

        def excess(log_sigma, row=row):
            p = row(log_sigma)
            p = p[p > 0]
            return -np.sum(p * np.log(p)) - np.log(k)

        scale = np.log(away.max())
        xi[i, others] = row(brentq(excess, scale - 40, scale + 12, xtol=1e-12)) * (1 - xi[i, i])
    return xi


def cloud(xi, models):
    """Eq. 5: u_i = sum_j xi_ij w_j."""
    return [combine(row, models) for row in xi]
