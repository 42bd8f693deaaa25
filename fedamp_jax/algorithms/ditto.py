"""Ditto (Li et al. 2021): a global FedAvg model, and a personal one that is pulled towards it."""

from typing import Any, NamedTuple

import jax

from fedamp_jax.algorithms.fedavg import FedAvgState, fedavg
from fedamp_jax.checks import check_choice, check_number
from fedamp_jax.engine import (
    Local,
    Prox,
    Solver,
    check_parts,
    for_each_client,
    init_clients,
    of_clients,
    resample_epochs,
    server,
    solve,
)
from fedamp_jax.trees import broadcast_like
from fedamp_jax.types import Algorithm, Array, Task, Variables


class DittoState(NamedTuple):
    """Attributes: shared: FedAvg's state. personal: `Local [M]`, the personal models v_i."""

    shared: FedAvgState
    personal: Local

    @property
    def round(self) -> Array:
        """`[]` int32."""
        return self.shared.round


def ditto(
    task: Task, solver: Solver, *, lam: Any = 0.1, personal_solver: Solver | None = None, stats: str = "local"
) -> Algorithm:
    """Ditto (Algorithm 1 with FedAvg as the global solver): `min f_i(v) + lam / 2 ||v - w||^2` beside FedAvg on w.

    Args:
        task: the model.
        solver: the global model's local training.
        lam: pull of the personal models towards the global one received in the round, at least 0; a number, one
            per client `[M]`, a schedule of the round or a tracer.
        personal_solver: the personal models' training, if it differs, with epochs of its own.
        stats: BatchNorm statistics of the personal models stay each client's own (`"local"`), or start each round from
            the mean of all (`"mix"`). The global model's are always averaged, and newcomers get them with it.

    Returns:
        The `Algorithm`; `personalize` gives the personal models. `info.loss` is theirs.

    Raises:
        ValueError: `lam` negative, `stats` unknown.

    Departs from the paper: the mean is weighted by numbers of examples, as in the other averaging methods here. In the
    authors' program both models see the same minibatches; here each has an order of its own.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.ditto(task, fedamp_jax.Solver(optax.adam(1e-3)), lam=0.1)
    """
    check_parts(task, solver, personal_solver=personal_solver)
    check_number("lam", lam, low=0, strict=False, allow_array=True)
    check_choice("stats", stats, ("local", "mix"))
    mixed = server.statistics_policy("mix")
    shared_method, own_solver = fedavg(task, solver), personal_solver or solver

    def init(key, data):
        return DittoState(shared_method.init(key, data), init_clients(task, own_solver, data, key))

    def round(key, state, data):
        shared, k = state.shared, state.shared.round

        def local(key, client, epochs, mine, lam_i):
            glob, own = mine
            keys = jax.random.split(key)
            sent, _ = solve(task, solver, client, glob.variables, keys[0], epochs=epochs, k=k,
                            optimizer_state=glob.optimizer)  # fmt: skip
            passes = resample_epochs(own_solver, epochs, keys[1]) if personal_solver else epochs
            kept, loss = solve(task, own_solver, client, own.variables, keys[1], epochs=passes, k=k,
                               penalty=Prox(shared.params, lam_i),
                               optimizer_state=own.optimizer)  # fmt: skip
            return (sent, kept), loss

        received = Local(shared_method.personalize(key, shared, data), shared.optimizer)
        (sent, personal), info = for_each_client(solver, data, local, (received, state.personal),
                                                 of_clients("lam", lam, k, data), key=key)  # fmt: skip
        weights = server.sample_weights(data, info)
        params = server.weighted_mean(weights, sent.variables.params, shared.params)
        running, trained = mixed(weights, sent.variables.stats, shared.stats, shared.trained)
        if stats == "mix":
            own, before = personal.variables, state.personal.variables.stats
            own = Variables(own.params, mixed(weights, own.stats, before, shared.trained)[0])
            personal = Local(own, personal.optimizer)
        return DittoState(FedAvgState(params, running, trained, sent.optimizer, k + 1), personal), info

    def personalize(key, state, data):
        return state.personal.variables

    def join(state, fresh):
        # The global model with its statistics, which are those of all.
        start = Variables(
            broadcast_like(state.shared.params, fresh.personal.variables.params),
            server.statistics_of_newcomers(state.shared.stats, state.shared.trained, fresh.shared.stats),
        )
        shared = fresh.shared._replace(stats=start.stats)
        return DittoState(shared, fresh.personal._replace(variables=start))

    return Algorithm(init, round, personalize, join=join)
