"""Omniglot, Table 2 and Figs. 3 and 4 of the PFLEGO paper (Nikoloutsopoulos et al. 2023): 50 clients = 50 alphabets.

    python experiments/omniglot.py --dataset omniglot --data-dir DIR
    python experiments/omniglot.py                       # stand-in without any download, in minutes on a laptop
    python experiments/omniglot.py --help

Every client has classes and labels of its own, 0..C_i-1; heads are padded to the largest, 55, and what lies beyond a
client's classes is masked, for the shared heads of FedAvg, FedProx, Ditto and FedBABU too. 75 % of each character's
drawings are for training.

Rotations: the paper adds copies turned by 90, 180 and 270 degrees and does not tell where. Here the training sets get
them and the test sets stay upright (`--rotations train`). Its authors' program turns all drawings before it splits
them, so that clients are tested on turned drawings too, of which they trained on other copies: `--rotations pooled`.

The stand-in for those without the data: 20 clients with 2 to 5 of the bundled digits' classes each, and labels of their
own. Nothing there can be compared with the paper.
"""

import dataclasses
from pathlib import Path
from typing import Any, Literal

import command_line
import jax
import numpy as np
import outputs
import parts
import pflego_common
import runner
import settings

import fedamp_jax
from fedamp_jax.data import Federation, Omniglot, Source, check_pair, from_lists, load, partition


@dataclasses.dataclass
class Options(pflego_common.Options):
    """The settings of one run. Without any, everything runs on the bundled digits."""

    dataset: Literal["digits", "omniglot"] = "digits"
    """digits is bundled, a stand-in; omniglot is read from --data-dir, or downloaded."""
    rotations: Literal["train", "pooled", "none"] | None = None
    """Copies turned by 90, 180, 270 degrees: in training only, the default of omniglot; of everything before the split;
    or none. The digits are not turned."""


@dataclasses.dataclass
class Command(Options):
    """What one command may run: several participations and seeds, each combination a run of its own."""

    participation: tuple[float, ...] = (settings.PFLEGO_PARTICIPATION,)
    """Share of the clients invited each round; several make a panel each."""
    seeds: tuple[int, ...] = ()
    """Several seeds in place of --seed; mean and standard deviation are reported."""


def turned(x: np.ndarray) -> np.ndarray:
    """`x [n, height, width]` and its copies turned by 90, 180 and 270 degrees, `[4 n, ...]`, turn by turn."""
    return np.concatenate([np.rot90(x, turns, axes=(1, 2)) for turns in range(4)])


def alphabets(source: Omniglot, rotations: str, seed: int) -> Federation:
    """A client per alphabet."""
    x, alphabet, character = source.x, source.alphabet, source.character
    if rotations == "pooled":
        x, alphabet, character = turned(x), np.tile(alphabet, 4), np.tile(character, 4)
    part = partition.omniglot(alphabet, character, seed=seed)
    train_y, test_y, classes = partition.relabel(character, character, part)
    train_x = [x[rows] for rows in part.train]
    if rotations == "train":
        train_x, train_y = [turned(images) for images in train_x], [np.tile(y, 4) for y in train_y]
    train = from_lists(train_x, train_y, classes=classes)
    test = from_lists([x[rows] for rows in part.test], test_y, classes=classes)
    check_pair(train, test)
    return Federation(train, test, None)


def stand_in(source: Source, seed: int) -> Federation:
    """Twenty clients of the digits with 2 to 5 classes each and labels of their own."""
    part = partition.degrees(source.y_train, source.y_test, 20, 5, seed=seed)
    labels = partition.relabel(source.y_train, source.y_test, part)[:2]
    classes = [2 + i % 4 for i in range(20)]
    halves = []
    for x, lists, ys in ((source.x_train, part.train, labels[0]), (source.x_test, part.test, labels[1])):
        keep = [y < c for y, c in zip(ys, classes, strict=True)]
        xs = [x[rows][kept] for rows, kept in zip(lists, keep, strict=True)]
        halves.append(from_lists(xs, [y[kept] for y, kept in zip(ys, keep, strict=True)], classes=classes))
    check_pair(*halves)
    return Federation(*halves, None)


def execute(options: Options, folder: Path) -> dict[str, Any]:
    """Train every chosen method, writing results into `folder`; returns the results."""
    source = load(options.dataset, options.data_dir)
    if isinstance(source, Omniglot):
        if options.chunk is None:  # a full batch of 3,300 drawings makes gigabytes of activations
            options = dataclasses.replace(options, chunk=1 if jax.default_backend() == "cpu" else 5)
        federation = alphabets(source, options.rotations or "train", options.seed)
        model = fedamp_jax.models.omniglot_cnn
    else:
        federation, model = stand_in(source, options.seed), fedamp_jax.models.mlp
    task = model(int(federation.train.classes.max()), shape=federation.train.x.shape[2:])
    algorithms = pflego_common.make_algorithms(options, task, settings.OMNIGLOT_METHODS)
    paper = {}
    if settings.as_in_pflego_tables(vars(options)) and options.dataset == "omniglot":
        paper = {name: settings.PFLEGO_TABLE2[name][0] for name in algorithms}
    results = runner.train_methods(
        "omniglot", options, folder, federation, task, algorithms, paper, score_rounds=settings.PFLEGO_FINAL_ROUNDS
    )
    outputs.write_files(results, folder)
    return results


def variants_of(command: Command) -> list[parts.Variant]:
    """The options of one run for every participation asked for."""
    digits = command.dataset == "digits"
    rotations = command.rotations or ("none" if digits else "train")
    if digits and rotations != "none":
        raise ValueError(f"--rotations {rotations} is for --dataset omniglot: the digits, a stand-in, are not turned")
    variants = []
    for share in command.participation:
        one = {**{f.name: getattr(command, f.name) for f in dataclasses.fields(Options)}, "rotations": rotations}
        rounds = 30 if digits else settings.OMNIGLOT_ROUNDS
        options = pflego_common.finish(Options(**{**one, "participation": share}), rounds)
        title = f"{outputs.percent(share)} invited" if len(command.participation) > 1 else ""
        variants.append(parts.Variant(title, options))
    return variants


def main() -> None:
    """Run from the command line."""
    command = command_line.parse(Command, __doc__, "omniglot")
    with command_line.errors_for_people():
        runner.use_devices(command)
        folder = Path(command.out) if command.out else outputs.default_folder("omniglot", command)
        parts.run("omniglot", variants_of(command), command.seeds, folder, execute)


if __name__ == "__main__":
    main()
