"""Many devices: the client axis of state and data lies on a mesh axis, in one process or in several.

Local training runs on each device for its own clients and causes no communication. What the server computes across
clients is laid out by parameters first (one all-to-all there, one back), so that no device ever holds all models.
"""

import contextlib
import dataclasses
import functools
import math
import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.experimental import multihost_utils
from jax.extend.core import jaxpr_as_fun
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedamp_jax.checks import check_integer, check_type
from fedamp_jax.layout import D, Static, positions, without_examples
from fedamp_jax.placement.placement import ByParameters, Placement, in_chunks, one_client
from fedamp_jax.programs.jitted import Jitted

AXIS = "clients"
"""The mesh axis that the clients are spread over."""

_A_WEEK = 7 * 24 * 60 * 60


def split_cpu(devices: int | None = None) -> None:
    """Make several devices of a CPU. Call it before JAX looks at the CPU; after that it does nothing.

    Clients side by side on a core each are trained faster than one client on all cores (benchmarks/RESULTS.md).

    Args:
        devices: how many; None: one for each core that this process may use, but at most 16.

    >>> split_cpu(2)  # too late here
    """
    if devices is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        devices = min(cores, 16)
    check_integer("devices", devices, low=1)
    with contextlib.suppress(RuntimeError):
        jax.config.update("jax_num_cpu_devices", devices)
        # XLA aborts the process when one device has waited 40 s for another, as if that were lost. Here they wait after
        # local training, and with large models for longer than that. XLA takes the last of equal flags: the user's.
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
        check_integer("devices", devices, low=1)
        if devices > available:
            raise ValueError(f"devices={devices}, but jax sees {available}: {jax.devices()}")
        if jax.process_count() > 1 and devices < available:
            raise ValueError(f"devices={devices}: several processes use all {available} devices")
    count = devices or available
    return jax.make_mesh((count,), (AXIS,), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, kw_only=True)
class OnMesh(Placement):
    """Clients spread over the devices of a mesh, of this process or of several.

    With several processes all of them make the same calls, with the data of all clients (`place`) or each with its own
    clients' data (`from_owned`). The devices wait for the one with most work, see `fedamp_jax.data.balanced`.

    Attributes:
        mesh: from `client_mesh`.
        clients: the number of clients, which `place` fills in. Where the devices do not divide it, rows from there on
            are padding clients, which have size 0 and are never online.
        chunk, transmit: as in `Placement`.

    Raises:
        TypeError: if `mesh` is not a mesh.
        ValueError: if it has no axis `clients`.

    >>> import optax, fedamp_jax
    >>> placement = OnMesh(mesh=client_mesh(1))
    >>> train = placement.place(fedamp_jax.data.federation("digits").train)
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.separate(task, fedamp_jax.Solver(optax.adam(1e-3)))
    >>> state = train.placement.init(algorithm, jax.random.key(0), train)
    """

    mesh: Mesh
    clients: int | None = None

    def __post_init__(self):
        super().__post_init__()
        check_type("mesh", self.mesh, Mesh, "from fedamp_jax.placement.client_mesh(devices)")
        if self.mesh.axis_names != (AXIS,):
            raise ValueError(
                f"mesh must have the one axis {AXIS!r}, as fedamp_jax.placement.client_mesh makes it, got "
                f"{self.mesh.axis_names}"
            )

    @property
    def first_device(self) -> Any:
        return self.mesh.local_devices[0] if self.mesh.local_devices else self.mesh.devices.flat[0]

    @property
    def devices(self) -> int:
        return self.mesh.size

    def count(self, rows: int) -> int:
        return rows if self.clients is None else self.clients

    def rows(self, clients: int) -> int:
        """The next multiple of the number of devices."""
        return -(-clients // self.mesh.size) * self.mesh.size

    @property
    def shared(self) -> NamedSharding:
        """On every device."""
        return self._sharding()

    def _sharding(self, *spec: str | None) -> NamedSharding:
        return NamedSharding(self.mesh, P(*spec))

    # --- getting there ------------------------------------------------------------------------------------------------

    def place(self, data: D) -> D:
        if isinstance(data.placement, OnMesh):
            if data.placement.mesh != self.mesh:
                raise ValueError(f"the data lie on {data.placement.mesh} already, they cannot be placed on {self.mesh}")
            return data._replace(placement=dataclasses.replace(self, clients=data.clients))
        m = len(data.size)
        return self.from_owned(data.select(self.owned(m)), m)

    def owned(self, m: int) -> np.ndarray:
        """Which of `m` clients lie on this process's devices, `[m_own]` increasing; all for a single process."""
        total = self.rows(m)
        mine = self._sharding(AXIS).addressable_devices_indices_map((total,)).values()
        held = np.unique(np.concatenate([np.arange(total)[index] for index in mine]))
        return held[held < m]

    def from_owned(self, mine: D, m: int) -> D:
        """`Data` over all processes, each of which brings only its own clients.

        Args:
            mine: the clients `owned(m)` in that order, no rows if it owns none; `N` may differ between processes.
            m: the number of clients in all processes together.

        Returns:
            `Data` of `rows(m)` clients; each device has as many rows of x and y as the one with most examples, and no
            process sees another's.

        Raises:
            ValueError: if `mine` has another number of clients than `owned(m)`.
        """
        held = self.owned(m)
        if len(mine.size) != len(held):
            raise ValueError(
                f"process {jax.process_index()} holds {len(held)} of {m} clients, but brings {len(mine.size)}"
            )
        total, devices = self.rows(m), self.mesh.size
        sharding, each = self._sharding(AXIS), total // devices
        indices: Any = sharding.addressable_devices_indices_map((total,)).values()
        local = sorted(rows[0].start or 0 for rows in indices)
        number = {start // each: i for i, start in enumerate(local)}  # of a device in the mesh, and in this process
        size = np.zeros(len(local) * each, np.int32)
        size[: len(held)] = np.asarray(mine.size)
        ends = np.concatenate([[0], np.cumsum(size.reshape(len(local), each).sum(axis=1))])
        names = ("longest", "typical", "larger")
        most = [np.diff(ends).max(initial=1), mine.longest, mine.typical, mine.larger]
        examples, *bounds = (int(found) for found in _largest_of_processes(np.array(most, np.int32)))
        known = {name: Static(bound) for name, bound in zip(names, bounds)}
        at, (own, (x, y)) = positions(mine), without_examples(mine)
        start = np.concatenate([np.cumsum(row) - row for row in size.reshape(-1, each)])
        start += np.repeat([device * examples for device in number], each)

        def rows_of_device(a: Any) -> Array:
            a = np.asarray(a)

            def block(index: Any) -> np.ndarray:
                i = number[(index[0].start or 0) // examples]
                made = np.zeros((examples, *a.shape[1:]), a.dtype)
                made[: ends[i + 1] - ends[i]] = a[at[ends[i] : ends[i + 1]]]
                return made

            return jax.make_array_from_callback((devices * examples, *a.shape[1:]), sharding, block)

        def of_clients(a: Any) -> Array:
            a = np.asarray(a)
            filled = np.zeros((len(size), *a.shape[1:]), a.dtype)
            filled[: len(a)] = a
            return jax.make_array_from_process_local_data(sharding, filled, (total, *a.shape[1:]))

        own = jax.tree.map(of_clients, own._replace(views=(), **known))
        start = jax.make_array_from_process_local_data(sharding, start.astype(np.int32), (total,))
        x, y = jax.tree.map(rows_of_device, (x, y))
        return own._replace(x=x, y=y, start=start, placement=dataclasses.replace(self, clients=m))

    def init(self, algorithm: Any, key: Array, data: Any) -> Any:
        """`algorithm.init(key, data)`; no device holds more of it than its own clients' part."""
        return _init(algorithm.init, key, data)

    def shapes(self, data: Any) -> Any:
        devices, rows = self.mesh.size, self.rows(data.clients)
        examples = -(-len(data.y) // devices)  # of a device, if the clients are spread evenly
        if not isinstance(data.size, jax.ShapeDtypeStruct) and getattr(data.size, "is_fully_addressable", True):
            size = np.zeros(rows, np.int64)
            size[: data.clients] = np.asarray(data.size)[: data.clients]
            examples = max(1, int(size.reshape(devices, -1).sum(axis=1).max()))

        def longer(a: Any, length: int) -> jax.ShapeDtypeStruct:
            return jax.ShapeDtypeStruct((length, *a.shape[1:]), a.dtype, sharding=self._sharding(AXIS))

        own, all_of = without_examples(data._replace(views=()))
        own, (x, y) = (
            jax.tree.map(functools.partial(longer, length=length), tree)
            for tree, length in ((own, rows), (all_of, devices * examples))
        )
        return own._replace(x=x, y=y, placement=dataclasses.replace(self, clients=data.clients))

    def state_shapes(self, algorithm: Any, key: Any, data: Any) -> Any:
        rows = len(data.size)

        def placed(a: Any) -> jax.ShapeDtypeStruct:
            spec = (AXIS,) if a.ndim and a.shape[0] == rows else ()
            return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=self._sharding(*spec))

        return jax.tree.map(placed, jax.eval_shape(algorithm.init, key, data))

    def program(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn`, to be compiled for arrays on this mesh: `jax.jit(placement.program(fn))`.

        The type of a traced array names the mesh that it lies on, and within `shard_map` that is another one: a
        function that runs there and closes over an outer array (a global model, say) is refused. So `fn` is traced with
        types that name none.
        """

        def traced(*args: Any) -> Any:
            plain = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type), args)
            program, out = jax.make_jaxpr(fn, return_shape=True)(*plain)
            return jax.tree.unflatten(jax.tree.structure(out), jaxpr_as_fun(program)(*jax.tree.leaves(args)))

        return traced

    def settle(self, state: Any, rows: int) -> Any:
        """Leaves `[rows, ...]` lie with their clients, the rest on every device."""

        def spec(a: Any) -> tuple[str, ...]:
            return (AXIS,) if a.ndim and a.shape[0] == rows else ()

        return jax.tree.map(lambda a: lax.with_sharding_constraint(a, self._sharding(*spec(a))), state)

    def replicate(self, tree: Any) -> Any:
        return jax.tree.map(lambda a: lax.with_sharding_constraint(a, self._sharding()), tree)

    # --- the verbs of a method ----------------------------------------------------------------------------------------

    def for_each_client(self, step, data, out, *args, work, at_most=None):
        chunk = self.side_by_side(len(work) // self.mesh.size, one_client(step, data, out, *args), at_most)
        return self._per_device(functools.partial(in_chunks, step, chunk), work, data, out, *args)

    def for_each_pair(self, fn, data, columns, *args, work):
        turns, m = self.mesh.size, len(work)
        own = m // turns
        chunk = self.side_by_side(
            own, one_client(lambda one, column, *row: fn(one, *row)(column), data, columns, *args)
        )
        back = [(i, (i - 1) % turns) for i in range(turns)]

        def on_device(work: Any, data: Any, columns: Any, *args: Any) -> Any:
            first = lax.axis_index(AXIS)

            def turn(t: Any, carry: tuple) -> tuple:
                visiting, out = carry

                def step(client: Any, _: Any, *row: Any) -> Any:
                    return lax.map(fn(client, *row), visiting)

                block = in_chunks(step, chunk, work, data, jnp.zeros((own, own), jnp.float32), *args)
                out = lax.dynamic_update_slice(out, block, (jnp.int32(0), (first + t) % turns * own))
                # Every device hands the models that visit it on to the device before it.
                return jax.tree.map(lambda a: lax.ppermute(a, AXIS, back), visiting), out

            return lax.fori_loop(0, turns, turn, (columns, jnp.zeros((own, m), jnp.float32)))[1]

        return self._per_device(on_device, work, data, columns, *args)

    def by_parameters(self, tree: Any) -> ByParameters:
        return _Exchanged(self, tree, _exchange(self, jax.tree.leaves(tree)))

    def _per_device(self, fn: Callable[..., Any], work: Any, data: Any, *args: Any) -> Any:
        """`fn(work, data, *args)`, run by each device for its own clients: on the rows that it holds of every leaf."""
        rows = len(work)
        if rows % self.mesh.size:
            raise ValueError(f"{rows} rows on {self.mesh.size} devices: let placement.place(data) place the data")

        def on_device(work: Any, data: Any, *args: Any) -> Any:
            before = lax.axis_index(AXIS) * len(data.y)  # rows of the devices before this one
            return fn(work, data._replace(start=data.start - before), *args)

        # check_vma would ask every loop of local training to mark its constants as different on each device.
        spread = jax.shard_map(on_device, mesh=self.mesh, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False)
        try:
            return spread(work, data, *args)
        except ValueError as error:
            if "esh" not in str(error) or "Manual" not in str(error):
                raise
            raise ValueError(
                "a function that runs for each client closes over an array whose type names the mesh: call "
                "fedamp_jax.round, fedamp_jax.evaluate or fedamp_jax.run, or compile a function of your own with "
                "jax.jit(data.placement.program(function))"
            ) from error


def _largest_of_processes(numbers: np.ndarray) -> np.ndarray:
    """The largest of all processes' `numbers [K]`, element by element."""
    return np.asarray(multihost_utils.process_allgather(numbers)).reshape(-1, len(numbers)).max(axis=0)


@functools.partial(Jitted, static=1)
def _init(init: Callable[..., Any], key: Array, data: Any) -> Any:
    made = data.placement.program(init)(key, data)
    return data.placement.settle(made, len(data.size))


@dataclasses.dataclass(frozen=True)
class _Exchanged(ByParameters):
    """Models whose parameters are spread over the devices.

    Attributes:
        slices: arrays `[M, d']` with d' over the devices, from `_exchange`.
    """

    placement: OnMesh
    slices: list[Any]

    def map(self, fn, fixed):
        fixed = self.placement.replicate(fixed)
        leaves, structure = jax.tree.flatten(self.tree)
        back = list(leaves)
        for flat, group in zip(self.slices, _groups(leaves, self.placement.devices)):
            flat = _constrain(self.placement, fn(flat, fixed), None, AXIS)
            flat, start = _constrain(self.placement, flat, AXIS), 0
            for i in group:
                width = math.prod(leaves[i].shape[1:])
                back[i] = flat[:, start : start + width].reshape(leaves[i].shape)
                start += width
        return jax.tree.unflatten(structure, back)

    def sum(self, fn, fixed):
        def on_device(slices: list[Any], fixed: Any) -> Any:
            own = sum((fn(flat, fixed) for flat in slices), jnp.zeros((len(slices[0]),) * 2, jnp.float32))
            return lax.psum(own, AXIS)

        add = jax.shard_map(
            on_device, mesh=self.placement.mesh, in_specs=(P(None, AXIS), P()), out_specs=P(), check_vma=False
        )
        return add(self.slices, self.placement.replicate(fixed))


def _constrain(placement: OnMesh, a: Any, *spec: str | None) -> Any:
    return lax.with_sharding_constraint(a, NamedSharding(placement.mesh, P(*spec)))


def _exchange(placement: OnMesh, leaves: list[Any]) -> list[Any]:
    """Leaves `[M, ...]`, clients over the devices, as arrays `[M, d']` with parameters over them: an all-to-all each.

    d' is a multiple of the devices, filled up with zeros. Small leaves are exchanged together.
    """

    def exchange(group: list[int]) -> Any:
        flat = jnp.concatenate([leaves[i].reshape(leaves[i].shape[0], -1) for i in group], axis=1)
        flat = jnp.pad(flat, ((0, 0), (0, -flat.shape[1] % placement.devices)))
        # The first constraint says where the padding is done: before the exchange, on each device's own rows.
        return _constrain(placement, _constrain(placement, flat, AXIS), None, AXIS)

    return [exchange(group) for group in _groups(leaves, placement.devices)]


def _groups(leaves: list[Any], devices: int) -> list[list[int]]:
    """Which leaves are exchanged together: of one type, those with less than 64 numbers of a client for a device."""
    small: dict[Any, list[int]] = {}
    for i, a in enumerate(leaves):
        alone = math.prod(a.shape[1:]) >= 64 * devices
        small.setdefault(i if alone else a.dtype, []).append(i)
    return list(small.values())
