"""What a run records, and the progress bar that shows it."""

import dataclasses
import time
import warnings
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedamp_jax.types import Data, Info, Metric


class Snapshots(NamedTuple):
    """Rounds whose attention weights `run` keeps, so that one can see how they came about.

    Attributes:
        rounds: 1-based.
        distances: `(state, data) -> [M, M]`, called before each of these rounds: the distances that the weights of the
            round follow from. Rows of padding clients are cut off. None: not measured.
    """

    rounds: Collection[int]
    distances: Callable[[Any, Data], Any] | None = None


@dataclasses.dataclass
class Run:
    """What `run` returns.

    Attributes:
        state: the algorithm's last state.
        rounds: evaluated rounds, 1-based; K of them below.
        metrics: for each metric of the task, `[K, M]` float32, its mean over each client's test data; NaN for a client
            without any.
        loss: `[K]` mean training loss of the clients that trained; NaN if none did.
        rejected: `[M]` int, how often each client's update was discarded.
        observed: what `observe` returned, a list of K numbers per name.
        xi: `[M, M]`, the last round's weights, or None.
        snapshot_rounds: the S rounds of `Snapshots` whose weights are kept; none for methods without weights.
        snapshot_xi: `[S, M, M]`, their weights, or None.
        snapshot_distances: `[S, M, M]`, the distances that these follow from, or None.
        seconds: wall-clock seconds of rounds and evaluations, the first round's compilation included.
        first_seconds: of these, the seconds of the first round of each process that took part: it compiles.
        starts: how many processes took part, one after the other; 1 unless the run was continued from a checkpoint.
        before: rounds that the `state` given to `run` had seen; all else is of the rounds after them.
    """

    state: Any
    rounds: list[int] = dataclasses.field(default_factory=list)
    metrics: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    loss: list[float] = dataclasses.field(default_factory=list)
    rejected: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, int))
    observed: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    xi: np.ndarray | None = None
    snapshot_rounds: list[int] = dataclasses.field(default_factory=list)
    snapshot_xi: np.ndarray | None = None
    snapshot_distances: np.ndarray | None = None
    seconds: float = 0.0
    first_seconds: float = 0.0
    starts: int = 0
    before: int = 0

    @property
    def seconds_per_round(self) -> float | None:
        """Without the rounds that compile; None if there are no others."""
        others = (self.rounds[-1] if self.rounds else 0) - self.before - self.starts
        return (self.seconds - self.first_seconds) / others if others > 0 else None

    @property
    def accuracy(self) -> np.ndarray:
        """`metrics["accuracy"]`: `[K, M]` float32 in 0..1.

        Raises:
            AttributeError: if the task has other metrics.
        """
        if "accuracy" not in self.metrics:
            names = ", ".join(map(repr, self.metrics)) or "none"
            raise AttributeError(f"the task has no metric 'accuracy': read Run.metrics, which has {names}")
        return self.metrics["accuracy"]


def record(result: Run, k: int, scores: np.ndarray, info: Info, observe: Callable | None) -> None:
    """Add one evaluation to the history; `scores [M, P]` has a column for each of `result.metrics`."""
    trained = (np.asarray(info.epochs) > 0) & ~np.asarray(info.rejected)
    result.rounds.append(k)
    for i, (name, before) in enumerate(result.metrics.items()):
        result.metrics[name] = np.concatenate([before, scores[None, :, i]])
    result.loss.append(float(np.asarray(info.loss)[trained].mean()) if trained.any() else float("nan"))
    result.xi = None if info.xi is None else np.asarray(info.xi)
    for name, value in (observe(info) if observe else {}).items():
        result.observed.setdefault(name, []).append(float(value))


def note_of(metric: Metric, scores: np.ndarray) -> str:
    """What the progress bar says of a metric `[M]`: the mean over the clients that have test data."""
    known = scores[~np.isnan(scores)]
    if not known.size:
        return ""
    mean = float(known.mean())
    return f"{100 * mean:.2f} %" if metric.name == "accuracy" else f"{metric.name} {mean:.4g}"


def keep(result: Run, k: int, info: Info, distances: Any) -> None:
    """Add the weights of round `k`, if there are any, and the distances that they follow from, if measured."""
    if info.xi is None:
        return
    m = len(info.xi)
    result.snapshot_rounds.append(k)
    result.snapshot_xi = _appended(result.snapshot_xi, np.asarray(info.xi))
    if distances is not None:
        result.snapshot_distances = _appended(result.snapshot_distances, np.asarray(distances)[:m, :m])


def _appended(stack: np.ndarray | None, matrix: np.ndarray) -> np.ndarray:
    return matrix[None] if stack is None else np.concatenate([stack, matrix[None]])


def warn_if_lost(info: Info) -> None:
    """Warn if no client's training of a round counts: a run that continues like that learns nothing more."""
    rejected = np.asarray(info.rejected)
    if rejected.any() and rejected.sum() == (np.asarray(info.epochs) > 0).sum():
        warnings.warn(
            "local training diverged for every client of a round, so all updates were discarded: "
            "lower the learning rate, or the weight of a proximal term (learning rate * weight must stay below 2)",
            RuntimeWarning,
            stacklevel=3,
        )


def warn_finished(directory: Any, done: int) -> None:
    """Warn that the returned result was trained before, perhaps with settings that no fingerprint records."""
    warnings.warn(
        f"the checkpoint in {directory} has {done} rounds already: it is returned, and nothing is trained. For more "
        "rounds raise `rounds`; for other settings use another folder, or give a `fingerprint` that tells them apart",
        stacklevel=3,
    )


def trim(info: Info, m: int) -> Info:
    """`Info` of the `m` clients, without the rows (and columns of xi) of padding clients."""
    return jax.tree.map(lambda a: a if a.ndim == 0 or a.shape[0] == m else a[(slice(0, m),) * a.ndim], info)


class Shown:
    """Shows how far a run is: a bar in a terminal, elsewhere (a pipe, nohup, SLURM) a line for each evaluated round.

    Args:
        label: what the run is called.
        rounds: of the run.
        done: rounds that were done before.
        shown: whether to show anything.
    """

    def __init__(self, label: str, rounds: int, done: int, shown: bool):
        self._label, self._rounds, self._first, self._began = label, rounds, done, time.monotonic()
        what, note = TextColumn("{task.description:<17}"), TextColumn("{task.fields[note]}")
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
        self._bar.stop()

    def update(self, k: int, note: str | None) -> None:
        """Round `k`, 1-based, is done; what `note_of` says of its main metric if it was evaluated."""
        fields: dict[str, Any] = {} if note is None else {"note": note}
        if k == self._first + 1 and note is None:
            fields = {"note": ""}  # no longer compiling
        self._bar.update(self._task, completed=k, **fields)
        if self._lines and note is not None:
            took = time.monotonic() - self._began
            left = took / (k - self._first) * (self._rounds - k)
            text = f"{self._label}: round {k} of {self._rounds}, {note}, {took:.0f} s"
            print(f"{text}, about {left:.0f} s left" if left else text, flush=True)
