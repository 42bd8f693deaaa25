"""Where a client's examples lie among those of all clients: the only code that knows how `Data` are laid out."""

from typing import Any, TypeVar

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


def lengths(size: np.ndarray) -> tuple[int, int]:
    """`Data.longest` and `Data.typical` of clients of these sizes `[M]`.

    >>> lengths(np.array([20, 20, 35, 5000])), lengths(np.array([30, 50, 70]))
    ((5000, 35), (70, 70))
    """
    some = size[size > 0]
    return int(size.max(initial=1)), int(some[some <= 2 * np.median(some)].max()) if len(some) else 0


def reaches(data: Any) -> tuple[int, ...]:
    """The values of `longest` for which a program is compiled, increasing: a client runs the first with room for it.

    A batch is as wide as the largest client of its program allows. A second program is worth its compilation where most
    clients are much smaller than the largest.
    """
    longest, typical = data.longest, data.typical
    return (typical, longest) if 0 < 4 * typical <= longest else (longest,)


def within(client: D, reach: int, copied: bool) -> D:
    """ONE client that has at most `reach` examples, for a program for such clients.

    Args:
        client: its data, of which x and y may be those of all clients.
        reach: one of `reaches`.
        copied: whether x and y become those of the client alone. Not if its examples are a part of more.
    """
    client = client._replace(longest=type(client.longest)(reach))
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
    longest, typical = map(type(data.longest), lengths(size))
    return data._replace(x=x, y=y, start=jnp.asarray(start), views=(), longest=longest, typical=typical)
