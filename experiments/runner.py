"""What every experiment shares: a run's folder, the loop over methods, its files, and errors on the command line."""

import contextlib
import dataclasses
import datetime
import json
import os
import platform
import shlex
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import optax
import settings
from jax.experimental import multihost_utils
from matplotlib.figure import Figure
from rich.console import Console
from rich.markup import escape

import fedamp_jax
from fedamp_jax import Algorithm, Task, checks, metrics, report
from fedamp_jax.data import Federation
from fedamp_jax.interrupt import Stopped
from fedamp_jax.plan import plan, plan_offloaded

console = Console()

# Neither where a run writes nor how it is cut up belongs to what it computes.
NOT_SETTINGS = ("out", "resume", "data_dir", "chunk", "checkpoint_every", "methods", "devices", "offload")


@dataclasses.dataclass
class Options:
    """What can be chosen in every experiment that trains; each has more of its own."""

    dataset: str = "digits"
    """digits is bundled; the others are read from --data-dir, or downloaded."""
    methods: tuple[str, ...] = ("all",)
    """Names as in the tables, or all."""
    rounds: int | None = None
    """Communication rounds. Default: the paper's; fewer on digits."""
    participation: float = 1.0
    """Share of the clients invited each round."""
    drop_rate: float = 0.0
    """Share of the invited clients that drop out each round."""
    seed: int = 0
    """Of the partition, the initial models, shuffles and who takes part."""
    data_dir: str | None = None
    """Folder with <dataset>.npz (see docs/your_own_data.md). Default: download."""
    out: str | None = None
    """Folder for the results. Default: results/ and a name made of the settings."""
    chunk: int | None = None
    """Clients trained side by side. Default: chosen for the machine."""
    evaluate_every: int = 1
    """Evaluate after every that many rounds."""
    checkpoint_every: int = 10
    """Rounds between checkpoints."""
    devices: int | None = None
    """Spread the clients over so many devices; a CPU is cut into them. Default: all, of a CPU one for each core."""
    offload: bool = False
    """Keep the clients in the host's memory and send --chunk of them at a time to the device, if it cannot hold all."""
    resume: bool = False
    """Go on with an interrupted run of the same settings."""
    quick: bool = False
    """A faithful miniature: at most 3 rounds of few local steps."""
    precision: Literal["default", "high", "highest"] = "default"
    """Precision of matrix products in training, where the device offers less than float32."""


@contextlib.contextmanager
def errors_for_people() -> Iterator[None]:
    """Turns what a user can mend into a message and exit code 2; everything else keeps its traceback.

    A run that was asked to stop says how to go on, and ends with 128 and the signal's number, as shells expect.
    """
    try:
        yield
    except KeyboardInterrupt as asked:
        words = [word for word in sys.argv if word != "--resume"]
        how = shlex.join(["python", *words, "--resume"])
        print(f"\n{str(asked) or 'stopped'}. Go on with: {how}", file=sys.stderr)
        sys.exit(128 + (asked.signal if isinstance(asked, Stopped) else signal.SIGINT))
    except (ValueError, TypeError, OSError, MemoryError) as error:
        text = f"[red]error:[/red] {escape(str(error))}"
        Console(stderr=True).print(text, highlight=False, soft_wrap=True)
        sys.exit(2)


def check_common(options: Options) -> None:
    """Refuse what no experiment can run with."""
    checks.whole("rounds", options.rounds, low=1)
    checks.whole("evaluate_every", options.evaluate_every, low=1)
    checks.whole("checkpoint_every", options.checkpoint_every, low=1)
    checks.whole("seed", options.seed, low=0)
    fedamp_jax.sample_online(jax.random.key(0), 1, options.participation, options.drop_rate)


def chosen(methods: tuple[str, ...], available: dict[str, Algorithm]) -> list[str]:
    """The methods asked for, in the order of the tables; names in any case."""
    by_name = {name.lower(): name for name in available}
    wanted: set[str] = set()
    for method in methods:
        if method.lower() == "all":
            wanted |= set(available)
        elif method.lower() == "paper":
            wanted |= set(settings.PAPER_METHODS) & set(available)
        else:
            checks.choice("methods", method.lower(), (*by_name, "all", "paper"))
            wanted.add(by_name[method.lower()])
    return [name for name in available if name in wanted]


def settings_of(options: Any) -> dict[str, Any]:
    """What identifies a run: two runs with equal settings compute the same."""
    return json.loads(json.dumps({k: v for k, v in vars(options).items() if k not in NOT_SETTINGS}))


def default_folder(experiment: str, options: Any) -> Path:
    """`results/practical-mnist`, followed by every setting that is not its default."""
    plain = type(options)()
    changed = [
        f"{name}={'-'.join(map(str, value)) if isinstance(value, (tuple, list)) else value}"
        for name, value in vars(options).items()
        if name not in (*NOT_SETTINGS, "dataset") and value != getattr(plain, name)
    ]
    return Path("results") / "-".join([experiment, options.dataset, *changed])


def refuse_other(folder: Path, mine: Mapping[str, Any]) -> dict[str, Any] | None:
    """What `results.json` in the folder holds of this run, None if there is none.

    Raises:
        ValueError: if it is of another run than `mine`, the experiment's name and settings.
    """
    path = folder / "results.json"
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    theirs = {"experiment": found["experiment"], **found["settings"]}
    other = [f"{k}: {theirs.get(k)!r} there, {mine.get(k)!r} now" for k in mine if theirs.get(k) != mine.get(k)]
    if other:
        raise ValueError(f"--out {folder} holds another run ({'; '.join(other)}); give another folder, or remove it")
    return found


def open_folder(folder: Path, options: Any, experiment: str) -> dict[str, Any]:
    """Claim the folder for this run; with --resume, what it holds of it already.

    Raises:
        ValueError: if it holds another run, or files of something else.
    """
    found = refuse_other(folder, {"experiment": experiment, **settings_of(options)})
    if found is None and folder.exists() and any(folder.iterdir()) and not (folder / "checkpoints").exists():
        raise ValueError(f"--out {folder} holds other files; give an empty or new folder")
    if not options.resume:
        remove(folder / "checkpoints")
    return found["methods"] if found and options.resume else {}


def remove(folder: Path) -> None:
    """Remove a folder, if it is there; of several processes the first does, once all of them have come here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"before removing {folder}")
    if jax.process_index() == 0:
        shutil.rmtree(folder, ignore_errors=True)
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"after removing {folder}")


def use_devices(devices: int | None) -> None:
    """Cut a CPU into `devices`, by default one for each core; not in a process that others wait for."""
    if devices is not None:
        checks.whole("devices", devices, low=1)
    if not jax.distributed.is_initialized():
        fedamp_jax.sharding.cut_cpu(devices)


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
        console.print(f"a round takes {needs}", highlight=False, soft_wrap=True)


def describe_device() -> str:
    """Such as `cpu: cpu x1, 2 cores, x86_64`."""
    device = jax.devices()[0]
    cores = f"{os.cpu_count()} cores, {platform.machine()}"
    return f"{device.platform}: {device.device_kind} x{jax.device_count()}, {cores}"


def versions() -> dict[str, str]:
    """Versions of everything that can change a number."""
    import flax
    import jaxlib

    return {
        "fedamp_jax": fedamp_jax.__version__, "python": platform.python_version(), "jax": jax.__version__,
        "jaxlib": jaxlib.__version__, "flax": flax.__version__, "optax": optax.__version__, "numpy": np.__version__,
    }  # fmt: skip


def describe_run(experiment: str, options: Any) -> dict[str, Any]:
    """The head of `results.json`: what was run, on what, when."""
    return {
        "experiment": experiment,
        "dataset": getattr(options, "dataset", "made up"),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "settings": settings_of(options),
        "versions": versions(),
        "device": describe_device(),
        "rounds": options.rounds,
    }


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
    cache_compilations()
    jax.config.update("jax_default_matmul_precision", None if options.precision == "default" else options.precision)
    names = chosen(options.methods, algorithms)
    done = open_folder(folder, options, experiment)
    groups = None if federation.groups is None else federation.groups[np.argsort(federation.train.id)]
    results = {
        **describe_run(experiment, options),
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
        remove(checkpoints)
    results["wilcoxon"] = metrics.wilcoxon_table({n: r["accuracy"] for n, r in results["methods"].items()})
    remove(folder / "checkpoints")
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
            fingerprint={"experiment": experiment, "method": name, **settings_of(options)},
        )  # fmt: skip
    return by_id(result, np.asarray(federation.train.id))


def by_id(result: fedamp_jax.Run, ids: np.ndarray) -> fedamp_jax.Run:
    """The result with clients in the order of their `ids [M]`, whatever the order of the rows that were trained."""
    rows = np.argsort(ids)
    xi = None if result.xi is None else result.xi[np.ix_(rows, rows)]
    return dataclasses.replace(result, accuracy=result.accuracy[:, rows], rejected=result.rejected[rows], xi=xi)


def write_files(results: dict[str, Any], folder: Path, figures: Mapping[str, Figure | None] | None = None) -> None:
    """What is made from the results: `results.json`, `history.csv`, figures, `report.html`, and the table."""
    if jax.process_index() > 0:  # the first of several processes does it
        return
    report.write_json(results, folder / "results.json")
    report.write_history(results, folder / "history.csv")
    report.write(results, folder, figures or {})
    console.print(report.table(results))


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
