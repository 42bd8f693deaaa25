"""Degrees of personalization, Table 1 and Figs. 2 and 6 of the PFLEGO paper (Nikoloutsopoulos et al. 2023).

    python experiments/degrees.py                       # the bundled digits, in minutes on a laptop
    python experiments/degrees.py --dataset mnist --data-dir DIR
    python experiments/degrees.py --dataset cifar10 --degrees high --participation 0.2 0.4 1.0   # Fig. 6
    python experiments/degrees.py --help

Clients have K = 2 (high), C/2 (medium) or all C classes (none). The score is the mean accuracy over the last 10 rounds.
"""

import dataclasses
import itertools
from pathlib import Path
from typing import Any, Literal

import command_line
import outputs
import parts
import pflego_common
import runner
import settings
import tyro

import fedamp_jax
from fedamp_jax import checks
from fedamp_jax.data import Federation, Source, check_pair, from_indices, from_lists, load, partition

Degree = Literal["high", "medium", "none"]


@dataclasses.dataclass
class Options(pflego_common.Options):
    """The settings of one run. Without any, everything runs on the bundled digits."""

    dataset: Literal["digits", "mnist", "fashion_mnist", "emnist", "cifar10"] = "digits"
    """digits is bundled; the others are read from --data-dir, or downloaded."""
    degree: Degree = "high"
    """Degree of personalization: 2 classes per client, half of them, or all."""
    clients: int | None = None
    """Number of clients. Default: the paper's 100; 20 on digits."""
    labels: Literal["own", "global"] = "own"
    """own: every client numbers its classes 0..K-1; global: a class has the same output for all."""


@dataclasses.dataclass
class Command(Options):
    """What one command may run: several degrees, participations and seeds, each combination a run of its own."""

    degree: tyro.conf.Suppress[Degree] = "high"
    degrees: tuple[Degree, ...] = tuple(settings.DEGREES)
    """Degrees of personalization: 2 classes per client, half of them, or all; several make a panel each."""
    participation: tuple[float, ...] = (settings.PFLEGO_PARTICIPATION,)
    """Share of the clients invited each round; several make a panel each (Fig. 6)."""
    seeds: tuple[int, ...] = ()
    """Several seeds in place of --seed; mean and standard deviation are reported."""


def variants_of(command: Command) -> list[parts.Variant]:
    """The options of one run for every degree and participation asked for."""
    clients = command.clients
    if clients is None:
        clients = 20 if command.dataset == "digits" else settings.PFLEGO_CLIENTS
    checks.whole("clients", clients, low=1)
    variants = []
    for degree, share in itertools.product(command.degrees, command.participation):
        one = {f.name: getattr(command, f.name) for f in dataclasses.fields(Options)}
        options = Options(**{**one, "degree": degree, "participation": share, "clients": clients})
        titles = [settings.DEGREES[degree]] * (len(command.degrees) > 1)
        titles += [f"{outputs.percent(share)} invited"] * (len(command.participation) > 1)
        finished = pflego_common.finish(options, 100 if command.dataset == "digits" else settings.PFLEGO_ROUNDS)
        variants.append(parts.Variant(", ".join(titles), finished))
    return variants


def make_federation(options: Options) -> Federation:
    """The clients of one degree."""
    source = load(options.dataset, options.data_dir)
    assert isinstance(source, Source)
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


def execute(options: Options, folder: Path) -> dict[str, Any]:
    """Train every chosen method on one degree, writing results into `folder`; returns the results."""
    federation = make_federation(options)
    shape = federation.train.x.shape[2:]
    model = fedamp_jax.models.cifar_cnn if options.dataset == "cifar10" else fedamp_jax.models.mlp
    task = model(int(federation.train.classes.max()), shape=shape)
    algorithms = pflego_common.make_algorithms(options, task, settings.PFLEGO_METHODS)
    paper = {}
    if settings.as_in_pflego_tables(vars(options)):
        of = {name: settings.PFLEGO_TABLE1.get((options.dataset, options.degree, name)) for name in algorithms}
        paper = {name: value[0] for name, value in of.items() if value}
    results = runner.train_methods(
        "degrees", options, folder, federation, task, algorithms, paper, score_rounds=settings.PFLEGO_FINAL_ROUNDS
    )
    outputs.write_files(results, folder)
    return results


def main() -> None:
    """Run from the command line."""
    command = command_line.parse(Command, __doc__, "degrees")
    with command_line.errors_for_people():
        runner.use_devices(command)
        folder = Path(command.out) if command.out else outputs.default_folder("degrees", command)
        parts.run("degrees", variants_of(command), command.seeds, folder, execute)


if __name__ == "__main__":
    main()
