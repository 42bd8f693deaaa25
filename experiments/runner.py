"""Training every chosen method of an experiment, one after the other, and what is measured of each."""

import dataclasses
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import outputs
import settings

import fedamp_jax
from fedamp_jax import Algorithm, Task, checks, metrics, report
from fedamp_jax.data import Federation
from fedamp_jax.plan import plan, plan_offloaded


def chosen(methods: tuple[str, ...], available: dict[str, Algorithm]) -> list[str]:
    """The methods asked for, in the order of the tables; names in any case."""
    by_name = {name.lower(): [name] for name in available}
    by_name["all"] = list(available)
    if set(settings.PAPER_METHODS) <= set(available):
        by_name["paper"] = list(settings.PAPER_METHODS)
    for method in methods:
        checks.choice("methods", method.lower(), tuple(by_name))
    wanted = {name for method in methods for name in by_name[method.lower()]}
    return [name for name in available if name in wanted]


def use_devices(options: Any) -> None:
    """Cut a CPU into `--devices`, by default one for each core; not in a process that others wait for."""
    if options.devices is not None:
        checks.whole("devices", options.devices, low=1)
    if options.offload and (options.devices or 1) > 1:
        raise ValueError(f"--offload is for one device: leave out --offload, or --devices {options.devices}")
    if not jax.distributed.is_initialized():
        fedamp_jax.sharding.cut_cpu(options.devices)
    elif options.offload and jax.process_count() > 1:
        raise ValueError("--offload is for a single process: leave out --offload, or run the script without launch")


def mesh_for(options: Any) -> jax.sharding.Mesh | None:
    """The devices to spread the clients over, all unless told otherwise; None if it is a single one."""
    mesh = None if options.offload and options.devices is None else fedamp_jax.sharding.client_mesh(options.devices)
    return mesh if mesh is not None and mesh.size > 1 else None


def tell_needs(
    algorithm: Algorithm, federation: Federation, mesh: jax.sharding.Mesh | None, offload_to: jax.Device | None
) -> None:
    """Print what a round will take of each device, where the clients are spread or kept in the host's memory."""
    if offload_to is not None:
        needs = plan_offloaded(algorithm, federation.train, offload_to)
    elif mesh is not None:
        needs = plan(algorithm, federation.train, mesh)
    else:
        return
    if jax.process_index() == 0:
        outputs.console.print(f"a round takes {needs}", highlight=False, soft_wrap=True)


def method_results(result: fedamp_jax.Run, paper: float | None) -> dict[str, Any]:
    """One method's entry in results.json; accuracies in percent."""
    done = result.rounds[-1]
    return {
        **metrics.accuracy_summary(100.0 * result.accuracy.astype(np.float64), result.rounds),
        "loss": result.loss,
        "seconds": result.seconds,
        "first_round_seconds": result.first_seconds,
        # The first round compiles; of one round alone there is nothing to say.
        "seconds_per_round": (result.seconds - result.first_seconds) / (done - 1) if done > 1 else None,
        "rejected": {str(i): int(n) for i, n in enumerate(result.rejected) if n},
        "paper": paper,
        "in_group_weight": result.observed.get("in_group_weight"),
        "ari": result.observed.get("ari"),
        "xi": None if result.xi is None else result.xi.tolist(),
    }


def last_rounds(accuracy: np.ndarray, rounds: int) -> dict[str, float]:
    """PFLEGO's score: mean accuracy and its 95 % confidence interval over clients, both averaged over the last rounds.

    Args:
        accuracy: `[K, M]` in percent.
        rounds: how many of the last evaluated rounds; all if there are fewer.
    """
    tail = accuracy[-rounds:].astype(np.float64)
    half = 1.96 * tail.std(axis=1, ddof=1) / np.sqrt(tail.shape[1]) if tail.shape[1] > 1 else np.zeros(len(tail))
    return {"mean": float(tail.mean()), "ci95": float(half.mean()), "rounds": len(tail)}


def watch(groups: np.ndarray | None) -> Callable[[fedamp_jax.Info], dict[str, float]]:
    """What to measure of a round's xi: how far attention has found the groups."""

    def observe(info: fedamp_jax.Info) -> dict[str, float]:
        if info.xi is None or groups is None:
            return {}
        xi = np.asarray(info.xi)
        return {"in_group_weight": metrics.in_group_weight(xi, groups), "ari": metrics.group_recovery(xi, groups)}

    return observe


def train_methods(
    experiment: str,
    options: Any,
    folder: Path,
    federation: Federation,
    task: Task,
    algorithms: dict[str, Algorithm],
    paper: Mapping[str, float],
    *,
    score_rounds: int | None = None,
) -> dict[str, Any]:
    """Train every chosen method, writing `results.json` after each one; returns the results.

    Args:
        experiment: its name.
        options: of any experiment; with --resume, methods that the folder holds already are not run again.
        folder: where to write.
        federation: the clients.
        task: the model.
        algorithms: every method by name, in the order of the tables.
        paper: the paper's value by method.
        score_rounds: also report `last_rounds`, and evaluate after each of that many rounds at the end.
    """
    configure(options.precision)
    names = chosen(options.methods, algorithms)
    done = outputs.open_folder(folder, options, experiment)
    groups = None if federation.groups is None else federation.groups[np.argsort(federation.train.id)]
    results = {
        **outputs.describe_run(experiment, options),
        "clients": len(federation.train.size),
        "groups": None if groups is None else groups.tolist(),
        "chance_in_group_weight": None if groups is None else metrics.chance_in_group_weight(groups),
        "methods": {},
        "wilcoxon": {},
    }
    for name in [n for n in algorithms if n in names or n in done]:
        if name in done:
            results["methods"][name] = done[name]
            continue
        checkpoints = folder / "checkpoints" / name
        result = train_one(experiment, name, options, checkpoints, federation, task, algorithms[name], score_rounds)
        results["methods"][name] = method_results(result, paper.get(name))
        if score_rounds:
            results["methods"][name]["last_rounds"] = last_rounds(100.0 * result.accuracy, score_rounds)
        report.write_json(results, folder / "results.json")
        outputs.remove(checkpoints)
    results["wilcoxon"] = metrics.wilcoxon_table({n: r["accuracy"] for n, r in results["methods"].items()})
    outputs.remove(folder / "checkpoints")
    return results


def train_one(
    experiment: str,
    name: str,
    options: Any,
    checkpoints: Path,
    federation: Federation,
    task: Task,
    algorithm: Algorithm,
    score_rounds: int | None,
) -> fedamp_jax.Run:
    """Train one method, or go on with it; arguments as in `train_methods`."""
    legs = [(options.rounds, options.evaluate_every)]
    if score_rounds and options.rounds > score_rounds:
        # Each of the last rounds is scored: they are a second run, that goes on from the first one's checkpoint.
        legs = [(options.rounds - score_rounds, options.evaluate_every), (options.rounds, 1)]
    mesh, offload_to = mesh_for(options), jax.devices()[0] if options.offload else None
    if options.devices is not None or options.offload:
        tell_needs(algorithm, federation, mesh, offload_to)
    for rounds, every in legs:
        result = fedamp_jax.run(
            task, algorithm, federation.train, federation.test, rounds=rounds, seed=options.seed,
            participation=options.participation, drop_rate=options.drop_rate, evaluate_every=every,
            observe=watch(federation.groups), label=name, checkpoint_dir=checkpoints,
            checkpoint_every=options.checkpoint_every, mesh=mesh, offload_to=offload_to,
            fingerprint={"experiment": experiment, "method": name, **outputs.settings_of(options)},
        )  # fmt: skip
    return by_id(result, np.asarray(federation.train.id))


def by_id(result: fedamp_jax.Run, ids: np.ndarray) -> fedamp_jax.Run:
    """The result with clients in the order of their `ids [M]`, whatever the order of the rows that were trained."""
    rows = np.argsort(ids)
    xi = None if result.xi is None else result.xi[np.ix_(rows, rows)]
    return dataclasses.replace(result, accuracy=result.accuracy[:, rows], rejected=result.rejected[rows], xi=xi)


def configure(precision: str) -> None:
    """Set JAX up for training: the precision of matrix products, and compiled programs that are kept between runs."""
    if precision != "default":  # which is JAX's own, or that of JAX_DEFAULT_MATMUL_PRECISION
        jax.config.update("jax_default_matmul_precision", precision)
    cache_compilations()


def cache_compilations() -> None:
    """Keep compiled programs between runs: from the second run on, most of the time before the first round is saved.

    In a folder for each machine, as a CPU's programs are made for its instructions. Not on a CPU with jax before 0.12:
    reading a stored program back has crashed the process there (jaxlib 0.10.2, segmentation fault).
    """
    safe = jax.default_backend() != "cpu" or jax.__version_info__ >= (0, 12)
    if safe and not jax.config.jax_compilation_cache_dir:
        cache = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
        jax.config.update("jax_compilation_cache_dir", str(cache / "fedamp_jax" / "compiled" / platform.node()))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)
