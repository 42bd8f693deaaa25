"""FedBN (Li et al., ICLR 2021): FedAvg of everything but the normalization layers."""

from collections.abc import Sequence

import jax

from fedamp_jax.algorithms.shared_body import Phase, shared_body
from fedamp_jax.engine import Solver, check_parts
from fedamp_jax.trees import normalization_mask, path_names, prefix_mask
from fedamp_jax.types import Algorithm, PyTree, Task


def fedbn(task: Task, solver: Solver, *, layers: Sequence[str] | None = None) -> Algorithm:
    """FedBN, Algorithm 1 of Li et al. 2021: the normalization layers, their parameters and running statistics, stay
    with the client; all other parameters are averaged.

    Args:
        task: a model with normalization layers.
        solver: local training, of all parameters.
        layers: the normalization layers, as prefixes of their parameters' paths, such as `("bn1", "bn2")`; None for
            those with a parameter `scale` or `norm` in their name, which all of Flax have.

    Returns:
        The `Algorithm`. Nothing of a normalization layer reaches another client, so one that has not trained, a
        newcomer too, has initial ones, which suit the other parameters only once it has: `fine_tuned` trains them.

    Raises:
        ValueError: if there are no normalization layers, or nothing else; or a prefix in `layers` that is none of a
            parameter's path.

    Departs from the paper: means weigh clients by their number of examples, as `fedavg` does, where the paper's are
    uniform.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.resnet18(classes=10, shape=(8, 8), widths=(2, 2, 2, 2))
    >>> algorithm = fedamp_jax.fedbn(task, fedamp_jax.Solver(optax.adam(1e-3)))
    """
    check_parts(task, solver)
    layers = (layers,) if isinstance(layers, str) else layers

    def own(params: PyTree) -> PyTree:
        return normalization_mask(params) if layers is None else prefix_mask(layers, params)

    params = jax.eval_shape(task.init, jax.random.key(0)).params
    unknown = [layer for layer in layers or () if not any(jax.tree.leaves(prefix_mask((layer,), params)))]
    if unknown or len(set(jax.tree.leaves(own(params)))) != 2:
        what = (
            "for FedBN some, and not all, of the parameters must be normalization layers"
            if layers is None
            else (f"layers={tuple(layers)} must be prefixes of some, and not all, of the parameters")
        )
        raise ValueError(
            f"{what}; there are: {', '.join(path_names(params))}. Take a model with normalization, such as "
            'fedamp_jax.models.resnet18, or name its layers: layers=("bn1", "bn2")'
        )
    return shared_body(task, solver, [Phase("all")], own=own, own_stats=True)
