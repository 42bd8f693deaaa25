"""Trains the chosen methods of an experiment one after the other, and records what is measured of each."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import jax
import numpy as np

import fedamp_jax
from fedamp_jax import Checkpoint, Evaluation, Placement, Snapshots, analysis
from fedamp_jax.algorithms import registry
from fedamp_jax.algorithms.fedamp import distances
from fedamp_jax.driver.compile_ahead import compiled_ahead
from fedamp_jax.driver.evaluation import personal_models, reader_of
from fedamp_jax.driver.history import Observer
from fedamp_jax.report import files
from fedamp_jax.report.combine import p_values
from fedamp_jax.report.runs import method_results
from fedamp_jax.report.schema import LastRounds, RunResults, Sent
from fedamp_jax.runner import cost, live, machine, provenance, run_folder
from fedamp_jax.runner.experiment import Experiment, Prepared, prepare
from fedamp_jax.runner.messages import readable, say
from fedamp_jax.runner.newcomers import last_key
from fedamp_jax.runner.options import Options, participation

_SMALL = 2**30
"""Bytes: the last checkpoints of finished methods stay if they take no more together."""


def sent(algorithm: fedamp_jax.Algorithm, train: fedamp_jax.Data) -> Sent:
    """What a round sends for one client, as results hold it."""
    found = fedamp_jax.traffic(algorithm, train)
    return {"exchanges": found.exchanges, "down": found.down, "up": found.up, "model": found.model}


def last_rounds(accuracy: np.ndarray, rounds: int) -> LastRounds:
    """PFLEGO's score: mean accuracy and its 95 % confidence interval over clients, both averaged over the last rounds.

    Args:
        accuracy: `[R, M]` in percent.
        rounds: how many of the last evaluated rounds; all if there are fewer.
    """
    tail = accuracy[-rounds:].astype(np.float64)
    tail = tail[:, ~np.isnan(tail).all(axis=0)]  # without the clients that have no test data
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
class Run:
    """What the methods of a run have in common.

    Attributes:
        experiment: what is run.
        options: of this run.
        folder: where to write.
        prepared: clients, model, methods.
        placement: where the clients live.
    """

    experiment: Experiment
    options: Options
    folder: Path
    prepared: Prepared
    placement: Placement

    def checkpoints(self, name: str) -> Path:
        """The folder of a method's checkpoints."""
        return self.folder / "checkpoints" / name

    def models(self, name: str) -> Path:
        """The file of a method's personal models."""
        return self.folder / "models" / f"{name}.npz"


def train_methods(experiment: Experiment, options: Options, folder: Path) -> RunResults:
    """Train every chosen method, writing `results.json` after each one.

    Args:
        experiment: what is run.
        options: of this run; with --resume, methods that the folder already holds are not trained again.
        folder: where to write.

    Returns:
        The results, with all methods that the folder holds now.
    """
    machine.configure(options.machine.precision, options.training.dtype)
    entries, head = run_folder.open_folder(folder, options, experiment.name)
    names = experiment.chosen(options)
    kept = [name for name in experiment.names if name in names or name in entries]
    run = Run(experiment, options, folder, prepare(experiment, options, kept), machine.placement_for(options.machine))
    federation, task, algorithms, newcomers = run.prepared
    kept = [name for name in kept if name in algorithms]  # an experiment may leave a method out
    participation(options.schedule, len(federation.train.size))
    lacking = [name for name in kept if options.output.save_models and not run.models(name).exists()]
    wanted = {name: algorithms[name] for name in kept if name not in entries or name in lacking}
    # Where nothing is trained, the results keep saying which command, machine and versions they are of.
    results = _without_methods(run) if wanted else cast(RunResults, head)
    left = {name: options.schedule.number_of_rounds - run_folder.rounds_done(run.checkpoints(name)) for name in wanted}
    is_long = cost.at_least(task, federation.train, run.placement, options, left)
    if is_long:
        say(is_long)
    asked = options.machine.devices is not None or options.machine.offload
    keep = _keeps_checkpoints(run)
    paper, scales = experiment.paper(options), experiment.scales(options)
    began = time.monotonic()
    with compiled_ahead(task, wanted, federation.train, federation.test, run.placement) as waited_for:
        for number, (name, algorithm) in enumerate(wanted.items(), 1):
            waited = waited_for(name)
            if asked or is_long:
                machine.print_estimate(algorithm, federation.train, run.placement)
            label = f"{name} {number}/{len(wanted)}" if len(wanted) > 1 else name
            with live.writers_for(options, folder, name) as watching:
                result = train_one(run, name, label, watching)
            result.seconds, result.first_seconds = result.seconds + waited, result.first_seconds + waited
            if options.output.save_models:
                save_models(run, name, result)
            ordered = by_id(result, np.asarray(federation.train.id))
            own = settings_of_method(options, name, scales.get(name))
            entries[name] = method_results(ordered, paper.get(name), own)
            entries[name]["sent"] = sent(algorithm, federation.train)
            if experiment.score_rounds:
                entries[name]["last_rounds"] = last_rounds(100.0 * ordered.accuracy, experiment.score_rounds)
            if newcomers:
                entries[name]["new_clients"] = newcomers.judge(
                    name, task, federation.train, run.placement, options.schedule.seed, result
                )
            results["methods"] = {name: entries[name] for name in kept if name in entries}
            files.write_json(results, folder / "results.json")
            (run_folder.newest_only if keep else run_folder.remove)(run.checkpoints(name))
            seconds = (time.monotonic() - began) / number * (len(wanted) - number)
            if seconds > 60:
                say(f"{number} of {len(wanted)} methods done, about {readable(seconds)} left")
    results["methods"] = {name: entries[name] for name in kept}
    results["wilcoxon"] = p_values(results["methods"])
    return results


def settings_of_method(options: Options, name: str, scale: float | None) -> dict[str, Any]:
    """The settings of one method alone: the scale of its attention, and what --set says of it."""
    changes = registry.parse(options.schedule.set, registry.METHODS).get(name, {})
    return changes if scale is None else {"sigma": scale, **changes}


def _without_methods(run: Run) -> RunResults:
    """The head of the results; groups and sizes in the order of the clients' ids."""
    train, _, groups = run.prepared.federation
    order = np.argsort(train.id)
    groups = None if groups is None else groups[order]
    return {
        **provenance.describe(run.experiment.name, run.options),
        "clients": len(train.size),
        "ids": np.sort(train.id).tolist(),
        "examples": np.asarray(train.size)[order].tolist(),
        "groups": None if groups is None else groups.tolist(),
        "chance_in_group_weight": None if groups is None else analysis.chance_in_group_weight(groups),
        "methods": {},
        "wilcoxon": {},
    }


def _keeps_checkpoints(run: Run) -> bool:
    """Whether the last checkpoints of finished methods stay: if --keep-checkpoints says so, or if they are small."""
    keep = run.options.output.keep_checkpoints
    if keep != "auto":
        return keep == "always"
    key, train = jax.random.key(0), run.prepared.federation.train
    leaves = jax.tree.leaves([jax.eval_shape(one.init, key, train) for one in run.prepared.algorithms.values()])
    return sum(leaf.size * leaf.dtype.itemsize for leaf in leaves) <= _SMALL


def train_one(run: Run, name: str, label: str, watching: Sequence[Observer] = ()) -> fedamp_jax.Run:
    """Train one method, from its last checkpoint if there is one.

    Args:
        run: what all methods have in common.
        name: of the method.
        label: what the progress is called.
        watching: these see each evaluation.

    Returns:
        The `fedamp_jax.Run`, with clients in the order of the run's federation.

    Raises:
        ValueError: the checkpoint has seen more rounds than there are to be.
    """
    schedule, (train, test, groups) = run.options.schedule, run.prepared.federation
    rounds_in_all, last = schedule.number_of_rounds, run.experiment.score_rounds
    legs = [(rounds_in_all, schedule.evaluate_every)]
    if last and rounds_in_all > last:
        # Each of the last rounds is evaluated: they are a second run, which resumes from the first one's checkpoint.
        legs = [(rounds_in_all - last, schedule.evaluate_every), (rounds_in_all, 1)]
    # With more rounds, the same run goes on.
    settings = {key: value for key, value in provenance.settings_of(run.options).items() if key != "rounds"}
    fingerprint = {"experiment": run.experiment.name, "method": name, **settings}
    clients, folder = len(train.size), run.checkpoints(name)
    if (done := run_folder.rounds_done(folder)) > rounds_in_all:
        raise ValueError(f"{folder} has {done} rounds, more than --rounds {rounds_in_all}: give another --out folder")
    by_distance = name in run.experiment.scales(run.options)
    kept = snapshots(rounds_in_all, schedule.evaluate_every, clients, by_distance)
    result = None
    for rounds, every in legs:
        shown = label if rounds == rounds_in_all else f"{label}, before the last {last}"
        result = fedamp_jax.run(
            run.prepared.task, run.prepared.algorithms[name], train, test, rounds=rounds, seed=schedule.seed,
            participation=participation(schedule, clients), evaluate_every=every,
            observe=[observer(groups), *watching], snapshots=kept, progress=shown, placement=run.placement,
            checkpoint=Checkpoint(folder, run.options.output.checkpoint_every, fingerprint),
        )  # fmt: skip
    assert result is not None
    return result


def save_models(run: Run, name: str, result: fedamp_jax.Run) -> None:
    """Save the models that the last evaluation judged, by the clients' ids."""
    train, algorithm = run.placement.place(run.prepared.federation.train), run.prepared.algorithms[name]
    models = personal_models(algorithm, last_key(run.options.schedule.seed, result), result.state, train, train.clients)
    models = jax.tree.map(np.asarray, models)
    ids = np.asarray(run.prepared.federation.train.id)
    about = {
        "experiment": run.experiment.name,
        "method": name,
        "rounds": result.rounds[-1],
        "accuracy": {str(i): float(a) for i, a in zip(ids, result.accuracy[-1], strict=True)},
        "classes": int(train.classes.max()),
        "shape": list(train.x.shape[1:]),
        "settings": provenance.settings_of(run.options),
    }
    if jax.process_index() == 0:
        classes = np.asarray(run.prepared.federation.train.classes)
        task = reader_of(run.prepared.task, algorithm, train)
        fedamp_jax.save_models(run.models(name), task, models, names=ids.tolist(), classes=classes, about=about)


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
