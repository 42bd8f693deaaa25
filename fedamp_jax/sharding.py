"""Many devices: the client axis of state and data lies on a mesh axis, and XLA's partitioner does the rest."""

from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from fedamp_jax import checks


def client_mesh(devices: int | None = None) -> jax.sharding.Mesh:
    """A mesh with one axis, `clients`, over the first `devices` devices (None: all).

    Raises:
        ValueError: if there are fewer.
    """
    available = jax.device_count()
    if devices is not None:
        checks.whole("devices", devices, low=1)
        if devices > available:
            raise ValueError(f"devices={devices}, but jax sees {available}: {jax.devices()}")
    count = devices or available
    return jax.make_mesh((count,), ("clients",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])


def shard(tree: Any, mesh: jax.sharding.Mesh) -> Any:
    """Spread a state or `Data` over the mesh.

    Leaves whose first axis is a multiple of the number of devices and is the clients' are split; everything else (a
    global model, a counter) is on every device.

    Args:
        tree: an algorithm's state or `Data`. The number of clients must be a multiple of the devices.
        mesh: from `client_mesh`.

    Raises:
        ValueError: if the clients of `Data` cannot be dealt out evenly.
    """
    from fedamp_jax.types import Data

    if isinstance(tree, Data) and tree.y.shape[0] % mesh.size:
        raise ValueError(f"{tree.y.shape[0]} clients cannot be dealt out evenly to {mesh.size} devices; take a divisor")
    return jax.tree.map(lambda a: jax.device_put(a, NamedSharding(mesh, _spec(a, mesh.size))), tree)


def _spec(a: jax.Array, devices: int) -> PartitionSpec:
    split = a.ndim > 0 and a.shape[0] % devices == 0
    return PartitionSpec("clients") if split else PartitionSpec()
