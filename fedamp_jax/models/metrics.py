"""The `Metric`s that belong to the losses: one number for each example."""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from fedamp_jax.models.losses import binary_cross_entropy, cross_entropy, multi_label, paired, squared_error
from fedamp_jax.types import ACCURACY, Array, Batch, Metric


def _rows(values: Array) -> Array:
    """The mean of each row, `[B]`."""
    return jnp.mean(values.reshape(values.shape[0], -1), axis=1)


def _squared(outputs: Array, batch: Batch) -> Array:
    a, b = paired(outputs, batch, "MSE")
    return _rows(jnp.square(a - b))


def _absolute(outputs: Array, batch: Batch) -> Array:
    a, b = paired(outputs, batch, "MAE")
    return _rows(jnp.abs(a - b))


def _agree(logits: Array, batch: Batch, name: str, labels: bool = False) -> Array:
    """`[B, ...]` float32: whether logit and target are on the same side of 0 and 1/2; NaN is on neither."""
    a, b = paired(logits, batch, name, labels=labels)
    return (((a > 0) == (b > 0.5)) & ~jnp.isnan(a)).astype(jnp.float32)


MSE = Metric("mse", _squared, larger_is_better=False)
"""Squared error, averaged over the numbers of a target."""
MAE = Metric("mae", _absolute, larger_is_better=False)
"""Absolute error, averaged over the numbers of a target."""
BINARY_ACCURACY = Metric("accuracy", lambda logits, batch: _agree(logits, batch, "BINARY_ACCURACY", labels=True))
"""Whether the one logit of an example is positive just if its label is 1."""
LABEL_ACCURACY = Metric("label_accuracy", lambda logits, batch: _rows(_agree(logits, batch, "LABEL_ACCURACY")))
"""The share of an example's labels that are right."""
EXACT_MATCH = Metric(
    "exact_match",
    lambda logits, batch: jnp.min(_agree(logits, batch, "EXACT_MATCH").reshape(len(batch.mask), -1), axis=1),
)
"""Whether all labels of an example are right."""

_METRICS: dict[Any, tuple[Metric, ...]] = {
    cross_entropy: (ACCURACY,),
    squared_error: (MSE, MAE),
    binary_cross_entropy: (BINARY_ACCURACY,),
    multi_label: (LABEL_ACCURACY, EXACT_MATCH),
}


def metrics_of(loss: Callable[..., Any]) -> tuple[Metric, ...]:
    """The metrics that suit a loss of `fedamp_jax.models`, also one with arguments in a `functools.partial`.

    Raises:
        ValueError: for another loss.

    >>> [metric.name for metric in metrics_of(squared_error)]
    ['mse', 'mae']
    """
    inner = loss.func if isinstance(loss, functools.partial) else loss
    if inner not in _METRICS:
        raise ValueError(
            "a loss of your own needs metrics of its own: give metrics, such as (fedamp_jax.models.MSE,) or a "
            "fedamp_jax.Metric(name, function)"
        )
    return _METRICS[inner]
