"""What a run records."""

import dataclasses
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from fedamp_jax.analysis.accuracy import mean_over_clients
from fedamp_jax.types import Data, Info, Variables


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
        observed: what the observers returned, a list of K numbers per name.
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


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """One evaluation of a run, as the functions in `run(observe=...)` see it.

    Attributes:
        round: the evaluated round, 1-based.
        metrics: for each metric of the task, `[M]` float32, its mean over each client's test data; NaN for a client
            without any.
        loss: mean training loss of the clients that trained in this round; NaN if none did.
        info: the round's `Info`, of each client.
        state: the algorithm's state. The next round takes over its memory: copy what is to be kept, or write it to a
            file.
        models: `models()` computes the personal models that were evaluated, `Variables` with leaves `[M, ...]`; on them
            `evaluate` gives `metrics`. Call it before the observer returns; its arrays are new and may be kept. From a
            mesh they are gathered as NumPy arrays; with several processes, all of them have to call it.
        observed: what the observers before this one returned for this evaluation.
    """

    round: int
    metrics: dict[str, np.ndarray]
    loss: float
    info: Info
    state: Any
    models: Callable[[], Variables]
    observed: dict[str, float] = dataclasses.field(default_factory=dict)

    def numbers(self) -> dict[str, float]:
        """The numbers of a curve: the mean of each metric over the clients with test data, `loss`, and `observed`."""
        return {**{name: mean_over_clients(a) for name, a in self.metrics.items()}, "loss": self.loss, **self.observed}


Observer: TypeAlias = Callable[[Evaluation], Mapping[str, float] | None]
"""Called at each evaluation; the numbers that it returns by name are collected in `Run.observed`. None: no numbers."""


def observers_of(observe: Any) -> tuple[Observer, ...]:
    """The `observe` of a run as a tuple.

    Raises:
        TypeError: if it is neither callable nor a sequence of callables.
    """
    found = () if observe is None else (observe,) if callable(observe) else observe
    if not isinstance(found, Sequence) or not all(map(callable, found)):
        raise TypeError(
            f"observe must be a function Evaluation -> numbers by name, or several of them, got {observe!r}"
        )
    return tuple(found)


def record(result: Run, evaluation: Evaluation, observers: Sequence[Observer]) -> None:
    """Add one evaluation to the history, with the numbers that the observers return."""
    result.rounds.append(evaluation.round)
    result.metrics = {name: np.concatenate([a, evaluation.metrics[name][None]]) for name, a in result.metrics.items()}
    result.loss.append(evaluation.loss)
    result.xi = None if evaluation.info.xi is None else np.asarray(evaluation.info.xi)
    for observe in observers:
        evaluation.observed.update({name: float(value) for name, value in (observe(evaluation) or {}).items()})
    for name, value in evaluation.observed.items():
        result.observed.setdefault(name, []).append(value)


def training_loss(info: Info) -> float:
    """The mean loss of the clients that trained; NaN if none did."""
    trained = (np.asarray(info.epochs) > 0) & ~np.asarray(info.rejected)
    return float(np.asarray(info.loss)[trained].mean()) if trained.any() else float("nan")


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
            stacklevel=4,  # the caller of `run`
        )


_NAMED = 5
"""Clients that a warning names; of others it says how many they are."""


def warn_rejected(rejected: np.ndarray, rounds: int, ids: Any) -> None:
    """Warn of clients whose training was discarded: means over all clients look as if it had not been.

    Args:
        rejected: `[M]`, in how many of the rounds.
        rounds: that were trained.
        ids: what the clients are called, `[M]` or more; where other processes hold some, they are called by their rows.
    """
    rows = np.argsort(-rejected, kind="stable")[: np.count_nonzero(rejected)]
    if not len(rows):
        return
    ids = np.asarray(ids) if getattr(ids, "is_fully_addressable", True) else np.arange(len(rejected))
    named = ", ".join(f"client {ids[i]} in {rejected[i]}" for i in rows[:_NAMED])
    more = f", and {len(rows) - _NAMED} more clients" if len(rows) > _NAMED else ""
    length = "one round" if rounds == 1 else f"{rounds} rounds"
    warnings.warn(
        f"updates that were not finite were discarded, in {length}: of {named}{more} "
        "(`Run.rejected` has all of them). They kept the models that they had: look for features or targets of extreme "
        "size in their examples, or lower the learning rate. An answer of a silo that does not come "
        "counts as discarded, too",
        RuntimeWarning,
        stacklevel=3,  # the caller of `run`
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
