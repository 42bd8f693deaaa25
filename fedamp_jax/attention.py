"""Who listens to whom: the attention weights xi of FedAMP and HeurFedAMP (Huang et al. 2021, Eq. 5, 7, 8).

A slope is `log A'(t)`, the logarithm of the attention-inducing function's derivative at the squared distance `t`.
Logarithms, because `exp(-t / sigma)` underflows for every pair of deep networks long before the normalised weights do.
All slopes are scaled so that `A'(0) = 1 / sigma`.
"""

from collections.abc import Callable

import jax.numpy as jnp

from fedamp_jax import layout, stacked
from fedamp_jax.types import Array, PyTree

Slope = Callable[[Array, Array], Array]


def neg_exp(t: Array, sigma: Array) -> Array:
    """`log A'(t)` of `A(t) = 1 - exp(-t / sigma)`, the paper's choice. Shapes follow `t`."""
    return -t / sigma - jnp.log(sigma)


def scad(t: Array, sigma: Array, a: float = 3.7) -> Array:
    """`log A'(t)` of the smoothly clipped absolute deviation (Fan and Li 2001): flat to sigma, then linear to `a
    sigma`.
    """
    return _log(jnp.clip((a - t / sigma) / (a - 1.0), 0.0, 1.0)) - jnp.log(sigma)


def mcp(t: Array, sigma: Array, gamma: float = 2.0) -> Array:
    """`log A'(t)` of the minimax concave penalty (Zhang 2010): falls linearly to zero at `gamma sigma`."""
    return _log(jnp.clip(1.0 - t / (gamma * sigma), 0.0, 1.0)) - jnp.log(sigma)


def _log(a: Array) -> Array:
    """The logarithm, -inf at 0 with a derivative of 0 there, where the logarithm's own would make NaN of it."""
    return jnp.where(a > 0, jnp.log(jnp.where(a > 0, a, 1.0)), -jnp.inf)


def _with_self(off: Array, self_weight: Array) -> Array:
    """`[M, M]` weights from off-diagonal ones and the diagonal `[M]`."""
    return jnp.where(jnp.eye(off.shape[0], dtype=bool), self_weight[:, None], off)


def given_to_self(xi: Array) -> Array:
    """`[M]` float32, the diagonal of `xi [M, M]`; NaN for a client with a weight that is not finite."""
    return jnp.where(jnp.all(jnp.isfinite(xi), axis=1), jnp.diagonal(xi), jnp.nan)


def _edges(hears: Array, sends: Array) -> Array:
    """`[M, M]` bool: j's model may reach i. A client reaches itself only through `xi_ii`."""
    hears, sends = layout.everywhere((jnp.asarray(hears), jnp.asarray(sends)))
    return hears[:, None] & sends[None] & ~jnp.eye(hears.shape[0], dtype=bool)


def _normalised(score: Array, edges: Array, self_weight: Array) -> Array:
    """Row-wise softmax of `score [M, M]` over the edges, times `1 - xi_ii`; a row with nobody to hear has `xi_ii =
    1`.
    """
    score = jnp.where(edges, score, -jnp.inf)
    top = jnp.max(score, axis=1, keepdims=True)
    anyone = jnp.isfinite(top)
    share = jnp.exp(score - jnp.where(anyone, top, jnp.zeros_like(top)))
    total = jnp.sum(share, axis=1, keepdims=True)
    share = share / jnp.where(anyone, total, jnp.ones_like(total))
    xi_ii = jnp.where(
        anyone[:, 0], layout.per_client("self_weight", jnp.asarray(self_weight, jnp.float32), score.shape[0]), 1.0
    )
    return _with_self(share * (1.0 - xi_ii)[:, None], xi_ii)


def fedamp_weights(
    params: PyTree,
    hears: Array,
    sends: Array,
    *,
    sigma: Array,
    alpha: Array,
    slope: Slope = neg_exp,
    self_weight: Array | None = None,
) -> Array:
    """FedAMP's weights: `xi_ij = alpha A'(||w_i - w_j||^2)` (Eq. 7), `xi_ii = 1 - sum_j xi_ij` (Eq. 5).

    As printed, Eq. 5 leaves out the factor 2 that the gradient of `A(||w_i - w_j||^2)` carries, so it is a step of
    `alpha / 2` on Eq. 3.

    Args:
        params: leaves `[M, ...]`, the clients' models.
        hears: `[M]` bool, who receives a cloud model; the rows of the others are the identity's.
        sends: `[M]` bool, whose model may reach others.
        sigma: `[]` float32, the distance scale (of squared distances).
        alpha: `[]` float32, step size; without effect if `self_weight` is given, as it cancels.
        slope: `log A'`.
        self_weight: None for the equations as printed, where a large alpha makes `xi_ii` negative (the caller must
            look); or `[]` or `[M]` float32: `xi_ii` itself, the others' weights then being normalised to `1 - xi_ii`.

    Returns:
        `[M, M]` float32, rows sum to 1.

    >>> w = {"w": jnp.array([[0.0], [0.1], [9.0]])}
    >>> xi = fedamp_weights(w, [True] * 3, [True] * 3, sigma=1.0, alpha=1.0, self_weight=0.5)
    >>> [round(float(v), 3) for v in xi[0]]
    [0.5, 0.5, 0.0]
    """
    score = slope(stacked.sq_dists(params), sigma)
    edges = _edges(hears, sends)
    if self_weight is not None:
        return _normalised(score, edges, self_weight)
    off = jnp.where(edges, alpha * jnp.exp(score), 0.0)
    own = 1.0 - jnp.sum(off, axis=1)
    # With the largest alpha that is allowed it is 0, but for the rounding of M numbers.
    rounding = len(own) * jnp.finfo(own.dtype).eps
    return _with_self(off, jnp.where((own < 0) & (own > -rounding), 0.0, own))


def heurfedamp_weights(params: PyTree, hears: Array, sends: Array, *, sigma: Array, self_weight: Array) -> Array:
    """HeurFedAMP's weights: a softmax of `sigma cos(w_i, w_j)` over the others, times `1 - xi_ii` (Eq. 8).

    Args:
        params: leaves `[M, ...]`.
        hears: `[M]` bool, as in `fedamp_weights`.
        sends: `[M]` bool, as in `fedamp_weights`.
        sigma: `[]` float32, sharpness of the softmax.
        self_weight: `[]` or `[M]` float32, `xi_ii`.

    Returns:
        `[M, M]` float32, rows sum to 1, nothing negative.

    >>> w = {"w": jnp.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])}
    >>> xi = heurfedamp_weights(w, [True] * 3, [True] * 3, sigma=10.0, self_weight=0.5)
    >>> [round(float(v), 3) for v in xi[0]]
    [0.5, 0.5, 0.0]
    """
    return _normalised(sigma * stacked.cosines(params), _edges(hears, sends), self_weight)
