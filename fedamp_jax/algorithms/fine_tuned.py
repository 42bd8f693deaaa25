"""Fine-tuning: any method's models, trained on each client's own data before use (Wang et al. 2019; "-FT")."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fedamp_jax.checks import check_type
from fedamp_jax.engine import Local, Penalty, Solver, at_home, check_parts, for_each_client, solve
from fedamp_jax.types import Algorithm, Array, Data, PyTree, Task, Variables


def tune(
    task: Task,
    solver: Solver,
    data: Data,
    models: Variables,
    state: Any,
    key: Array,
    trainable: PyTree | None = None,
    penalty: Callable[[PyTree, Array], Penalty] | None = None,
) -> Variables:
    """Train every client's model `[M, ...]` on its own data, online or not; a result that is not finite is dropped.

    Args:
        task, solver, data: as in a round.
        models: where training starts.
        state: of the method; a solver that follows the round is asked for `state.round`, or 0 if it has none.
        key: as in a round.
        trainable: as in `solve`.
        penalty: as in `fine_tuned`.
    """
    tuner = dataclasses.replace(solver, optimizer=solver.at_round, keep_optimizer=False)
    k = getattr(state, "round", jnp.zeros((), jnp.int32))

    def local(key, client, epochs, mine):
        term = penalty(mine.variables.params, k) if penalty else None
        return solve(task, tuner, client, mine.variables, key, epochs=epochs, k=k, penalty=term, trainable=trainable)

    return for_each_client(tuner, at_home(data), local, Local(models), key=key)[0].variables


def fine_tuned(
    task: Task,
    solver: Solver,
    *,
    base: Algorithm,
    penalty: Callable[[PyTree, Array], Penalty] | None = None,
) -> Algorithm:
    """Wrap `base` so that its personal models are fine-tuned; its rounds and its state do not change.

    The paper leaves open how long to fine-tune; here it takes `solver.epochs`, as the next round of training would.

    Args:
        task: the model.
        solver: the fine-tuning; it starts with a fresh optimizer.
        base: the method whose models are tuned, such as `fedavg(task, solver)`.
        penalty: `(start, k) -> Penalty`, a term of the fine-tuning's objective, given the parameters that it starts
            from and the round. `lambda start, k: Prox(start, 0.01)` keeps the models near them (L2-SP, Li et al. 2018).
            None for none, as in the FedAMP paper.

    Returns:
        The `Algorithm`. A client whose fine-tuning is not finite uses the model that it started from.

    Raises:
        TypeError: an argument of the wrong kind.
        ValueError: a base whose models the task does not read (`Algorithm.reader`), such as `knnper`.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> solver = fedamp_jax.Solver(optax.adam(1e-3))
    >>> algorithm = fedamp_jax.fine_tuned(task, solver, base=fedamp_jax.fedavg(task, solver))
    """
    check_parts(task, solver)
    check_type("base", base, Algorithm, "such as fedavg(task, solver)")
    if base.reader is not None:
        raise ValueError(
            "base gives models that are none of the task, as kNN-Per's with their memory: fine-tune the method that it "
            "is made of, such as fedavg(task, solver)"
        )
    if penalty is not None and not callable(penalty):
        raise TypeError(
            "penalty must be a function (start, k) -> Penalty, such as lambda start, k: engine.Prox(start, 0.01), "
            f"got {penalty!r}"
        )

    def personalize(key, state, data):
        return tune(task, solver, data, base.personalize(key, state, data), state, key, penalty=penalty)

    return base._replace(personalize=personalize)
