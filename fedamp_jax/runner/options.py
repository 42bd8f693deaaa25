"""The options of a run, in groups: a function takes the group that it reads.

An option whose field says `hidden` works as every other, but `--help` leaves it out.
"""

import dataclasses
import difflib
import typing
from collections.abc import Iterable, Iterator
from typing import Any, Literal

import optax

from fedamp_jax import Participation, Solver, writers
from fedamp_jax.checks import check_integer, check_number

Dataset = Literal["digits", "mnist", "fashion_mnist", "emnist", "cifar10", "cifar100", "omniglot"]
FULL = 1 << 30
"""A batch size: all examples of a client."""


def hidden(default: Any) -> Any:
    """The default of an option that `--help` leaves out."""
    return dataclasses.field(default=default, metadata={"hidden": True})


@dataclasses.dataclass(frozen=True)
class Data:
    """The data and who has them."""

    dataset: Dataset = "digits"
    """digits is bundled; others are read from --data-dir, or downloaded."""
    data_dir: str | None = None
    """Folder with <dataset>.npz (docs/your_own_data.md). Default: download."""
    quick: bool = False
    """A trial: at most 3 rounds of few local steps, with few clients."""
    validation_fraction: float = 0.0
    """Share of the training data to judge by, in place of test data."""
    holdout_clients: int = 0
    """Clients that do not train, and join afterwards."""


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Methods and rounds."""

    methods: tuple[str, ...] = ("all",)
    """Methods by their names in the tables, all (but FedBN, for models with normalization), or paper (those of the
    FedAMP paper)."""
    set: tuple[str, ...] = ()
    """Hyper-parameters: Ditto.lam=0.5 pFedMe.eta=0.01; fedamp list --methods has their names."""
    rounds: int | None = None
    """Communication rounds. Default: the paper's, others for digits."""
    participation: float = 1.0
    """Share of the clients invited to each round."""
    drop_rate: float = 0.0
    """Share of the invited clients that drop out of each round."""
    seed: int = 0
    """Decides partition, initial models, order of examples, who takes part."""
    evaluate_every: int = 1
    """Rounds from one evaluation to the next."""

    @property
    def number_of_rounds(self) -> int:
        """`rounds`, once the experiment has filled in its default."""
        if self.rounds is None:
            raise ValueError("--rounds has no value yet: the experiment's `finish` fills it in")
        return self.rounds


@dataclasses.dataclass(frozen=True)
class Training:
    """Local training."""

    model: Literal["auto", "mlp", "cnn", "resnet18"] = "auto"
    """mlp, cnn or resnet18; auto: what suits the data set."""
    norm: Literal["batch", "group"] = "batch"
    """Normalization layers of resnet18."""
    width: int = 64
    """Channels of resnet18's first stage."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the layers' arithmetic; parameters and sums stay float32."""
    epochs: int = 10
    """Local epochs in a round."""
    epochs_range: tuple[int, int] | None = None
    """Draw the local epochs of each client and round (the paper: 1 19)."""
    batch_size: int = 100
    """Examples in a local step."""
    optimizer: Literal["adam", "sgd"] = "adam"
    """Of local training; SCAFFOLD, APFL, pFedMe and PFLEGO use SGD."""
    learning_rate: float = 1e-3
    """Of the optimizer."""
    sgd_learning_rate: float = hidden(1e-2)
    """Of SCAFFOLD and APFL."""
    keep_optimizer: bool = hidden(False)
    """Keep the clients' optimizer state between rounds."""

    @property
    def passes(self) -> float:
        """Mean passes over a client's data in a round."""
        return sum(self.epochs_range) / 2 if self.epochs_range else self.epochs

    def check(self) -> None:
        """Refuse values that no experiment can run with."""
        check_integer("--epochs", self.epochs, low=1)
        for end in self.epochs_range or ():
            check_integer("--epochs-range", end, low=1)
        if self.epochs_range and self.epochs_range[1] < self.epochs_range[0]:
            raise ValueError("--epochs-range needs LOW HIGH, got {} {}".format(*self.epochs_range))
        check_integer("--batch-size", self.batch_size, low=1)
        check_integer("--width", self.width, low=1)
        check_number("--learning-rate", self.learning_rate, low=0)
        check_number("--sgd-learning-rate", self.sgd_learning_rate, low=0)
        for name in ("norm", "width"):
            if self.model not in ("auto", "resnet18") and getattr(self, name) != getattr(Training, name):
                raise ValueError(f"--{name} is for --model resnet18, not for {self.model}")

    def solver(self) -> Solver:
        """The solver of local training."""
        optimizer = {"adam": optax.adam, "sgd": optax.sgd}[self.optimizer](self.learning_rate)
        epochs = self.epochs_range or self.epochs
        return Solver(optimizer, epochs, self.batch_size, keep_optimizer=self.keep_optimizer)


@dataclasses.dataclass(frozen=True)
class Output:
    """What is written, and where."""

    out: str | None = None
    """Folder for the results. Default: named after the settings, in results/."""
    resume: bool = False
    """Continue an interrupted run, or a finished one with more --rounds."""
    log: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Where curves go beside history.csv: tensorboard, wandb, or both."""
    save_models: bool = False
    """Save personal models as models/METHOD.npz."""
    checkpoint_every: int = hidden(10)
    """Rounds from one checkpoint to the next."""
    keep_checkpoints: Literal["auto", "always", "never"] = hidden("auto")
    """The last ones, for more --rounds; auto: below 1 GiB."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """The machine."""

    devices: int | None = None
    """Devices to spread the clients over. Default: all, or a CPU's cores."""
    chunk: int | None = None
    """Clients trained side by side. Default: chosen for the machine."""
    offload: bool = False
    """Keep clients in the host's memory; --chunk of them visit the device."""
    dry_run: str | None = None
    """Only print what a round takes there: v5e:2x4, h100, h100:2 or here."""
    precision: Literal["default", "high", "highest"] = "default"
    """default, high or highest: of matrix products on accelerators."""


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of one run, in groups whose fields have different names.

    An experiment may leave a group out (None) and add one of its own, a dataclass: `setting`, which is the name of a
    setting where that has no options. Defaults are those of the instance that the experiment's record holds.
    """

    data: Data = Data()
    setting: Any = None
    schedule: Schedule = Schedule()
    training: Any = Training()
    attention: Any = None
    output: Output = Output()
    machine: Machine = Machine()

    def groups(self) -> Iterator[tuple[str, Any]]:
        """The name and the value of each group that there is, in the order of `--help`."""
        pairs = ((field.name, getattr(self, field.name)) for field in dataclasses.fields(self))
        return ((name, group) for name, group in pairs if dataclasses.is_dataclass(group))

    def flat(self) -> dict[str, Any]:
        """All options by name."""
        return {name: value for _, group in self.groups() for name, value in vars(group).items()}

    def replace(self, **values: Any) -> "Options":
        """The same options but for these, by name.

        >>> Options().replace(rounds=3, batch_size=7).training.batch_size
        7
        """
        changed = {}
        for name, group in self.groups():
            mine = {key: values.pop(key) for key in list(values) if key in vars(group)}
            changed[name] = dataclasses.replace(group, **mine)
        if values:
            raise TypeError(f"there is no option {', '.join(values)}")
        return dataclasses.replace(self, **changed)


def check(options: Options) -> None:
    """Refuse values that no experiment can run with."""
    data, schedule, output = options.data, options.schedule, options.output
    if schedule.rounds is not None:
        check_integer("--rounds", schedule.rounds, low=1)
    check_integer("--evaluate-every", schedule.evaluate_every, low=1)
    check_integer("--checkpoint-every", output.checkpoint_every, low=1)
    check_integer("--seed", schedule.seed, low=0)
    check_integer("--holdout-clients", data.holdout_clients, low=0)
    if not 0 <= data.validation_fraction < 1:
        raise ValueError(f"--validation-fraction must be in [0, 1), got {data.validation_fraction:g}")
    if options.machine.chunk is not None:
        check_integer("--chunk", options.machine.chunk, low=1)
    for extra in output.log:
        writers.package(extra)
    check_number("--participation", schedule.participation, low=0, high=1)
    if not 0 <= schedule.drop_rate < 1:
        raise ValueError(f"--drop-rate must be in [0, 1), got {schedule.drop_rate:g}")


def chosen(
    methods: Iterable[str], available: Iterable[str], paper: Iterable[str] = (), by_name_only: Iterable[str] = ()
) -> list[str]:
    """The methods asked for, in the order of the tables; names in any case.

    Args:
        methods: names, `all`, or `paper`.
        available: names in the order of the tables.
        paper: what `paper` stands for, if all of them are available.
        by_name_only: what `all` leaves out.

    Raises:
        ValueError: a name is unknown.

    >>> chosen(["fedavg", "Ditto"], ["Separate", "FedAvg", "Ditto"])
    ['FedAvg', 'Ditto']
    """
    available, paper = list(available), list(paper)
    every = [name for name in available if name not in set(by_name_only)]
    by_name = {name.lower(): [name] for name in available} | {"all": every}
    if paper and set(paper) <= set(available):
        by_name["paper"] = paper
    unknown = [method for method in methods if method.lower() not in by_name]
    if unknown:
        near = [difflib.get_close_matches(method.lower(), by_name, n=1) for method in unknown]
        meant = [by_name[found[0]][0] if found[0] not in ("all", "paper") else found[0] for found in near if found]
        hint = f" (did you mean {' '.join(meant)}?)" if meant else ""
        there = " ".join([*available, *(name for name in ("paper", "all") if name in by_name)])
        raise ValueError(f"--methods: there is no {' and no '.join(unknown)}{hint}; there are {there}")
    wanted = {name for method in methods for name in by_name[method.lower()]}
    return [name for name in available if name in wanted]


def participation(schedule: Schedule, clients: int) -> Participation:
    """Which of the clients take part in a round.

    Raises:
        ValueError: none would.
    """
    shares = Participation(schedule.participation, schedule.drop_rate)
    try:
        shares.present(clients)
    except ValueError:
        text = f"--participation {shares.share:g} with --drop-rate {shares.drop_rate:g}"
        raise ValueError(f"{text} leaves none of {clients} clients in a round") from None
    return shares


def choices(hint: Any) -> tuple[str, ...]:
    """The words that an option of this type can be.

    >>> choices(tuple[Literal["a", "b"], ...] | None)
    ('a', 'b')
    """
    if typing.get_origin(hint) is Literal:
        return typing.get_args(hint)
    return tuple(choice for inner in typing.get_args(hint) for choice in choices(inner))
