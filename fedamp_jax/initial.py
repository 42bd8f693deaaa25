"""Models and optimizer states before training."""

import jax
import jax.numpy as jnp

from fedamp_jax.solver import Local, Solver
from fedamp_jax.trees import broadcast, check_float32, partition
from fedamp_jax.types import Array, Data, PyTree, Task, Variables


def init_model(task: Task, key: Array) -> Variables:
    """`task.init(key)`, validated, in arrays of its own: rounds donate the state, and not what the task may hold.

    Raises:
        TypeError: if parameters are not float32.
    """
    variables = task.init(key)
    check_float32(variables)
    return jax.tree.map(jnp.copy, variables)


def init_optimizer(solver: Solver, params: PyTree, trainable: PyTree | None = None) -> PyTree:
    """Optimizer states `[M, ...]` before the first round if the solver keeps them, else `()`; `params [M, ...]`."""
    if not solver.keep_optimizer:
        return ()
    optimizer = solver.at_round(jnp.zeros((), jnp.int32))
    return jax.vmap(lambda p: optimizer.init(partition(p, trainable)[0]))(params)


def init_clients(task: Task, solver: Solver, key: Array, data: Data, *, common: bool = True) -> Local:
    """`Local [M]` before the first round: one initial model for all clients, or one of each client's own."""
    shared = init_model(task, key)
    variables = broadcast(shared, data.y.shape[0])
    if not common:
        variables = jax.vmap(lambda i: task.init(jax.random.fold_in(key, i)))(data.id)
    return Local(variables, init_optimizer(solver, variables.params))
