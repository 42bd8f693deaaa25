"""What a round will take, before it takes it: compiled for any number of devices, on data that need not exist."""

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Var
from jax.sharding import Mesh, NamedSharding, SingleDeviceSharding
from jax.sharding import PartitionSpec as P

from fedamp_jax import driver, layout, memory, offload, sharding
from fedamp_jax.types import Algorithm, Data, Device

_COLLECTIVES = "(?:ragged-)?all-to-all|all-gather|all-reduce|reduce-scatter|collective-permute|collective-broadcast"
_SHAPE = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")
_BITS = re.compile(r"\d+")


class Plan(NamedTuple):
    """One device's share of a compiled round. All numbers are bytes unless they say otherwise.

    Attributes:
        devices: how many there are.
        clients: rows on each, those that are nobody included.
        state: the algorithm's state; it is overwritten by the new one.
        data: the training data.
        working: everything else at the worst moment: cloud models, gradients, optimizer states, activations.
        exchanged: `{collective: [bytes of each]}`, what a device receives in a round, its own part included.
    """

    devices: int
    clients: int
    state: int
    data: int
    working: int
    exchanged: dict[str, list[int]]

    @property
    def memory(self) -> int:
        """What a device must hold at once."""
        return self.state + self.data + self.working

    def __str__(self) -> str:
        parts = [f"{name} {_size(sum(sizes))} in {len(sizes)}" for name, sizes in self.exchanged.items()]
        return (
            f"{self.devices} device(s) of {self.clients} client(s): {_size(self.memory)} each "
            f"(state {_size(self.state)}, data {_size(self.data)}, working memory {_size(self.working)}); "
            f"a round exchanges {', '.join(parts) or 'nothing'}"
        )


def plan(algorithm: Algorithm, data: Data, mesh: Mesh | None = None) -> Plan:
    """Compile a round for the mesh without running it.

    Args:
        algorithm: a method.
        data: arrays, or `jax.ShapeDtypeStruct`s in their place: of any number of clients.
        mesh: from `sharding.client_mesh`, or None for one device. `jax_num_cpu_devices` makes as many devices of a CPU
            as one wants to plan for; the working memory is then what XLA's CPU backend takes, whose layouts and fusions
            are not those of an accelerator.

    Returns:
        A `Plan`.

    >>> import optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedamp(task, fedamp_jax.Solver(optax.adam(1e-3)), sigma=1.6, self_weight=1 / 4)
    >>> plan(algorithm, train).clients
    20
    """
    m = data.y.shape[0] if mesh is None else sharding.rows(data.y.shape[0], mesh)
    key = jax.eval_shape(lambda: jax.random.key(0))

    def placed(a: Any, split: bool) -> jax.ShapeDtypeStruct:
        where = None if mesh is None else NamedSharding(mesh, P(layout.AXIS) if split else P())
        return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=where)

    shapes: list[Any] = [placed(jax.ShapeDtypeStruct((m, *a.shape[1:]), a.dtype), True) for a in data]
    longer = Data(*shapes)
    with layout.use(mesh):
        state = jax.eval_shape(algorithm.init, key, longer)
        state = jax.tree.map(lambda a: placed(a, bool(a.ndim) and a.shape[0] == m), state)
        program = driver._round.lower(algorithm, state, longer, key).compile()
    return Plan(
        1 if mesh is None else mesh.size,
        m if mesh is None else m // mesh.size,
        _held(state),
        _held(longer),
        memory.need(program).working,
        collectives(program.as_text() or ""),
    )


class OffloadPlan(NamedTuple):
    """A round whose clients stay in the host's memory. All numbers are bytes.

    Attributes:
        host: state, data and everything between, at the worst moment.
        device: the largest piece with all that its computation needs, and the next one that waits beside it.
        sent: to the device in a round.
        returned: from the device in a round.
    """

    host: int
    device: int
    sent: int
    returned: int

    def __str__(self) -> str:
        return (
            f"{_size(self.host)} in the host's memory, {_size(self.device)} on the device at a time; "
            f"a round sends {_size(self.sent)} and brings back {_size(self.returned)}"
        )


def plan_offloaded(algorithm: Algorithm, data: Data, device: Device) -> OffloadPlan:
    """Trace a round for `fedamp_jax.offload` and compile its pieces, without running it.

    Args:
        algorithm: a method.
        data: arrays, or `jax.ShapeDtypeStruct`s in their place: of any number of clients.
        device: where the pieces go.

    Returns:
        An `OffloadPlan`, for a round in which everybody takes part.

    >>> import optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> solver = fedamp_jax.Solver(optax.adam(1e-3), chunk=2)
    >>> two = plan_offloaded(fedamp_jax.separate(task, solver), train, jax.devices()[0])
    >>> two.device < two.host
    True
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    data = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), data)
    with offload.use(device):
        leaves, tree = jax.tree.flatten((key, jax.eval_shape(algorithm.init, key, data), data))
        kinds = tuple((a.shape, a.dtype, a.weak_type) for a in leaves)
        program, _ = offload.traced(algorithm.round, (), tree, kinds)
    jaxpr, largest, sent, returned = program.jaxpr, 0, 0, 0
    last = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.invars if isinstance(v, Var)}
    kept = {*jaxpr.invars, *jaxpr.constvars, *(v for v in jaxpr.outvars if isinstance(v, Var))}
    held = host = sum(_bytes(v.aval) for v in (*jaxpr.invars, *jaxpr.constvars))
    for i, eqn in enumerate(jaxpr.eqns):
        held += sum(_bytes(v.aval) for v in eqn.outvars)
        host = max(host, held)
        over = {v for v in (*eqn.invars, *eqn.outvars) if isinstance(v, Var) and last.get(v, i) == i} - kept
        held -= sum(_bytes(v.aval) for v in over)
        if eqn.primitive in (offload.rows_p, offload.columns_p):
            sent += sum(_bytes(v.aval) for v in eqn.invars)
            returned += sum(_bytes(v.aval) for v in eqn.outvars)
            largest = max(largest, _piece(eqn, device))
    return OffloadPlan(host, largest, sent, returned)


def _piece(eqn: Any, device: Device) -> int:
    """Bytes on the device for one of the pieces of work that an equation sends there."""
    if eqn.primitive is offload.columns_p:
        fixed, *leaves = (v.aval for v in eqn.invars)
        block = min(offload.BLOCK_BYTES, max(map(_bytes, leaves)))
        return _bytes(fixed) + 2 * block + 2 * (_bytes(eqn.outvars[0].aval) if eqn.params["add"] else block)
    there, jaxpr = SingleDeviceSharding(device), eqn.params["jaxpr"]
    consts, rows = (
        [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, sharding=there) for v in some]
        for some in (jaxpr.constvars, jaxpr.invars)
    )
    used = offload.compiled(jaxpr).lower(consts, rows).compile().memory_analysis()
    return 2 * (used.argument_size_in_bytes + used.output_size_in_bytes) + used.temp_size_in_bytes


def _bytes(aval: Any) -> int:
    """Bytes of an array; a key of a generator takes eight."""
    width = 8 if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key) else aval.dtype.itemsize
    return int(np.prod(aval.shape)) * width


def collectives(program: str) -> dict[str, list[int]]:
    """Bytes of one device's result of every collective in a compiled program's text (`compiled.as_text()`), by name."""
    found: dict[str, list[int]] = {}
    for results, name in re.findall(rf"= (.*?) ({_COLLECTIVES})(?:-done)?\(", program):
        sizes = [_width(dtype) * int(np.prod([int(n) for n in dims.split(",") if n])) // 8
                 for dtype, dims in _SHAPE.findall(results)]  # fmt: skip
        found.setdefault(name, []).append(sum(sizes))
    return found


def _width(dtype: str) -> int:
    """Bits of one number of an XLA type; a `pred` takes a byte."""
    return 8 if dtype == "pred" else int(_BITS.findall(dtype)[0])


def _held(tree: Any) -> int:
    """Bytes of the shapes of a tree on one device."""
    leaves = jax.tree.leaves(tree)
    shards = [a.shape if a.sharding is None else a.sharding.shard_shape(a.shape) for a in leaves]
    return sum(int(np.prod(shape)) * jnp.dtype(a.dtype).itemsize for shape, a in zip(shards, leaves))


def _size(number: float) -> str:
    """Such as `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.4g} {unit}"
        number /= 1024
    raise AssertionError
