"""FedRecon (Singhal et al. 2021, Algorithm 1): heads are reconstructed every round and never stored."""

from typing import Any

import jax
import jax.numpy as jnp

from fedamp_jax import checks
from fedamp_jax.algorithms.fine_tuned import tune
from fedamp_jax.algorithms.partial import Phase, mask_of, shared_body
from fedamp_jax.heads import head_mask
from fedamp_jax.local import Solver
from fedamp_jax.types import Algorithm, Array, Data, Task


def _rows(key: Array, client: Data) -> Array:
    """One client's rows in random order `[N]`, real ones first; both sets of a round are cut from the same order."""
    n = client.y.shape[0]
    draw = jax.random.uniform(jax.random.fold_in(key, 1 << 20), (n,), jnp.float32)
    return jnp.argsort(jnp.where(jnp.arange(n) < client.size, draw, jnp.inf))


def fedrecon(
    task: Task,
    solver: Solver,
    *,
    head_solver: Solver | None = None,
    support: float = 0.5,
    server_step: Any = 1.0,
    stats: str = "local",
) -> Algorithm:
    """FedRecon: reconstruct the head on a support set, then update the body on the rest, the query set.

    Args:
        task: the model; `task.head` says what the head is. Every reconstruction starts from the server's initial head.
        solver: the body's training.
        head_solver: the reconstruction's optimizer, epochs and batch size, if they differ.
        support: share of a client's examples, drawn anew each round, that the head is reconstructed on, in (0, 1).
            Both sets get one example at least; a client with a single one uses it for both.
        server_step: the server adds `server_step` times the weighted mean of the bodies' changes.
        stats: BatchNorm statistics stay each client's own (`"local"`) or are averaged (`"mix"`).

    Returns:
        The `Algorithm`; `personalize` reconstructs heads on all of each client's data.

    Raises:
        ValueError: `support` or `server_step` out of range, and as `fedper`.

    Changes are weighted by the number of all examples, of which the query set is a fixed share.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedrecon(task, fedamp_jax.Solver(optax.adam(1e-3)))
    """
    checks.number("server_step", server_step, low=0)
    checks.number("support", support, low=0, high=1)
    if support == 1:
        raise ValueError("support must be below 1: the rest is the query set that the body learns from")

    def part(first: bool):
        def cut(key: Array, client: Data) -> Data:
            n = jnp.clip(
                jnp.round(support * client.size.astype(jnp.float32)).astype(jnp.int32),
                1,
                jnp.maximum(client.size - 1, 1),
            )
            rows, rest = _rows(key, client), jnp.maximum(client.size - n, 1)
            # The query set follows the support set; a single example is both.
            rows = rows if first else jnp.roll(rows, -jnp.minimum(n, client.size - 1))
            return client._replace(x=client.x[rows], y=client.y[rows], size=n if first else rest)

        return cut

    phases = [Phase("head", head_solver, part(True)), Phase("body", None, part(False))]
    base = shared_body(task, solver, phases, stats=stats, keep_heads=False, server_step=server_step)

    def personalize(key, state, data):
        models = base.personalize(key, state, data)
        trainable = mask_of("head", head_mask(task, models.params))
        return tune(task, head_solver or solver, key, data, models, state, trainable)

    return base._replace(personalize=personalize)
