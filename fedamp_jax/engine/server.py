"""The server's side of every method: what is computed across clients from stacked trees, leaves `[M, ...]`.

Nothing here copies the stack: each leaf is contracted where it lies, so that `W [M, D]` never exists a second time as
one flat matrix. What sums over clients takes models that are laid out by parameters, `data.placement.by_parameters`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedamp_jax.checks import check_choice
from fedamp_jax.kernels.distances import pairwise
from fedamp_jax.placement.placement import ByParameters, Placement
from fedamp_jax.trees import broadcast, broadcast_like, where
from fedamp_jax.types import Array, Data, Info, PyTree


def _laid_out(models: PyTree | ByParameters) -> ByParameters:
    return models if isinstance(models, ByParameters) else Placement().by_parameters(models)


def mix(weights: Array, models: PyTree | ByParameters) -> PyTree:
    """`u_i = sum_j weights[i, j] w_j`: all cloud models in one contraction (Huang et al. 2021, Eq. 5).

    Args:
        weights: `[M, M]` float32, rows receive.
        models: leaves `[M, ...]` float32, or `data.placement.by_parameters` of them.

    Returns:
        A tree of the same shapes. Always in full float32, whatever matmul precision training uses: an error here moves
        every client's model.

    >>> mix(jnp.array([[0.5, 0.5], [0.0, 1.0]]), {"w": jnp.array([[2.0], [4.0]])})["w"].tolist()
    [[3.0], [4.0]]
    """
    return _laid_out(models).map(_mixed, weights)


def _mixed(flat: Array, weights: Array) -> Array:
    return jnp.einsum("ij,jd->id", weights, flat, precision="highest")


def sq_dists(models: PyTree | ByParameters, scale: Array | None = None) -> Array:
    """Squared Euclidean distances between all clients' models, `d2[i, j] = ||w_i - w_j||^2`.

    The usual `|a|^2 + |b|^2 - 2ab` in float32 loses clients that nearly coincide to cancellation, and that is just
    where `exp(-d2 / sigma)` decides who collaborates. `fedamp_jax.kernels.distances` says what is done instead.

    Args:
        models: leaves `[M, ...]`, or `data.placement.by_parameters` of them.
        scale: `[M]` float32 factor of each client's model, or None for 1.

    Returns:
        `[M, M]` float32, symmetric, never negative, diagonal exactly 0.

    >>> sq_dists({"w": jnp.array([[0.0, 0.0], [3.0, 4.0]])}).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    models = _laid_out(models)
    m = jax.tree.leaves(models.tree)[0].shape[0]
    scale = jnp.ones((m,), jnp.float32) if scale is None else scale
    return models.sum(pairwise, scale)


def sq_norms(models: PyTree | ByParameters) -> Array:
    """Squared Euclidean norms of all clients' models, `[M]` float32."""
    leaves = jax.tree.leaves(_laid_out(models).tree)
    return sum(
        (jnp.sum(jnp.square(a.reshape(a.shape[0], -1).astype(jnp.float32)), axis=1) for a in leaves),
        jnp.zeros((leaves[0].shape[0],), jnp.float32),
    )


def cosines(models: PyTree | ByParameters) -> Array:
    """Cosine similarity between all clients' models, `[M, M]` float32, diagonal 1 (Eq. 8).

    Computed as `1 - ||a/|a| - b/|b|||^2 / 2`: models of one federation have cosines within 0.99..1, and sigma up to 100
    multiplies what is left, so the difference from 1 must be exact, not the cosine. A model without a direction, zero
    everywhere or too large for its squared norm, has cosine 1/2 with one that has, and 1 with another.

    Args:
        models: leaves `[M, ...]`, or `data.placement.by_parameters` of them.

    >>> round(float(cosines({"w": jnp.array([[1.0, 0.0], [1.0, 1.0]])})[0, 1]), 4)
    0.7071
    """
    models = _laid_out(models)
    norm2 = sq_norms(models)
    inverse = jnp.where(norm2 > 0, jax.lax.rsqrt(jnp.where(norm2 > 0, norm2, jnp.ones_like(norm2))), 0.0)
    return 1.0 - sq_dists(models, inverse) / 2.0


class Geometry(NamedTuple):
    """What near means between models.

    Attributes:
        sq_dists: `models -> [M, M]` float32, squared distances; models as in `sq_dists`.
        cosines: `models -> [M, M]` float32, cosine similarities.
    """

    sq_dists: Callable[[PyTree | ByParameters], Array]
    cosines: Callable[[PyTree | ByParameters], Array]


PARAMETERS = Geometry(sq_dists, cosines)
"""The geometry of all parameters as one vector."""


def sample_weights(data: Data, info: Info) -> Array:
    """`[M]` float32: each client's number of examples if its update counts in this round, 0 otherwise."""
    return jnp.where(data.online & ~info.rejected, data.size, 0).astype(jnp.float32)


def weighted_mean(weights: Array, tree: PyTree, otherwise: PyTree) -> PyTree:
    """`sum_i weights[i] w_i / sum_i weights[i]`: leaves `[M, ...]` become `[...]`.

    Args:
        weights: `[M]` float32, at least 0, such as `sample_weights(data, info)`.
        tree: leaves `[M, ...]`.
        otherwise: a tree with leaves `[...]`, the result if all weights are zero: no client came, nothing changes.

    >>> weighted_mean(jnp.array([1.0, 3.0]), jnp.array([0.0, 4.0]), jnp.array(9.0)).tolist()
    3.0
    """
    total = jnp.sum(weights)
    share = weights / jnp.where(total > 0, total, jnp.ones_like(total))
    mean = jax.tree.map(lambda a: jnp.einsum("i,i...->...", share, a, precision="highest"), tree)
    return where(total > 0, mean, otherwise)


def statistics_policy(stats: str) -> Callable[[Array, PyTree, PyTree, Array], tuple[PyTree, Array]]:
    """What becomes of the running statistics of a global model, or of a global part of the clients' models.

    A global model is useless with initial statistics, so a client that has not trained has the mean of those that
    trained in the last round, weighted as the parameters are, whatever the policy.

    Args:
        stats: `"mix"`, all clients get this mean; or `"local"`, a client that has trained keeps its own.

    Returns:
        `(weights [M], new [M, ...], old [M, ...], trained [M] bool) -> (statistics [M, ...], trained)`. `new` are those
        after the round's training and `old` those before; `trained` says who has statistics of its own, no client
        before the first round, and becomes True where the weight is not zero. If all weights are zero, nothing changes.

    Raises:
        ValueError: any other `stats`.

    >>> policy, untrained = statistics_policy("local"), jnp.zeros(3, bool)
    >>> mean, trained = policy(jnp.array([1.0, 3.0, 0.0]), jnp.array([0.0, 4.0, 9.0]), jnp.full(3, 9.0), untrained)
    >>> mean.tolist(), trained.tolist()
    ([0.0, 4.0, 3.0], [True, True, False])
    """
    check_choice("stats", stats, ("local", "mix"))

    def policy(weights: Array, new: PyTree, old: PyTree, trained: Array) -> tuple[PyTree, Array]:
        came = weights > 0
        mean = broadcast(weighted_mean(weights, new, jax.tree.map(lambda a: a[0], old)), len(weights))
        trained = trained | came
        after = mean if stats == "mix" else where(trained, new, mean)
        return where(jnp.any(came), after, old), trained

    return policy


def statistics_of_newcomers(old: PyTree, trained: Array, fresh: PyTree) -> PyTree:
    """Running statistics of clients that come later: what a client has that has not trained, or else the mean of all.

    Args:
        old: `[M, ...]`, as of `statistics_policy`.
        trained: `[M]` bool, likewise.
        fresh: initial statistics, for all clients with the newcomers.

    Returns:
        Like `fresh`.
    """
    waiting = jnp.where(jnp.all(trained), True, ~trained).astype(jnp.float32)
    return broadcast_like(weighted_mean(waiting, old, jax.tree.map(lambda a: a[0], old)), fresh)
