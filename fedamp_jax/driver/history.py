"""What a run records, and the progress bar that shows it."""

import dataclasses
import warnings
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import jax
import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedamp_jax.types import Data, Info


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
        accuracy: `[K, M]` float32 in 0..1, each client's test accuracy.
        loss: `[K]` mean training loss of the clients that trained; NaN if none did.
        rejected: `[M]` int, how often each client's update was discarded.
        observed: what `observe` returned, a list of K numbers per name.
        xi: `[M, M]`, the last round's weights, or None.
        snapshot_rounds: the S rounds of `Snapshots` whose weights are kept; none for methods without weights.
        snapshot_xi: `[S, M, M]`, their weights, or None.
        snapshot_distances: `[S, M, M]`, the distances that these follow from, or None.
        seconds: wall-clock seconds of rounds and evaluations, the first round's compilation included.
        first_seconds: seconds of the first round and evaluation alone, whose programs are compiled then.
    """

    state: Any
    rounds: list[int] = dataclasses.field(default_factory=list)
    accuracy: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros((0, 0), np.float32))
    loss: list[float] = dataclasses.field(default_factory=list)
    rejected: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, int))
    observed: dict[str, list[float]] = dataclasses.field(default_factory=dict)
    xi: np.ndarray | None = None
    snapshot_rounds: list[int] = dataclasses.field(default_factory=list)
    snapshot_xi: np.ndarray | None = None
    snapshot_distances: np.ndarray | None = None
    seconds: float = 0.0
    first_seconds: float = 0.0


def record(result: Run, k: int, accuracy: np.ndarray, info: Info, observe: Callable | None) -> None:
    """Add one evaluation to the history."""
    trained = (np.asarray(info.epochs) > 0) & ~np.asarray(info.rejected)
    result.rounds.append(k)
    result.accuracy = np.concatenate([result.accuracy, accuracy[None]])
    result.loss.append(float(np.asarray(info.loss)[trained].mean()) if trained.any() else float("nan"))
    result.xi = None if info.xi is None else np.asarray(info.xi)
    for name, value in (observe(info) if observe else {}).items():
        result.observed.setdefault(name, []).append(float(value))


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


def bar(shown: bool) -> Progress:
    """A progress bar that also shows the last accuracy."""
    said = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"))
    columns = (*said, TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, disable=not shown)
