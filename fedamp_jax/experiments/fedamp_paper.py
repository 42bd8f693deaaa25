"""The experiments of the FedAMP paper (Huang et al. 2021): command line, models and methods."""

import dataclasses
import functools
import itertools
from pathlib import Path
from typing import Any, Literal, TypeVar

import jax.numpy as jnp
import numpy as np
import optax

import fedamp_jax
from fedamp_jax import Algorithm, Solver, Task
from fedamp_jax.algorithms.registry import Setup, make_all
from fedamp_jax.attention import Perplexity, perplexity
from fedamp_jax.checks import check_integer, check_number
from fedamp_jax.data import Federation, Source
from fedamp_jax.data.federations import clients_of, part
from fedamp_jax.experiments import paper_values
from fedamp_jax.report.schema import RunResults
from fedamp_jax.runner import command_line, cost, grid, messages, newcomers, run_folder
from fedamp_jax.runner.experiment import source_of
from fedamp_jax.runner.options import CommonOptions, check, participation
from fedamp_jax.runner.train import train_methods

QUICK_METHODS = ("Separate", "FedAvg", "FedAMP", "HeurFedAMP")
"""What --quick trains unless --methods names others."""
QUICK_WIDTH = 8
"""Channels of resnet18's first stage with --quick."""

EXAMPLES = """\
    python experiments/{0}.py                                     # the bundled digits
    python experiments/{0}.py --dataset mnist --model mlp --methods FedAMP FedAvg-FT --rounds 20
    python experiments/{0}.py --drop-rate 0.1 0.3 --epochs-range 1 19 --seeds 0 1 2
"""
"""Commands that `--help` shows."""


@dataclasses.dataclass(frozen=True)
class Options(CommonOptions):
    """The settings of one run."""

    dataset: Literal["digits", "mnist", "fashion_mnist", "emnist", "cifar10", "cifar100"] = "digits"
    """digits, mnist, fashion_mnist, emnist, cifar10 or cifar100."""
    model: Literal["auto", "mlp", "cnn", "resnet18"] = "auto"
    """mlp, cnn or resnet18; auto: what suits the data set."""
    norm: Literal["batch", "group"] = "batch"
    """Normalization layers of resnet18."""
    width: int = paper_values.WIDTH
    """Channels of resnet18's first stage."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the layers' arithmetic; parameters and sums stay float32."""
    quick: bool = False
    """A trial: 3 rounds of 2 epochs, 8 clients of 40 examples."""
    methods: tuple[str, ...] = ("all",)
    """FedAMP FedAvg-FT ..., all, or paper (those of the FedAMP paper)."""
    rounds: int | None = None
    """Communication rounds. Default: the paper's 90; 100 for digits."""
    epochs: int = paper_values.EPOCHS
    """Local epochs in a round."""
    epochs_range: tuple[int, int] | None = None
    """Draw the local epochs of each client and round (the paper: 1 19)."""
    batch_size: int = paper_values.BATCH_SIZE
    """Examples in a local step."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Of local training; SCAFFOLD, APFL, pFedMe and PFLEGO use SGD."""
    learning_rate: float = paper_values.LEARNING_RATE
    """Of the optimizer."""
    sgd_learning_rate: float = paper_values.SGD_LEARNING_RATE
    """Of SCAFFOLD and APFL."""
    keep_optimizer: bool = False
    """Keep the clients' optimizer state between rounds."""
    sigma: float | Literal["auto"] | None = None
    """FedAMP's; auto: each listens to about 8. Default: the paper's or ours."""
    heur_sigma: float | Literal["auto"] | None = None
    """HeurFedAMP's; see --sigma. Default: the paper's or ours."""
    validation_fraction: float = 0.0
    """Share of the training data to judge by, in place of test data."""
    holdout_clients: int = 0
    """Clients that do not train, and join afterwards."""


@dataclasses.dataclass(frozen=True)
class Command(Options):
    """The options of the command: each combination of participation, drop rate and seed is a separate run."""

    participation: tuple[float, ...] = (1.0,)  # pyright: ignore[reportIncompatibleVariableOverride]
    """Share of the clients invited to a round; each value is a panel."""
    drop_rate: tuple[float, ...] = (0.0,)  # pyright: ignore[reportIncompatibleVariableOverride]
    """Share of these that drop out; each value is a panel."""
    quick: bool = False
    """A trial: 3 rounds of 2 epochs, 8 clients of 40 examples, four methods."""
    seeds: tuple[int, ...] = ()
    """Several seeds instead of --seed; mean and deviation are reported."""


AnyOptions = TypeVar("AnyOptions", bound=Options)


def finish(options: AnyOptions, setting: str) -> AnyOptions:
    """Check the options and fill in those that depend on others or on the setting, so that the results contain them."""
    if (setting, options.dataset) == ("practical", "cifar10"):
        raise ValueError(
            "--dataset cifar10 has no groups of clients, which the practical setting needs; use it with "
            "experiments/iid.py, pathological.py, dirichlet.py or degrees.py"
        )
    rounds = options.rounds
    if rounds is None:
        rounds = paper_values.ROUNDS if options.dataset != "digits" else paper_values.DIGITS_ROUNDS
    epochs, epochs_range = options.epochs, options.epochs_range
    check_integer("--epochs", epochs, low=1)
    for end in epochs_range or ():
        check_integer("--epochs-range", end, low=1)
    if epochs_range and epochs_range[1] < epochs_range[0]:
        raise ValueError("--epochs-range needs LOW HIGH, got {} {}".format(*epochs_range))
    check_integer("--holdout-clients", options.holdout_clients, low=0)
    if options.quick:
        rounds, epochs = min(rounds, 3), min(epochs, 2)
        epochs_range = epochs_range and (min(epochs_range[0], 1), min(epochs_range[1], 3))
    check_integer("--batch-size", options.batch_size, low=1)
    if not 0 <= options.validation_fraction < 1:
        raise ValueError(f"--validation-fraction must be in [0, 1), got {options.validation_fraction:g}")
    check_number("--learning-rate", options.learning_rate, low=0)
    check_number("--sgd-learning-rate", options.sgd_learning_rate, low=0)
    for flag, sigma in (("--sigma", options.sigma), ("--heur-sigma", options.heur_sigma)):
        if isinstance(sigma, float):
            check_number(flag, sigma, low=0)
    model = options.model
    if model == "auto":
        model = {"digits": "mlp", "cifar10": "resnet18", "cifar100": "resnet18"}.get(options.dataset, "cnn")
    width = options.width
    check_integer("--width", width, low=1)
    if model != "resnet18" and width != Options.width:
        raise ValueError(f"--width is for --model resnet18, not for {model}")
    if model != "resnet18" and options.norm != Options.norm:
        raise ValueError(f"--norm is for --model resnet18, not for {model}")
    if options.quick and model == "resnet18":
        width = min(width, QUICK_WIDTH)
    options = dataclasses.replace(
        options, rounds=rounds, epochs=epochs, epochs_range=epochs_range, model=model, width=width,
        sigma=options.sigma or paper_values.sigma(setting, options.dataset, "FedAMP"),
        heur_sigma=options.heur_sigma or paper_values.sigma(setting, options.dataset, "HeurFedAMP"),
    )  # fmt: skip
    check(options)
    return options


def load(options: Options, setting: str, source: Source | None = None) -> Federation:
    """The clients, in an order that gives every device a similar amount of work; `source` in place of the data set."""
    source = source or source_of(options)
    own = {name: value for name, value in vars(options).items() if name in ("alpha", "clients")}
    clients = fedamp_jax.data.federation(options.dataset, setting, seed=options.seed, source=source, **own)
    if options.quick:
        some = fedamp_jax.data.small(clients)
        m, everybody, most = len(some.train.size), len(clients.train.size), int(some.train.size.max())
        narrow = f", --width {options.width}" * (options.model == "resnet18")
        text = f"--quick: {m} of {everybody} clients, at most {most} examples of each{narrow}; accuracies say little"
        messages.console.print(text, highlight=False, soft_wrap=True)
        clients = some
    return judged(options, fedamp_jax.data.balanced(clients))


def judged(options: Options, federation: Federation) -> Federation:
    """With --validation-fraction that share of each client's training data in place of its test data.

    Clients with a single training example are left out, as they could not be judged.
    """
    if not options.validation_fraction:
        return federation
    size, ids = np.asarray(federation.train.size), np.asarray(federation.train.id)
    if (single := size < 2).any() and not single.all():
        listed = ", ".join(map(str, np.sort(ids[single])))
        text = f"--validation-fraction leaves out clients with one training example: {listed}"
        messages.console.print(text, highlight=False, soft_wrap=True)
        federation = part(federation, ~single)
    train, validation = fedamp_jax.data.hold_out(federation.train, options.validation_fraction, seed=options.seed)
    return federation._replace(train=train, test=validation)


def make_task(options: Options, federation: Federation) -> Task:
    """The model, for the shape and classes of the data."""
    classes, shape = int(federation.train.classes.max()), federation.train.x.shape[2:]
    settings: dict[str, Any] = {"shape": shape, "compute_dtype": jnp.dtype(options.dtype)}
    if options.model == "mlp":
        return fedamp_jax.models.mlp(classes, **settings)
    if options.model == "cnn":
        return fedamp_jax.models.cnn(classes, **settings)
    widths = tuple(options.width << stage for stage in range(4))
    return fedamp_jax.models.resnet18(classes, norm=options.norm, widths=widths, **settings)


def make_solver(options: Options) -> Solver:
    """The solver of local training."""
    optimizer = {"adam": optax.adam, "sgd": optax.sgd}[options.optimizer]
    return Solver(
        optimizer(options.learning_rate), options.epochs_range or options.epochs, options.batch_size,
        keep_optimizer=options.keep_optimizer,
    )  # fmt: skip


def sigma_of(value: float | Literal["auto"]) -> float | Perplexity:
    """The value of --sigma as the algorithms take it."""
    return perplexity(paper_values.PERPLEXITY) if value == "auto" else value


def make_algorithms(
    setting: str, options: Options, federation: Federation, task: Task, solver: Solver | None = None
) -> dict[str, Algorithm]:
    """Every method by its name, in the order of the tables; `solver` in place of that of the options."""
    assert options.sigma is not None and options.heur_sigma is not None  # `finish` has set them
    steps = Solver(optax.sgd(paper_values.BETA), paper_values.TAU, options.batch_size)
    setup = Setup(
        task=task,
        solver=solver or make_solver(options),
        sigma=sigma_of(options.sigma),
        heur_sigma=sigma_of(options.heur_sigma),
        self_weight=paper_values.self_weights(setting, federation),
        lam=paper_values.LAMBDA,
        mu=paper_values.MU,
        apfl_alpha=paper_values.apfl_alpha(setting, options.dataset),
        sgd_rate=options.sgd_learning_rate,
        ditto_lam=paper_values.DITTO_LAMBDA,
        pflego=(steps, paper_values.BETA, paper_values.RHO),
    )
    return make_all(setup)


def main(setting: str) -> None:
    """Run one of the paper's settings, `iid`, `pathological` or `practical`, from the command line."""
    text = f"The {setting} setting of the FedAMP paper (Huang et al. 2021): results, figures and a report.\n\n"
    with command_line.experiment(Command, text + EXAMPLES.format(setting), setting) as (command, folder):
        run_setting(setting, setting, command, Options, folder)


def run_setting(experiment: str, setting: str, command: Command, options: type[Options], folder: Path) -> None:
    """Train every method on one way to divide the data over clients.

    Args:
        experiment: its name.
        setting: of `fedamp_jax.data.federation`.
        command: the options of the command.
        options: the class of a single run's options, of which `command` has all fields.
        folder: for the results.
    """
    variants = variants_of(command, setting, options)
    if command.dry_run is not None:
        federation, _, algorithms, _ = prepare(setting, variants[0].options)
        return cost.show(variants[0].options, federation, algorithms)
    grid.run(experiment, variants, command.seeds, folder, functools.partial(execute, experiment, setting))


def variants_of(command: Command, setting: str, kind: type[Options] = Options) -> list[grid.Variant]:
    """The options of a run for each combination of participation and drop rate."""
    variants = []
    for share, dropped in itertools.product(command.participation, command.drop_rate):
        one = {f.name: getattr(command, f.name) for f in dataclasses.fields(kind)}
        titles = [f"{messages.percent(share)} invited"] * (len(command.participation) > 1)
        titles += [f"{messages.percent(dropped)} dropped"] * (len(command.drop_rate) > 1)
        options = kind(**{**one, "participation": share, "drop_rate": dropped})
        if options.quick and options.methods == ("all",):
            options = dataclasses.replace(options, methods=QUICK_METHODS)
        options = finish(options, setting)
        m = getattr(options, "clients", None) or clients_of(options.dataset)
        participation(options, max((min(m, 8) if options.quick else m) - options.holdout_clients, 1))
        variants.append(grid.Variant(", ".join(titles), options))
    return variants


def prepare(
    setting: str, options: Options
) -> tuple[Federation, Task, dict[str, Algorithm], newcomers.Newcomers | None]:
    """The clients, the model, every method by its name, and clients that come later."""
    federation, later = load(options, setting), None
    task = make_task(options, federation)
    if options.holdout_clients:
        federation, out = newcomers.hold_out(federation, options.holdout_clients, options.seed)
        federation = fedamp_jax.data.balanced(federation)
        everybody = newcomers.together(federation, out)
        algorithms = make_algorithms(setting, options, everybody, task)
        later = newcomers.Newcomers(out, everybody.test, algorithms, make_solver(options))
    return federation, task, make_algorithms(setting, options, federation, task), later


def execute(experiment: str, setting: str, options: Options, folder: Path) -> RunResults:
    """Train every chosen method, writing results into `folder` after each one; returns the results."""
    federation, task, algorithms, later = prepare(setting, options)
    paper = paper_values.bmta(setting, options.dataset, vars(options))
    # A perplexity has a scale for each client.
    sigmas = {"FedAMP": None if isinstance(options.sigma, str) else options.sigma}
    results = train_methods(
        experiment, options, folder, federation, task, algorithms, paper, sigmas=sigmas, newcomers=later
    )  # fmt: skip
    run_folder.write_files(results, folder)
    return results
