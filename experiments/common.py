"""The experiments of the FedAMP paper: their command line, models and methods."""

import dataclasses
import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import command_line
import numpy as np
import optax
import outputs
import parts
import runner
import settings
from sweep import sweep_sigma

import fedamp_jax
from fedamp_jax import Algorithm, Solver, Task, checks, plotting, report
from fedamp_jax.data import Federation


@dataclasses.dataclass
class Options(command_line.Options):
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
    optimizer: Literal["adam", "sgd"] = "adam"
    """Of local training; SCAFFOLD, APFL and PFLEGO's clients take SGD's steps in any case."""
    learning_rate: float = settings.LEARNING_RATE
    """The optimizer's."""
    sgd_learning_rate: float = settings.SGD_LEARNING_RATE
    """Of SCAFFOLD and APFL, which have steps of their own."""
    keep_optimizer: bool = False
    """Keep the optimizer's state from round to round. The paper does not tell; its clients start afresh here."""
    sigma: float | None = None
    """FedAMP's sigma. Default: the paper's, on digits ours (experiments/settings.py)."""
    heur_sigma: float | None = None
    """HeurFedAMP's sigma. Default: the paper's, on digits ours (experiments/settings.py)."""
    sigma_sweep: bool = False
    """Also run FedAMP and HeurFedAMP over the paper's grids of sigma, each grid as one program, and draw it."""


@dataclasses.dataclass
class Command(Options):
    """What one command may run: several seeds, drop rates and participations, each combination a run of its own."""

    participation: tuple[float, ...] = (1.0,)
    """Share of the clients invited each round; several make a panel each."""
    drop_rate: tuple[float, ...] = (0.0,)
    """Share of the invited clients that drop out each round; several make a panel each (the paper: 0.1 0.3 0.5)."""
    seeds: tuple[int, ...] = ()
    """Several seeds in place of --seed; mean and standard deviation are reported."""


def finish(options: Options, setting: str) -> Options:
    """Check the options and fill in what follows from others and from the setting, so that the results tell it."""
    if (setting, options.dataset) == ("practical", "cifar10"):
        raise ValueError(
            "--dataset cifar10 has no groups of clients, which the practical setting needs; it is for "
            "experiments/iid.py and experiments/pathological.py"
        )
    rounds = options.rounds
    if rounds is None:
        rounds = settings.ROUNDS if options.dataset != "digits" else 30
    epochs, epochs_range = options.epochs, options.epochs_range
    if options.quick:
        rounds, epochs = min(rounds, 3), min(epochs, 2)
        epochs_range = epochs_range and (min(epochs_range[0], 1), min(epochs_range[1], 3))
    checks.number("learning_rate", options.learning_rate, low=0)
    for name in ("sigma", "heur_sigma"):
        if getattr(options, name) is not None:
            checks.number(name, getattr(options, name), low=0)
    model = options.model
    if model == "auto":
        model = {"digits": "mlp", "cifar10": "resnet18", "cifar100": "resnet18"}.get(options.dataset, "cnn")
    options = dataclasses.replace(
        options, rounds=rounds, epochs=epochs, epochs_range=epochs_range, model=model,
        sigma=options.sigma or settings.sigma(setting, options.dataset, "FedAMP"),
        heur_sigma=options.heur_sigma or settings.sigma(setting, options.dataset, "HeurFedAMP"),
    )  # fmt: skip
    command_line.check(options)
    return options


def load(options: Options, setting: str) -> Federation:
    """The clients, in an order that gives every device like work."""
    clients = fedamp_jax.data.federation(options.dataset, setting, data_dir=options.data_dir, seed=options.seed)
    return fedamp_jax.data.dealt(clients)


def make_task(options: Options, federation: Federation) -> Task:
    """The model for a data set's shape and classes."""
    classes, shape = int(federation.train.classes.max()), federation.train.x.shape[2:]
    if options.model == "mlp":
        return fedamp_jax.models.mlp(classes, shape=shape)
    if options.model == "cnn":
        return fedamp_jax.models.cnn(classes, shape=shape)
    return fedamp_jax.models.resnet18(classes, shape=shape, norm=options.norm)


def make_solver(options: Options, corrupt: Callable[..., Any] | None = None) -> Solver:
    """Local training; `corrupt` as in `Solver`."""
    optimizer = {"adam": optax.adam, "sgd": optax.sgd}[options.optimizer]
    return Solver(
        optimizer(options.learning_rate), options.epochs_range or options.epochs, options.batch_size,
        keep_optimizer=options.keep_optimizer, chunk=options.chunk, corrupt=corrupt,
    )  # fmt: skip


def make_algorithms(
    setting: str, options: Options, federation: Federation, task: Task, corrupt: Callable[..., Any] | None = None
) -> dict[str, Algorithm]:
    """Every method, in the order of the paper's tables and under its names; `corrupt` as in `Solver`."""
    solver = make_solver(options, corrupt)
    fedavg = fedamp_jax.fedavg(task, solver)
    fedprox = fedamp_jax.fedprox(task, solver, mu=settings.MU)
    tau = Solver(optax.sgd(settings.BETA), settings.TAU, options.batch_size, chunk=options.chunk, corrupt=corrupt)
    alpha = settings.apfl_alpha(setting, options.dataset)
    train = federation.train
    labels = [np.asarray(train.y[i, : train.size[i]]) for i in range(len(train.size))]
    attentive = {"self_weight": settings.self_weights(setting, federation.groups, labels), "lam": settings.LAMBDA}
    return {
        "Separate": fedamp_jax.separate(task, solver),
        "FedAvg": fedavg,
        "FedProx": fedprox,
        "FedAvg-FT": fedamp_jax.fine_tuned(task, solver, base=fedavg),
        "FedProx-FT": fedamp_jax.fine_tuned(task, solver, base=fedprox),
        "SCAFFOLD": fedamp_jax.scaffold(task, solver, learning_rate=options.sgd_learning_rate),
        "APFL": fedamp_jax.apfl(task, solver, alpha=alpha, learning_rate=options.sgd_learning_rate),
        "FedAMP": fedamp_jax.fedamp(task, solver, sigma=options.sigma, **attentive),
        "HeurFedAMP": fedamp_jax.heurfedamp(task, solver, sigma=options.heur_sigma, **attentive),
        "Ditto": fedamp_jax.ditto(task, solver, lam=settings.DITTO_LAMBDA),
        "FedPer": fedamp_jax.fedper(task, solver),
        "FedRep": fedamp_jax.fedrep(task, solver),
        "FedBABU": fedamp_jax.fedbabu(task, solver),
        "FedRecon": fedamp_jax.fedrecon(task, solver),
        "PFLEGO": fedamp_jax.pflego(
            task, tau, beta=settings.BETA, rho=settings.RHO, server_optimizer=optax.adam(settings.RHO)
        ),
    }


def main(experiment: str, setting: str) -> None:
    """Run one of the FedAMP paper's settings from the command line."""
    text = f"The {setting} setting of the FedAMP paper; results, figures and a report."
    command = command_line.parse(Command, text, experiment)
    with command_line.errors_for_people():
        runner.use_devices(command)
        if command.sigma_sweep and len(command.seeds) > 1:
            raise ValueError("--sigma-sweep is of one seed: leave it out, or give --seed in place of --seeds")
        folder = Path(command.out) if command.out else outputs.default_folder(experiment, command)
        train = functools.partial(execute, experiment, setting)
        parts.run(experiment, variants_of(command, setting), command.seeds, folder, train)


def variants_of(command: Command, setting: str) -> list[parts.Variant]:
    """The options of one run for every participation and drop rate asked for."""
    variants = []
    for share, dropped in itertools.product(command.participation, command.drop_rate):
        one = {f.name: getattr(command, f.name) for f in dataclasses.fields(Options)}
        titles = [f"{outputs.percent(share)} invited"] * (len(command.participation) > 1)
        titles += [f"{outputs.percent(dropped)} dropped"] * (len(command.drop_rate) > 1)
        options = Options(**{**one, "participation": share, "drop_rate": dropped})
        variants.append(parts.Variant(", ".join(titles), finish(options, setting)))
    return variants


def execute(experiment: str, setting: str, options: Options, folder: Path) -> dict[str, Any]:
    """Train every chosen method, writing results into `folder` after each one; returns the results."""
    federation = load(options, setting)
    task = make_task(options, federation)
    algorithms = make_algorithms(setting, options, federation, task)
    paper = {}
    if settings.as_in_tables(vars(options)):
        paper = {n: v for (s, d, n), v in settings.PAPER_BMTA.items() if (s, d) == (setting, options.dataset)}
    results = runner.train_methods(experiment, options, folder, federation, task, algorithms, paper)
    figures = {}
    if options.sigma_sweep:
        rows = sweep_sigma(setting, options, federation, task, make_solver(options))
        report.write_json(rows, folder / "sigma_sweep.json")
        figures["Sensitivity to sigma"] = plotting.sigma_sensitivity(rows)
    outputs.write_files(results, folder, figures)
    return results
