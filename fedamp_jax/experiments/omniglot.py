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
from collections.abc import Mapping
from typing import Literal

import jax
import numpy as np

import fedamp_jax
from fedamp_jax import Task
from fedamp_jax.data import Federation, Omniglot, Source, check_pair, from_lists, partition
from fedamp_jax.experiments import degrees, paper_values, pflego_paper
from fedamp_jax.runner.experiment import Experiment, source_of
from fedamp_jax.runner.options import Options, participation


@dataclasses.dataclass(frozen=True)
class Rotations:
    """Clients."""

    rotations: Literal["train", "pooled", "none"] | None = None
    """Rotated copies: train, pooled (before the split) or none."""


def finish(options: Options) -> Options:
    """Check the options, and fill in the rotations and the number of rounds."""
    digits = options.data.dataset == "digits"
    rotations = options.setting.rotations or ("none" if digits else "train")
    if digits and rotations != "none":
        raise ValueError(f"--rotations {rotations} is for --dataset omniglot: the digits are not rotated")
    machine = options.machine
    if not digits and machine.chunk is None and machine.dry_run in (None, "here") and jax.default_backend() == "cpu":
        # The activations of a full batch of 3,300 drawings take gigabytes, and a CPU does not say what it has.
        machine = dataclasses.replace(machine, chunk=1)
    participation(options.schedule, max((20 if digits else 50) - options.data.holdout_clients, 1))
    options = dataclasses.replace(options, setting=Rotations(rotations), machine=machine)
    return pflego_paper.finish(options, 30 if digits else paper_values.OMNIGLOT_ROUNDS)


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


def clients(options: Options) -> Federation:
    """The alphabets, or their substitute."""
    seed = options.schedule.seed
    if options.data.dataset == "digits":
        return digits_substitute(source_of(options), seed)
    return alphabets(source_of(options, Omniglot), options.setting.rotations, seed)


def model(options: Options, federation: Federation) -> Task:
    """The paper's CNN; a perceptron for digits."""
    made = fedamp_jax.models.mlp if options.data.dataset == "digits" else fedamp_jax.models.omniglot_cnn
    return made(int(federation.train.classes.max()), shape=federation.train.x.shape[1:])


def paper(options: Options) -> Mapping[str, float]:
    """Table 2's accuracies, where it has the setting."""
    if options.data.dataset != "omniglot" or not paper_values.as_in_pflego_tables(options.flat()):
        return {}
    return {name: value[0] for name, value in paper_values.PFLEGO_TABLE2.items()}


OMNIGLOT = Experiment(
    name="omniglot",
    text=__doc__,
    options=Options(setting=Rotations(), training=pflego_paper.FullBatch(), schedule=degrees.SCHEDULE),
    datasets=("digits", "omniglot"),
    names=paper_values.OMNIGLOT_METHODS,
    finish=finish,
    clients=clients,
    model=model,
    methods=degrees.methods,
    paper=paper,
    score_rounds=paper_values.PFLEGO_FINAL_ROUNDS,
)
