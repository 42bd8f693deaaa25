"""More models than a device can hold: they stay in the host's memory, and visit the device a few at a time.

A round is traced once and then run operation by operation by JAX's CPU backend, in whose memory all `[M, ...]` arrays
lie. What takes time goes to the device in pieces: local training a chunk of clients at a time (`rows_p`), mixtures and
distances a block of parameters at a time (`columns_p`). While the device computes on a piece, the next one is gathered
and sent.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import mlir
from jax.sharding import SingleDeviceSharding

from fedamp_jax.checks import check_type
from fedamp_jax.placement.placement import ByParameters, D, Placement, is_spread
from fedamp_jax.programs import memory
from fedamp_jax.programs.jaxpr import OneClient, array_bytes, peak

BLOCK_BYTES = 1 << 28
"""So much of all clients' parameters is sent at once to be mixed or compared."""


def host() -> Any:
    """The device that stands for this machine's memory.

    >>> host().platform
    'cpu'
    """
    return jax.local_devices(backend="cpu")[0]


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, kw_only=True)
class InHostMemory(Placement):
    """Clients kept in the host's memory, `chunk` of which visit a device at a time that cannot hold all of them.

    A round is not one compiled program then, and cannot be part of one: `jax.jit` of it is refused.

    Attributes:
        device: such as `jax.devices()[0]`.
        chunk: clients on the device at a time; None: as many as suit it.
        transmit: as in `Placement`.

    Raises:
        TypeError: if `device` is not a device.

    >>> import optax, fedamp_jax
    >>> placement = InHostMemory(device=jax.devices()[0], chunk=5)
    >>> train = placement.place(fedamp_jax.data.federation("digits").train)
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.separate(task, fedamp_jax.Solver(optax.adam(1e-3), epochs=1))
    >>> key = jax.random.key(0)
    >>> state, info = fedamp_jax.round(algorithm, placement.init(algorithm, key, train), train, key)
    """

    device: Any

    def __post_init__(self):
        super().__post_init__()
        check_type("device", self.device, jax.Device, "such as jax.devices()[0]")

    @property
    def first_device(self) -> Any:
        return self.device

    def standing(self, client: OneClient) -> int:
        """Nothing stands: clients only visit."""
        return 0

    def place(self, data: D) -> D:
        if any(map(is_spread, jax.tree.leaves(data))):
            raise ValueError("the data are spread over several devices: InHostMemory is for a single one")
        return jax.device_put(data, host())._replace(placement=self)

    def init(self, algorithm: Any, key: Array, data: Any) -> Any:
        with jax.default_device(host()):
            return algorithm.init(key, data)

    def call(self, compiled: Any, static: tuple, *args: Any) -> Any:
        """`compiled(*static, *args)`, of which only the pieces above are compiled. Traced once."""
        leaves, tree = jax.tree.flatten(args)
        with jax.default_device(host()):
            program, out = traced(compiled.__wrapped__, static, tree, _kinds(leaves))
            return jax.tree.unflatten(out, jaxpr_as_fun(program)(*leaves))

    def compile(self, compiled: Any, static: tuple, *shapes: Any) -> None:
        """Nothing: the pieces of a round are compiled when they are first needed."""

    def fitting(self, need: Any, chosen: Any) -> Placement:
        return self

    def estimate(self, compiled: Any, static: tuple, *shapes: Any) -> "HostEstimate":
        leaves, tree = jax.tree.flatten(shapes)
        program, _ = traced(compiled.__wrapped__, static, tree, _kinds(leaves))
        return _estimate(program.jaxpr)

    def for_each_client(self, step, out, *args, work, at_most=None):
        chunk = self.side_by_side(len(work), OneClient(step, out, *args), at_most)
        program, consts, leaves = _piece(step, chunk, out, *args)
        new = rows_p.bind(work, *consts, *leaves, jaxpr=program, whole=0, chunk=chunk, device=self.device)
        return jax.tree.unflatten(jax.tree.structure(out), new)

    def for_each_pair(self, fn, rows, columns, *, work):
        m = len(work)
        chunk = self.side_by_side(m, OneClient(lambda row, column: fn(row)(column), rows, columns))

        def step(out_i: Any, row: Any, some: Any) -> Any:
            return lax.map(fn(row), some)

        def fill(a: Any) -> Any:
            return jnp.concatenate([a, jnp.broadcast_to(a[-1:], (-m % chunk, *a.shape[1:]))])

        # One program for all blocks of columns: a block is an argument that every chunk of rows gets whole.
        columns = jax.tree.map(fill, columns)
        blocks = [jax.tree.map(lambda a, c=c: a[c : c + chunk], columns) for c in range(0, m, chunk)]
        out = jnp.zeros((m, chunk), jnp.float32)
        program, consts, leaves = _piece(step, chunk, out, rows, whole=blocks[0])
        count = len(jax.tree.leaves(blocks[0]))
        found = [
            rows_p.bind(work, *consts, *jax.tree.leaves(block), *leaves, jaxpr=program, whole=count, chunk=chunk,
                        device=self.device)[0]
            for block in blocks
        ]  # fmt: skip
        return jnp.concatenate(found, axis=1)[:, :m]

    def by_parameters(self, tree: Any) -> ByParameters:
        return _InBlocks(self, tree)


@dataclasses.dataclass(frozen=True)
class _InBlocks(ByParameters):
    """Models of which a block of columns visits the device at a time."""

    placement: InHostMemory

    def map(self, fn, fixed):
        leaves, structure = jax.tree.flatten(self.tree)
        new = columns_p.bind(fixed, *leaves, fn=fn, add=False, device=self.placement.device)
        return jax.tree.unflatten(structure, new)

    def sum(self, fn, fixed):
        return columns_p.bind(fixed, *jax.tree.leaves(self.tree), fn=fn, add=True, device=self.placement.device)[0]


def _kinds(leaves: list[Any]) -> tuple:
    return tuple((a.shape, a.dtype, getattr(a, "weak_type", False)) for a in leaves)


@functools.lru_cache(maxsize=64)
def traced(fn: Callable[..., Any], static: tuple, tree: Any, kinds: tuple) -> tuple[ClosedJaxpr, Any]:
    """The program of `fn(*static, ...)` and the structure of its result.

    Args:
        fn: a pure function.
        static: its first arguments, hashable.
        tree: the structure of the rest.
        kinds: `(shape, dtype, weak_type)` of each of their leaves.
    """
    shapes = [jax.ShapeDtypeStruct(shape, dtype, weak_type=weak) for shape, dtype, weak in kinds]
    made = functools.partial(fn, *static)
    program, out = jax.make_jaxpr(made, return_shape=True)(*jax.tree.unflatten(tree, shapes))
    return program, jax.tree.structure(out)


def _piece(step: Callable[..., Any], chunk: int, out: Any, *args: Any, whole: Any = None) -> tuple[Any, list, list]:
    """The program of `chunk` rows of `step`: `(jaxpr, arrays that it closes over, arrays to send rows of)`.

    The jaxpr takes the leaves of `whole`, which `step` gets as its last arguments, before the rows.
    """
    leaves, tree = jax.tree.flatten((out, *args))
    replaced = jax.tree.leaves(out)
    # An array that is given twice, such as a cloud model as start and as centre, is sent once.
    sent = replaced + list({id(a): a for a in leaves if not any(a is b for b in replaced)}.values())
    place = {id(a): i for i, a in enumerate(sent)}
    some = [jax.ShapeDtypeStruct((chunk, *a.shape[1:]), a.dtype) for a in sent]
    fixed = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), whole)
    extra = () if whole is None else (fixed,)

    def piece(extra: tuple, *rows: Any) -> list[Any]:
        trees = jax.tree.unflatten(tree, [rows[place[id(a)]] for a in leaves])
        return jax.tree.leaves(jax.vmap(lambda *mine: step(*mine, *extra))(*trees))

    program = jax.make_jaxpr(piece)(extra, *some)
    # What `step` closes over, such as a global model, becomes an argument: the program serves every round.
    return program.jaxpr, program.consts, sent


@functools.lru_cache(maxsize=64)
def compiled(jaxpr: Any) -> Any:
    """A traced piece as a jitted function of `(whole, rows)`, lists of arrays."""
    count = len(jaxpr.constvars)
    return jax.jit(lambda whole, rows: jaxpr_as_fun(ClosedJaxpr(jaxpr, whole[:count]))(*whole[count:], *rows))


@functools.lru_cache(maxsize=64)
def _jitted(fn: Callable[..., Any]) -> Callable[..., Any]:
    return jax.jit(fn)


def _pipelined(pieces: Iterable[Any], compute: Callable, receive: Callable) -> None:
    """`receive(piece, compute(piece))` for all, where the next piece is on its way before a result is waited for."""
    waiting = None
    for piece in pieces:
        sent = piece, compute(piece)
        if waiting is not None:
            receive(*waiting)
        waiting = sent
    if waiting is not None:
        receive(*waiting)


def _rows_of(a: Any, rows: np.ndarray) -> Any:
    return a[rows] if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else np.asarray(a)[rows]


def _on_rows(work: Any, *arrays: Any, jaxpr: Any, whole: int, chunk: int, device: Any) -> list[Any]:
    """Run `jaxpr` for chunks of rows on the device."""
    count = len(jaxpr.constvars) + whole
    fixed, leaves = jax.device_put(list(arrays[:count]), device), arrays[count:]
    new = [np.array(a) for a in leaves[: len(jaxpr.outvars)]]
    amounts = np.asarray(work)
    order = np.argsort(-amounts, kind="stable")[: np.count_nonzero(amounts)]

    def compute(rows: np.ndarray) -> list[Any]:
        full = np.resize(rows, chunk)  # the last chunk is filled up with rows that it has already
        return compiled(jaxpr)(fixed, jax.device_put([_rows_of(a, full) for a in leaves], device))

    def receive(rows: np.ndarray, results: list[Any]) -> None:
        for a, result in zip(new, results):
            a[rows] = np.asarray(result)[: len(rows)]

    _pipelined((order[i : i + chunk] for i in range(0, len(order), chunk)), compute, receive)
    return _to_host(new)


def _on_columns(fixed: Any, *leaves: Any, fn: Callable[..., Any], add: bool, device: Any) -> list[Any]:
    """Run `fn` for blocks of columns on the device."""
    m = leaves[0].shape[0]
    flats = [np.asarray(a).reshape(m, -1) for a in leaves]
    width = max(1, BLOCK_BYTES // (m * flats[0].itemsize))
    new = [np.zeros((m, m), np.float32)] if add else [np.empty_like(a) for a in flats]
    fixed = jax.device_put(fixed, device)

    def compute(piece: tuple[int, slice]) -> Any:
        i, columns = piece
        return _jitted(fn)(jax.device_put(flats[i][:, columns], device), fixed)

    def receive(piece: tuple[int, slice], result: Any) -> None:
        i, columns = piece
        if add:
            new[0] += np.asarray(result)
        else:
            new[i][:, columns] = np.asarray(result)

    starts = ((i, start) for i, a in enumerate(flats) for start in range(0, a.shape[1], width))
    _pipelined(((i, slice(start, start + width)) for i, start in starts), compute, receive)
    return _to_host(new if add else [a.reshape(leaf.shape) for a, leaf in zip(new, leaves)])


def _to_host(arrays: list[Any]) -> list[Any]:
    """NumPy's arrays as JAX's, each copied and released before the next."""
    for i in range(len(arrays)):
        arrays[i] = jax.device_put(arrays[i], host())
    return arrays


def _refuse_compilation(*_: Any, **__: Any) -> Any:
    raise TypeError(
        "clients in the host's memory cannot be part of a compiled program: call fedamp_jax.round, fedamp_jax.evaluate "
        "or fedamp_jax.run outside of jax.jit, or use another placement"
    )


rows_p = Primitive("rows_on_device")
rows_p.multiple_results = True
rows_p.def_impl(_on_rows)
rows_p.def_abstract_eval(
    lambda work, *arrays, jaxpr, whole, chunk, device: list(
        arrays[len(jaxpr.constvars) + whole :][: len(jaxpr.outvars)]
    )
)

columns_p = Primitive("columns_on_device")
columns_p.multiple_results = True
columns_p.def_impl(_on_columns)
columns_p.def_abstract_eval(
    lambda fixed, *leaves, fn, add, device: [leaves[0].update(shape=(leaves[0].shape[0],) * 2)] if add else list(leaves)
)
for _primitive in (rows_p, columns_p):
    mlir.register_lowering(_primitive, _refuse_compilation)


class HostEstimate(NamedTuple):
    """A round whose clients stay in the host's memory. All numbers are bytes.

    Attributes:
        host: state, data and everything between, at the worst moment.
        device: the largest piece with all that its computation needs, and the next one in line.
        sent: to the device in a round.
        returned: from the device in a round.
    """

    host: int
    device: int
    sent: int
    returned: int

    def __str__(self) -> str:
        host, device, sent, returned = map(memory.readable, self)
        return (
            f"{host} in the host's memory, {device} on the device at a time; a round sends {sent} and brings back "
            f"{returned}"
        )


def _estimate(jaxpr: Any) -> HostEstimate:
    largest = sent = returned = 0

    def count(eqn: Any) -> None:
        nonlocal largest, sent, returned
        if eqn.primitive in (rows_p, columns_p):
            sent += sum(array_bytes(v.aval) for v in eqn.invars)
            returned += sum(array_bytes(v.aval) for v in eqn.outvars)
            largest = max(largest, _on_device(eqn))

    most = peak(jaxpr, count)
    return HostEstimate(most, largest, sent, returned)


def _on_device(eqn: Any) -> int:
    """Bytes on the device for one of the pieces of work that an equation sends there."""
    if eqn.primitive is columns_p:
        fixed, *leaves = (v.aval for v in eqn.invars)
        block = min(BLOCK_BYTES, max(map(array_bytes, leaves)))
        return array_bytes(fixed) + 2 * block + 2 * (array_bytes(eqn.outvars[0].aval) if eqn.params["add"] else block)
    there, jaxpr = SingleDeviceSharding(eqn.params["device"]), eqn.params["jaxpr"]
    fixed = [*jaxpr.constvars, *jaxpr.invars[: eqn.params["whole"]]]
    whole, rows = (
        [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, sharding=there) for v in some]
        for some in (fixed, jaxpr.invars[eqn.params["whole"] :])
    )
    used = compiled(jaxpr).lower(whole, rows).compile().memory_analysis()
    return 2 * (used.argument_size_in_bytes + used.output_size_in_bytes) + used.temp_size_in_bytes
