"""FedRecon (Singhal et al. 2021, Algorithm 1): heads are reconstructed every round and never stored."""

from typing import Any

from fedamp_jax.algorithms.fine_tuned import tune
from fedamp_jax.algorithms.shared_body import Phase, mask_of, shared_body
from fedamp_jax.checks import check_number
from fedamp_jax.engine import Solver, split_client
from fedamp_jax.trees import head_mask
from fedamp_jax.types import Algorithm, Task


def fedrecon(
    task: Task,
    solver: Solver,
    *,
    head_solver: Solver | None = None,
    support: float = 0.5,
    server_step: Any = 1.0,
    stats: str = "mix",
) -> Algorithm:
    """FedRecon: reconstruct the head on a support set, then update the body on the rest, the query set.

    Args:
        task: the model; `task.head` says what the head is. Every reconstruction starts from the server's initial head.
        solver: the body's training.
        head_solver: the reconstruction's optimizer, epochs and batch size, if they differ.
        support: share of a client's examples, drawn in each round, that the head is reconstructed on, in (0, 1).
            Both sets get one example at least; a client with a single one uses it for both.
        server_step: the server adds `server_step` times the weighted mean of the bodies' changes.
        stats: as in `fedper`.

    Returns:
        The `Algorithm`; `personalize` reconstructs heads on all of each client's data.

    Raises:
        ValueError: `support` or `server_step` out of range, and as `fedper`.

    Changes are weighted by the number of all examples, of which the query set is a fixed share. By default, the
    authors' program does not split the examples, and uses all of them for both phases.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedrecon(task, fedamp_jax.Solver(optax.adam(1e-3)))
    """
    check_number("server_step", server_step, low=0)
    check_number("support", support, low=0, high=1)
    if support == 1:
        raise ValueError("support must be below 1: the rest is the query set that the body learns from")

    phases = [
        Phase("head", head_solver, lambda key, client: split_client(client, support, key)[1]),
        Phase("body", None, lambda key, client: split_client(client, support, key)[0]),
    ]
    base = shared_body(task, solver, phases, stats=stats, keep_own=False, server_step=server_step)

    def personalize(key, state, data):
        models = base.personalize(key, state, data)
        trainable = mask_of("head", head_mask(task, models.params))
        return tune(task, head_solver or solver, data, models, state, key, trainable)

    return base._replace(personalize=personalize)
