"""What a model takes: the shapes of one example, checked while tracing, and stored data as a network's input."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedamp_jax.trees import expand_dims_like
from fedamp_jax.types import Array, PyTree


def to_float(x: Array) -> Array:
    """Converts stored data to network input.

    Args:
        x: array of any shape.

    Returns:
        An array of the same shape: uint8 as float32 scaled to 0..1, floats as float32, other dtypes unchanged.
    """
    if x.dtype == jnp.uint8:
        return x.astype(jnp.float32) / jnp.float32(255)
    return x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x


def mask_like(mask: Array, x: Array) -> Array:
    """A mask of rows with as many axes as x, the form that `nn.BatchNorm` and `nnx.BatchNorm` take.

    They align the last axes of a mask with those of x: of images `[B, H, W, C]`, a mask `[B, 1]` would choose rows of
    pixels.

    Args:
        mask: `[B]` bool, True for real rows.
        x: `[B, ...]`, the input of the layer.

    Returns:
        `[B, 1, ..., 1]` bool.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedamp_jax.models import mask_like
        >>> mask_like(jnp.array([True, False]), jnp.zeros((2, 8, 8, 3))).shape
        (2, 1, 1, 1)
    """
    return expand_dims_like(mask, x)


def keep_rows(x: Array, mask: Array) -> Array:
    """Replaces padding rows with zeros, even if they contain NaN.

    Args:
        x: `[B, ...]`.
        mask: `[B]` bool, True for real rows.

    Returns:
        `[B, ...]`, zeros where `mask` is False.
    """
    return jnp.where(mask_like(mask, x), x, jnp.zeros((), x.dtype))


class Inputs:
    """The examples that a model is made for.

    Args:
        sample: the shape of one example; or, for several inputs, a dictionary or tuple of `jax.ShapeDtypeStruct`s.
        dtype: of a single input.

    Raises:
        TypeError: if `sample` is neither.

    >>> Inputs((8, 8)).example(2).shape
    (2, 8, 8)
    """

    def __init__(self, sample: Any, dtype: Any = jnp.float32):
        leaves = jax.tree.leaves(sample)
        several = bool(leaves) and all(isinstance(a, jax.ShapeDtypeStruct) for a in leaves)
        if not several and not (isinstance(sample, Sequence) and all(isinstance(n, int) for n in sample)):
            raise TypeError(
                "sample_shape must be the shape of one example, such as (28, 28), or for several inputs a dictionary "
                f"or tuple of jax.ShapeDtypeStruct(shape, dtype), got {sample!r}"
            )
        self.sample: PyTree = sample if several else jax.ShapeDtypeStruct(tuple(sample), dtype)

    def example(self, rows: int = 1) -> PyTree:
        """`rows` examples of zeros, leaves `[rows, ...]`."""
        return jax.tree.map(lambda a: jnp.zeros((rows, *a.shape), a.dtype), self.sample)

    def input(self, x: PyTree) -> PyTree:
        """Checks the shapes of x while tracing, and converts x to the model's input."""
        if jax.tree.structure(x) != jax.tree.structure(self.sample):
            raise ValueError(
                f"x is {jax.tree.structure(x)}, but this model was made for {jax.tree.structure(self.sample)}: give "
                "the data the inputs that sample_shape names"
            )
        return jax.tree_util.tree_map_with_path(_converted, self.sample, x)


def _converted(path: tuple, sample: jax.ShapeDtypeStruct, x: Array) -> Array:
    shape, name = sample.shape, f"x{jax.tree_util.keystr(path)}"
    if x.shape[1:] not in (shape, (*shape, 1)) and (*x.shape[1:], 1) != shape:
        raise ValueError(
            f"{name} has shape {x.shape}, but this model was made for examples of shape {shape}, that is, {name} of "
            f"shape {('B', *shape)}: make the model with shape={tuple(x.shape[1:])}, or reshape the data"
        )
    x = x.reshape(x.shape[:1] + shape)
    # Tokens may arrive as float32, which represents integers up to 2^24 exactly.
    tokens = jnp.issubdtype(sample.dtype, jnp.integer) and sample.dtype != jnp.uint8
    return x.astype(sample.dtype) if tokens else to_float(x)
