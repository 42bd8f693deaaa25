"""More models than a device can hold: they stay in the host's memory, and visit the device a few at a time.

Within `use(device)` a round is traced once and then run operation by operation by JAX's CPU backend, in whose memory
all `[M, ...]` arrays lie. What makes the work goes to the device in pieces: local training a chunk of clients at a time
(`over_rows`), mixtures and distances a block of parameters at a time (`over_columns`). While the device computes on a
piece, the next one is gathered and sent. Methods know nothing of it.
"""

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun

from fedamp_jax.types import Array, Device, PyTree

BLOCK_BYTES = 1 << 28
"""So much of all clients' parameters is sent at once to be mixed or compared."""

_in_use = jax.make_user_context(None)


def host() -> Device:
    """The device that stands for this machine's memory.

    >>> host().platform
    'cpu'
    """
    return jax.local_devices(backend="cpu")[0]


@contextlib.contextmanager
def use(device: Device | None) -> Iterator[None]:
    """The context in which `fedamp_jax.round` and `evaluate` keep to the host's memory and send pieces to `device`.

    State and data must have been made in it, or put on `host()`. None changes nothing.

    >>> import optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.separate(task, fedamp_jax.Solver(optax.adam(1e-3), epochs=1))
    >>> key = jax.random.key(0)
    >>> with use(jax.devices()[0]):
    ...     state, info = fedamp_jax.round(algorithm, algorithm.init(key, train), train, key)
    """
    if device is None:
        yield
        return
    with _in_use(device), jax.default_device(host()):
        yield


def active() -> Device | None:
    """The device that pieces are sent to; None if nothing is kept in the host's memory."""
    return _in_use.value


def call(fn: Callable[..., Any], *args: Any, static: tuple = ()) -> Any:
    """`fn(*static, *args)` in the host's memory, but for what `fn` gives to the device. Traced once."""
    leaves, tree = jax.tree.flatten(args)
    kinds = [jax.typeof(a) for a in leaves]
    program, out = traced(fn, static, tree, tuple((a.shape, a.dtype, a.weak_type) for a in kinds))
    return jax.tree.unflatten(out, jaxpr_as_fun(program)(*leaves))


@functools.lru_cache(maxsize=64)
def traced(fn: Callable[..., Any], static: tuple, tree: Any, kinds: tuple) -> tuple[ClosedJaxpr, Any]:
    """The program of `fn(*static, ...)` and its result's tree.

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


def most(parameters: int) -> int | None:
    """How many models of so many parameters to send at once: those that take a sixteenth of the device's memory.

    Start, centre, gradients, an optimizer's moments and the result are as large again each, the next chunk waits beside
    it, and the rest is for activations. None where no device is in use, or where it does not tell its memory, as a CPU.
    """
    device = active()
    memory = None if device is None else (device.memory_stats() or {}).get("bytes_limit")
    return None if memory is None else max(1, memory // 16 // (4 * parameters))


def over_rows(fn: Callable[..., PyTree], chunk: int, work: Array, out: PyTree, *args: PyTree) -> PyTree:
    """`out` with those rows replaced that have work: `fn` gets `chunk` rows of everything at a time.

    Args:
        fn: `(out, *args) -> new out`, for trees with leaves `[chunk, ...]`; treats every row alike.
        chunk: how many rows are on the device at a time.
        work: `[M]`, how long each row takes; the longest go first, those with 0 not at all.
        out: leaves `[M, ...]`.
        *args: further trees with leaves `[M, ...]`.
    """
    leaves, tree = jax.tree.flatten((out, *args))
    replaced = jax.tree.leaves(out)
    # What comes twice, such as a cloud model as start and as centre, is sent once.
    sent = replaced + list({id(a): a for a in leaves if not any(a is b for b in replaced)}.values())
    place = {id(a): i for i, a in enumerate(sent)}
    some = [jax.ShapeDtypeStruct((chunk, *a.shape[1:]), a.dtype) for a in sent]

    def piece(*rows: Array) -> list[Array]:
        with _in_use(None):
            return jax.tree.leaves(fn(*jax.tree.unflatten(tree, [rows[place[id(a)]] for a in leaves])))

    program = jax.make_jaxpr(piece)(*some)
    # What `fn` closes over, such as a global model, becomes an argument: the program serves every round.
    new = rows_p.bind(work, *program.consts, *sent, jaxpr=program.jaxpr, chunk=chunk)
    return jax.tree.unflatten(jax.tree.structure(out), new)


def over_columns(fn: Callable[[Array, Array], Array], fixed: Array, tree: PyTree) -> PyTree:
    """`fn(fixed, columns)` for all columns of every leaf as `[M, d]`: `fn` returns as many columns, `[M, w]`.

    Args:
        fn: a function with a name of its own, as it is compiled once for all calls.
        fixed: what it needs whole.
        tree: leaves `[M, ...]`.
    """
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, columns_p.bind(fixed, *leaves, fn=fn, add=False))


def summed_over_columns(fn: Callable[[Array, Array], Array], fixed: Array, tree: PyTree) -> Array:
    """The sum of `fn(fixed, columns) [M, M]` float32 over all columns of the leaves; arguments as in `over_columns`."""
    return columns_p.bind(fixed, *jax.tree.leaves(tree), fn=fn, add=True)[0]


@functools.lru_cache(maxsize=64)
def compiled(jaxpr: Any) -> Any:
    """A traced piece as a jitted function of `(consts, rows)`."""
    return jax.jit(lambda consts, rows: jaxpr_as_fun(ClosedJaxpr(jaxpr, consts))(*rows))


@functools.lru_cache(maxsize=64)
def _jitted(fn: Callable[..., Array]) -> Callable[..., Array]:
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


def _rows_of(a: Array, rows: np.ndarray) -> Any:
    return a[rows] if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else np.asarray(a)[rows]


def _on_rows(work: Array, *arrays: Array, jaxpr: Any, chunk: int) -> list[Array]:
    """Run `jaxpr` for chunks of rows on the device."""
    count = len(jaxpr.constvars)
    consts, leaves = jax.device_put(arrays[:count], active()), arrays[count:]
    new = [np.array(a) for a in leaves[: len(jaxpr.outvars)]]
    amounts = np.asarray(work)
    order = np.argsort(-amounts, kind="stable")[: np.count_nonzero(amounts)]

    def compute(rows: np.ndarray) -> list[Array]:
        full = np.resize(rows, chunk)  # the last chunk is filled up with rows that it has already
        return compiled(jaxpr)(consts, jax.device_put([_rows_of(a, full) for a in leaves], active()))

    def receive(rows: np.ndarray, results: list[Array]) -> None:
        for a, result in zip(new, results):
            a[rows] = np.asarray(result)[: len(rows)]

    _pipelined((order[i : i + chunk] for i in range(0, len(order), chunk)), compute, receive)
    return _to_host(new)


def _on_columns(fixed: Array, *leaves: Array, fn: Callable[..., Array], add: bool) -> list[Array]:
    """Run `fn` for blocks of columns on the device."""
    m = leaves[0].shape[0]
    flats = [np.asarray(a).reshape(m, -1) for a in leaves]
    width = max(1, BLOCK_BYTES // (m * flats[0].itemsize))
    new = [np.zeros((m, m), np.float32)] if add else [np.empty_like(a) for a in flats]
    fixed = jax.device_put(fixed, active())

    def compute(piece: tuple[int, slice]) -> Array:
        i, columns = piece
        return _jitted(fn)(fixed, jax.device_put(flats[i][:, columns], active()))

    def receive(piece: tuple[int, slice], result: Array) -> None:
        i, columns = piece
        if add:
            new[0] += np.asarray(result)
        else:
            new[i][:, columns] = np.asarray(result)

    starts = ((i, start) for i, a in enumerate(flats) for start in range(0, a.shape[1], width))
    _pipelined(((i, slice(start, start + width)) for i, start in starts), compute, receive)
    return _to_host(new if add else [a.reshape(leaf.shape) for a, leaf in zip(new, leaves)])


def _to_host(arrays: list[Any]) -> list[Array]:
    """NumPy's arrays as JAX's, each copied and let go before the next."""
    for i in range(len(arrays)):
        arrays[i] = jax.device_put(arrays[i], host())
    return arrays


rows_p = Primitive("rows_on_device")
rows_p.multiple_results = True
rows_p.def_impl(_on_rows)
rows_p.def_abstract_eval(lambda work, *arrays, jaxpr, chunk: list(arrays[len(jaxpr.constvars) :][: len(jaxpr.outvars)]))

columns_p = Primitive("columns_on_device")
columns_p.multiple_results = True
columns_p.def_impl(_on_columns)
columns_p.def_abstract_eval(
    lambda fixed, *leaves, fn, add: [leaves[0].update(shape=(leaves[0].shape[0],) * 2)] if add else list(leaves)
)
