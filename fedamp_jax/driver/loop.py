"""`run`: rounds with evaluation, progress, checkpoints and resume."""

import contextlib
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from fedamp_jax.checks import check_integer, check_type
from fedamp_jax.driver import history, patience
from fedamp_jax.driver import progress as progress_shown
from fedamp_jax.driver.checkpoint import Checkpoint, describe, opened
from fedamp_jax.driver.evaluation import personal_models, personal_scores
from fedamp_jax.driver.history import Evaluation, Observer, Run, Snapshots
from fedamp_jax.driver.participation import Participation
from fedamp_jax.driver.rounds import round, round_keys
from fedamp_jax.driver.signals import StopOnSignal, Stopped
from fedamp_jax.driver.states import continued
from fedamp_jax.engine.task_checks import check_loss_fits, check_task, check_task_fits
from fedamp_jax.placement.placement import Placement
from fedamp_jax.programs import memory
from fedamp_jax.types import Algorithm, Array, Data, Task


def run(
    task: Task,
    algorithm: Algorithm,
    train: Data,
    test: Data,
    *,
    rounds: int,
    seed: int = 0,
    participation: Participation | None = None,
    evaluate_every: int = 1,
    observe: Observer | Sequence[Observer] | None = None,
    until: Callable[[Run], bool] | None = None,
    snapshots: Snapshots | None = None,
    progress: bool | str = True,
    checkpoint: Checkpoint | None = None,
    placement: Placement | None = None,
    state: Any = None,
) -> Run:
    """Train for `rounds` rounds and evaluate the personal models.

    Args:
        task: the model.
        algorithm: the method.
        train: training data.
        test: test data of the same clients.
        rounds: communication rounds, at least 1.
        seed: of everything random: initial model, shuffles, who takes part.
        participation: which share of the clients takes part in a round; None: every client.
        evaluate_every: evaluate after every that many rounds, and after the last.
        observe: `Evaluation -> {name: number}` or None, or several such functions, called in this order at each
            evaluation; the numbers are collected in `Run.observed`. `fedamp_jax.writers` has some that write curves.
        until: `Run -> bool`, asked after each evaluation; True ends the run, as if `rounds` had been reached. It is to
            decide by the history alone, as `Patience` does: a run that continues from a checkpoint asks again, and does
            not train on where it was ended.
        snapshots: rounds whose attention weights are kept in `Run.snapshot_xi`; None: only the last evaluated round's.
        progress: show a progress bar, or a line for each evaluation where there is no terminal; a string is its label.
        checkpoint: save state and history there, and continue from the newest checkpoint found there: on the same
            device and versions the result is, bit for bit, that of a run never interrupted. `rounds` may have grown; a
            checkpoint of as many rounds or more is returned without training, hence with the evaluations that it has,
            and with a warning if it has no fingerprint. A checkpoint of other data, another `seed`, or another of the
            numbers here that change results is refused.
        placement: where the clients live (see `fedamp_jax.placement`); None: where the data are.
        state: continue from here, such as from an earlier run's `Run.state` or from `join`; it stays usable. Its rounds
            count: with `rounds=5` a state after 3 rounds is trained for 2 more, and is then, bit for bit, that of a run
            of 5. A checkpoint that is found is newer, and is used in its place. None: `algorithm.init`.

    Returns:
        A `Run`. Its `state` may have rows of padding clients (see `OnMesh`); nothing else has.

    Raises:
        ValueError: bad arguments, data that do not match, a checkpoint that is damaged or of other settings.
        MemoryError: see `round`.
        Stopped: SIGINT (Ctrl-C) or SIGTERM; a kind of KeyboardInterrupt. The round is finished, and saved if there is a
            `checkpoint`, and `Stopped.result` is the `Run` so far. A second signal stops at once. Where several
            processes compute together, signals are not handled.
        RoundError: see `round`.

    The same seed on the same device gives the same bits; on a GPU only within a process, as its compiler chooses
    kernels by timing them. Another `Placement.chunk`, another order of clients or another number of devices adds up the
    same numbers in another order: parameters then agree to about 1e-5, relative, after a few rounds, and drift apart as
    rounding differences do in any training; accuracies differ by a few examples.

    >>> import optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.separate(task, fedamp_jax.Solver(optax.adam(1e-3), epochs=1))
    >>> result = fedamp_jax.run(task, algorithm, train, test, rounds=2, progress=False)
    >>> result.accuracy.shape
    (2, 20)
    """
    participation = Participation() if participation is None else participation
    _check_arguments(task, algorithm, rounds, evaluate_every, participation, checkpoint, snapshots)
    observers = history.observers_of(observe)
    names = [metric.name for metric in task.metrics]
    patience.check_until(until, names)
    train, test = _placed(train, test, placement)
    m, place = train.clients, train.placement
    participation.present(m)
    check_task_fits(task, train)
    check_loss_fits(task, train)

    key = jax.random.key(seed)
    state, given = (place.init(algorithm, key, train), 0) if state is None else continued(algorithm, state, train, key)
    if given and given >= rounds:
        raise ValueError(f"the state has seen {given} rounds, which count: rounds must be more, got {rounds}")
    metrics = {name: np.zeros((0, m), np.float32) for name in names}
    result = Run(state, metrics=metrics, rejected=np.zeros(m, int), before=given)
    training = _Training(task, algorithm, train, test, participation, key, snapshots, observers)
    identity = {} if checkpoint is None else _identity(training, seed, evaluate_every)
    label, first = progress if isinstance(progress, str) else "rounds", jax.process_index() == 0
    with (
        memory.explained(),
        opened(checkpoint, identity, place.rows(m)) as saved,
        # Several processes would have to agree on the round; each of them falls back on its last checkpoint instead.
        StopOnSignal(jax.process_count() == 1, saves=saved is not None) as asked,
        contextlib.ExitStack() as stack,
    ):
        done = saved.restore(result) if saved else 0
        if checkpoint is not None and 0 < done < given:
            raise ValueError(
                f"the checkpoint in {checkpoint.directory} has {done} rounds, fewer than the state's {given}: use "
                "another folder"
            )
        done = max(done, given)
        if checkpoint is not None and done >= rounds and not checkpoint.fingerprint:
            history.warn_finished(checkpoint.directory, done)
        over = done >= rounds or patience.ended(until, result, done)
        if saved and not over:
            saved.check_writable()
        before, trained_before = result.rejected.copy(), done
        shown = stack.enter_context(progress_shown.Shown(label, rounds, done, bool(progress) and first and not over))
        for k in range(done, done if over else rounds):
            began = time.perf_counter()
            note = training.advance(result, k, evaluate=(k + 1) % evaluate_every == 0 or k + 1 == rounds)
            took = time.perf_counter() - began
            result.seconds += took
            if k == done:
                result.first_seconds, result.starts = result.first_seconds + took, result.starts + 1
            shown.update(k + 1, note)
            over = k + 1 == rounds or patience.ended(until, result, k + 1)
            if saved and checkpoint and (asked.signal or (k + 1) % checkpoint.every == 0 or over):
                saved.save(k + 1, result)
            if asked.signal or over:
                history.warn_rejected(result.rejected - before, k + 1 - trained_before, train.id)
            if asked.signal:
                raise Stopped(asked.signal, k + 1, rounds, result, saved is not None)
            if over:
                break
    return result


class _Training(NamedTuple):
    """What a run trains and evaluates; checkpoints, signals and progress are left to `run`."""

    task: Task
    algorithm: Algorithm
    train: Data
    test: Data
    participation: Participation
    key: Array
    snapshots: Snapshots | None
    observers: tuple[Observer, ...]

    def advance(self, result: Run, k: int, *, evaluate: bool) -> str | None:
        """Train round k + 1, evaluate if asked, and add both to the result; returns what the progress bar is to say."""
        task, algorithm, train, snapshots = self.task, self.algorithm, self.train, self.snapshots
        key_online, key_round, key_use = round_keys(self.key, k)
        m, note = train.clients, None
        present = train._replace(online=self.participation.online(key_online, train))
        kept = snapshots if snapshots is not None and k + 1 in snapshots.rounds else None
        distances = kept.distances(result.state, train) if kept and kept.distances else None
        result.state, info = round(algorithm, result.state, present, key_round)
        info = history.trim(info, m)
        history.warn_if_lost(info)
        result.rejected += np.asarray(info.rejected)
        if evaluate:
            scores = np.asarray(personal_scores(task, algorithm, key_use, result.state, train, self.test))[:m]
            models = functools.partial(personal_models, algorithm, key_use, result.state, train, m)
            by_name = dict(zip(result.metrics, scores.T, strict=True))
            seen = Evaluation(k + 1, by_name, history.training_loss(info), info, result.state, models)
            history.record(result, seen, self.observers)
            note = progress_shown.note_of(task.metrics[0], scores[:, 0])
        if kept is not None:
            history.keep(result, k + 1, info, distances)
        return note


def _identity(training: _Training, seed: int, evaluate_every: int) -> dict[str, Any]:
    """What has to be the same where a run continues from a checkpoint; of JSON's types, not NumPy's."""
    m = training.train.clients
    return {
        "seed": int(seed),
        "evaluate_every": int(evaluate_every),
        **{name: float(share) for name, share in training.participation._asdict().items()},
        "metrics": [metric.name for metric in training.task.metrics],
        "train": describe(training.train, m),
        "test": describe(training.test, m),
    }


def _check_arguments(
    task: Any, algorithm: Any, rounds: Any, evaluate_every: Any, participation: Any, checkpoint: Any, snapshots: Any
) -> None:
    """Validate what does not depend on the data."""
    check_integer("rounds", rounds, low=1)
    check_integer("evaluate_every", evaluate_every, low=1)
    check_task(task)
    check_type("algorithm", algorithm, Algorithm, "such as fedamp_jax.fedamp(task, solver, ...)")
    check_type("participation", participation, Participation, "such as fedamp_jax.Participation(0.5)")
    if snapshots is not None:
        check_type("snapshots", snapshots, Snapshots, "such as fedamp_jax.Snapshots([1, 10])")
    if checkpoint is not None:
        check_type("checkpoint", checkpoint, Checkpoint, "such as fedamp_jax.Checkpoint('folder')")
        check_integer("checkpoint.every", checkpoint.every, low=1)


def _placed(train: Data, test: Data, placement: Placement | None) -> tuple[Data, Data]:
    """The validated data, where `run` is to work."""
    from fedamp_jax.data import check_pair

    for name, data in (("train", train), ("test", test)):
        check_type(name, data, Data, "fedamp_jax.data makes one")
    placement = train.placement if placement is None else placement
    check_type("placement", placement, Placement, "such as fedamp_jax.placement.OnMesh(mesh=...)")
    here = all(getattr(a, "is_fully_addressable", True) for a in (train.size, test.size))  # else a process has some
    if here and placement.holds_examples:
        check_pair(train, test)
    return placement.place(train), placement.place(test)
