"""Trains the chosen methods of an experiment one after the other, and records what is measured of each."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

import fedamp_jax
from fedamp_jax import Algorithm, Checkpoint, Evaluation, Placement, Snapshots, Task, analysis
from fedamp_jax.algorithms.fedamp import distances
from fedamp_jax.data import Federation
from fedamp_jax.driver.compile_ahead import compiled_ahead
from fedamp_jax.driver.evaluation import personal_models
from fedamp_jax.driver.history import Observer
from fedamp_jax.report import attention_history, files
from fedamp_jax.report.combine import p_values
from fedamp_jax.report.schema import LastRounds, MethodResults, RunResults
from fedamp_jax.runner import cost, live, machine, messages, provenance, run_folder, train
from fedamp_jax.runner.newcomers import Newcomers, last_key
from fedamp_jax.runner.options import chosen, participation

_SMALL = 2**30
"""Bytes: the last checkpoints of finished methods stay if they take no more together."""


def method_results(result: fedamp_jax.Run, paper: float | None, sigma: float | None = None) -> MethodResults:
    """One method's entry in results.json; accuracies in percent. `sigma` is the method's, if it has one."""
    summary = analysis.accuracy_summary(100.0 * result.accuracy.astype(np.float64), result.rounds)
    entry = {
        **summary,
        "loss": result.loss,
        "seconds": result.seconds,
        "first_round_seconds": result.first_seconds,
        "seconds_per_round": result.seconds_per_round,
        "rejected": {str(i): int(n) for i, n in enumerate(result.rejected) if n},
        "paper": paper,
        "in_group_weight": result.observed.get("in_group_weight"),
        "ari": result.observed.get("ari"),
        "xi": None if result.xi is None else result.xi.tolist(),
        "attention": attention_history.entry(result),
        "settings": {} if sigma is None else {"sigma": sigma},
    }
    return cast(MethodResults, entry)


def last_rounds(accuracy: np.ndarray, rounds: int) -> LastRounds:
    """PFLEGO's score: mean accuracy and its 95 % confidence interval over clients, both averaged over the last rounds.

    Args:
        accuracy: `[R, M]` in percent.
        rounds: how many of the last evaluated rounds; all if there are fewer.
    """
    tail = accuracy[-rounds:].astype(np.float64)
    half = 1.96 * tail.std(axis=1, ddof=1) / np.sqrt(tail.shape[1]) if tail.shape[1] > 1 else np.zeros(len(tail))
    return {"mean": float(tail.mean()), "ci95": float(half.mean()), "rounds": len(tail)}


def observer(groups: np.ndarray | None) -> Callable[[Evaluation], dict[str, float]]:
    """A function that measures of a round's xi how far attention has found the groups."""

    def observe(evaluation: Evaluation) -> dict[str, float]:
        if evaluation.info.xi is None or groups is None:
            return {}
        xi = np.asarray(evaluation.info.xi)
        return {"in_group_weight": analysis.in_group_weight(xi, groups), "ari": analysis.group_recovery(xi, groups)}

    return observe


@dataclasses.dataclass(frozen=True)
class Training:
    """What the methods of a run have in common.

    Attributes:
        experiment: its name.
        options: of any experiment.
        folder: where to write.
        federation: the clients.
        task: the model.
        placement: where the clients live.
        score_rounds: how many of the last rounds are evaluated, whatever `options.evaluate_every` says; None: the last.
        says_memory: whether to print what a round takes, before each method.
    """

    experiment: str
    options: Any
    folder: Path
    federation: Federation
    task: Task
    placement: Placement
    score_rounds: int | None = None
    says_memory: bool = False

    def checkpoints(self, name: str) -> Path:
        """The folder of a method's checkpoints."""
        return self.folder / "checkpoints" / name

    def models(self, name: str) -> Path:
        """The file of a method's personal models."""
        return self.folder / "models" / f"{name}.npz"


def train_methods(
    experiment: str,
    options: Any,
    folder: Path,
    federation: Federation,
    task: Task,
    algorithms: Mapping[str, Algorithm],
    paper: Mapping[str, float],
    *,
    score_rounds: int | None = None,
    sigmas: Mapping[str, float | None] | None = None,
    newcomers: Newcomers | None = None,
) -> RunResults:
    """Train every chosen method, writing `results.json` after each one.

    Args:
        experiment: its name.
        options: of any experiment; with --resume, methods that the folder already holds are not trained again.
        folder: where to write.
        federation: the clients.
        task: the model.
        algorithms: every method by name, in the order of the tables.
        paper: the paper's accuracy by method.
        score_rounds: also report `last_rounds` over this many rounds, each of which is evaluated.
        sigmas: the methods whose weights follow from squared distances, which are then kept, and the scale of these;
            None if there is not one for all clients.
        newcomers: clients that do not train, and get a personal model afterwards.

    Returns:
        The results, with all methods that the folder holds now.
    """
    machine.configure(options.precision, getattr(options, "dtype", "float32"))
    names = chosen(options.methods, algorithms)
    participation(options, len(federation.train.size))
    placement = machine.placement_for(options)
    training = Training(experiment, options, folder, federation, task, placement, score_rounds)
    entries, head = run_folder.open_folder(folder, options, experiment)
    kept = [name for name in algorithms if name in names or name in entries]
    lacking = [name for name in kept if options.save_models and not training.models(name).exists()]
    wanted = {name: algorithms[name] for name in kept if name not in entries or name in lacking}
    # Where nothing is trained, the results keep saying which command, machine and versions they are of.
    results = _without_methods(training) if wanted else cast(RunResults, head)
    left = {name: options.rounds - run_folder.rounds_done(training.checkpoints(name)) for name in wanted}
    if text := cost.at_least(task, federation.train, placement, options, left):
        messages.console.print(text, highlight=False, soft_wrap=True)
    asked = options.devices is not None or options.offload
    training = dataclasses.replace(training, says_memory=asked or text is not None)
    keep = _keeps_checkpoints(training, [algorithms[name] for name in kept])
    began = time.monotonic()
    with compiled_ahead(task, wanted, federation.train, federation.test, placement) as waited_for:
        for number, (name, algorithm) in enumerate(wanted.items(), 1):
            waited, sigma = waited_for(name), (sigmas or {}).get(name)
            label = f"{name} {number}/{len(wanted)}" if len(wanted) > 1 else name
            with live.writers_for(options, folder, name) as watching:
                result = train_one(training, name, algorithm, label, watching, by_distance=name in (sigmas or {}))
            result.seconds, result.first_seconds = result.seconds + waited, result.first_seconds + waited
            if options.save_models:
                save_models(training, name, algorithm, result)
            ordered = by_id(result, np.asarray(federation.train.id))
            entries[name] = method_results(ordered, paper.get(name), sigma)
            if score_rounds:
                entries[name]["last_rounds"] = last_rounds(100.0 * ordered.accuracy, score_rounds)
            if newcomers:
                entries[name]["new_clients"] = newcomers.judge(name, task, federation.train, placement, options, result)
            results["methods"] = {name: entries[name] for name in kept if name in entries}
            files.write_json(results, folder / "results.json")
            (run_folder.newest_only if keep else run_folder.remove)(training.checkpoints(name))
            left = (time.monotonic() - began) / number * (len(wanted) - number)
            if left > 60:
                text = f"{number} of {len(wanted)} methods done, about {messages.readable(left)} left"
                messages.console.print(text, highlight=False)
    results["methods"] = {name: entries[name] for name in kept}
    results["wilcoxon"] = p_values(results["methods"])
    return results


def _without_methods(training: Training) -> RunResults:
    """The head of the results; groups and sizes in the order of the clients' ids."""
    train, _, groups = training.federation
    order = np.argsort(train.id)
    groups = None if groups is None else groups[order]
    return {
        **provenance.describe_run(training.experiment, training.options),
        "clients": len(train.size),
        "ids": np.sort(train.id).tolist(),
        "examples": np.asarray(train.size)[order].tolist(),
        "groups": None if groups is None else groups.tolist(),
        "chance_in_group_weight": None if groups is None else analysis.chance_in_group_weight(groups),
        "methods": {},
        "wilcoxon": {},
    }


def _keeps_checkpoints(training: Training, algorithms: Sequence[Algorithm]) -> bool:
    """Whether the last checkpoints of finished methods stay: if --keep-checkpoints says so, or if they are small."""
    if training.options.keep_checkpoints != "auto":
        return training.options.keep_checkpoints == "always"
    key, train = jax.random.key(0), training.federation.train
    leaves = jax.tree.leaves([jax.eval_shape(one.init, key, train) for one in algorithms])
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) <= _SMALL


def train_one(
    training: Training,
    name: str,
    algorithm: Algorithm,
    label: str,
    watching: Sequence[Observer] = (),
    *,
    by_distance: bool = False,
) -> fedamp_jax.Run:
    """Train one method, from its last checkpoint if there is one.

    Args:
        training: what all methods have in common.
        name: of the method.
        algorithm: the method.
        label: what the progress is called.
        watching: these see each evaluation.
        by_distance: whether its weights follow from squared distances, which are then kept.

    Returns:
        The `Run`, with clients in the order of `training.federation`.

    Raises:
        ValueError: the checkpoint has seen more rounds than there are to be.
    """
    options, federation = training.options, training.federation
    legs = [(options.rounds, options.evaluate_every)]
    if training.score_rounds and options.rounds > training.score_rounds:
        # Each of the last rounds is evaluated: they are a second run, which resumes from the first one's checkpoint.
        legs = [(options.rounds - training.score_rounds, options.evaluate_every), (options.rounds, 1)]
    if training.says_memory:
        machine.print_estimate(algorithm, federation.train, training.placement)
    # With more rounds, the same run goes on.
    settings = {key: value for key, value in provenance.settings_of(options).items() if key != "rounds"}
    fingerprint = {"experiment": training.experiment, "method": name, **settings}
    clients, folder = len(federation.train.size), training.checkpoints(name)
    if (done := run_folder.rounds_done(folder)) > options.rounds:
        raise ValueError(f"{folder} has {done} rounds, more than --rounds {options.rounds}: give another --out folder")
    snapshots = train.snapshots(options.rounds, options.evaluate_every, clients, by_distance)
    result = None
    for rounds, every in legs:
        shown = label if rounds == options.rounds else f"{label}, before the last {training.score_rounds}"
        result = fedamp_jax.run(
            training.task, algorithm, federation.train, federation.test, rounds=rounds, seed=options.seed,
            participation=participation(options, clients), evaluate_every=every,
            observe=[observer(federation.groups), *watching], snapshots=snapshots, progress=shown,
            placement=training.placement, checkpoint=Checkpoint(folder, options.checkpoint_every, fingerprint),
        )  # fmt: skip
    assert result is not None
    return result


def save_models(training: Training, name: str, algorithm: Algorithm, result: fedamp_jax.Run) -> None:
    """Save the models that the last evaluation judged, by the clients' ids."""
    options, train = training.options, training.placement.place(training.federation.train)
    models = personal_models(algorithm, last_key(options.seed, result), result.state, train, train.clients)
    models = jax.tree.map(np.asarray, models)
    ids = np.asarray(training.federation.train.id)
    about = {
        "experiment": training.experiment,
        "method": name,
        "rounds": result.rounds[-1],
        "accuracy": {str(i): float(a) for i, a in zip(ids, result.accuracy[-1], strict=True)},
        "classes": int(train.classes.max()),
        "shape": list(train.x.shape[2:]),
        "settings": provenance.settings_of(options),
    }
    if jax.process_index() == 0:
        training.models(name).parent.mkdir(parents=True, exist_ok=True)
        fedamp_jax.save_models(training.models(name), training.task, models, names=ids.tolist(), about=about)


def by_id(result: fedamp_jax.Run, ids: np.ndarray) -> fedamp_jax.Run:
    """The result with clients in the order of their `ids [M]`, whatever the order of the rows that were trained."""
    rows = np.argsort(ids)
    xi = None if result.xi is None else result.xi[np.ix_(rows, rows)]
    several = {
        name: None if stack is None else stack[:, rows[:, None], rows]
        for name, stack in (("snapshot_xi", result.snapshot_xi), ("snapshot_distances", result.snapshot_distances))
    }
    scores = {name: a[:, rows] for name, a in result.metrics.items()}
    return dataclasses.replace(result, metrics=scores, rejected=result.rejected[rows], xi=xi, **several)


_ROUNDS, _CLIENTS = 12, 100  # so many rounds with up to so many clients; of more clients fewer rounds, for size's sake


def snapshots(rounds: int, evaluate_every: int, clients: int, by_distance: bool) -> Snapshots:
    """The rounds to keep: evaluated ones, the first and the last, and geometrically spaced ones between them.

    Weights change most in the first rounds.

    Args:
        rounds: of the run.
        evaluate_every: rounds from one evaluation to the next.
        clients: their number.
        by_distance: whether the method is FedAMP, whose weights follow from squared distances: these are kept, too.

    >>> sorted(snapshots(90, 1, 20, False).rounds), sorted(snapshots(90, 20, 1000, False).rounds)
    ([1, 2, 3, 5, 8, 12, 18, 26, 40, 60, 90], [20, 90])
    """
    evaluated = sorted({*range(evaluate_every, rounds + 1, evaluate_every), rounds})
    number = max(2, min(_ROUNDS, int(_ROUNDS * (_CLIENTS / clients) ** 2)))
    places = np.geomspace(1, len(evaluated), number).round().astype(int)
    return Snapshots(frozenset(evaluated[place - 1] for place in places), distances if by_distance else None)
