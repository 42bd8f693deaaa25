"""What the experiments share: one command line, one loop over methods, one set of files."""

import dataclasses
import datetime
import json
import os
import platform
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
import optax
import settings
import tyro
from rich.console import Console

import fedamp_jax
from fedamp_jax import Algorithm, Solver, Task, checks, metrics, plotting, report
from fedamp_jax.data import Federation

console = Console()


@dataclasses.dataclass
class Options:
    """The settings of one run. Without any, everything runs on the bundled digits."""

    dataset: Literal["digits", "mnist", "fashion_mnist", "emnist", "cifar10", "cifar100"] = "digits"
    """digits is bundled; the others are read from --data-dir, or downloaded."""
    model: Literal["auto", "mlp", "cnn", "resnet18"] = "auto"
    """auto: mlp for digits, cnn for 28x28 images, resnet18 for cifar."""
    norm: Literal["batch", "group"] = "batch"
    """Normalisation layers of resnet18."""
    methods: tuple[str, ...] = ("all",)
    """Names as in the tables (FedAMP FedAvg-FT ...), or all, or paper (the nine of the FedAMP paper)."""
    rounds: int | None = None
    """Communication rounds. Default: the paper's 90; 30 on digits."""
    epochs: int = settings.EPOCHS
    """Local epochs in a round."""
    epochs_range: tuple[int, int] | None = None
    """Draw each client's local epochs from LOW..HIGH in each round (the paper: 1 19)."""
    batch_size: int = settings.BATCH_SIZE
    """Examples in a local step."""
    learning_rate: float = settings.LEARNING_RATE
    """Adam's."""
    participation: float = 1.0
    """Share of the clients invited each round."""
    drop_rate: float = 0.0
    """Share of the invited clients that drop out each round."""
    sigma: float | None = None
    """FedAMP's sigma. Default: experiments/settings.py."""
    heur_sigma: float | None = None
    """HeurFedAMP's sigma. Default: experiments/settings.py."""
    sigma_sweep: bool = False
    """Also run FedAMP and HeurFedAMP over the paper's grids of sigma, each grid as one program, and draw it."""
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
    resume: bool = False
    """Go on with an interrupted run of the same settings."""
    quick: bool = False
    """A faithful miniature: 3 rounds of 2 epochs."""
    precision: Literal["default", "high", "highest"] = "default"
    """Precision of matrix products in training, where the device offers less than float32."""


# Neither where a run writes nor how it is cut up belongs to what it computes.
_NOT_SETTINGS = ("out", "resume", "data_dir", "chunk", "checkpoint_every", "methods")


def finish(options: Options) -> Options:
    """Check the options and fill in what follows from others."""
    rounds = options.rounds or (settings.ROUNDS if options.dataset != "digits" else 30)
    epochs = options.epochs
    if options.quick:
        rounds, epochs = min(rounds, 3), min(epochs, 2)
    checks.whole("rounds", rounds, low=1)
    checks.whole("evaluate_every", options.evaluate_every, low=1)
    checks.whole("checkpoint_every", options.checkpoint_every, low=1)
    checks.number("learning_rate", options.learning_rate, low=0)
    for name in ("sigma", "heur_sigma"):
        if getattr(options, name) is not None:
            checks.number(name, getattr(options, name), low=0)
    fedamp_jax.sample_online(jax.random.key(0), 1, options.participation, options.drop_rate)
    model = options.model
    if model == "auto":
        model = {"digits": "mlp", "cifar10": "resnet18", "cifar100": "resnet18"}.get(options.dataset, "cnn")
    return dataclasses.replace(options, rounds=rounds, epochs=epochs, model=model)


def make_task(options: Options, federation: Federation) -> Task:
    """The model for a data set's shape and classes."""
    classes, shape = int(federation.train.classes.max()), federation.train.x.shape[2:]
    if options.model == "mlp":
        return fedamp_jax.models.mlp(classes, shape=shape)
    if options.model == "cnn":
        return fedamp_jax.models.cnn(classes, shape=shape)
    return fedamp_jax.models.resnet18(classes, shape=shape, norm=options.norm)


def make_algorithms(setting: str, options: Options, federation: Federation, task: Task) -> dict[str, Algorithm]:
    """Every method, in the order of the paper's tables and under its names."""
    epochs = options.epochs_range or options.epochs
    adam = Solver(optax.adam(options.learning_rate), epochs, options.batch_size, chunk=options.chunk)
    fedavg = fedamp_jax.fedavg(task, adam)
    fedprox = fedamp_jax.fedprox(task, adam, mu=settings.MU)
    train = federation.train
    labels = [np.asarray(train.y[i, : train.size[i]]) for i in range(len(train.size))]
    attentive = {"self_weight": settings.self_weights(setting, federation.groups, labels), "lam": settings.LAMBDA}
    sigma = options.sigma or settings.sigma(setting, options.dataset, "FedAMP")
    heur_sigma = options.heur_sigma or settings.sigma(setting, options.dataset, "HeurFedAMP")
    return {
        "Separate": fedamp_jax.separate(task, adam),
        "FedAvg": fedavg,
        "FedProx": fedprox,
        "FedAvg-FT": fedamp_jax.fine_tuned(task, adam, base=fedavg),
        "FedProx-FT": fedamp_jax.fine_tuned(task, adam, base=fedprox),
        "FedAMP": fedamp_jax.fedamp(task, adam, sigma=sigma, **attentive),
        "HeurFedAMP": fedamp_jax.heurfedamp(task, adam, sigma=heur_sigma, **attentive),
    }


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


def settings_of(options: Options) -> dict[str, Any]:
    """What identifies a run: two runs with equal settings compute the same."""
    return json.loads(json.dumps({k: v for k, v in vars(options).items() if k not in _NOT_SETTINGS}))


def default_folder(experiment: str, options: Options) -> str:
    """`results/practical-mnist`, followed by every setting that is not its default."""
    plain = Options()
    changed = [
        f"{name}={'-'.join(map(str, value)) if isinstance(value, (tuple, list)) else value}"
        for name, value in vars(options).items()
        if name not in (*_NOT_SETTINGS, "dataset") and value != getattr(plain, name)
    ]
    return str(Path("results") / "-".join([experiment, options.dataset, *changed]))


def open_folder(folder: Path, options: Options, experiment: str) -> dict[str, Any]:
    """Claim the folder for this run; with --resume, what it holds of it already.

    Raises:
        ValueError: if it holds another run, or this one and --resume was not given and it is unfinished.
    """
    mine = {"experiment": experiment, **settings_of(options)}
    path = folder / "results.json"
    if not path.exists():
        if folder.exists() and any(folder.iterdir()) and not (folder / "checkpoints").exists():
            raise ValueError(f"--out {folder} holds other files; give an empty or new folder")
        return {}
    found = json.loads(path.read_text())
    theirs = {"experiment": found["experiment"], **found["settings"]}
    other = [f"{k}: {theirs.get(k)!r} there, {mine.get(k)!r} now" for k in mine if theirs.get(k) != mine.get(k)]
    if other:
        raise ValueError(f"--out {folder} holds another run ({'; '.join(other)}); give another folder, or remove it")
    return found["methods"] if options.resume else {}


def describe_device() -> str:
    """Such as `cpu: cpu x1, 2 cores, x86_64`."""
    device = jax.devices()[0]
    return f"{device.platform}: {device.device_kind} x{jax.device_count()}, {os.cpu_count()} cores, {platform.machine()}"


def versions() -> dict[str, str]:
    """Versions of everything that can change a number."""
    import flax
    import jaxlib

    return {
        "fedamp_jax": fedamp_jax.__version__, "python": platform.python_version(), "jax": jax.__version__,
        "jaxlib": jaxlib.__version__, "flax": flax.__version__, "optax": optax.__version__, "numpy": np.__version__,
    }  # fmt: skip


def method_results(result: fedamp_jax.Run, paper: float | None) -> dict[str, Any]:
    """One method's entry in results.json; accuracies in percent."""
    percent = 100.0 * result.accuracy.astype(np.float64)
    bmta, best = metrics.bmta(percent)
    return {
        "bmta": bmta,
        "best_round": result.rounds[best],
        "final": float(percent[-1].mean()),
        "accuracy": percent[-1].tolist(),
        "best_accuracy": percent[best].tolist(),
        "rounds": result.rounds,
        "mean_accuracy": percent.mean(axis=1).tolist(),
        "loss": result.loss,
        "seconds": result.seconds,
        "first_round_seconds": result.first_seconds,
        "seconds_per_round": (result.seconds - result.first_seconds) / max(result.rounds[-1] - 1, 1),
        "rejected": {str(i): int(n) for i, n in enumerate(result.rejected) if n},
        "paper": paper,
        "in_group_weight": result.observed.get("in_group_weight"),
        "ari": result.observed.get("ari"),
        "xi": None if result.xi is None else result.xi.tolist(),
    }


def watch(groups: np.ndarray | None):
    """What to measure of a round's xi: how far attention has found the groups."""

    def observe(info: fedamp_jax.Info) -> dict[str, float]:
        if info.xi is None or groups is None:
            return {}
        xi = np.asarray(info.xi)
        return {"in_group_weight": metrics.in_group_weight(xi, groups), "ari": metrics.group_recovery(xi, groups)}

    return observe


def main(experiment: str, setting: str) -> None:
    """Run one of the FedAMP paper's settings from the command line."""
    options = tyro.cli(Options, description=f"The {setting} setting of the FedAMP paper; results, figures and a report.")
    try:
        folder = execute(experiment, setting, finish(options))
    except (ValueError, TypeError, FileNotFoundError) as error:
        console.print(f"[red]error:[/red] {error}", highlight=False, markup=True)
        sys.exit(2)
    console.print(f"Report: {folder / 'report.html'}", highlight=False)


def execute(experiment: str, setting: str, options: Options) -> Path:
    """Train every chosen method, writing results after each one; returns the folder."""
    cache_compilations()
    jax.config.update("jax_default_matmul_precision", None if options.precision == "default" else options.precision)
    folder = Path(options.out or default_folder(experiment, options))
    done = open_folder(folder, options, experiment)
    federation = fedamp_jax.data.federation(options.dataset, setting, data_dir=options.data_dir, seed=options.seed)
    task = make_task(options, federation)
    algorithms = make_algorithms(setting, options, federation, task)
    names = chosen(options.methods, algorithms)
    if not options.resume:
        shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    groups = federation.groups
    results = {
        "experiment": experiment,
        "dataset": options.dataset,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "settings": settings_of(options),
        "versions": versions(),
        "device": describe_device(),
        "clients": len(federation.train.size),
        "groups": None if groups is None else groups.tolist(),
        "chance_in_group_weight": None if groups is None else metrics.chance_in_group_weight(groups),
        "rounds": options.rounds,
        "methods": {},
        "wilcoxon": {},
    }
    for name in [n for n in algorithms if n in names or n in done]:
        if name in done:
            results["methods"][name] = done[name]
            continue
        checkpoints = folder / "checkpoints" / name
        result = fedamp_jax.run(
            task, algorithms[name], federation.train, federation.test, rounds=options.rounds, seed=options.seed,
            participation=options.participation, drop_rate=options.drop_rate, evaluate_every=options.evaluate_every,
            observe=watch(groups), label=name, checkpoint_dir=checkpoints, checkpoint_every=options.checkpoint_every,
            fingerprint={"experiment": experiment, "method": name, **settings_of(options)},
        )  # fmt: skip
        paper = settings.PAPER_BMTA.get((setting, options.dataset, name))
        results["methods"][name] = method_results(result, paper)
        results["wilcoxon"] = metrics.wilcoxon_table({n: r["accuracy"] for n, r in results["methods"].items()})
        report.write_json(results, folder / "results.json")
        shutil.rmtree(checkpoints)
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    report.write_history(results, folder / "history.csv")
    figures = {}
    if options.sigma_sweep:
        from sweep import sweep_sigma

        rows = sweep_sigma(setting, options, federation, task)
        report.write_json(rows, folder / "sigma_sweep.json")
        figures["Sensitivity to sigma"] = plotting.sigma_sensitivity(rows)
    report.write(results, folder, figures)
    console.print(report.table(results))
    return folder


def cache_compilations() -> None:
    """Keep compiled programs between runs on accelerators, where compiling takes longest.

    Not on CPUs: reading a stored CPU program back has crashed the process (jaxlib 0.10.2, segmentation fault).
    """
    if not jax.config.jax_compilation_cache_dir and jax.default_backend() != "cpu":
        folder = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fedamp_jax" / "compiled"
        jax.config.update("jax_compilation_cache_dir", str(folder))
