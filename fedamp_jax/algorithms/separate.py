"""Separate: every client trains alone, the baseline of every collaboration."""

from typing import NamedTuple

import jax.numpy as jnp

from fedamp_jax.engine import Local, Solver, check_parts, for_each_client, init_clients, solve
from fedamp_jax.types import Algorithm, Array, Task


class SeparateState(NamedTuple):
    """Attributes: clients: `Local [M]`, the personal models. round: `[]` int32."""

    clients: Local
    round: Array


def separate(task: Task, solver: Solver, *, common_init: bool = True) -> Algorithm:
    """Local training without any exchange (the baseline "Separate" of Huang et al. 2021, Section 7).

    Args:
        task: the model.
        solver: local training.
        common_init: one initial model for all clients, or one each.

    Returns:
        The `Algorithm`.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.separate(task, fedamp_jax.Solver(optax.adam(1e-3)))
    """
    check_parts(task, solver)

    def init(key, data):
        return SeparateState(init_clients(task, solver, data, key, common=common_init), jnp.zeros((), jnp.int32))

    def round(key, state, data):
        def local(key, client, epochs, mine):
            return solve(task, solver, client, mine.variables, key, epochs=epochs, k=state.round,
                         optimizer_state=mine.optimizer)  # fmt: skip

        clients, info = for_each_client(solver, data, local, state.clients, key=key)
        return SeparateState(clients, state.round + 1), info

    def personalize(key, state, data):
        return state.clients.variables

    return Algorithm(init, round, personalize)
