"""How many others each client learns from, found by the clients themselves: `attention.auto` in place of a sigma."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedamp_jax.attention import Auto, Memory, Perplexity, normalize
from fedamp_jax.engine import Solver, loss_difference, server
from fedamp_jax.placement.placement import ByParameters
from fedamp_jax.types import Array, Data, Task, Variables

Weights = Callable[[ByParameters, Array, Perplexity, Array], Array]
"""`(models, edges [M, M], perplexity, self_weight [M]) -> xi [M, M]`: of `attention`, such as `fedamp_weights`."""


def candidates(others: int) -> tuple[int, ...]:
    """The perplexities that a client with so many others compares with the mean of all: powers of 2, and 3 times them.

    >>> candidates(19)
    (1, 2, 3, 4, 6, 8, 12, 16)
    """
    powers = [2**n for n in range(others.bit_length() + 1)]
    return tuple(sorted(k for k in {*powers, *(3 * p for p in powers)} if k < others))


def found(
    task: Task, solver: Solver, auto: Auto, weights: Weights
) -> tuple[Callable[..., tuple[Array, Array]], Memory]:
    """Arguments of `attentive`: weights with the perplexities that clients chose, and what remembers these.

    Args:
        task: the model.
        solver: for the batch size.
        auto: when clients choose, and how sure they are to be.
        weights: those of given perplexities.

    Returns:
        `(weights, memory)`; the memory is `[M]` float32, each client's perplexity: 0 before it has chosen, and `M` for
        the mean of all others, which it receives in both cases.
    """

    # Models that are mixed come without statistics; a loss in training does not read them.
    stats = jax.eval_shape(task.init, jax.random.key(0)).stats
    stats = jax.jit(task.init)(jax.random.key(0)).stats if jax.tree.leaves(stats) else stats

    def row(models: ByParameters, edges: Array, k: Array, own: Array) -> Array:
        others = jnp.sum(edges, axis=1, dtype=jnp.float32)
        some = weights(models, edges, Perplexity(jnp.maximum(k, 1.0)[:, None]), own)
        equal = normalize(jnp.zeros(edges.shape, jnp.float32), edges, own)
        return jnp.where((k < others)[:, None], some, equal)

    def choice(models: ByParameters, edges: Array, data: Data, work: Array) -> Array:
        """`[M]` float32, the perplexity that each client with `work` chooses; 0 if its losses tell nothing."""

        def bound(client, _, received, mean):
            mine, theirs = Variables(received, stats), Variables(mean, stats)
            difference, error = loss_difference(task, solver, client, mine, theirs)
            return difference + auto.errors * error

        m, place = len(edges), data.placement
        zero = jnp.zeros((m,), jnp.float32)
        mean = server.mix(row(models, edges, zero + m, zero), models)
        chosen, least, tells = zero + m, zero, zero < 0
        for k in reversed(candidates(m - 1)):  # of two that are equally good, the larger
            received = server.mix(row(models, edges, zero + k, zero), models)
            surest = place.for_each_client(bound, data, zero, received, mean, work=work)
            better = surest < least  # what is not finite is not
            chosen, least = jnp.where(better, jnp.float32(k), chosen), jnp.where(better, surest, least)
            tells |= jnp.isfinite(surest)
        return jnp.where(tells, chosen, 0.0)

    def of_round(models, edges, k, data, old):
        asks = data.online & (old == 0) & (k >= auto.after)
        work = jnp.where(asks, data.size, 0)
        chosen = data.placement.when(
            jnp.any(asks), lambda: jnp.where(asks, choice(models, edges, data, work), old), old
        )
        k = jnp.where(chosen == 0, jnp.float32(len(edges)), chosen)
        others = jnp.sum(edges, axis=1, dtype=jnp.float32)
        return row(models, edges, k, 1.0 / (jnp.minimum(k, others) + 1.0)), chosen

    return of_round, Memory(lambda start: jnp.zeros((jax.tree.leaves(start.params)[0].shape[0],), jnp.float32))
