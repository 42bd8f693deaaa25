"""Many devices: state and data placed with the client axis on a mesh axis, by one process or by several.

Arrays that were placed here carry their mesh with them: `fedamp_jax.round`, `evaluate` and `run` find it (`over`), and
what is traced then asks `fedamp_jax.layout`.
"""

import contextlib
import functools
import os
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedamp_jax import checks, layout
from fedamp_jax.layout import AXIS
from fedamp_jax.types import Algorithm, Array, Data, Info

_A_WEEK = 7 * 24 * 60 * 60


def cut_cpu(devices: int | None = None) -> None:
    """Make several devices of a CPU. Call it before JAX looks at the CPU; after that it does nothing.

    Clients side by side on a core each are trained faster than one client by all cores (docs/performance.md).

    Args:
        devices: how many; None: one for each core that this process may use, but at most 16.

    >>> cut_cpu(2)  # too late here
    """
    if devices is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        devices = min(cores, 16)
    checks.whole("devices", devices, low=1)
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", devices)
        # XLA ends the process when one device has waited 40 s for another, as if that were lost. Here they wait after
        # local training, for longer than that with large models. What is in XLA_FLAGS already comes later and wins.
        kinds = ("warn_stuck", "terminate")
        patient = [f"--xla_cpu_collective_call_{kind}_timeout_seconds={_A_WEEK}" for kind in kinds]
        os.environ["XLA_FLAGS"] = " ".join([*patient, os.environ.get("XLA_FLAGS", "")])


def client_mesh(devices: int | None = None) -> Mesh:
    """A mesh with one axis, `clients`, over the first `devices` devices of all processes (None: all of them).

    Raises:
        ValueError: if there are fewer, or if a process would be left without one.

    >>> client_mesh(1).axis_names
    ('clients',)
    """
    available = jax.device_count()
    if devices is not None:
        checks.whole("devices", devices, low=1)
        if devices > available:
            raise ValueError(f"devices={devices}, but jax sees {available}: {jax.devices()}")
        if jax.process_count() > 1 and devices < available:
            raise ValueError(f"devices={devices}: several processes use all {available} devices")
    count = devices or available
    return jax.make_mesh((count,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])


def rows(m: int, mesh: Mesh) -> int:
    """How many rows `m` clients take: the next multiple of the devices. Rows from `m` on are nobody."""
    return -(-m // mesh.size) * mesh.size


def shard(tree: Any, mesh: Mesh) -> Any:
    """Spread `Data` or an algorithm's state over the mesh.

    `Data` whose clients cannot be dealt out evenly get rows at the end that are nobody: size 0, never online. Make the
    state from the result (see `init`), so that it has these rows too. Of a state, leaves whose first axis is a multiple
    of the devices are split; the rest (a global model, a counter) is on every device.

    Args:
        tree: `Data`, or a state that was made for a number of clients that is a multiple of the devices.
        mesh: from `client_mesh`.

    Returns:
        The same tree on the mesh; `Data` are `[rows(M, mesh), ...]`.
    """
    if not isinstance(tree, Data):
        spec = lambda a: P(AXIS) if jnp.ndim(a) and a.shape[0] % mesh.size == 0 else P()  # noqa: E731
        return jax.tree.map(lambda a: jax.device_put(a, NamedSharding(mesh, spec(a))), tree)
    if mesh_of(tree) == mesh:
        return tree
    return from_owned(jax.tree.map(lambda a: np.asarray(a)[owned(len(tree.size), mesh)], tree), mesh, len(tree.size))


def owned(m: int, mesh: Mesh) -> np.ndarray:
    """Which of `m` clients lie on this process's devices, `[m_own]` increasing; all of them for a single process."""
    total = rows(m, mesh)
    mine = NamedSharding(mesh, P(AXIS)).addressable_devices_indices_map((total,)).values()
    held = np.unique(np.concatenate([np.arange(total)[index] for index in mine]))
    return held[held < m]


def from_owned(mine: Data, mesh: Mesh, m: int) -> Data:
    """`Data` over all processes, of which each brings only its own clients.

    Args:
        mine: the clients `owned(m, mesh)` in that order, no rows if it owns none; `N` may differ between processes.
        mesh: from `client_mesh`.
        m: the number of clients in all processes together.

    Returns:
        `Data [rows(m, mesh), N, ...]`, N the largest of all processes; no process sees another's rows.

    Raises:
        ValueError: if `mine` has another number of clients than `owned(m, mesh)`.
    """
    held = owned(m, mesh)
    if len(mine.size) != len(held):
        raise ValueError(f"process {jax.process_index()} holds {len(held)} of {m} clients, but brings {len(mine.size)}")
    total = rows(m, mesh)
    sharding = NamedSharding(mesh, P(AXIS))
    own_rows = len(sharding.addressable_devices) * total // mesh.size
    longest = int(multihost_utils.process_allgather(np.int32(mine.y.shape[1])).max())

    def place(a: Any) -> Array:
        a = np.asarray(a)
        filled = np.zeros((own_rows, longest, *a.shape[2:])[: max(1, a.ndim)], a.dtype)
        filled[(slice(0, len(a)), *(slice(0, n) for n in a.shape[1:2]))] = a
        return jax.make_array_from_process_local_data(sharding, filled, (total, *filled.shape[1:]))

    return Data(*(place(a) for a in mine))


def mesh_of(tree: Any) -> Mesh | None:
    """The mesh of several devices that an array of the tree is spread over; None if there is none, or under a trace."""
    for a in jax.tree.leaves(tree):
        if isinstance(a, jax.Array) and not isinstance(a, Tracer) and isinstance(a.sharding, NamedSharding):
            mesh: Any = a.sharding.mesh
            if AXIS in mesh.axis_names and mesh.size > 1:
                return mesh
    return None


def over(tree: Any) -> contextlib.AbstractContextManager:
    """The context in which to call a compiled function of arrays that may lie on a mesh; nothing if they do not."""
    mesh = mesh_of(tree)
    return contextlib.nullcontext() if mesh is None else layout.use(mesh)


def init(algorithm: Algorithm, key: Array, data: Data) -> Any:
    """`algorithm.init(key, data)`, made where it will lie: no device holds more of it than its own clients'.

    >>> import optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> train = fedamp_jax.sharding.shard(train, fedamp_jax.sharding.client_mesh(1))
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.separate(task, fedamp_jax.Solver(optax.adam(1e-3)))
    >>> state = fedamp_jax.sharding.init(algorithm, jax.random.key(0), train)
    """
    if mesh_of(data) is None:
        return algorithm.init(key, data)
    with over(data):
        return _init(algorithm, key, data)


@functools.partial(jax.jit, static_argnums=0)
def _init(algorithm: Algorithm, key: Array, data: Data) -> Any:
    return layout.settle(algorithm.init(key, data), data.y.shape[0])


def count(data: Data) -> int:
    """How many clients `Data` hold, without the rows that are nobody."""
    if getattr(data.size, "is_fully_addressable", True):
        return int((np.asarray(data.size) > 0).sum())
    with over(data):
        return int(_count(data.size))


@jax.jit
def _count(size: Array) -> Array:
    return layout.everywhere(jnp.sum(size > 0))


def trim(info: Info, m: int) -> Info:
    """`Info` of the `m` clients, without the rows (and columns of xi) that are nobody."""
    return jax.tree.map(lambda a: a if a.shape[0] == m else a[(slice(0, m),) * a.ndim], info)
