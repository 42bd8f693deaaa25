"""FedAvg (McMahan et al. 2017) and FedProx (Li et al. 2020): one global model. FedProx is FedAvg with a penalty."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from fedamp_jax.checks import check_number
from fedamp_jax.engine import (
    Local,
    Prox,
    Solver,
    check_parts,
    for_each_client,
    init_model,
    init_optimizer,
    of_clients,
    server,
    solve,
)
from fedamp_jax.trees import broadcast
from fedamp_jax.types import Algorithm, Array, Data, PyTree, Task, Variables


class FedAvgState(NamedTuple):
    """The global model.

    Attributes:
        params: the global parameters.
        stats: running statistics, leaves `[M, ...]`; all rows are equal if they are mixed.
        trained: `[M]` bool, who has trained; see `engine.server.statistics_policy`.
        optimizer: the clients' optimizer states `[M, ...]` if the solver keeps them, else `()`.
        round: `[]` int32.
    """

    params: PyTree
    stats: PyTree
    trained: Array
    optimizer: PyTree
    round: Array


def fedprox(task: Task, solver: Solver, *, mu: Any = 0.01, stats: str = "mix") -> Algorithm:
    """FedProx: clients minimise `F_i(w) + mu / 2 ||w - w_global||^2` from the global model; the server averages.

    Args:
        task: the model.
        solver: local training.
        mu: weight of the penalty, at least 0; a number, one per client `[M]`, a schedule of the round or a
            tracer. 0.01 is what Huang et al. 2021, Appendix C, found best. 0 is FedAvg.
        stats: BatchNorm statistics are averaged as the parameters are (`"mix"`); or a client keeps its own from its
            last training (`"local"`), which fit the model of that round and no later one. Clients that have not
            trained, newcomers too, have the average either way.

    Returns:
        The `Algorithm`. The average weighs clients by their number of examples; one that is offline or rejected has
        weight 0.

    Raises:
        ValueError: if `mu` is negative or `stats` unknown.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedprox(task, fedamp_jax.Solver(optax.adam(1e-3)), mu=0.01)
    """
    return averaging(task, solver, mu=mu, stats=stats)


def averaging(
    task: Task, solver: Solver, *, mu: Any, stats: str, examples: Callable[[Data], Data] | None = None
) -> Algorithm:
    """`fedprox` on some of each client's examples.

    Args:
        task, solver, mu, stats: as in `fedprox`.
        examples: `client -> client`, the examples that ONE client trains on; None for all. Means weigh by the number of
            all of them.
    """
    check_parts(task, solver)
    check_number("mu", mu, low=0, strict=False, allow_array=True)
    new_stats = server.statistics_policy(stats)

    def init(key, data):
        start = init_model(task, key)
        m = len(data.size)
        optimizer = init_optimizer(solver, data, broadcast(start.params, m))
        trained = jnp.zeros((m,), bool)
        return FedAvgState(start.params, broadcast(start.stats, m), trained, optimizer, jnp.zeros((), jnp.int32))

    def round(key, state, data):
        free = isinstance(mu, (int, float)) and mu == 0  # FedAvg does not pay for a penalty that it does not have
        weight = () if free else (of_clients("mu", mu, state.round, data),)

        def local(key, client, epochs, mine, *mu_i):
            penalty = Prox(state.params, *mu_i) if mu_i else None
            some = examples(client) if examples else client
            return solve(task, solver, some, mine.variables, key, epochs=epochs, k=state.round, penalty=penalty,
                         optimizer_state=mine.optimizer)  # fmt: skip

        received = Local(personalize(key, state, data), state.optimizer)
        sent, info = for_each_client(solver, data, local, received, *weight, key=key)
        weights = server.sample_weights(data, info)
        params = server.weighted_mean(weights, sent.variables.params, state.params)
        running, trained = new_stats(weights, sent.variables.stats, state.stats, state.trained)
        return FedAvgState(params, running, trained, sent.optimizer, state.round + 1), info

    def personalize(key, state, data):
        return Variables(broadcast(state.params, len(data.size)), state.stats)

    def join(state, fresh):
        return fresh._replace(stats=server.statistics_of_newcomers(state.stats, state.trained, fresh.stats))

    return Algorithm(init, round, personalize, join=join)


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
