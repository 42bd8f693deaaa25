"""Going on from a state that an earlier run returned."""

from typing import Any

import jax
import jax.numpy as jnp

from fedamp_jax.trees import path_name
from fedamp_jax.types import Algorithm, Array, Data


def check_state(algorithm: Algorithm, state: Any, key: Array, data: Data) -> Any:
    """Checks that a state is of this algorithm and these clients, and returns its shapes as they are placed.

    Raises:
        TypeError: if it is of another kind.
        ValueError: if a leaf has another shape, or the state was donated to a round.
    """
    wanted = data.placement.state_shapes(algorithm, key, data.placement.shapes(data))
    if jax.tree.structure(state) != jax.tree.structure(wanted):
        raise TypeError(
            f"state is a {type(state).__name__} of {jax.tree.structure(state)}, but this algorithm has a "
            f"{type(wanted).__name__} of {jax.tree.structure(wanted)}: go on with the method, the model and the solver "
            "that made it"
        )
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(wanted), strict=True):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise ValueError(
                f"state.{path_name(path)} is {a.dtype} {list(a.shape)}, but for this algorithm and these clients it "
                f"must be {b.dtype} {list(b.shape)}: go on with the same ones, or let fedamp_jax.join add clients"
            )
        if isinstance(a, jax.Array) and a.is_deleted():
            raise ValueError("this state was donated to a round: use the one that it returned")
    return wanted


def continued(algorithm: Algorithm, state: Any, key: Array, data: Data) -> tuple[Any, int]:
    """A copy of a state, placed with the data, as rounds donate it; and how many rounds it has seen.

    Raises:
        TypeError, ValueError: see `check_state`.
    """

    def placed(a: Array, like: Any) -> Array:
        sharding = getattr(like, "sharding", None)
        return jnp.copy(a) if sharding is None else jax.device_put(jnp.copy(a), sharding)

    made = jax.tree.map(placed, state, check_state(algorithm, state, key, data))
    return made, int(getattr(state, "round", 0))
