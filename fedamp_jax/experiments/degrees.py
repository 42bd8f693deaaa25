"""Degrees of personalization: Table 1 and Figs. 2 and 6 of the PFLEGO paper (Nikoloutsopoulos et al. 2023).

    python experiments/degrees.py                       # the bundled digits, minutes on a laptop
    python experiments/degrees.py --dataset mnist --data-dir DIR
    python experiments/degrees.py --dataset cifar10 --degrees high --participation 0.2 0.4 1.0   # Fig. 6

Each client has K = 2 (high), C/2 (medium) or all C classes (none). The score is the mean accuracy over the last 10
rounds.
"""

import dataclasses
import itertools
from pathlib import Path
from typing import Literal

import tyro

import fedamp_jax
from fedamp_jax import Algorithm, Task
from fedamp_jax.checks import check_integer
from fedamp_jax.data import Federation, check_pair, from_indices, from_lists, partition
from fedamp_jax.experiments import paper_values, pflego_paper
from fedamp_jax.experiments.paper_values import Degree
from fedamp_jax.report.schema import RunResults
from fedamp_jax.runner import command_line, cost, experiment, grid, messages, run_folder
from fedamp_jax.runner.options import participation
from fedamp_jax.runner.train import train_methods


@dataclasses.dataclass(frozen=True)
class Options(pflego_paper.Options):
    """The settings of one run."""

    dataset: Literal["digits", "mnist", "fashion_mnist", "emnist", "cifar10"] = "digits"
    """digits, mnist, fashion_mnist, emnist or cifar10."""
    degree: Degree = "high"
    """Degree of personalization: each client has 2 classes (high), half of them (medium), or all (none)."""
    clients: int | None = None
    """Number of clients. Default: the paper's 100; 20 on digits."""
    labels: Literal["own", "global"] = "own"
    """Numbers of classes: own, 0..K-1 of each client, or global."""


@dataclasses.dataclass(frozen=True)
class Command(Options):
    """The options of the command: each combination of degree, participation and seed is a separate run."""

    degree: tyro.conf.Suppress[Degree] = "high"
    degrees: tuple[Degree, ...] = tuple(paper_values.DEGREES)
    """high: 2 classes per client; medium: half of them; none: all."""
    participation: tuple[float, ...] = (paper_values.PFLEGO_PARTICIPATION,)  # pyright: ignore[reportIncompatibleVariableOverride]
    """Share of the clients invited to a round; each value is a panel."""
    seeds: tuple[int, ...] = ()
    """Several seeds instead of --seed; mean and deviation are reported."""


def variants_of(command: Command) -> list[grid.Variant]:
    """The options of a run for each combination of degree and participation."""
    clients = command.clients
    if clients is None:
        clients = 20 if command.dataset == "digits" else paper_values.PFLEGO_CLIENTS
    check_integer("--clients", clients, low=1)
    variants = []
    for degree, share in itertools.product(command.degrees, command.participation):
        one = {f.name: getattr(command, f.name) for f in dataclasses.fields(Options)}
        options = Options(**{**one, "degree": degree, "participation": share, "clients": clients})
        titles = [paper_values.DEGREES[degree]] * (len(command.degrees) > 1)
        titles += [f"{messages.percent(share)} invited"] * (len(command.participation) > 1)
        finished = pflego_paper.finish(options, 100 if command.dataset == "digits" else paper_values.PFLEGO_ROUNDS)
        participation(finished, clients)
        variants.append(grid.Variant(", ".join(titles), finished))
    return variants


def make_federation(options: Options) -> Federation:
    """The clients of one degree."""
    source = experiment.source_of(options)
    assert options.clients is not None  # `variants_of` has set the clients
    held = {"high": 2, "medium": source.classes // 2, "none": source.classes}[options.degree]
    part = partition.degrees(source.y_train, source.y_test, options.clients, held, seed=options.seed)
    if options.labels == "own":
        train_y, test_y, classes = partition.relabel(source.y_train, source.y_test, part)
        train = from_lists([source.x_train[rows] for rows in part.train], train_y, classes=classes)
        test = from_lists([source.x_test[rows] for rows in part.test], test_y, classes=classes)
    else:
        train = from_indices(source.x_train, source.y_train, part.train, classes=source.classes)
        test = from_indices(source.x_test, source.y_test, part.test, classes=source.classes)
    check_pair(train, test)
    return Federation(train, test, None)


def prepare(options: Options) -> tuple[Federation, Task, dict[str, Algorithm]]:
    """The clients of one degree, the model, and every method by its name."""
    federation = make_federation(options)
    shape = federation.train.x.shape[2:]
    model = fedamp_jax.models.cifar_cnn if options.dataset == "cifar10" else fedamp_jax.models.mlp
    task = model(int(federation.train.classes.max()), shape=shape)
    return federation, task, pflego_paper.make_algorithms(options, task, paper_values.PFLEGO_METHODS)


def execute(options: Options, folder: Path) -> RunResults:
    """Train every chosen method on one degree, writing results into `folder`; returns the results."""
    federation, task, algorithms = prepare(options)
    paper = {}
    if paper_values.as_in_pflego_tables(vars(options)):
        table = {name: paper_values.PFLEGO_TABLE1.get((options.dataset, options.degree, name)) for name in algorithms}
        paper = {name: value[0] for name, value in table.items() if value}
    results = train_methods(
        "degrees", options, folder, federation, task, algorithms, paper, score_rounds=paper_values.PFLEGO_FINAL_ROUNDS
    )
    run_folder.write_files(results, folder)
    return results


def main() -> None:
    """Run from the command line."""
    with command_line.experiment(Command, __doc__, "degrees") as (command, folder):
        variants = variants_of(command)
        if command.dry_run is not None:
            federation, _, algorithms = prepare(variants[0].options)
            return cost.show(variants[0].options, federation, algorithms)
        grid.run("degrees", variants, command.seeds, folder, execute)
