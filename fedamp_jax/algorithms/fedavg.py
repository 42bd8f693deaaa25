"""FedAvg (McMahan et al. 2017) and FedProx (Li et al. 2020): one global model. FedProx is FedAvg with a penalty."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedamp_jax import checks, stacked
from fedamp_jax.local import Local, Prox, Solver, check_parts, for_each_client, init_model, init_optimizer, solve
from fedamp_jax.types import Algorithm, Array, Data, Info, PyTree, Task, Variables


class FedAvgState(NamedTuple):
    """The global model.

    Attributes:
        params: the global parameters.
        stats: running statistics, leaves `[M, ...]`; all rows alike if they are mixed.
        optimizer: the clients' optimizer states `[M, ...]` if the solver keeps them, else `()`.
        round: `[]` int32.
    """

    params: PyTree
    stats: PyTree
    optimizer: PyTree
    round: Array


def average(weights: Array, tree: PyTree, otherwise: PyTree) -> PyTree:
    """The weighted mean of `tree [M, ...]`, or `otherwise` if all weights are zero: nobody came, nothing changes."""
    anyone = jnp.sum(weights) > 0
    return jax.tree.map(lambda a, b: jnp.where(anyone, a, b), stacked.mean(weights, tree), otherwise)


def sample_weights(data: Data, info: Info) -> Array:
    """`[M]` float32: the number of examples of each client whose update counts in this round, 0 for the others."""
    return jnp.where(data.online & ~info.rejected, data.size, 0).astype(jnp.float32)


def mixed_stats(policy: str, weights: Array, new: PyTree, old: PyTree) -> PyTree:
    """Running statistics after a round: each client's own (`"local"`), or everybody's mean (`"mix"`); `[M, ...]`."""
    if policy == "local":
        return new
    first = jax.tree.map(lambda a: a[0], old)
    return stacked.broadcast(average(weights, new, first), weights.shape[0])


def fedprox(task: Task, solver: Solver, *, mu: float = 0.01, stats: str = "mix") -> Algorithm:
    """FedProx: clients minimise `F_i(w) + mu / 2 ||w - w_global||^2` from the global model; the server averages.

    Args:
        task: the model.
        solver: local training.
        mu: weight of the penalty, at least 0; a number, a schedule of the round or a tracer. 0.01 is what
            Huang et al. 2021, Appendix C, found best. 0 is FedAvg.
        stats: BatchNorm statistics are averaged as the parameters are (`"mix"`), or each client's own (`"local"`).

    Returns:
        The `Algorithm`. The average weighs clients by their number of examples; who is offline or rejected has none.

    Raises:
        ValueError: if `mu` is negative or `stats` unknown.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedprox(task, fedamp_jax.Solver(optax.adam(1e-3)), mu=0.01)
    """
    check_parts(task, solver)
    checks.number("mu", mu, low=0, strict=False)
    checks.choice("stats", stats, ("mix", "local"))

    def init(key, data):
        start = init_model(task, key)
        m = data.y.shape[0]
        optimizer = init_optimizer(solver, stacked.broadcast(start.params, m))
        return FedAvgState(start.params, stacked.broadcast(start.stats, m), optimizer, jnp.zeros((), jnp.int32))

    def round(key, state, data):
        free = isinstance(mu, (int, float)) and mu == 0  # FedAvg pays nothing for a penalty it does not have
        prox = None if free else Prox(state.params, checks.at_round(mu, state.round))

        def local(key, client, epochs, mine):
            return solve(task, solver, key, client, mine.variables, epochs=epochs, k=state.round, prox=prox,
                         optimizer_state=mine.optimizer)  # fmt: skip

        received = Local(personalize(key, state, data), state.optimizer)
        sent, info = for_each_client(solver, key, data, local, received)
        weights = sample_weights(data, info)
        params = average(weights, sent.variables.params, state.params)
        running = mixed_stats(stats, weights, sent.variables.stats, state.stats)
        return FedAvgState(params, running, sent.optimizer, state.round + 1), info

    def personalize(key, state, data):
        return Variables(stacked.broadcast(state.params, data.y.shape[0]), state.stats)

    return Algorithm(init, round, personalize)


def fedavg(task: Task, solver: Solver, *, stats: str = "mix") -> Algorithm:
    """FedAvg: clients train from the global model, the server averages, weighted by numbers of examples.

    Args:
        task: the model.
        solver: local training.
        stats: as in `fedprox`.

    Returns:
        The `Algorithm`.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedavg(task, fedamp_jax.Solver(optax.adam(1e-3)))
    """
    return fedprox(task, solver, mu=0.0, stats=stats)
