"""An experiment as one record: what is run. `entry.main` runs it from the command line."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

import fedamp_jax
from fedamp_jax import Algorithm, Task
from fedamp_jax.algorithms import registry
from fedamp_jax.data import Federation, Omniglot, Source, load
from fedamp_jax.data.blank import blank
from fedamp_jax.data.federations import part
from fedamp_jax.runner.messages import invited, say
from fedamp_jax.runner.newcomers import Newcomers, hold_out, together
from fedamp_jax.runner.options import Options, check, chosen

Kind = TypeVar("Kind", bound=Source | Omniglot)


class Panel(NamedTuple):
    """An option that may be given several values, each of which is a run of its own and a panel of the figure.

    Attributes:
        title: of a value's panel.
        values: the default; None: that of the options.
    """

    title: Callable[[Any], str]
    values: tuple[Any, ...] | None = None


def as_given(options: Options) -> Options:
    """An experiment without defaults that depend on other options."""
    return options


def nothing(options: Options) -> Mapping[str, Any]:
    """An experiment without published values, or without methods that weigh by distance."""
    return {}


@dataclasses.dataclass(frozen=True)
class Experiment:
    """What is run.

    Attributes:
        name: of the command, and of the folder of results.
        text: the first paragraph is what `--help` says, indented lines are its examples.
        options: the defaults. A group that is None is not among the options.
        datasets: what --dataset takes.
        names: the methods, in the order of the tables.
        clients: the clients; it reads the data.
        model: the model, for the shape and classes of the data.
        methods: the methods of these names. Only chosen ones are made.
        finish: checks options and fills in those that depend on others, before any data are read.
        paper: published accuracies by method, in percent.
        scales: by method whose weights follow from squared distances, which are then kept, the scale of these; None
            if it is not one number for all clients.
        quick_names: what --quick trains unless --methods names others; empty: all.
        score_rounds: also report the mean over this many last rounds, each of which is evaluated.
        panels: by name, the options that take several values.
    """

    name: str
    text: str | None = dataclasses.field(compare=False, repr=False)
    options: Options
    datasets: tuple[str, ...]
    names: tuple[str, ...]
    clients: Callable[[Options], Federation]
    model: Callable[[Options, Federation], Task]
    methods: Callable[[Options, Federation, Task, Sequence[str]], dict[str, Algorithm]]
    finish: Callable[[Options], Options] = as_given
    paper: Callable[[Options], Mapping[str, float]] = nothing
    scales: Callable[[Options], Mapping[str, float | None]] = nothing
    score_rounds: int | None = None
    quick_names: tuple[str, ...] = ()
    panels: Mapping[str, Panel] = dataclasses.field(default_factory=lambda: {"participation": Panel(invited)})

    def checked(self, options: Options) -> Options:
        """The options of one run, complete; nothing is read for it.

        Raises:
            ValueError, TypeError: an option has a value that cannot be run, or a method or hyper-parameter is unknown.
        """
        self.chosen(options)
        registry.parse(options.schedule.set, self.names)
        if options.data.dataset not in self.datasets:
            text = f"--dataset {options.data.dataset} is not for {self.name}, which takes {', '.join(self.datasets)}"
            raise ValueError(text)
        if options.data.quick and options.schedule.methods == ("all",) and self.quick_names:
            options = options.replace(methods=self.quick_names)
        check(options)
        return self.finish(options)

    def chosen(self, options: Options) -> list[str]:
        """The methods that the options name."""
        return chosen(options.schedule.methods, self.names, registry.PAPER_METHODS, registry.BY_NAME)


class Prepared(NamedTuple):
    """What a run trains.

    Attributes:
        federation: the clients.
        task: the model.
        algorithms: methods by name, in the order of the tables.
        newcomers: clients that do not train, and get a personal model afterwards.
    """

    federation: Federation
    task: Task
    algorithms: dict[str, Algorithm]
    newcomers: Newcomers | None


def prepare(experiment: Experiment, options: Options, names: Sequence[str]) -> Prepared:
    """The clients, the model, and the methods of these names."""
    federation = judged(options, experiment.clients(options))
    task, later = experiment.model(options, federation), None
    if options.data.holdout_clients:
        federation, out = hold_out(federation, options.data.holdout_clients, options.schedule.seed)
        federation = fedamp_jax.data.balanced(federation)
        joined = together(federation, out)
        algorithms = experiment.methods(options, joined, task, names)
        later = Newcomers(out, joined.test, algorithms, options.training.solver())
    return Prepared(federation, task, experiment.methods(options, federation, task, names), later)


def source_of(options: Options, kind: type[Kind] = Source) -> Kind:
    """The data set. A dry run downloads nothing: without `--data-dir` it takes blank images of the published number."""
    data = options.data
    unread = options.machine.dry_run is not None and data.data_dir is None and data.dataset != "digits"
    found = blank(data.dataset) if unread else load(data.dataset, data.data_dir)
    if not isinstance(found, kind):
        raise ValueError(f"--dataset {data.dataset} has clients of its own: use experiments/omniglot.py")
    return found


def judged(options: Options, federation: Federation) -> Federation:
    """With --validation-fraction that share of each client's training data in place of its test data.

    Clients with a single training example are left out, as they could not be judged.
    """
    share = options.data.validation_fraction
    if not share:
        return federation
    size, ids = np.asarray(federation.train.size), np.asarray(federation.train.id)
    if (single := size < 2).any() and not single.all():
        listed = ", ".join(map(str, np.sort(ids[single])))
        say(f"--validation-fraction leaves out clients with one training example: {listed}")
        federation = part(federation, ~single)
    train, validation = fedamp_jax.data.hold_out(federation.train, share, seed=options.schedule.seed)
    return federation._replace(train=train, test=validation)
