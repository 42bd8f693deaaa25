"""Where a client's examples lie among those of all clients: the only code that knows how `Data` are laid out."""

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedamp_jax.kernels.shuffle import shuffled

D = TypeVar("D", bound=Any)
"""`fedamp_jax.Data`, whose definition holds a placement, which needs what is here."""


def without_examples(data: D) -> tuple[D, tuple[Any, Any]]:
    """What `Data` hold of each client, leaves `[M, ...]`, and the examples of all, leaves `[T, ...]`."""
    return data._replace(x=None, y=None), (data.x, data.y)


def with_examples(own: D, examples: tuple[Any, Any]) -> D:
    """The inverse of `without_examples`, for all clients or for ONE."""
    return own._replace(x=examples[0], y=examples[1])


@jax.tree_util.register_static
class Static(int):
    """An integer that is part of a tree's structure: a compiled program depends on its value."""


def lengths(size: np.ndarray) -> dict[str, Static]:
    """The static fields of `Data` that follow from the clients' sizes `[M]`.

    >>> lengths(np.array([20, 20, 35, 5000]))
    {'longest': 5000, 'typical': 35, 'larger': 1}
    >>> lengths(np.array([30, 50, 70]))
    {'longest': 70, 'typical': 70, 'larger': 0}
    """
    some = size[size > 0]
    typical = int(some[some <= 2 * np.median(some)].max()) if len(some) else 0
    found = {"longest": size.max(initial=1), "typical": typical, "larger": np.sum(size > typical)}
    return {name: Static(value) for name, value in found.items()}


class Part(NamedTuple):
    """Clients that run one program, some of them side by side.

    Attributes:
        reach: the most examples that one of them may have; a batch is as wide as that allows.
        width: how many run side by side.
        most: how many there are at most.
    """

    reach: int
    width: int
    most: int


def parts(data: Any, clients: int, chunk: int) -> tuple[Part, ...]:
    """The programs that clients run, those of large clients first; a client runs the last one that has room for it.

    What runs side by side takes as long as the longest of it. So where most clients are much smaller than the largest,
    which is worth the compilation of a second program, no more of the large ones run side by side than all examples
    would make clients of that size: together they then compute on at most twice as many rows as there are examples.

    Args:
        data: `Data`, of which x and y are those of one device.
        clients: clients of the device.
        chunk: how many of them run side by side at most.
    """
    longest, typical, larger = data.longest, data.typical, min(data.larger, clients)
    chunk = min(chunk, clients)
    if not (larger and 0 < 4 * typical <= longest):
        return (Part(longest, chunk, clients),)
    side_by_side = max(1, min(chunk, larger, len(data.y) // longest))
    return Part(longest, side_by_side, larger), Part(typical, chunk, clients)


def within(client: D, reach: int, copied: bool) -> D:
    """ONE client that has at most `reach` examples, for a program for such clients.

    Args:
        client: its data, of which x and y may be those of all clients.
        reach: of one of `parts`.
        copied: whether x and y become those of the client alone. Not if its examples are a part of more.
    """
    client = client._replace(longest=Static(reach))
    if not copied or client.views or len(client.y) <= reach:
        return client
    first = jnp.minimum(client.start, len(client.y) - reach)
    x, y = jax.tree.map(lambda a: lax.dynamic_slice_in_dim(a, first, reach), (client.x, client.y))
    return client._replace(x=x, y=y, start=client.start - first)


def rows_of(client: Any, rows: Array) -> Array:
    """Where ONE client's examples `rows [B]` are among its own before any division (`Data.views`), `[B]` int32."""
    return through(client.views, rows, client.placement.platform)


def through(views: tuple, rows: Array, platform: str) -> Array:
    """Rows of the last view as rows of the data before the first, `[B]` int32."""
    for view in reversed(views):
        rows = shuffled(view.first + rows, view.total, view.seed, platform)
    return rows


def positions(data: Any) -> np.ndarray:
    """The rows of `data.x` and `data.y` that are the clients' examples, one client's after the other's, `[T]`.

    Args:
        data: concrete `Data`.
    """
    size = np.asarray(data.size)
    of = np.repeat(np.arange(len(size)), size)
    rows = (np.arange(len(of)) - (np.cumsum(size) - size)[of]).astype(np.int32)
    start = np.asarray(data.start)[of]
    if not data.views or not len(of):
        return start + rows
    # Filled up to a power of two, so that few programs are compiled for many numbers of examples.
    fill = np.pad(np.arange(len(of)), (0, (1 << (len(of) - 1).bit_length()) - len(of)), mode="edge")
    views = jax.tree.map(lambda a: np.asarray(a)[of][fill], data.views)
    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        found = _rows_of(views, rows[fill])
    return start + np.asarray(found)[: len(of)]


@jax.jit
def _rows_of(views: tuple, rows: Array) -> Array:
    return through(views, rows, "cpu")


def contiguous(data: D) -> D:
    """The same data without views and without rows that belong to no client; unchanged if they are so already.

    Args:
        data: concrete `Data`.
    """
    size = np.asarray(data.size)
    start = (np.cumsum(size) - size).astype(np.int32)
    if not data.views and len(data.y) == size.sum() and np.array_equal(np.asarray(data.start), start):
        return data
    at = positions(data)
    x, y = jax.tree.map(lambda a: jnp.asarray(np.asarray(a)[at]), (data.x, data.y))
    return data._replace(x=x, y=y, start=jnp.asarray(start), views=(), **lengths(size))
