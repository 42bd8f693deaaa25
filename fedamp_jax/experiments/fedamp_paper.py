"""The experiments of the FedAMP paper (Huang et al. 2021), and others with its model, training and methods."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import jax.numpy as jnp
import optax

import fedamp_jax
from fedamp_jax import Algorithm, Solver, Task
from fedamp_jax.algorithms import registry
from fedamp_jax.attention import Auto, auto
from fedamp_jax.checks import check_number
from fedamp_jax.data import Federation, Source
from fedamp_jax.data.federations import clients_of
from fedamp_jax.experiments import paper_values
from fedamp_jax.runner.experiment import Experiment, Panel, source_of
from fedamp_jax.runner.messages import dropped, invited, say
from fedamp_jax.runner.options import Options, Training, participation

DATASETS = ("digits", "mnist", "fashion_mnist", "emnist", "cifar10", "cifar100")
METHODS = tuple(registry.METHODS)
PANELS = {"participation": Panel(invited), "drop_rate": Panel(dropped)}
QUICK_METHODS = ("Separate", "FedAvg", "FedAMP", "HeurFedAMP")
"""What --quick trains unless --methods names others."""
QUICK_WIDTH = 8
"""Channels of resnet18's first stage with --quick."""


@dataclasses.dataclass(frozen=True)
class Attention:
    """Attention weights."""

    sigma: float | Literal["auto"] | None = None
    """FedAMP's; auto: each client finds how many others to weigh. Default: the paper's or ours."""
    heur_sigma: float | Literal["auto"] | None = None
    """HeurFedAMP's; see --sigma. Default: the paper's or ours."""


def setting_of(options: Options) -> str:
    """How the data are divided over clients, as `fedamp_jax.data.federation` names it."""
    return options.setting if isinstance(options.setting, str) else options.setting.name


def arguments_of(options: Options) -> dict[str, Any]:
    """Further arguments of `fedamp_jax.data.federation`, where the setting has options."""
    return {} if isinstance(options.setting, str) else options.setting.arguments()


def finish(options: Options) -> Options:
    """Check the options and fill in those that depend on others or on the setting, so that the results contain them.

    Raises:
        ValueError, TypeError: a value cannot be run.
    """
    data, schedule, training, attention = options.data, options.schedule, options.training, options.attention
    setting = setting_of(options)
    if (setting, data.dataset) == ("practical", "cifar10"):
        raise ValueError(
            "--dataset cifar10 has no groups of clients, which the practical setting needs; use it with "
            "experiments/iid.py, pathological.py, dirichlet.py or degrees.py"
        )
    training.check()
    rounds = schedule.rounds
    if rounds is None:
        rounds = paper_values.ROUNDS if data.dataset != "digits" else paper_values.DIGITS_ROUNDS
    model = training.model
    if model == "auto":
        model = {"digits": "mlp", "cifar10": "resnet18", "cifar100": "resnet18"}.get(data.dataset, "cnn")
    training = dataclasses.replace(training, model=model)
    training.check()  # of the model that auto stands for
    for name, sigma in vars(attention).items():
        if isinstance(sigma, float):
            check_number(f"--{name.replace('_', '-')}", sigma, low=0)
    if data.quick:
        rounds, training = min(rounds, 3), quick_training(training)
    method_of = {"sigma": "FedAMP", "heur_sigma": "HeurFedAMP"}
    sigmas = {name: sigma or paper_values.sigma(setting, data.dataset, method_of[name])
              for name, sigma in vars(attention).items()}  # fmt: skip
    attention = dataclasses.replace(attention, **sigmas)
    schedule = dataclasses.replace(schedule, rounds=rounds)
    m = arguments_of(options).get("clients") or clients_of(data.dataset)
    participation(schedule, max((min(m, 8) if data.quick else m) - data.holdout_clients, 1))
    return dataclasses.replace(options, schedule=schedule, training=training, attention=attention)


def quick_training(training: Training) -> Training:
    """At most 2 epochs, and a narrow resnet18."""
    low_high = training.epochs_range and (min(training.epochs_range[0], 1), min(training.epochs_range[1], 3))
    width = min(training.width, QUICK_WIDTH) if training.model == "resnet18" else training.width
    return dataclasses.replace(training, epochs=min(training.epochs, 2), epochs_range=low_high, width=width)


def clients(options: Options, source: Source | None = None) -> Federation:
    """The clients, in an order that gives every device a similar amount of work; `source` in place of the data set."""
    data = options.data
    everyone = fedamp_jax.data.federation(
        data.dataset, setting_of(options), seed=options.schedule.seed, source=source or source_of(options),
        **arguments_of(options),
    )  # fmt: skip
    if not data.quick:
        return fedamp_jax.data.balanced(everyone)
    some = fedamp_jax.data.small(everyone)
    m, most = len(some.train.size), int(some.train.size.max())
    narrow = f", --width {options.training.width}" if options.training.model == "resnet18" else ""
    say(f"--quick: {m} of {len(everyone.train.size)} clients, at most {most} examples of each{narrow}; "
        "accuracies say little")  # fmt: skip
    return fedamp_jax.data.balanced(some)


def model(options: Options, federation: Federation) -> Task:
    """The model, for the shape and classes of the data."""
    classes, training = int(federation.train.classes.max()), options.training
    settings: dict[str, Any] = {
        "shape": federation.train.x.shape[1:],
        "compute_dtype": jnp.dtype(training.dtype),
    }
    if training.model == "mlp":
        return fedamp_jax.models.mlp(classes, **settings)
    if training.model == "cnn":
        return fedamp_jax.models.cnn(classes, **settings)
    widths = tuple(training.width << stage for stage in range(4))
    return fedamp_jax.models.resnet18(classes, norm=training.norm, widths=widths, **settings)


def methods(
    options: Options, federation: Federation, task: Task, names: Sequence[str], solver: Solver | None = None
) -> dict[str, Algorithm]:
    """The methods of these names with the paper's hyper-parameters; `solver` in place of that of the options."""
    return registry.make(names, setup(options, federation, task, solver), registry.parse(options.schedule.set, METHODS))


def setup(options: Options, federation: Federation, task: Task, solver: Solver | None = None) -> registry.Setup:
    """What the methods' hyper-parameters follow from; `solver` in place of that of the options."""
    training, setting = options.training, setting_of(options)
    return registry.Setup(
        task=task,
        solver=solver or training.solver(),
        sigma=sigma_of(options.attention.sigma),
        heur_sigma=sigma_of(options.attention.heur_sigma),
        self_weight=paper_values.self_weights(setting, federation),
        lam=paper_values.LAMBDA,
        mu=paper_values.MU,
        apfl_alpha=paper_values.apfl_alpha(setting, options.data.dataset),
        sgd_rate=training.sgd_learning_rate,
        ditto_lam=paper_values.DITTO_LAMBDA,
        pflego=(
            Solver(optax.sgd(paper_values.BETA), paper_values.TAU, training.batch_size),
            paper_values.BETA,
            paper_values.RHO,
        ),
    )


def sigma_of(value: float | Literal["auto"]) -> float | Auto:
    """The value of --sigma as the algorithms take it."""
    return auto() if value == "auto" else value


def paper(options: Options) -> Mapping[str, float]:
    """The paper's accuracies, where its tables have the setting."""
    return paper_values.bmta(setting_of(options), options.data.dataset, options.flat())


def scales(options: Options) -> Mapping[str, float | None]:
    """FedAMP's sigma; one that is found has a scale for each client."""
    sigma = registry.parse(options.schedule.set, METHODS).get("FedAMP", {}).get("sigma", options.attention.sigma)
    return {"FedAMP": None if isinstance(sigma, str) else sigma}


def experiment(name: str, text: str | None, **changes: Any) -> Experiment:
    """An experiment with the model, the training and the methods of the paper.

    Args:
        name: of the experiment; of the setting, too, unless `changes` has other options.
        text: what the experiment is, and examples of its command.
        **changes: other values of the record.
    """
    usual = Experiment(
        name=name, text=text, options=Options(setting=name, attention=Attention()), datasets=DATASETS, names=METHODS,
        finish=finish, clients=clients, model=model, methods=methods, paper=paper, scales=scales,
        quick_names=QUICK_METHODS, panels=PANELS,
    )  # fmt: skip
    return dataclasses.replace(usual, **changes)
