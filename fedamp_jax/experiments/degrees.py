"""Degrees of personalization: Table 1 and Figs. 2 and 6 of the PFLEGO paper (Nikoloutsopoulos et al. 2023).

    python experiments/degrees.py                       # the bundled digits, minutes on a laptop
    python experiments/degrees.py --dataset mnist --data-dir DIR
    python experiments/degrees.py --dataset cifar10 --degree high --participation 0.2 0.4 1.0   # Fig. 6

Each client has K = 2 (high), C/2 (medium) or all C classes (none). The score is the mean accuracy over the last 10
rounds.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Literal

import fedamp_jax
from fedamp_jax import Algorithm, Task
from fedamp_jax.checks import check_integer
from fedamp_jax.data import Federation, check_pair, from_indices, from_lists, partition
from fedamp_jax.experiments import paper_values, pflego_paper
from fedamp_jax.experiments.paper_values import Degree
from fedamp_jax.runner.experiment import Experiment, Panel, source_of
from fedamp_jax.runner.messages import invited
from fedamp_jax.runner.options import Options, Schedule, participation

SCHEDULE = Schedule(participation=paper_values.PFLEGO_PARTICIPATION, evaluate_every=10)
"""Rounds of both experiments of the paper."""


@dataclasses.dataclass(frozen=True)
class Degrees:
    """Clients."""

    degree: Degree = "high"
    """high: 2 classes per client; medium: half of them; none: all. Each is a panel."""
    clients: int | None = None
    """Number of clients. Default: the paper's 100; 20 on digits."""
    labels: Literal["own", "global"] = "own"
    """Numbers of classes: own, 0..K-1 of each client, or global."""


def finish(options: Options) -> Options:
    """Check the options, and fill in the number of clients and of rounds."""
    digits = options.data.dataset == "digits"
    clients = options.setting.clients
    if clients is None:
        clients = 20 if digits else paper_values.PFLEGO_CLIENTS
    check_integer("--clients", clients, low=1)
    options = dataclasses.replace(options, setting=dataclasses.replace(options.setting, clients=clients))
    participation(options.schedule, max(clients - options.data.holdout_clients, 1))
    return pflego_paper.finish(options, 100 if digits else paper_values.PFLEGO_ROUNDS)


def clients(options: Options) -> Federation:
    """The clients of one degree."""
    source, own = source_of(options), options.setting
    held = {"high": 2, "medium": source.classes // 2, "none": source.classes}[own.degree]
    part = partition.degrees(source.y_train, source.y_test, own.clients, held, seed=options.schedule.seed)
    if own.labels == "own":
        train_y, test_y, classes = partition.relabel(source.y_train, source.y_test, part)
        train = from_lists([source.x_train[rows] for rows in part.train], train_y, classes=classes)
        test = from_lists([source.x_test[rows] for rows in part.test], test_y, classes=classes)
    else:
        train = from_indices(source.x_train, source.y_train, part.train, classes=source.classes)
        test = from_indices(source.x_test, source.y_test, part.test, classes=source.classes)
    check_pair(train, test)
    return Federation(train, test, None)


def model(options: Options, federation: Federation) -> Task:
    """The paper's: a perceptron, for CIFAR-10 a small CNN."""
    made = fedamp_jax.models.cifar_cnn if options.data.dataset == "cifar10" else fedamp_jax.models.mlp
    return made(int(federation.train.classes.max()), shape=federation.train.x.shape[1:])


def methods(options: Options, federation: Federation, task: Task, names: Sequence[str]) -> dict[str, Algorithm]:
    """As `pflego_paper.methods`."""
    return pflego_paper.methods(options, task, names)


def paper(options: Options) -> Mapping[str, float]:
    """Table 1's accuracies, where it has the setting."""
    if not paper_values.as_in_pflego_tables(options.flat()):
        return {}
    key = options.data.dataset, options.setting.degree
    table = {name: paper_values.PFLEGO_TABLE1.get((*key, name)) for name in paper_values.PFLEGO_METHODS}
    return {name: value[0] for name, value in table.items() if value}


DEGREES = Experiment(
    name="degrees",
    text=__doc__,
    options=Options(setting=Degrees(), training=pflego_paper.FullBatch(), schedule=SCHEDULE),
    datasets=("digits", "mnist", "fashion_mnist", "emnist", "cifar10"),
    names=paper_values.PFLEGO_METHODS,
    finish=finish,
    clients=clients,
    model=model,
    methods=methods,
    paper=paper,
    score_rounds=paper_values.PFLEGO_FINAL_ROUNDS,
    panels={
        "degree": Panel(paper_values.DEGREES.__getitem__, tuple(paper_values.DEGREES)),
        "participation": Panel(invited),
    },
)
