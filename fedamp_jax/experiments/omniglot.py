"""Omniglot: Table 2 and Figs. 3 and 4 of the PFLEGO paper (Nikoloutsopoulos et al. 2023).

    python experiments/omniglot.py --dataset omniglot --data-dir DIR
    python experiments/omniglot.py                       # a substitute made of the bundled digits, minutes on a laptop

Each of the 50 clients has an alphabet of its own, with labels 0..C_i-1. All heads have as many outputs as the largest,
55; outputs beyond a client's classes are masked, also in the shared heads of FedAvg, FedProx, Ditto and FedBABU. 75 %
of each character's drawings are for training.

Rotations: the paper adds copies rotated by 90, 180 and 270 degrees, and does not say to which set. Here they are added
to the training sets, and the test sets stay upright (`--rotations train`). The authors' program rotates all drawings
before it splits them, so clients are also tested on rotated drawings, of which they trained on other copies
(`--rotations pooled`).

The substitute without a download: 20 clients with 2 to 5 of the digits' classes each, and their own labels. Its numbers
cannot be compared with the paper's.
"""

import dataclasses
from pathlib import Path
from typing import Literal

import jax
import numpy as np

import fedamp_jax
from fedamp_jax import Algorithm, Task
from fedamp_jax.data import Federation, Omniglot, Source, check_pair, from_lists, partition
from fedamp_jax.experiments import paper_values, pflego_paper
from fedamp_jax.report.schema import RunResults
from fedamp_jax.runner import command_line, cost, experiment, grid, messages, run_folder
from fedamp_jax.runner.options import participation
from fedamp_jax.runner.train import train_methods


@dataclasses.dataclass(frozen=True)
class Options(pflego_paper.Options):
    """The settings of one run."""

    dataset: Literal["digits", "omniglot"] = "digits"
    """digits, a substitute, is bundled; omniglot is downloaded."""
    rotations: Literal["train", "pooled", "none"] | None = None
    """Rotated copies: train, pooled (before the split) or none."""


@dataclasses.dataclass(frozen=True)
class Command(Options):
    """The options of the command: each combination of participation and seed is a separate run."""

    participation: tuple[float, ...] = (paper_values.PFLEGO_PARTICIPATION,)  # pyright: ignore[reportIncompatibleVariableOverride]
    """Share of the clients invited to a round; each value is a panel."""
    seeds: tuple[int, ...] = ()
    """Several seeds instead of --seed; mean and deviation are reported."""


def rotated(x: np.ndarray) -> np.ndarray:
    """`x [n, height, width]` and its copies rotated by 90, 180 and 270 degrees, `[4 n, ...]`, rotation by rotation."""
    return np.concatenate([np.rot90(x, turns, axes=(1, 2)) for turns in range(4)])


def alphabets(source: Omniglot, rotations: str, seed: int) -> Federation:
    """One client per alphabet."""
    x, alphabet, character = source.x, source.alphabet, source.character
    if rotations == "pooled":
        x, alphabet, character = rotated(x), np.tile(alphabet, 4), np.tile(character, 4)
    part = partition.omniglot(alphabet, character, seed=seed)
    train_y, test_y, classes = partition.relabel(character, character, part)
    train_x = [x[rows] for rows in part.train]
    if rotations == "train":
        train_x, train_y = [rotated(images) for images in train_x], [np.tile(y, 4) for y in train_y]
    train = from_lists(train_x, train_y, classes=classes)
    test = from_lists([x[rows] for rows in part.test], test_y, classes=classes)
    check_pair(train, test)
    return Federation(train, test, None)


def digits_substitute(source: Source, seed: int) -> Federation:
    """Twenty clients with 2 to 5 of the digits' classes each, and their own labels."""
    part = partition.degrees(source.y_train, source.y_test, 20, 5, seed=seed)
    labels = partition.relabel(source.y_train, source.y_test, part)[:2]
    classes = [2 + i % 4 for i in range(20)]
    halves = []
    for x, lists, ys in ((source.x_train, part.train, labels[0]), (source.x_test, part.test, labels[1])):
        keep = [y < c for y, c in zip(ys, classes, strict=True)]
        xs = [x[rows][kept] for rows, kept in zip(lists, keep, strict=True)]
        halves.append(from_lists(xs, [y[kept] for y, kept in zip(ys, keep, strict=True)], classes=classes))
    train, test = halves
    check_pair(train, test)
    return Federation(train, test, None)


def prepare(options: Options) -> tuple[Federation, Task, dict[str, Algorithm]]:
    """The clients, the model, and every method by its name."""
    source = experiment.source_of(options, Source if options.dataset == "digits" else Omniglot)
    if isinstance(source, Omniglot):
        federation = alphabets(source, options.rotations or "train", options.seed)
        model = fedamp_jax.models.omniglot_cnn
    else:
        federation, model = digits_substitute(source, options.seed), fedamp_jax.models.mlp
    task = model(int(federation.train.classes.max()), shape=federation.train.x.shape[2:])
    return federation, task, pflego_paper.make_algorithms(options, task, paper_values.OMNIGLOT_METHODS)


def execute(options: Options, folder: Path) -> RunResults:
    """Train every chosen method, writing results into `folder`; returns the results."""
    federation, task, algorithms = prepare(options)
    paper = {}
    if paper_values.as_in_pflego_tables(vars(options)) and options.dataset == "omniglot":
        paper = {name: paper_values.PFLEGO_TABLE2[name][0] for name in algorithms}
    results = train_methods(
        "omniglot", options, folder, federation, task, algorithms, paper, score_rounds=paper_values.PFLEGO_FINAL_ROUNDS
    )
    run_folder.write_files(results, folder)
    return results


def variants_of(command: Command) -> list[grid.Variant]:
    """The options of a run for each participation."""
    digits = command.dataset == "digits"
    rotations = command.rotations or ("none" if digits else "train")
    if digits and rotations != "none":
        raise ValueError(f"--rotations {rotations} is for --dataset omniglot: the digits are not rotated")
    variants = []
    for share in command.participation:
        one = {**{f.name: getattr(command, f.name) for f in dataclasses.fields(Options)}, "rotations": rotations}
        rounds = 30 if digits else paper_values.OMNIGLOT_ROUNDS
        options = pflego_paper.finish(Options(**{**one, "participation": share}), rounds)
        on_cpu = options.dry_run in (None, "here") and jax.default_backend() == "cpu"
        if not digits and options.chunk is None and on_cpu:
            # The activations of a full batch of 3,300 drawings take gigabytes, and a CPU does not say what it has.
            options = dataclasses.replace(options, chunk=1)
        participation(options, 20 if digits else 50)
        title = f"{messages.percent(share)} invited" if len(command.participation) > 1 else ""
        variants.append(grid.Variant(title, options))
    return variants


def main() -> None:
    """Run from the command line."""
    with command_line.experiment(Command, __doc__, "omniglot") as (command, folder):
        variants = variants_of(command)
        if command.dry_run is not None:
            federation, _, algorithms = prepare(variants[0].options)
            return cost.show(variants[0].options, federation, algorithms)
        grid.run("omniglot", variants, command.seeds, folder, execute)
