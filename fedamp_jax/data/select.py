"""A part of each client's examples for validation."""

import jax
import jax.numpy as jnp
import numpy as np

from fedamp_jax.layout import contiguous, lengths
from fedamp_jax.placement.placement import Placement
from fedamp_jax.types import Data, View


def hold_out(data: Data, share: float, *, seed: int) -> tuple[Data, Data]:
    """Hold out validation data: split each client's examples at random, for choices that must not use the test data.

    `fedamp_jax.engine.split_client` splits one client's examples inside a round.

    Args:
        data: of all clients, not placed yet.
        share: of each client's examples that are for validation, between 0 and 1; rounded, and at least one in each
            part. A client with a single example keeps it for training.
        seed: seed of the split.

    Returns:
        `(training, validation)`: two `Data` of the same clients, which share the examples of `data`: none is copied. In
        the second, some may have no examples, and thus NaN in every metric.

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
    seeds = np.random.default_rng(seed).integers(0, 1 << 32, (len(sizes), 2), np.uint32)

    def part(first: np.ndarray, size: np.ndarray) -> Data:
        view = View(jnp.asarray(seeds), jnp.asarray(first, jnp.int32), data.size)
        return data._replace(size=jnp.asarray(size, jnp.int32), views=(*data.views, view), **lengths(size))

    return part(held, sizes - held), part(np.zeros_like(held), held)


def concatenate(first: Data, second: Data) -> Data:
    """Both sets of clients, those of `second` last; not placed yet.

    Args:
        first: of any clients; padding clients of a mesh are left out.
        second: of further clients, with examples of the same kind.

    Returns:
        `Data`. The clients of `first` keep their ids; those of `second` get the next
        ones, so that training and test data that are concatenated alike stay a pair.

    Raises:
        ValueError: if the examples are of different kinds.

    >>> import numpy as np
    >>> from fedamp_jax import data
    >>> two = data.from_lists([np.zeros((2, 3))] * 2, [[0, 1]] * 2)
    >>> one = data.from_lists([np.ones((4, 3))], [[0, 1, 1, 0]])
    >>> both = concatenate(two, one)
    >>> both.x.shape, both.size.tolist(), both.id.tolist()
    ((8, 3), [2, 2, 4], [0, 1, 2])
    """
    kinds = [jax.tree.map(lambda a: (str(a.dtype), a.shape[1:]), (d.x, d.y)) for d in (first, second)]
    if kinds[0] != kinds[1]:
        raise ValueError(
            f"examples differ: {kinds[0]} in the first and {kinds[1]} in the second; preprocess both alike"
        )
    first = contiguous(first.select(np.arange(first.clients)))
    ids = np.asarray(first.id)
    second = contiguous(second)._replace(id=jnp.arange(second.clients, dtype=jnp.int32) + jnp.int32(ids.max() + 1))
    second = second._replace(start=second.start + jnp.int32(len(first.y)))
    known = lengths(np.concatenate([first.size, second.size]))
    first, second = (d._replace(**known, placement=Placement()) for d in (first, second))
    return jax.tree.map(lambda a, b: jnp.asarray(np.concatenate([a, b])), first, second)
