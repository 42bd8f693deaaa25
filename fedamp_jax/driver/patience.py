"""When a run ends before its last round."""

import dataclasses
from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from fedamp_jax.analysis.accuracy import mean_over_clients
from fedamp_jax.checks import check_integer, check_type
from fedamp_jax.driver.history import Run
from fedamp_jax.types import ACCURACY, Metric


@dataclasses.dataclass(frozen=True)
class Patience:
    """For `run(until=...)`: ends a run in which a metric has not improved for some evaluations.

    What counts is the mean of the metric over the clients that have test data, which has to exceed the best one before,
    or to fall below it if `metric.larger_is_better` is False.

    Attributes:
        evaluations: how many evaluations in a row may bring no improvement; at least 1. With `evaluate_every=5`, each
            stands for five rounds.
        metric: one of `task.metrics`, such as `fedamp_jax.models.MSE`.

    Raises:
        TypeError, ValueError: if a value is of the wrong kind or out of range.

    A run that is ended by its test data has an optimistic result: give `run` validation data as `test`
    (`fedamp_jax.data.hold_out`) and judge the models by test data afterwards.

    >>> curve = np.array([[0.5, 0.7], [0.6, 0.8], [0.6, 0.8], [0.6, 0.7]], np.float32)
    >>> [Patience(2)(Run(None, metrics={"accuracy": curve[:k]})) for k in (1, 2, 3, 4)]
    [False, False, False, True]
    """

    evaluations: int
    metric: Metric = ACCURACY

    def __post_init__(self):
        check_integer("evaluations", self.evaluations, low=1)
        check_type("metric", self.metric, Metric, "one of task.metrics")

    def __call__(self, result: Run) -> bool:
        """Whether to end the run."""
        means = np.array([mean_over_clients(scores) for scores in result.metrics[self.metric.name]])
        rising = np.where(np.isnan(means), -np.inf, means if self.metric.larger_is_better else -means)
        return bool(len(means)) and len(means) - 1 - int(np.argmax(rising)) >= self.evaluations


def check_until(until: Any, names: Collection[str]) -> None:
    """Checks the `until` of a run whose task has metrics of these names.

    Raises:
        TypeError: if it is not callable.
        ValueError: if it waits for another metric.
    """
    if until is not None and not callable(until):
        raise TypeError(f"until must be a function Run -> bool, such as fedamp_jax.Patience(5), got {until!r}")
    if isinstance(until, Patience) and until.metric.name not in names:
        there = ", ".join(map(repr, names))
        raise ValueError(
            f"until waits for the metric {until.metric.name!r}, but the task has {there}: give "
            f"Patience({until.evaluations}, metric), where metric is one of task.metrics"
        )


def ended(until: Callable[[Run], bool] | None, result: Run, done: int) -> bool:
    """Whether `until` ends a run after the round `done`; it is asked if this one was evaluated."""
    return until is not None and result.rounds[-1:] == [done] and bool(until(result))
