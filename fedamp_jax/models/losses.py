"""Losses of a batch: means over its real rows, where padding changes neither the value nor the gradient."""

import jax
import jax.numpy as jnp
import numpy as np

from fedamp_jax.types import Array, Batch

# Finite, to avoid inf - inf, and so low that the probability underflows to exactly 0.
_EXCLUDED = -1e30


def cross_entropy(logits: Array, batch: Batch, weights: Array | np.ndarray | None = None) -> Array:
    """Mean cross entropy over the real rows of a batch and the client's own classes.

    Classes from `batch.classes` on have probability and gradient exactly 0. Padding rows, where `batch.mask` is False,
    affect neither the value nor the gradient, even if they are NaN.

    Args:
        logits: `[B, C]` floats.
        batch: the batch; `x` is not used.
        weights: `[C]` floats, by which each example's loss is multiplied according to its label, or None for 1. The
            mean still divides by the number of rows, not by the sum of their weights, so that the loss of all data is
            the mean of the losses of its batches.

    Returns:
        `[]` float32; 0 if there are no real rows.

    Raises:
        TypeError: if `batch.y` are no integer labels.
        ValueError: if the logits are not `[B, C]`, or there is not one weight for each class.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedamp_jax.models import cross_entropy
        >>> from fedamp_jax.types import Batch
        >>> batch = Batch(x=jnp.zeros((2, 1)), y=jnp.array([0, 0]), mask=jnp.array([True, False]), classes=jnp.array(2))
        >>> round(float(cross_entropy(jnp.zeros((2, 5)), batch)), 4)  # two classes: log 2
        0.6931
    """
    if not jnp.issubdtype(batch.y.dtype, jnp.integer):
        raise TypeError(
            f"cross_entropy needs integer labels, but y is {batch.y.dtype}: use a loss for numbers, such as "
            "fedamp_jax.models.squared_error, or make the data with labels and their number of classes"
        )
    if logits.ndim != 2:
        raise ValueError(f"cross_entropy needs logits [B, C], got shape {list(logits.shape)}")
    column = jnp.arange(logits.shape[1], dtype=jnp.int32)[None, :]
    # Replace padding before log_softmax: its derivative would multiply the zero cotangents by NaN.
    safe = jnp.where(batch.mask[:, None], logits.astype(jnp.float32), jnp.float32(0))
    log_p = jax.nn.log_softmax(jnp.where(column < batch.classes, safe, jnp.float32(_EXCLUDED)))
    if weights is not None:
        if jnp.shape(weights) != (logits.shape[1],):
            raise ValueError(f"weights must be [{logits.shape[1]}], one per class, got {list(jnp.shape(weights))}")
        log_p = log_p * jnp.asarray(weights, jnp.float32)[None]
    # A comparison instead of indexing, because the gradient of indexing is a scatter.
    picked = jnp.where((batch.y[:, None] == column) & batch.mask[:, None], log_p, jnp.float32(0))
    return -jnp.sum(picked) / _count(batch)


def squared_error(outputs: Array, batch: Batch) -> Array:
    """Mean over the real rows, and over the numbers of a row, of `(output - y)^2`.

    Args:
        outputs: `[B, ...]` floats in the shape of `batch.y`; `[B, 1]` for `y [B]` is accepted.
        batch: the batch, of float32 targets.

    Returns:
        `[]` float32; 0 if there are no real rows.

    Raises:
        TypeError: if `batch.y` are labels.
        ValueError: if the shapes differ.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedamp_jax import Batch
        >>> from fedamp_jax.models import squared_error
        >>> batch = Batch(jnp.zeros((2, 1)), jnp.array([3.0, 0.0]), jnp.array([True, False]), jnp.array(0))
        >>> float(squared_error(jnp.array([1.0, jnp.nan]), batch))
        4.0
    """
    outputs, y = paired(outputs, batch, "squared_error")
    return _mean(jnp.square(outputs - y), batch)


def binary_cross_entropy(logits: Array, batch: Batch) -> Array:
    """Mean over the real rows of `-y log p - (1 - y) log(1 - p)`, where `p = sigmoid(logit)`.

    Args:
        logits: `[B]` or `[B, 1]` floats, one for each example.
        batch: the batch; `y [B]` are the labels 0 and 1, or float32 targets in 0..1.

    Returns:
        `[]` float32; 0 if there are no real rows.

    Raises:
        ValueError: if there is more than one logit or target for each example.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedamp_jax import Batch
        >>> from fedamp_jax.models import binary_cross_entropy
        >>> batch = Batch(jnp.zeros((2, 1)), jnp.array([1, 0]), jnp.array([True, True]), jnp.array(2))
        >>> round(float(binary_cross_entropy(jnp.zeros(2), batch)), 4)
        0.6931
    """
    if batch.y.ndim != 1:
        raise ValueError(
            f"binary_cross_entropy needs one label for each example, got y {list(batch.y.shape)}: "
            "fedamp_jax.models.multi_label is for several"
        )
    logits, y = paired(logits, batch, "binary_cross_entropy", labels=True)
    return _mean(_logistic(logits, y), batch)


def multi_label(logits: Array, batch: Batch) -> Array:
    """Binary cross entropy of C labels that do not exclude each other, averaged over labels and real rows.

    Args:
        logits: `[B, C]` floats.
        batch: the batch; `y [B, C]` are float32 targets in 0..1.

    Returns:
        `[]` float32; 0 if there are no real rows.

    Raises:
        TypeError: if `batch.y` are integer labels.
        ValueError: if the shapes differ.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedamp_jax import Batch
        >>> from fedamp_jax.models import multi_label
        >>> batch = Batch(jnp.zeros((1, 1)), jnp.array([[1.0, 0.0]]), jnp.array([True]), jnp.array(0))
        >>> round(float(multi_label(jnp.zeros((1, 2)), batch)), 4)
        0.6931
    """
    logits, y = paired(logits, batch, "multi_label")
    return _mean(_logistic(logits, y), batch)


def paired(outputs: Array, batch: Batch, name: str, *, labels: bool = False) -> tuple[Array, Array]:
    """Outputs and targets as float32 of one shape, zeros in padding rows.

    Args:
        outputs: `[B, ...]`, or `[B, 1]` for `y [B]`.
        batch: the batch.
        name: of the loss or metric, for messages.
        labels: whether integer labels are targets, too.

    Raises:
        TypeError, ValueError: if they are of the wrong kind or shape.
    """
    y = batch.y
    if not labels and jnp.issubdtype(y.dtype, jnp.integer):
        raise TypeError(
            f"{name} needs float32 targets, but y holds integer labels: make the data with classes=0, so that y may be "
            "any numbers, or use cross_entropy"
        )
    if outputs.shape == (*y.shape, 1):
        outputs = outputs[..., 0]
    if outputs.shape != y.shape:
        raise ValueError(
            f"{name} needs outputs in the shape of y: outputs are {list(outputs.shape)}, y is {list(y.shape)}. Give "
            "the model as many outputs as an example has targets"
        )
    mask = batch.mask.reshape(batch.mask.shape + (1,) * (y.ndim - 1))
    zero = jnp.float32(0)
    return jnp.where(mask, outputs.astype(jnp.float32), zero), jnp.where(mask, y.astype(jnp.float32), zero)


def _logistic(logits: Array, y: Array) -> Array:
    """`-y log sigmoid(logit) - (1 - y) log(1 - sigmoid(logit))`, which does not overflow."""
    return jax.nn.softplus(logits) - y * logits


def _count(batch: Batch) -> Array:
    return jnp.maximum(jnp.sum(batch.mask, dtype=jnp.float32), jnp.float32(1))


def _mean(values: Array, batch: Batch) -> Array:
    """The mean over the real rows of each row's mean; `values [B, ...]` may be anything finite in padding."""
    rows = jnp.mean(values.reshape(values.shape[0], -1), axis=1)
    return jnp.sum(jnp.where(batch.mask, rows, jnp.float32(0))) / _count(batch)
