"""Trains the chosen methods of an experiment one after the other, and records what is measured of each."""

import dataclasses
import difflib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

import fedamp_jax
from fedamp_jax import Algorithm, Checkpoint, Evaluation, Participation, Task, metrics
from fedamp_jax.algorithms.registry import PAPER_METHODS
from fedamp_jax.data import Federation
from fedamp_jax.driver.ahead import compiled_ahead
from fedamp_jax.driver.history import Observer
from fedamp_jax.experiments import attention_history, devices, forecast, live, report, run_folder
from fedamp_jax.experiments.schema import LastRounds, MethodResults, PValues, RunResults


def chosen(methods: tuple[str, ...], available: Mapping[str, Algorithm]) -> list[str]:
    """The methods asked for, in the order of the tables; names in any case."""
    by_name = {name.lower(): [name] for name in available}
    by_name["all"] = list(available)
    if set(PAPER_METHODS) <= set(available):
        by_name["paper"] = list(PAPER_METHODS)
    unknown = [method for method in methods if method.lower() not in by_name]
    if unknown:
        near = [difflib.get_close_matches(method.lower(), by_name, n=1) for method in unknown]
        meant = [by_name[found[0]][0] if found[0] not in ("all", "paper") else found[0] for found in near if found]
        hint = f" (did you mean {' '.join(meant)}?)" if meant else ""
        there = " ".join([*available, *(name for name in ("paper", "all") if name in by_name)])
        raise ValueError(f"--methods: there is no {' and no '.join(unknown)}{hint}; there are {there}")
    wanted = {name for method in methods for name in by_name[method.lower()]}
    return [name for name in available if name in wanted]


def participation(options: Any, clients: int) -> Participation:
    """Which of the clients take part in a round.

    Raises:
        ValueError: none would.
    """
    shares = Participation(options.participation, options.drop_rate)
    try:
        shares.present(clients)
    except ValueError:
        text = f"--participation {shares.share:g} with --drop-rate {shares.drop_rate:g}"
        raise ValueError(f"{text} leaves none of {clients} clients in a round") from None
    return shares


def method_results(result: fedamp_jax.Run, paper: float | None, sigma: float | None = None) -> MethodResults:
    """One method's entry in results.json; accuracies in percent. `sigma` is the method's, if it has one."""
    summary = metrics.accuracy_summary(100.0 * result.accuracy.astype(np.float64), result.rounds)
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
        return {"in_group_weight": metrics.in_group_weight(xi, groups), "ari": metrics.group_recovery(xi, groups)}

    return observe


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
    sigmas: Mapping[str, float] | None = None,
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
        sigmas: the scale of squared distances by method, for those whose weights follow from it.

    Returns:
        The results, with all methods that the folder holds now.
    """
    devices.configure(options.precision, getattr(options, "dtype", "float32"))
    names = chosen(options.methods, algorithms)
    participation(options, len(federation.train.size))
    done = run_folder.open_folder(folder, options, experiment)
    groups = None if federation.groups is None else federation.groups[np.argsort(federation.train.id)]
    results: RunResults = {
        **run_folder.describe_run(experiment, options),
        "clients": len(federation.train.size),
        "examples": np.asarray(federation.train.size)[np.argsort(federation.train.id)].tolist(),
        "groups": None if groups is None else groups.tolist(),
        "chance_in_group_weight": None if groups is None else metrics.chance_in_group_weight(groups),
        "methods": {},
        "wilcoxon": {},
    }
    kept = [name for name in algorithms if name in names or name in done]
    wanted = {name: algorithms[name] for name in kept if name not in done}
    placement = devices.placement_for(options)
    if wanted and (text := forecast.at_least(task, federation.train, placement, options, list(wanted))):
        run_folder.console.print(text, highlight=False, soft_wrap=True)
    began = time.monotonic()
    with compiled_ahead(task, wanted, federation.train, federation.test, placement) as waited_for:
        for name in kept:
            if name in done:
                results["methods"][name] = done[name]
                continue
            checkpoints, waited, number = folder / "checkpoints" / name, waited_for(name), list(wanted).index(name) + 1
            label = f"{name} {number}/{len(wanted)}" if len(wanted) > 1 else name
            sigma = (sigmas or {}).get(name)
            with live.writers_for(options, folder, name) as watching:
                result = train_one(
                    experiment, name, options, checkpoints, federation, task, algorithms[name], score_rounds, label,
                    sigma, watching,
                )  # fmt: skip
            result.seconds, result.first_seconds = result.seconds + waited, result.first_seconds + waited
            results["methods"][name] = method_results(result, paper.get(name), sigma)
            if score_rounds:
                results["methods"][name]["last_rounds"] = last_rounds(100.0 * result.accuracy, score_rounds)
            report.write_json(results, folder / "results.json")
            run_folder.remove(checkpoints)
            left = (time.monotonic() - began) / number * (len(wanted) - number)
            if left > 60:
                text = f"{number} of {len(wanted)} methods done, about {forecast.readable(left)} left"
                run_folder.console.print(text, highlight=False)
    results["wilcoxon"] = p_values(results["methods"])
    run_folder.remove(folder / "checkpoints")
    return results


def p_values(methods: Mapping[str, MethodResults]) -> PValues:
    """Wilcoxon's p between all methods."""
    table = metrics.wilcoxon_table({name: entry["accuracy"] for name, entry in methods.items()})
    return {name: dict(row) for name, row in table.items()}


def train_one(
    experiment: str,
    name: str,
    options: Any,
    checkpoints: Path,
    federation: Federation,
    task: Task,
    algorithm: Algorithm,
    score_rounds: int | None,
    label: str,
    sigma: float | None = None,
    watching: Sequence[Observer] = (),
) -> fedamp_jax.Run:
    """Train one method, from its last checkpoint if there is one; arguments as in `train_methods`.

    `label` is what the progress is called, `sigma` the method's own, if it has one; `watching` see each evaluation.
    """
    legs = [(options.rounds, options.evaluate_every)]
    if score_rounds and options.rounds > score_rounds:
        # Each of the last rounds is evaluated: they are a second run, which resumes from the first one's checkpoint.
        legs = [(options.rounds - score_rounds, options.evaluate_every), (options.rounds, 1)]
    placement = devices.placement_for(options)
    if options.devices is not None or options.offload:
        devices.print_estimate(algorithm, federation.train, placement)
    fingerprint = {"experiment": experiment, "method": name, **run_folder.settings_of(options)}
    clients = len(federation.train.size)
    snapshots = attention_history.snapshots(options.rounds, options.evaluate_every, clients, sigma is not None)
    result = None
    for rounds, every in legs:
        result = fedamp_jax.run(
            task, algorithm, federation.train, federation.test, rounds=rounds, seed=options.seed,
            participation=participation(options, clients), evaluate_every=every,
            observe=[observer(federation.groups), *watching], snapshots=snapshots, progress=label, placement=placement,
            checkpoint=Checkpoint(checkpoints, options.checkpoint_every, fingerprint),
        )  # fmt: skip
    assert result is not None
    return by_id(result, np.asarray(federation.train.id))


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
