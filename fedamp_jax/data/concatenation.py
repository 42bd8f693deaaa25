"""The clients of two `Data` as one."""

import jax
import jax.numpy as jnp
import numpy as np

from fedamp_jax.types import Array, Data


def concatenate(first: Data, second: Data) -> Data:
    """Both sets of clients, those of `second` last; not placed yet.

    Args:
        first: of any clients; padding clients of a mesh are left out.
        second: of further clients, with examples of the same kind.

    Returns:
        `Data` padded to the longer of the two. The clients of `first` keep their ids; those of `second` get the next
        ones, so that training and test data that are concatenated alike stay a pair.

    Raises:
        ValueError: if the examples are of different kinds.

    >>> import numpy as np
    >>> from fedamp_jax import data
    >>> two = data.from_lists([np.zeros((2, 3))] * 2, [[0, 1]] * 2)
    >>> one = data.from_lists([np.ones((4, 3))], [[0, 1, 1, 0]])
    >>> both = concatenate(two, one)
    >>> both.x.shape, both.size.tolist(), both.id.tolist()
    ((3, 4, 3), [2, 2, 4], [0, 1, 2])
    """
    kinds = [jax.tree.map(lambda a: (str(a.dtype), a.shape[2:]), (d.x, d.y)) for d in (first, second)]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"examples differ: {kinds[0]} in the first and {kinds[1]} in the second; preprocess both alike"
        )
    m, longest = first.clients, max(first.y.shape[1], second.y.shape[1])
    ids = np.asarray(first.id)[:m]
    second = second._replace(id=jnp.arange(second.clients, dtype=jnp.int32) + jnp.int32(ids.max() + 1))

    def rows(array: Array, count: int) -> np.ndarray:
        a = np.asarray(array)[:count]
        missing = longest - a.shape[1] if a.ndim > 1 else 0
        return np.pad(a, [(0, 0), (0, missing), *[(0, 0)] * (a.ndim - 2)][: a.ndim])

    def both(a: Array, b: Array) -> Array:
        return jnp.asarray(np.concatenate([rows(a, m), rows(b, second.clients)]))

    arrays = [jax.tree.map(both, a, b) for a, b in zip(first[:6], second[:6], strict=True)]
    return Data(*arrays)
