"""The progress of a run, as a bar in a terminal or as lines elsewhere."""

import time
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedamp_jax.analysis.accuracy import mean_over_clients
from fedamp_jax.types import Metric

SECONDS = 5.0
"""From one line to the next: a round of a small model takes milliseconds."""


def note_of(metric: Metric, scores: np.ndarray) -> str:
    """The progress bar's note on a metric `[M]`: its mean over the clients that have test data."""
    mean = mean_over_clients(scores)
    if np.isnan(mean):
        return ""
    return f"{100 * mean:.2f} %" if metric.name == "accuracy" else f"{metric.name} {mean:.4g}"


class Shown:
    """Shows how far a run is: a bar in a terminal; elsewhere (a pipe, nohup, SLURM) a line every few seconds.

    The last evaluation always has its line.

    Args:
        label: what the run is called.
        rounds: of the run.
        done: rounds that were done before.
        shown: whether to show anything.
    """

    def __init__(self, label: str, rounds: int, done: int, shown: bool):
        self._label, self._rounds, self._first, self._began = label, rounds, done, time.monotonic()
        self._printed, self._unprinted = self._began, ""
        # A label may hold brackets, which rich would take for markup.
        what, note = (TextColumn(text, markup=False) for text in ("{task.description:<17}", "{task.fields[note]}"))
        said = (what, BarColumn(), MofNCompleteColumn(), note, TimeElapsedColumn(), TimeRemainingColumn())
        self._bar = Progress(*said, disable=not shown)
        self._lines = shown and not self._bar.console.is_terminal
        if self._lines:
            self._bar.disable = True
        self._task = self._bar.add_task(label, total=rounds, completed=done, note="compiling")

    def __enter__(self) -> "Shown":
        self._bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        if self._unprinted:
            print(self._unprinted, flush=True)
        self._bar.stop()

    def update(self, k: int, note: str | None) -> None:
        """Round `k`, 1-based, is done; what `note_of` says of its main metric if it was evaluated."""
        fields: dict[str, Any] = {} if note is None else {"note": note}
        if k == self._first + 1 and note is None:
            fields = {"note": ""}  # no longer compiling
        self._bar.update(self._task, completed=k, **fields)
        if not self._lines or note is None:
            return
        now = time.monotonic()
        took = now - self._began
        left = took / (k - self._first) * (self._rounds - k)
        text = f"{self._label}: round {k} of {self._rounds}, {note}, {took:.0f} s"
        self._unprinted = f"{text}, about {left:.0f} s left" if left else text
        if now - self._printed >= SECONDS:
            print(self._unprinted, flush=True)
            self._unprinted, self._printed = "", now
