"""Losses and their metrics against float64 NumPy, written from their equations."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedamp_jax import Batch
from fedamp_jax.models import (
    BINARY_ACCURACY,
    EXACT_MATCH,
    LABEL_ACCURACY,
    MAE,
    MSE,
    binary_cross_entropy,
    cross_entropy,
    multi_label,
    squared_error,
)

RNG = np.random.default_rng(0)
MASK = np.array([True, True, False, True, False])
WEIGHTS = np.array([0.5, 2.0, 3.0])
LABELS, BITS, REAL = RNG.integers(0, 3, 5), RNG.integers(0, 2, 5), RNG.normal(size=(5, 2, 3))
SEVERAL = RNG.integers(0, 2, (5, 4)).astype(np.float64)


def log_softmax(z):
    return (
        z - z.max(axis=1, keepdims=True) - np.log(np.exp(z - z.max(axis=1, keepdims=True)).sum(axis=1, keepdims=True))
    )


def two_sided(z, y):
    """-y log p - (1 - y) log(1 - p)."""
    p = 1 / (1 + np.exp(-z))
    return -y * np.log(p) - (1 - y) * np.log1p(-p)


# The loss, its targets, the shape of the outputs, and the loss of each row in float64.
CASES = {
    "cross entropy": (cross_entropy, LABELS, (5, 3), lambda z, y: -log_softmax(z)[np.arange(len(y)), y]),
    "class weights": (
        functools.partial(cross_entropy, weights=WEIGHTS), LABELS, (5, 3),
        lambda z, y: -WEIGHTS[y] * log_softmax(z)[np.arange(len(y)), y],
    ),
    "squared": (squared_error, REAL, (5, 2, 3), lambda z, y: ((z - y) ** 2).reshape(len(y), -1).mean(axis=1)),
    "squared, one output": (squared_error, REAL[:, 0, 0], (5, 1), lambda z, y: (z[:, 0] - y) ** 2),
    "binary": (binary_cross_entropy, BITS, (5,), two_sided),
    "binary, an axis": (binary_cross_entropy, BITS.astype(float), (5, 1), lambda z, y: two_sided(z[:, 0], y)),
    "multi-label": (multi_label, SEVERAL, (5, 4), lambda z, y: two_sided(z, y).mean(axis=1)),
}  # fmt: skip


def batch_of(y, mask=MASK):
    kind = jnp.int32 if y.dtype.kind == "i" else jnp.float32
    return Batch(jnp.zeros((5, 1)), jnp.asarray(y, kind), jnp.asarray(mask), jnp.int32(3 if y.ndim == 1 else 0))


@pytest.mark.parametrize("case", CASES)
def test_a_loss_is_that_of_numpy(case):
    """In value and gradient, the latter by central differences; padding is NaN. Failed with a mean over all rows, with
    weights that divide by their sum, and where padding was masked after the loss only (NaN in the gradient).
    """
    loss, y, shape, rows = CASES[case]
    z = 3 * np.random.default_rng(1).normal(size=shape)  # of the test's own: others may run before it, or not

    def wanted(z):
        return rows(z[MASK], y[MASK]).sum() / MASK.sum()

    slopes = np.zeros(shape)
    for at in np.ndindex(shape):
        step = np.zeros(shape)
        step[at] = 1e-6
        slopes[at] = (wanted(z + step) - wanted(z - step)) / 2e-6
    poisoned = np.where(MASK.reshape(-1, *[1] * (len(shape) - 1)), z, np.nan)
    targets = y if y.dtype.kind == "i" else np.where(MASK.reshape(-1, *[1] * (y.ndim - 1)), y, np.nan)
    value, gradient = jax.value_and_grad(loss)(jnp.asarray(poisoned, jnp.float32), batch_of(targets))
    np.testing.assert_allclose(value, wanted(z), rtol=1e-5)
    np.testing.assert_allclose(gradient, slopes, atol=1e-5)
    assert float(loss(jnp.asarray(poisoned, jnp.float32), batch_of(targets, np.zeros(5, bool)))) == 0


def test_large_logits_do_not_overflow():
    """Failed with the logarithm of a sigmoid: infinity."""
    batch = batch_of(np.array([0, 1, 0, 1, 0]), np.ones(5, bool))
    value = binary_cross_entropy(jnp.array([200.0, -200.0, -200.0, 200.0, 0.0]), batch)
    np.testing.assert_allclose(value, (200 + 200 + np.log(2)) / 5, rtol=1e-6)


METRICS = {
    "mse": (MSE, REAL, (5, 2, 3), lambda z, y: ((z - y) ** 2).mean(axis=(1, 2))),
    "mae": (MAE, REAL, (5, 2, 3), lambda z, y: np.abs(z - y).mean(axis=(1, 2))),
    "accuracy": (BINARY_ACCURACY, BITS, (5, 1), lambda z, y: (z[:, 0] > 0) == (y == 1)),
    "label_accuracy": (LABEL_ACCURACY, SEVERAL, (5, 4), lambda z, y: ((z > 0) == (y == 1)).mean(axis=1)),
    "exact_match": (EXACT_MATCH, SEVERAL, (5, 4), lambda z, y: ((z > 0) == (y == 1)).all(axis=1)),
}


@pytest.mark.parametrize("name", METRICS)
def test_a_metric_is_that_of_numpy(name):
    """A number for each example. Failed with exact match as the mean over labels."""
    metric, y, shape, rows = METRICS[name]
    z = np.random.default_rng(1).normal(size=shape)
    if name == "exact_match":
        z[0] = 2 * y[0] - 1
    scores = metric.function(jnp.asarray(z, jnp.float32), batch_of(y, np.ones(5, bool)))
    np.testing.assert_allclose(scores, rows(z, y).astype(float), rtol=1e-5)
    assert metric.name == name and metric.larger_is_better == (name not in ("mse", "mae"))
    assert np.ptp(np.asarray(scores)) > 0


@pytest.mark.parametrize(
    ("loss", "outputs", "y", "kind", "message"),
    [
        (cross_entropy, (5, 3), REAL[:, 0, 0], TypeError, "cross_entropy needs integer labels, but y is float32: use"),
        (cross_entropy, (5,), LABELS, ValueError, r"needs logits \[B, C\], got shape \[5\]"),
        (squared_error, (5,), LABELS, TypeError, "squared_error needs float32 targets, .* with classes=0"),
        (squared_error, (5, 3), REAL, ValueError, r"outputs are \[5, 3\], y is \[5, 2, 3\]"),
        (binary_cross_entropy, (5, 2), BITS, ValueError, r"outputs are \[5, 2\], y is \[5\]"),
        (binary_cross_entropy, (5, 4), SEVERAL, ValueError, "multi_label is for several"),
        (multi_label, (5, 3), LABELS, TypeError, "multi_label needs float32 targets"),
        (functools.partial(cross_entropy, weights=np.ones(2)), (5, 3), LABELS, ValueError, r"weights must be \[3\]"),
    ],
)
def test_a_loss_refuses_what_it_cannot_compare(loss, outputs, y, kind, message):
    """While tracing. Failed for float labels, of which no class has any: a loss of 0."""
    with pytest.raises(kind, match=message):
        loss(jnp.zeros(outputs), batch_of(y))
