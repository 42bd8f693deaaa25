"""Multilayer perceptron, PFLEGO's model for 28x28 images."""

from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from fedamp_jax.checks import check_integer, check_integers
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
    """Multilayer perceptron with ReLU; PFLEGO uses one hidden layer of 200 units.

    Args:
        classes: number of classes C.
        hidden: widths of the hidden layers.
        shape: shape of one example.
        compute_dtype: dtype of the computations in the body, such as `jnp.bfloat16`; parameters and logits are float32.

    Returns:
        A `Task` whose head is the last layer.

    Raises:
        TypeError: if `classes`, a width or a size in `shape` is not an integer.
        ValueError: if one of them is less than 1.

    Example:
        >>> import jax
        >>> from fedamp_jax.models import mlp
        >>> task = mlp(classes=10, shape=(8, 8))
        >>> task.predict(task.init(jax.random.key(0)), jax.numpy.zeros((2, 8, 8))).shape
        (2, 10)
    """
    check_integer("classes", classes, low=1)
    widths, shape = check_integers("hidden", hidden, low=1), check_integers("shape", shape, low=1)
    return from_linen(Classifier(_Body(widths, compute_dtype), classes), shape)
