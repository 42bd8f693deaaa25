"""Multi-layer perceptron: PFLEGO's model for the 28x28 sets, and the small model for everything else."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from fedamp_jax import checks
from fedamp_jax.models.task import Classifier, from_linen
from fedamp_jax.types import Array, Task


class _Body(nn.Module):
    hidden: Sequence[int]
    dtype: Any

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array) -> Array:
        x = x.reshape(x.shape[0], -1)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width, dtype=self.dtype)(x))
        return x


def mlp(
    classes: int, *, hidden: Sequence[int] = (200,), shape: Sequence[int] = (28, 28), compute_dtype: Any = jnp.float32
) -> Task:
    """A multi-layer perceptron with ReLU; one hidden layer of 200 is PFLEGO's.

    Args:
        classes: C.
        hidden: widths of the hidden layers.
        shape: of one example.
        compute_dtype: of the arithmetic in the body, such as `jnp.bfloat16`; parameters and logits stay float32.

    Returns:
        The `Task`; the last layer is the head.

    Raises:
        ValueError, TypeError: a width or `classes` is not a whole number of at least 1.

    >>> task = mlp(classes=10, shape=(8, 8))
    >>> task.head
    ('head',)
    """
    checks.whole("classes", classes, low=1)
    widths, shape = checks.wholes("hidden", hidden, low=1), checks.wholes("shape", shape, low=1)
    return from_linen(Classifier(_Body(widths, compute_dtype), classes), shape)
