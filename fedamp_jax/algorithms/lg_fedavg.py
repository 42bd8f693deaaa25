"""LG-FedAvg (Liang et al. 2020): personal bodies under a shared head, the mirror image of FedPer."""

from fedamp_jax.algorithms.shared_body import Phase, shared_body
from fedamp_jax.engine import Solver
from fedamp_jax.trees import head_mask, inverse
from fedamp_jax.types import Algorithm, PyTree, Task


def lg_fedavg(task: Task, solver: Solver, *, common_init: bool = True) -> Algorithm:
    """LG-FedAvg, Algorithm 1 of Liang et al. 2020: body and head are trained jointly, only the head is sent and
    averaged.

    Each client learns a representation of its own, and the head, which all share, makes them comparable.

    Args:
        task: the model; `task.head` says what the head is.
        solver: local training.
        common_init: one initial body for all clients, or one each.

    Returns:
        The `Algorithm`. Heads are weighted by the number of examples. BatchNorm statistics belong to the body, and stay
        with the client; a client that has not trained, a newcomer too, has an initial body.

    Raises:
        ValueError: in `init`, a `task.head` that selects nothing or everything.

    Departs from the authors' program, which starts from a model that FedAvg has trained, and takes the plain mean.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.lg_fedavg(task, fedamp_jax.Solver(optax.adam(1e-3)))
    """

    def own(params: PyTree) -> PyTree:
        return inverse(head_mask(task, params))

    return shared_body(task, solver, [Phase("all")], own=own, own_stats=True, common_init=common_init)
