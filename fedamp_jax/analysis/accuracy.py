"""The best mean test accuracy, and the other summaries of a method's accuracies in a table."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedamp_jax.analysis.arrays import finite


def mean_over_clients(values: ArrayLike) -> Any:
    """The mean over the clients that have test data: those without any have NaN in every metric and are left out.

    Args:
        values: `[..., M]`, a metric of each client; the last axis is that of the clients.

    Returns:
        A Python number for `[M]`, float64 `[...]` else; NaN where no client has a value. Sums are float64's.

    Raises:
        ValueError: if there is no axis of clients.

    >>> mean_over_clients([0.5, float("nan"), 1.0]), mean_over_clients([[0.5, 1.0], [1.0, float("nan")]]).tolist()
    (0.75, [0.75, 1.0])
    """
    array = np.asarray(values, np.float64)
    if array.ndim == 0:
        raise ValueError(f"values must be [..., M], with one value per client, got the single number {array}")
    known = ~np.isnan(array)
    number = known.sum(axis=-1)
    mean = np.where(number > 0, np.where(known, array, 0.0).sum(axis=-1) / np.maximum(number, 1), np.nan)
    return float(mean) if mean.ndim == 0 else mean


def _of_clients(accuracy: ArrayLike) -> np.ndarray:
    """Accuracies `[R, M]` as float64; a client without test data is NaN in every round, any other value finite."""
    array = np.asarray(accuracy, np.float64)
    absent = np.isnan(array).all(axis=0) if array.ndim == 2 and array.size else np.zeros(0, bool)
    if absent.any() and not absent.all():
        finite(np.where(absent, 0.0, array), "accuracy", "RM")
        return array
    return finite(array, "accuracy", "RM")


def bmta(accuracy: ArrayLike) -> tuple[float, int]:
    """Best mean test accuracy (BMTA): the maximum over rounds of the mean over clients (FedAMP paper, Section 7).

    Args:
        accuracy: `[R, M]`, test accuracy of each client after each evaluated round. A client without test data, NaN in
            every round, is left out.

    Returns:
        The BMTA, and the index (0 to R - 1) of the first round that reaches it.

    Raises:
        ValueError: if `accuracy` is not `[R, M]`, is empty, or has other values that are not finite.

    >>> bmta([[50.0, 70.0], [80.0, 90.0], [60.0, 100.0]])
    (85.0, 1)
    """
    mean = mean_over_clients(_of_clients(accuracy))
    best = int(mean.argmax())
    return float(mean[best]), best


def accuracy_summary(accuracy: ArrayLike, rounds: Sequence[int] | None = None) -> dict[str, Any]:
    """Summarizes the accuracies of one method as Python numbers and lists.

    Args:
        accuracy: `[R, M]`, test accuracy of each client after each evaluated round.
        rounds: `[R]`, the numbers of the evaluated rounds; None means 0 to R - 1.

    Returns:
        A dictionary with `bmta`, `best_round` (one of `rounds`), `final` (mean over clients in the last round),
        `accuracy` `[M]` (last round), `best_accuracy` `[M]` (best round), `rounds` `[R]` and `mean_accuracy` `[R]`.

    Raises:
        ValueError: as `bmta`; also if `rounds` does not have R entries.

    >>> accuracy_summary([[80.0, 90.0], [60.0, 100.0]], rounds=[5, 10])["best_round"]
    5
    """
    values = _of_clients(accuracy)
    numbers = list(range(len(values))) if rounds is None else [int(r) for r in rounds]
    if len(numbers) != len(values):
        raise ValueError(f"rounds has {len(numbers)} entries, but accuracy has {len(values)} rows {values.shape}")
    value, best = bmta(values)
    mean, clients = mean_over_clients(values).tolist(), values.tolist()
    summary = {"bmta": value, "best_round": numbers[best], "final": mean[-1], "accuracy": clients[-1]}
    return {**summary, "best_accuracy": clients[best], "rounds": numbers, "mean_accuracy": mean}
