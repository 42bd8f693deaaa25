"""The best mean test accuracy, and the other summaries of a method's accuracies in a table."""

from collections.abc import Sequence
from typing import Any

from numpy.typing import ArrayLike

from fedamp_jax.analysis.arrays import finite


def bmta(accuracy: ArrayLike) -> tuple[float, int]:
    """Best mean test accuracy (BMTA): the maximum over rounds of the mean over clients (FedAMP paper, Section 7).

    Args:
        accuracy: `[R, M]`, test accuracy of each client after each evaluated round.

    Returns:
        The BMTA, and the index (0 to R - 1) of the first round that reaches it.

    Raises:
        ValueError: if `accuracy` is not `[R, M]`, is empty, or has values that are not finite.

    >>> bmta([[50.0, 70.0], [80.0, 90.0], [60.0, 100.0]])
    (85.0, 1)
    """
    mean = finite(accuracy, "accuracy", "RM").mean(axis=1)
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
    values = finite(accuracy, "accuracy", "RM")
    numbers = list(range(len(values))) if rounds is None else [int(r) for r in rounds]
    if len(numbers) != len(values):
        raise ValueError(f"rounds has {len(numbers)} entries, but accuracy has {len(values)} rows {values.shape}")
    value, best = bmta(values)
    mean, clients = values.mean(axis=1).tolist(), values.tolist()
    summary = {"bmta": value, "best_round": numbers[best], "final": mean[-1], "accuracy": clients[-1]}
    return {**summary, "best_accuracy": clients[best], "rounds": numbers, "mean_accuracy": mean}
