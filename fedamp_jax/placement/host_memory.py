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
from fedamp_jax.layout import D, contiguous, with_examples, without_examples
from fedamp_jax.placement.placement import ByParameters, Placement, is_spread, one_client
from fedamp_jax.programs import memory
from fedamp_jax.programs.jaxpr import OneClient, array_bytes, peak
from fedamp_jax.programs.kept import kept

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
        return jax.device_put(contiguous(data), host())._replace(placement=self)

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

    def for_each_client(self, step, data, out, *args, work, at_most=None):
        chunk = self.side_by_side(len(work), one_client(step, data, out, *args), at_most)
        pieces = _pieces(step, chunk, data, out, args)
        return jax.tree.unflatten(jax.tree.structure(out), pieces.run(work, self.device))

    def for_each_pair(self, fn, data, columns, *args, work):
        m = len(work)
        chunk = self.side_by_side(m, one_client(lambda one, column, *row: fn(one, *row)(column), data, columns, *args))

        def step(client: Any, _: Any, *row_and_some: Any) -> Any:
            *row, some = row_and_some
            return lax.map(fn(client, *row), some)

        def fill(a: Any) -> Any:
            return jnp.concatenate([a, jnp.broadcast_to(a[-1:], (-m % chunk, *a.shape[1:]))])

        # One program for all blocks of columns: a block is an argument that every chunk of rows gets whole.
        columns = jax.tree.map(fill, columns)
        blocks = [jax.tree.map(lambda a, c=c: a[c : c + chunk], columns) for c in range(0, m, chunk)]
        pieces = _pieces(step, chunk, data, jnp.zeros((m, chunk), jnp.float32), args, whole=blocks[0])
        found = [pieces._replace(whole=jax.tree.leaves(block)).run(work, self.device)[0] for block in blocks]
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


@kept
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


class _Piece:
    """A traced piece for chunks of so many examples, compiled when the first of them comes."""

    def __init__(self, examples: int, jaxpr: Any):
        self.examples, self.jaxpr = examples, jaxpr

    @functools.cached_property
    def compiled(self) -> Any:
        """A jitted function of `(whole, rows)`, lists of arrays."""
        count = len(self.jaxpr.constvars)

        def piece(whole: list[Any], rows: list[Any]) -> Any:
            return jaxpr_as_fun(ClosedJaxpr(self.jaxpr, whole[:count]))(*whole[count:], *rows)

        return jax.jit(piece)


class _Pieces(NamedTuple):
    """What `rows_p` runs for a chunk of clients at a time.

    Attributes:
        programs: the same piece for chunks of more or fewer examples, that for most first.
        consts: what the step closes over, such as a global model: arguments, so that a piece serves every round. One
            program's after the other's.
        whole: arrays that every chunk gets whole.
        examples: x and y of all clients, `[T, ...]`, of which a chunk gets its own.
        bounds: start and size of each client.
        rows: arrays `[M, ...]` of which a chunk gets rows; the first ones are replaced.
    """

    programs: tuple[_Piece, ...]
    consts: list[Any]
    whole: list[Any]
    examples: list[Any]
    bounds: list[Any]
    rows: list[Any]
    chunk: int

    def run(self, work: Array, device: Any) -> list[Any]:
        groups = (self.consts, self.whole, self.examples, self.bounds, self.rows)
        return rows_p.bind(work, *(a for group in groups for a in group), programs=self.programs, chunk=self.chunk,
                           lengths=tuple(map(len, groups)), device=device)  # fmt: skip


def _pieces(step: Callable[..., Any], chunk: int, data: Any, out: Any, args: tuple, whole: Any = ()) -> _Pieces:
    """The programs of `step(client, out_i, *args_i, whole)` for `chunk` clients, and their arguments.

    A chunk brings its own clients' examples, whose number varies: programs for several numbers are traced, each a
    quarter of the one before, and a chunk runs the smallest that has room for it.
    """
    own, examples = without_examples(data)
    own = own._replace(start=None)
    leaves, tree = jax.tree.flatten((out, own, args))
    replaced = jax.tree.leaves(out)
    # An array that is given twice, such as a cloud model as start and as centre, is sent once.
    sent = replaced + list({id(a): a for a in leaves if not any(a is b for b in replaced)}.values())
    place = {id(a): i for i, a in enumerate(sent)}
    all_of, structure = jax.tree.flatten(examples)
    blocks, block = jax.tree.flatten(whole)

    def piece(whole: list, examples: list, start: Any, *rows: Any) -> list[Any]:
        extra = (jax.tree.unflatten(block, whole),) if blocks else ()

        def one(start: Any, out: Any, own: Any, args: tuple) -> Any:
            client = with_examples(own._replace(start=start), jax.tree.unflatten(structure, examples))
            return step(client, out, *args, *extra)

        trees = jax.tree.unflatten(tree, [rows[place[id(a)]] for a in leaves])
        return jax.tree.leaves(jax.vmap(one)(start, *trees))

    some = [jax.ShapeDtypeStruct((chunk, *a.shape[1:]), a.dtype) for a in (data.start, *sent)]
    fixed = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in blocks]
    programs, consts = [], []
    for count in _counts(len(data.y), len(data.size), chunk, data.longest):
        pool = [jax.ShapeDtypeStruct((count, *a.shape[1:]), a.dtype) for a in all_of]
        made = jax.make_jaxpr(piece)(fixed, pool, *some)
        programs.append(_Piece(count, made.jaxpr))
        consts += made.consts
    return _Pieces(tuple(programs), consts, blocks, all_of, [data.start, data.size], sent, chunk)


def _counts(total: int, clients: int, chunk: int, longest: int) -> list[int]:
    """Numbers of examples that chunks are compiled for: what the largest may have, and smaller ones.

    >>> _counts(60_000, 2_001, 20, 20_000), _counts(1_000, 20, 5, 50)
    ([60000, 15000, 3750, 937], [250])
    """
    counts = [max(1, min(total, chunk * longest))]
    small = max(1, (total - longest) // max(1, clients - 1))  # what clients have on average, but for the largest
    while counts[-1] >= 5 * chunk * small:
        counts.append(counts[-1] // 4)
    return counts


@kept
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


def _on_rows(work: Any, *arrays: Any, programs: tuple, chunk: int, lengths: tuple, device: Any) -> list[Any]:
    """Run the programs for chunks of rows on the device."""
    consts, whole, examples, (start, size), leaves = _groups(arrays, lengths)
    fixed: dict[_Piece, list[Any]] = {}
    new = [np.array(a) for a in leaves[: len(programs[0].jaxpr.outvars)]]
    examples, start, size, amounts = [np.asarray(a) for a in examples], *map(np.asarray, (start, size, work))
    order = np.argsort(-amounts, kind="stable")[: np.count_nonzero(amounts)]

    def compute(rows: np.ndarray) -> list[Any]:
        piece = next((p for p in reversed(programs) if p.examples >= size[rows].sum()), programs[0])
        if piece not in fixed:
            before = sum(len(other.jaxpr.constvars) for other in programs[: programs.index(piece)])
            own = consts[before : before + len(piece.jaxpr.constvars)]
            fixed[piece] = jax.device_put([*own, *whole], device)
        own = [np.zeros((piece.examples, *a.shape[1:]), a.dtype) for a in examples]
        begin = np.cumsum(size[rows]) - size[rows]
        for i, first in zip(rows, begin):
            for mine, a in zip(own, examples):
                mine[first : first + size[i]] = a[start[i] : start[i] + size[i]]
        full = np.resize(rows, chunk)  # the last chunk is filled up with rows that it has already
        sent = [*own, np.resize(begin, chunk).astype(np.int32), *(_rows_of(a, full) for a in leaves)]
        return piece.compiled(fixed[piece], jax.device_put(sent, device))

    def receive(rows: np.ndarray, results: list[Any]) -> None:
        for a, result in zip(new, results):
            a[rows] = np.asarray(result)[: len(rows)]

    _pipelined((order[i : i + chunk] for i in range(0, len(order), chunk)), compute, receive)
    return _to_host(new)


def _groups(arrays: Any, lengths: tuple) -> list[list[Any]]:
    """The groups of `_Pieces` in the arguments of `rows_p`, but for the first one, which is `work`."""
    ends = np.cumsum(lengths)
    return [list(arrays[end - n : end]) for n, end in zip(lengths, ends)]


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
    lambda work, *arrays, programs, chunk, lengths, device: list(
        _groups(arrays, lengths)[-1][: len(programs[0].jaxpr.outvars)]
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
    there, piece = SingleDeviceSharding(eqn.params["device"]), eqn.params["programs"][0]
    jaxpr = piece.jaxpr
    fixed = [*jaxpr.constvars, *jaxpr.invars[: eqn.params["lengths"][1]]]
    whole, rows = (
        [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, sharding=there) for v in some]
        for some in (fixed, jaxpr.invars[eqn.params["lengths"][1] :])
    )
    used = piece.compiled.lower(whole, rows).compile().memory_analysis()
    return 2 * (used.argument_size_in_bytes + used.output_size_in_bytes) + used.temp_size_in_bytes
