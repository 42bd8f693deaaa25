"""What a round will take, before it takes it: compiled for any placement, on data that need not exist."""

from typing import Any

import jax

from fedamp_jax.driver.rounds import compiled_round
from fedamp_jax.placement.placement import Placement
from fedamp_jax.types import Algorithm, Data


def estimate(algorithm: Algorithm, data: Data, placement: Placement | None = None) -> Any:
    """Compile a round without running it.

    Args:
        algorithm: a method.
        data: arrays, or in their place `jax.ShapeDtypeStruct` objects, of any number of clients.
        placement: where the clients would live; None: `data.placement`. It may be made of accelerators that are not
            here, `OnMesh(mesh=fedamp_jax.placement.topology("v5e:2x4"))`.

    Returns:
        A `cost.Estimate`, or for clients in the host's memory a `host_memory.HostEstimate` of a round in which every
        client takes part. Both say it in words when printed.

    >>> import optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedamp(task, fedamp_jax.Solver(optax.adam(1e-3)), sigma=1.6, self_weight=1 / 4)
    >>> estimate(algorithm, train).clients
    20
    """
    placement = placement or data.placement
    key = jax.eval_shape(lambda: jax.random.key(0))
    abstract = placement.shapes(data)
    state = placement.state_shapes(algorithm, key, abstract)
    return placement.estimate(compiled_round, (algorithm.round,), state, abstract, key)
