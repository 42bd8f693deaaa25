"""Many devices: the client axis of state and data lies on a mesh axis, and no method knows about it.

Two places do, and ask while they are traced which mesh is in use (`active`; `fedamp_jax.round`, `evaluate` and `run`
say so, from where their data lie): local training runs on each device for its own clients (`per_device`); aggregation
lays the parameters instead of the clients over the devices (`by_parameters`, `by_clients`: one all-to-all there, one
back), so that no device ever holds all models.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.extend.core import get_opaque_trace_state, jaxpr_as_fun
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedamp_jax import checks
from fedamp_jax.types import Algorithm, Array, Data, Info, PyTree

AXIS = "clients"
"""The mesh axis that the clients are dealt out over."""

# A context of our own, part of jit's cache key, and not `jax.set_mesh`: see `placeless`.
_in_use = jax.make_user_context(None)

# What `by_parameters` has exchanged in the round that is being traced: id of the leaf -> (leaf, trace, result).
_exchanged: contextvars.ContextVar[dict | None] = contextvars.ContextVar("_exchanged", default=None)


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
        if isinstance(a, jax.Array) and not isinstance(a, jax.core.Tracer) and isinstance(a.sharding, NamedSharding):
            mesh = a.sharding.mesh
            if AXIS in mesh.axis_names and mesh.size > 1:
                return mesh
    return None


def over(tree: Any) -> contextlib.AbstractContextManager:
    """The context in which to call a compiled function of arrays that may lie on a mesh; nothing if they do not."""
    mesh = mesh_of(tree)
    return contextlib.nullcontext() if mesh is None else use(mesh)


def use(mesh: Mesh | None) -> contextlib.AbstractContextManager:
    """The context in which to trace or call a compiled function for `mesh`; None is one device."""
    return _in_use(mesh)


def active() -> Mesh | None:
    """The mesh that what is being traced will run on; None on one device, and inside of `per_device`."""
    return _in_use.value


def _constrain(a: Array, *spec: str | None) -> Array:
    return jax.lax.with_sharding_constraint(a, NamedSharding(active(), P(*spec)))


def placeless(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, traced as if its arguments lay nowhere; plain `fn` where no mesh is in use.

    An argument of a jitted function carries the mesh that it lies on in its type. Where `per_device` runs a function
    that closes over such a value (a global model, say), `zeros_like` of it is refused: the mesh is not the one within.
    """
    if active() is None:
        return fn

    def call(*args: Any) -> Any:
        plain = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type), args)
        memo = _exchanged.set({})
        try:
            program, out = jax.make_jaxpr(fn, return_shape=True)(*plain)
        finally:
            _exchanged.reset(memo)
        return jax.tree.unflatten(jax.tree.structure(out), jaxpr_as_fun(program)(*jax.tree.leaves(args)))

    return call


def per_device(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, run by each device on the rows that it holds; plain `fn` where no mesh is in use.

    Args:
        fn: takes and returns trees with leaves `[M, ...]` and treats every row alike: it sees some rows only. What it
            closes over is on every device.

    Returns:
        A function of the same arguments that causes no communication.

    Raises:
        ValueError: when it is called with a number of rows that the devices do not divide.
    """
    mesh = active()
    if mesh is None:
        return fn

    def spread(*args: Any) -> Any:
        m = jax.tree.leaves(args)[0].shape[0]
        if m % mesh.size:
            raise ValueError(f"{m} clients on {mesh.size} devices: let fedamp_jax.sharding.shard place the data")
        # check_vma would ask every loop of local training to mark its constants as different on each device.
        return jax.shard_map(alone, mesh=mesh, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False)(*args)

    def alone(*args: Any) -> Any:
        with _in_use(None):
            return fn(*args)

    return spread


def by_parameters(leaf: Array) -> Array:
    """`leaf [M, ...]`, clients over the devices, as `[M, d']` with parameters over them: an all-to-all.

    d' is the next multiple of the devices after d, the parameters in the leaf; columns from d on are zero. Without a
    mesh, the leaf as `[M, d]`. Within one round a leaf is exchanged once, however often it is asked for.
    """
    flat, mesh = leaf.reshape(leaf.shape[0], -1), active()
    if mesh is None:
        return flat
    known = _exchanged.get()
    here = get_opaque_trace_state()
    if known is not None and id(leaf) in known and known[id(leaf)][1] == here:
        return known[id(leaf)][2]
    flat = jnp.pad(flat, ((0, 0), (0, -flat.shape[1] % mesh.size)))
    # The first constraint says where the padding is done: before the exchange, on each device's own rows.
    flat = _constrain(_constrain(flat, AXIS), None, AXIS)
    if known is not None:
        known[id(leaf)] = (leaf, here, flat)  # with the leaf, so that its id stays its own
    return flat


def by_clients(flat: Array, shape: tuple[int, ...]) -> Array:
    """The way back from `by_parameters`: `[M, d']` as a leaf of `shape [M, ...]` with clients over the devices."""
    if active() is not None:
        flat = _constrain(_constrain(flat, None, AXIS), AXIS)[:, : math.prod(shape[1:])]
    return flat.reshape(shape)


def summed(fn: Callable[..., Array], slices: list[Array], *args: Array) -> Array:
    """`fn(slices, *args)`, a sum over parameters: each device sums over its own, then the sums are added.

    Args:
        fn: returns an array whose contributions of different parameters add up.
        slices: arrays `[M, d']` from `by_parameters`.
        *args: arrays that every device gets whole.
    """
    mesh = active()
    if mesh is None:
        return fn(slices, *args)
    add = lambda *given: jax.lax.psum(fn(*given), AXIS)  # noqa: E731
    specs = (P(None, AXIS), *(P() for _ in args))
    return jax.shard_map(add, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(slices, *args)


def settle(tree: PyTree, m: int) -> PyTree:
    """Say where a new state lies: leaves `[m, ...]` with their clients, the rest on every device, each round alike."""
    if active() is None:
        return tree
    return jax.tree.map(lambda a: _constrain(a, AXIS) if a.ndim and a.shape[0] == m else _constrain(a), tree)


def everywhere(tree: PyTree) -> PyTree:
    """Every device, and so every process, gets all of it: what is small and shall be read."""
    if active() is None:
        return tree
    return jax.tree.map(_constrain, tree)


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
        return jax.jit(lambda key, data: settle(algorithm.init(key, data), data.y.shape[0]))(key, data)


def per_client(value: Array, m: int) -> Array:
    """`value`, a number or one per client, as `[m]`; rows that are nobody repeat the last client's number.

    Raises:
        ValueError: if there are not as many numbers as clients.
    """
    mesh = active()
    missing = m - value.shape[0] if value.ndim else 0
    if 0 < missing < (mesh.size if mesh else 1):
        value = jnp.pad(value, (0, missing), mode="edge")
    return jnp.broadcast_to(value, (m,))


def count(data: Data) -> int:
    """How many clients `Data` hold, without the rows that are nobody."""
    with over(data):
        return int(jax.jit(lambda size: everywhere(jnp.sum(size > 0)))(data.size))


def trim(info: Info, m: int) -> Info:
    """`Info` of the `m` clients, without the rows (and columns of xi) that are nobody."""
    return jax.tree.map(lambda a: a if a.shape[0] == m else a[(slice(0, m),) * a.ndim], info)
