"""A part of each client's examples for validation."""

import jax
import jax.numpy as jnp
import numpy as np

from fedamp_jax.data.stack import from_lists
from fedamp_jax.types import Array, Data


def hold_out(data: Data, share: float, *, seed: int) -> tuple[Data, Data]:
    """Hold out validation data: split each client's examples at random, for choices that must not use the test data.

    `fedamp_jax.engine.split_client` splits one client's examples inside a round.

    Args:
        data: of all clients, not placed yet.
        share: of each client's examples that are for validation, between 0 and 1; rounded, and at least one in each
            part. A client with a single example keeps it for training.
        seed: seed of the split.

    Returns:
        `(training, validation)`: two `Data` of the same clients. In the second, some may have no examples, and thus NaN
        in every metric.

    Raises:
        ValueError: the share is not between 0 and 1, or no client has two examples.

    >>> from fedamp_jax import data
    >>> train, test, groups = data.federation("digits")
    >>> part, validation = data.hold_out(train, 0.2, seed=0)
    >>> train.size.tolist()[::7], part.size.tolist()[::7], validation.size.tolist()[::7]
    ([70, 60, 40], [56, 48, 32], [14, 12, 8])
    """
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1, got {share}")
    sizes = np.asarray(data.size)
    if (sizes < 2).all():
        raise ValueError("no client has two examples: nothing can be held out")
    held = np.minimum(np.maximum(np.round(share * sizes).astype(int), 1), np.maximum(sizes - 1, 0))
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(n) for n in sizes]
    x, y = jax.tree.map(np.asarray, (data.x, data.y))

    def part(rows: list[np.ndarray]) -> Data:
        made = from_lists([jax.tree.map(lambda a, i=i, r=r: a[i][r], x) for i, r in enumerate(rows)],
                          [y[i][r] for i, r in enumerate(rows)], classes=np.asarray(data.classes),
                          keep_integers=True, allow_empty=True)  # fmt: skip
        return made._replace(id=data.id, online=data.online)

    kept = [order[h:] for order, h in zip(orders, held, strict=True)]
    return part(kept), part([order[:h] for order, h in zip(orders, held, strict=True)])


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
