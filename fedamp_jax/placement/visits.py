"""What visits a device from the host's memory: pieces of a traced round, as primitives that JAX's CPU backend runs.

`rows_p` runs a function of ONE client for chunks of clients, `columns_p` a function of parameters for blocks of them.
While the device computes on one piece, the next one is gathered and sent.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import mlir

from fedamp_jax.layout import Part, parts, with_examples, within, without_examples
from fedamp_jax.programs.kept import kept

BLOCK_BYTES = 1 << 28
"""So much of all clients' parameters is sent at once to be mixed or compared."""


def host() -> Any:
    """The device that stands for this machine's memory.

    >>> host().platform
    'cpu'
    """
    return jax.local_devices(backend="cpu")[0]


class _Piece:
    """A traced piece for chunks of clients of a part with so many examples, compiled when the first of them comes."""

    def __init__(self, part: Part, examples: int, jaxpr: Any):
        self.part, self.examples, self.jaxpr = part, examples, jaxpr

    @functools.cached_property
    def compiled(self) -> Any:
        """A jitted function of `(whole, rows)`, lists of arrays."""
        count = len(self.jaxpr.constvars)

        def piece(whole: list[Any], rows: list[Any]) -> Any:
            return jaxpr_as_fun(ClosedJaxpr(self.jaxpr, whole[:count]))(*whole[count:], *rows)

        return jax.jit(piece)


class Pieces(NamedTuple):
    """What `rows_p` runs for a chunk of clients at a time.

    Attributes:
        programs: the same piece for chunks of each part of the clients (`layout.parts`), large ones first, and for more
            or fewer examples, most first.
        consts: what the step closes over, such as a global model: arguments, so that a piece serves every round. One
            program's after the other's.
        whole: arrays that every chunk gets whole.
        examples: x and y of all clients, `[T, ...]`, of which a chunk gets its own.
        bounds: start and size of each client.
        rows: arrays `[M, ...]` of which a chunk gets rows; the first ones are replaced.
        typical: the largest size of a client of the last part.
    """

    programs: tuple[_Piece, ...]
    consts: list[Any]
    whole: list[Any]
    examples: list[Any]
    bounds: list[Any]
    rows: list[Any]
    typical: int

    def run(self, work: Array, device: Any) -> list[Any]:
        groups = (self.consts, self.whole, self.examples, self.bounds, self.rows)
        return rows_p.bind(work, *(a for group in groups for a in group), programs=self.programs, typical=self.typical,
                           lengths=tuple(map(len, groups)), device=device)  # fmt: skip


def pieces_of(step: Callable[..., Any], chunk: int, data: Any, out: Any, args: tuple, whole: Any = ()) -> Pieces:
    """The programs of `step(client, out_i, *args_i, whole)` for at most `chunk` clients, and their arguments.

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

    def piece(reach: int, whole: list, examples: list, start: Any, *rows: Any) -> list[Any]:
        extra = (jax.tree.unflatten(block, whole),) if blocks else ()

        def one(start: Any, out: Any, own: Any, args: tuple) -> Any:
            client = with_examples(own._replace(start=start), jax.tree.unflatten(structure, examples))
            return step(within(client, reach, copied=False), out, *args, *extra)

        trees = jax.tree.unflatten(tree, [rows[place[id(a)]] for a in leaves])
        return jax.tree.leaves(jax.vmap(one)(start, *trees))

    fixed = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in blocks]
    programs, consts, total = [], [], len(data.y)
    for part in parts(data, len(data.size), chunk):
        some = [jax.ShapeDtypeStruct((part.width, *a.shape[1:]), a.dtype) for a in (data.start, *sent)]
        for count in _counts(total, len(data.size), part.width, part.reach):
            pool = [jax.ShapeDtypeStruct((count, *a.shape[1:]), a.dtype) for a in all_of]
            made = jax.make_jaxpr(functools.partial(piece, part.reach))(fixed, pool, *some)
            programs.append(_Piece(part, count, made.jaxpr))
            consts += made.consts
    return Pieces(tuple(programs), consts, blocks, all_of, [data.start, data.size], sent, data.typical)


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


def _on_rows(work: Any, *arrays: Any, programs: tuple, typical: int, lengths: tuple, device: Any) -> list[Any]:
    """Run the programs for chunks of rows on the device."""
    consts, whole, examples, (start, size), leaves = _groups(arrays, lengths)
    fixed: dict[_Piece, list[Any]] = {}
    new = [np.array(a) for a in leaves[: len(programs[0].jaxpr.outvars)]]
    examples, start, size, amounts = [np.asarray(a) for a in examples], *map(np.asarray, (start, size, work))
    order = np.argsort(-amounts, kind="stable")[: np.count_nonzero(amounts)]
    several = list(dict.fromkeys(piece.part for piece in programs))
    number = size[order] <= typical if len(several) > 1 else np.zeros(len(order), int)
    chunks = [
        (part, rows[i : i + part.width])
        for part, rows in ((part, order[number == i]) for i, part in enumerate(several))
        for i in range(0, len(rows), part.width)
    ]

    def compute(chunk: tuple[Part, np.ndarray]) -> list[Any]:
        part, rows = chunk
        piece = next(p for p in reversed(programs) if p.part == part and p.examples >= size[rows].sum())
        if piece not in fixed:
            before = sum(len(other.jaxpr.constvars) for other in programs[: programs.index(piece)])
            own = consts[before : before + len(piece.jaxpr.constvars)]
            fixed[piece] = jax.device_put([*own, *whole], device)
        own = [np.zeros((piece.examples, *a.shape[1:]), a.dtype) for a in examples]
        begin = np.cumsum(size[rows]) - size[rows]
        for i, first in zip(rows, begin):
            for mine, a in zip(own, examples):
                mine[first : first + size[i]] = a[start[i] : start[i] + size[i]]
        full = np.resize(rows, part.width)  # the last chunk is filled up with rows that it has already
        sent = [*own, np.resize(begin, part.width).astype(np.int32), *(_rows_of(a, full) for a in leaves)]
        return piece.compiled(fixed[piece], jax.device_put(sent, device))

    def receive(chunk: tuple[Part, np.ndarray], results: list[Any]) -> None:
        rows = chunk[1]
        for a, result in zip(new, results):
            a[rows] = np.asarray(result)[: len(rows)]

    _pipelined(chunks, compute, receive)
    return _to_host(new)


def _groups(arrays: Any, lengths: tuple) -> list[list[Any]]:
    """The groups of `Pieces` in the arguments of `rows_p`, but for the first one, which is `work`."""
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
    lambda work, *arrays, programs, typical, lengths, device: list(
        _groups(arrays, lengths)[-1][: len(programs[0].jaxpr.outvars)]
    )
)

columns_p = Primitive("columns_on_device")
columns_p.multiple_results = True
columns_p.def_impl(_on_columns)
columns_p.def_abstract_eval(
    lambda fixed, *leaves, fn, add, device: [leaves[0].update(shape=(leaves[0].shape[0],) * 2)] if add else list(leaves)
)
when_p = Primitive("when_needed")
when_p.multiple_results = True
when_p.def_impl(
    lambda needed, *arrays, program: (
        jaxpr_as_fun(ClosedJaxpr(program, arrays[: len(program.constvars)]))()
        if needed
        else list(arrays[len(program.constvars) :])
    )
)
when_p.def_abstract_eval(lambda needed, *arrays, program: list(arrays[len(program.constvars) :]))

for _primitive in (rows_p, columns_p, when_p):
    mlir.register_lowering(_primitive, _refuse_compilation)
