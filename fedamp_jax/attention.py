"""Attention weights xi: which client's model reaches which client, and how strongly (Huang et al. 2021, Eq. 5, 7, 8).

A slope is `log A'(t)`, the logarithm of the attention-inducing function's derivative at the squared distance `t`.
Logarithms, because `exp(-t / sigma)` underflows for every pair of deep networks long before the normalised weights do.
All slopes are scaled so that `A'(0) = 1 / sigma`.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.core import Tracer

from fedamp_jax.checks import check_integer, check_number
from fedamp_jax.engine import server
from fedamp_jax.engine.hyperparameters import at_round, broadcast_to_clients
from fedamp_jax.placement.placement import ByParameters
from fedamp_jax.types import Array, Data, Info, PyTree, RoundError, Variables

Slope = Callable[[Array, Array], Array]

_TINY = float(np.finfo(np.float32).tiny)


def neg_exp(t: Array, sigma: Array) -> Array:
    """`log A'(t)` of `A(t) = 1 - exp(-t / sigma)`, the paper's choice. Shapes follow `t`."""
    return -t / sigma - jnp.log(sigma)


def scad(t: Array, sigma: Array, a: float = 3.7) -> Array:
    """`log A'(t)` of the smoothly clipped absolute deviation (Fan and Li 2001): flat up to sigma, then linear down to
    zero at `a sigma`.
    """
    return _log(jnp.clip((a - t / sigma) / (a - 1.0), 0.0, 1.0)) - jnp.log(sigma)


def mcp(t: Array, sigma: Array, gamma: float = 2.0) -> Array:
    """`log A'(t)` of the minimax concave penalty (Zhang 2010): falls linearly to zero at `gamma sigma`."""
    return _log(jnp.clip(1.0 - t / (gamma * sigma), 0.0, 1.0)) - jnp.log(sigma)


def _log(a: Array) -> Array:
    """The logarithm, -inf at 0 with a derivative of 0 there, where the logarithm's own would turn it into NaN."""
    return jnp.where(a > 0, jnp.log(jnp.where(a > 0, a, 1.0)), -jnp.inf)


class Perplexity(NamedTuple):
    """In place of sigma: every client's own scale, see `perplexity`. Attributes: k: the perplexity."""

    k: Any


def perplexity(k: Any) -> Perplexity:
    """A sigma for each client and round, such that the client gives weight to about `k` others.

    The perplexity of a row of weights is `exp(-sum_j p_j log p_j)`, with the weights of the others normalised to
    `sum_j p_j = 1`: n equal weights have perplexity n. The scale that gives it is found by bisection, as in stochastic
    neighbour embedding (Hinton and Roweis 2002), from the distances of the round itself, so that nothing has to be
    tuned to the scale of the distances, which differs by model and data and changes in training.

    With it the weights are not symmetric, and differ from the gradient of any one attention function: the convergence
    theorems of Huang et al. 2021 do not hold.

    Args:
        k: a number of at least 1, a schedule of the round, or a tracer. From the number of a client's others on, and
            as long as all are equally far away, they have equal weights; where several are equally near, these.

    Returns:
        What `fedamp` and `heurfedamp` take as `sigma`, together with a `self_weight`.

    Raises:
        TypeError, ValueError: if k is not a number of at least 1.

    >>> w = {"w": jnp.array([[0.0], [1.0], [2.0], [50.0]])}
    >>> all_edges = edges([True] * 4, [True] * 4)
    >>> xi = fedamp_weights(w, all_edges, sigma=perplexity(2), alpha=1.0, self_weight=0.0)
    >>> [round(float(v), 2) for v in xi[1]], [round(float(v), 2) for v in xi[3]]
    ([0.5, 0.0, 0.5, 0.0], [0.05, 0.2, 0.75, 0.0])
    """
    check_number("k of perplexity(k)", k, low=1, strict=False)
    return Perplexity(k)


class Auto(NamedTuple):
    """In place of sigma: each client finds how many others to learn from, see `auto`. Attributes: after: rounds.
    errors: standard errors."""

    after: int
    errors: float


def auto(after: int = 10, errors: float = 2.0) -> Auto:
    """A perplexity for each client, found by the client itself: a few others where groups disagree, all where not.

    For the first `after` rounds every client gets the mean of all models. Then it judges, once, what it could receive
    instead: mixtures of the others' models with perplexities 1, 2, 3, 4, 6, 8, 12, 16 and so on, and the mean of all
    others. It computes the losses of its own examples under each, without training, and takes the perplexity whose
    mean loss is surest to be below that of the mean of all others: the one with the least `d + errors * s`, where d is
    the mean over its examples of the difference of the losses, and s the standard error of d. If none is below 0, it
    goes on with the mean of all. A client with perplexity k has the self weight `1 / (k + 1)`.

    While all receive the same mixture, each model has learnt equally little from the client's own examples, so that
    these can tell how well the models suit it. Later they cannot: the models of those who collaborate with the client
    have been fitted to its examples, and seem better to it than they are. So a client that chose does not choose again.
    A client that is away chooses in the first round in which it is there, and so does one that joins. One with a single
    example, whose losses have no standard error, never does.

    Not in Huang et al. 2021. As with `perplexity`, their convergence theorems do not hold.

    Args:
        after: rounds before the choice, at least 1; enough that models have learnt something, and few of all rounds.
        errors: the number of standard errors, at least 0. The larger, the more clients collaborate.

    Returns:
        What `fedamp` and `heurfedamp` take as `sigma`, without a `self_weight`.

    Raises:
        TypeError, ValueError: if an argument is out of range or of the wrong kind.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> solver = fedamp_jax.Solver(optax.adam(1e-3))
    >>> algorithm = fedamp_jax.fedamp(task, solver, sigma=auto(), self_weight=None)
    """
    check_integer("after of auto(after)", after, low=1)
    check_number("errors of auto(errors)", errors, low=0, strict=False)
    return Auto(after, errors)


def scales(score: Callable[[Array], Array], t: Array, edges: Array, k: Array) -> Array:
    """The sigma of each row that gives its weights the perplexity `k`, `[M, 1]` float32.

    Args:
        score: `sigma [M, 1] -> [M, M]`, the scores whose softmax are the weights; flatter the larger sigma is.
        t: `[M, M]` float32, the distances; sigma is looked for from 1e-13 to 1e5 times a row's largest.
        edges: `[M, M]` bool.
        k: `[]` float32.
    """
    largest = jnp.max(jnp.where(edges, t, 0.0), axis=1, keepdims=True)
    largest = jnp.where((largest > 0) & jnp.isfinite(largest), largest, 1.0)

    def entropy(sigma: Array) -> Array:
        p = normalize(score(sigma), edges, jnp.float32(0))
        some = edges & (p > 0)
        off = jnp.where(some, p, 1.0)  # of which the logarithm is 0
        found = -jnp.sum(off * jnp.log(off), axis=1, keepdims=True)
        # A slope that ends at some distance leaves no weight to anybody where sigma is small: always too small.
        return jnp.where(jnp.any(some, axis=1, keepdims=True), found, -jnp.inf)

    def halve(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) / 2
        flatter = entropy(largest * jnp.exp(middle)) < jnp.log(k)
        return jnp.where(flatter, middle, low), jnp.where(flatter, high, middle)

    bounds = jnp.full_like(largest, -30.0), jnp.full_like(largest, 12.0)
    _, high = lax.fori_loop(0, 32, halve, bounds)  # float32 tells no more steps apart
    return largest * jnp.exp(high)


def edges(receives: Array, sends: Array) -> Array:
    """`[M, M]` bool: client j's model may reach client i, another client.

    Args:
        receives: `[M]` bool, the clients that receive models.
        sends: `[M]` bool, the clients whose models may reach others.
    """
    receives, sends = jnp.asarray(receives), jnp.asarray(sends)
    return receives[:, None] & sends[None] & ~jnp.eye(receives.shape[0], dtype=bool)


def with_self(off: Array, self_weight: Array) -> Array:
    """`[M, M]` weights from the off-diagonal ones and the diagonal `[M]`."""
    return jnp.where(jnp.eye(off.shape[0], dtype=bool), self_weight[:, None], off)


def own_weights(xi: Array) -> Array:
    """`[M]` float32, the diagonal of `xi [M, M]`; NaN for a client with a weight that is not finite."""
    return jnp.where(jnp.all(jnp.isfinite(xi), axis=1), jnp.diagonal(xi), jnp.nan)


class NegativeSelfWeightError(RoundError):
    """Eq. 5 with this alpha gives a client a negative weight on its own model, or its weights are not finite."""


def explain(info: Info, data: Data) -> NegativeSelfWeightError:
    """The error of a round with invalid weights: it names the client, its weight, and what to change."""
    own = np.asarray(own_weights(jnp.asarray(np.asarray(info.xi))))[: data.clients]
    worst = int(np.argmin(own))  # a NaN comes before all numbers
    if np.isnan(own[worst]):
        problem = (
            "weights are not finite: in this round sigma or alpha is 0 or too small for float32, or one of them or "
            "self_weight is not a finite number."
        )
    else:
        problem = (
            f"self weight xi_ii = 1 - sum_j xi_ij is {own[worst]:.4g}, so its cloud model would be no convex "
            f"combination. Either make alpha at least {1 - own[worst]:.4g} times smaller, or give self_weight "
            "(Appendix C: 1 / (N_i + 1)), which normalises the other weights to 1 - xi_ii."
        )
    return NegativeSelfWeightError(f"client {int(np.asarray(data.id)[worst])}'s {problem}")


class Memory(NamedTuple):
    """What attention weights remember from round to round.

    Attributes:
        init: `start -> tree` before the first round, from the initial models `Variables [M, ...]`.
        update: `(memory, begin, info) -> tree` after a round, from what the clients trained from, `Variables [M, ...]`.
    """

    init: Callable[[Variables], PyTree]
    update: Callable[[PyTree, Variables, Info], PyTree] = lambda memory, begin, info: memory


def normalize(score: Array, edges: Array, self_weight: Array) -> Array:
    """Row-wise softmax of the scores over the edges, times `1 - xi_ii`.

    Args:
        score: `[M, M]` float32; what is not an edge is not read.
        edges: `[M, M]` bool, see `edges`.
        self_weight: `[]` or `[M]` float32, `xi_ii`; 1 in a row without any edge.

    Returns:
        `[M, M]` float32, rows sum to 1.

    >>> xi = normalize(jnp.zeros((3, 3)), ~jnp.eye(3, dtype=bool), jnp.float32(0.5))
    >>> xi[0].tolist()
    [0.5, 0.25, 0.25]
    """
    score = jnp.where(edges, score, -jnp.inf)
    top = jnp.max(score, axis=1, keepdims=True)
    has_edges = jnp.isfinite(top)
    share = jnp.exp(score - jnp.where(has_edges, top, jnp.zeros_like(top)))
    total = jnp.sum(share, axis=1, keepdims=True)
    share = share / jnp.where(has_edges, total, jnp.ones_like(total))
    own = jnp.broadcast_to(jnp.asarray(self_weight, jnp.float32), (score.shape[0],))
    own = jnp.where(has_edges[:, 0], own, 1.0)
    return with_self(share * (1.0 - own)[:, None], own)


def fedamp_weights(
    models: PyTree | ByParameters,
    edges: Array,
    *,
    sigma: Array | Perplexity,
    alpha: Array,
    slope: Slope = neg_exp,
    self_weight: Array | None = None,
    geometry: server.Geometry = server.PARAMETERS,
) -> Array:
    """FedAMP's weights: `xi_ij = alpha A'(||w_i - w_j||^2)` (Eq. 7), `xi_ii = 1 - sum_j xi_ij` (Eq. 5).

    As printed, Eq. 5 leaves out the factor 2 that the gradient of `A(||w_i - w_j||^2)` carries, so it is a step of
    `alpha / 2` on Eq. 3.

    Args:
        models: the clients' models, leaves `[M, ...]`, or `data.placement.by_parameters` of them.
        edges: `[M, M]` bool, which models may reach which clients. A client without any edge gets weight 1 for its own
            model.
        sigma: `[]` float32, the distance scale (of squared distances), `[M, 1]` for one of each client's; or a
            `Perplexity`, with `self_weight`.
        alpha: `[]` float32, step size; without effect if `self_weight` is given, as it cancels.
        slope: `log A'`.
        self_weight: None for the equations as printed, where a large alpha makes `xi_ii` negative (the caller must
            check); or `[]` or `[M]` float32: `xi_ii` itself, the others' weights then being normalised to `1 - xi_ii`.
        geometry: the distances; those of all parameters by default.

    Returns:
        `[M, M]` float32, rows sum to 1.

    >>> w = {"w": jnp.array([[0.0], [0.1], [9.0]])}
    >>> xi = fedamp_weights(w, edges([True] * 3, [True] * 3), sigma=1.0, alpha=1.0, self_weight=0.5)
    >>> [round(float(v), 3) for v in xi[0]]
    [0.5, 0.5, 0.0]
    """
    t = geometry.sq_dists(models)
    if isinstance(sigma, Perplexity):
        if slope is neg_exp:
            # exp(-nearest / sigma) cancels. Where the others are nearly equally far away, t / sigma is in the
            # thousands, and rounds by 0.1 % of a weight.
            nearest = jnp.min(jnp.where(edges, t, jnp.inf), axis=1, keepdims=True)
            t = t - jnp.where(jnp.isfinite(nearest), nearest, 0.0)
        sigma = scales(lambda sigma: slope(t, sigma), t, edges, sigma.k)
    score = slope(t, sigma)
    if self_weight is not None:
        return normalize(score, edges, self_weight)
    off = jnp.where(edges, alpha * jnp.exp(score), 0.0)
    own = 1.0 - jnp.sum(off, axis=1)
    # With the largest alpha that is allowed it is 0, but for the rounding of M numbers.
    rounding = len(own) * jnp.finfo(own.dtype).eps
    return with_self(off, jnp.where((own < 0) & (own > -rounding), 0.0, own))


def heurfedamp_weights(
    models: PyTree | ByParameters,
    edges: Array,
    *,
    sigma: Array | Perplexity,
    self_weight: Array,
    geometry: server.Geometry = server.PARAMETERS,
) -> Array:
    """HeurFedAMP's weights: a softmax of `sigma cos(w_i, w_j)` over the others, times `1 - xi_ii` (Eq. 8).

    Args:
        models: as in `fedamp_weights`.
        edges: as in `fedamp_weights`.
        sigma: `[]` float32, sharpness of the softmax, `[M, 1]` for one of each client's; or a `Perplexity`.
        self_weight: `[]` or `[M]` float32, `xi_ii`.
        geometry: the cosines; those of all parameters by default.

    Returns:
        `[M, M]` float32, rows sum to 1, nothing negative.

    >>> w = {"w": jnp.array([[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]])}
    >>> xi = heurfedamp_weights(w, edges([True] * 3, [True] * 3), sigma=10.0, self_weight=0.5)
    >>> [round(float(v), 3) for v in xi[0]]
    [0.5, 0.5, 0.0]
    """
    cosines = geometry.cosines(models)
    if isinstance(sigma, Perplexity):
        sigma = 1.0 / scales(lambda scale: cosines / scale, 1.0 - cosines, edges, sigma.k)
    return normalize(sigma * cosines, edges, self_weight)


def check_hyperparameters(sigma: Any, self_weight: Any) -> None:
    """Validate what FedAMP and HeurFedAMP share."""
    if isinstance(sigma, Auto):
        auto(*sigma)
        if self_weight is not None:
            raise ValueError("sigma=auto() finds the self weights, too, 1 / (k + 1) for perplexity k: leave them out")
        return
    if isinstance(sigma, Perplexity):
        if self_weight is None:
            raise ValueError("sigma=perplexity(k) needs a self_weight: it is a property of normalised weights")
        perplexity(sigma.k)
        sigma = 1.0
    check_number("sigma", sigma, low=_TINY, strict=False, low_is="float32's smallest normal number",
                 allow_array=True)  # fmt: skip
    if self_weight is not None:
        check_number("self_weight", self_weight, low=0, high=1, strict=False, allow_array=True)


def sigma_at_round(sigma: Any, k: Array, data: Data) -> Any:
    """Sigma in round `k [] int32`, `[]` or one of each row `[M, 1]`; or the perplexity that takes its place."""
    if isinstance(sigma, Perplexity):
        return Perplexity(at_round(sigma.k, k))
    value = at_round(sigma, k)
    return value if value.ndim == 0 else broadcast_to_clients("sigma", value, data)[:, None]


def may_fail(*swept: Any) -> bool:
    """Whether weights from these numbers may be invalid in some round: constants were validated already."""
    return any(callable(value) or isinstance(value, Tracer) for value in swept)
