"""A part of each client's examples for validation."""

import jax
import numpy as np

from fedamp_jax.data.stack import from_lists
from fedamp_jax.types import Data


def hold_out(data: Data, share: float, *, seed: int) -> tuple[Data, Data]:
    """Splits each client's examples at random, for choices that must not look at the test data.

    It returns the part to train on first; `fedamp_jax.holdout`, for algorithms, returns the validation part first.

    Args:
        data: of all clients, not placed yet.
        share: of each client's examples in the second part, between 0 and 1; rounded, and at least one in each part. A
            client with a single example keeps it in the first part.
        seed: seed of the split.

    Returns:
        Two `Data` of the same clients. In the second, some may have no examples, and thus NaN in every metric.

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
