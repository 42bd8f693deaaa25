"""What might explain the paper's FedAvg on MNIST: the practical setting with one thing changed at a time.

    python experiments/studies/leads.py                          # the bundled digits
    python experiments/studies/leads.py --dataset mnist --data-dir DIR --model mlp --leads tenth --methods FedAvg FedAMP
    python experiments/studies/leads.py --leads base l2-1e-2 l2-1e-2+sorted

There FedAvg is 16 points below FedAMP and 4 below training alone, and here it is not. Each lead is `practical.py`,
except for what `LEADS` says about it; leads that a + joins are applied together. `proximal-tuning` is about FedAMP's
lead over FedAvg-FT.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro

import fedamp_jax
from fedamp_jax import Algorithm, Placement, Solver, Task
from fedamp_jax.algorithms.fedamp import ALPHA, proximal
from fedamp_jax.data import Federation, Source
from fedamp_jax.experiments import fedamp_paper, paper_values
from fedamp_jax.report.schema import RunResults
from fedamp_jax.runner import command_line, cost, experiment, grid
from fedamp_jax.runner.options import Unused
from fedamp_jax.runner.run_folder import write_files
from fedamp_jax.runner.train import train_methods

METHODS = ("Separate", "FedAvg", "FedAvg-FT", "APFL", "FedAMP")
Methods = dict[str, Algorithm]


@dataclasses.dataclass(frozen=True)
class Options(fedamp_paper.Options):
    """The settings of one run."""

    lead: str = "base"
    """What is changed, by name."""
    holdout_clients: Unused[int] = 0


@dataclasses.dataclass(frozen=True)
class Command(Options):
    """The options of the command: each combination of lead and seed is a separate run."""

    lead: tyro.conf.Suppress[str] = "base"
    leads: tuple[str, ...] = ("all",)
    """What is changed: leads by name (base, tenth, ...), all, or several joined by + (tenth+sorted)."""
    seeds: tuple[int, ...] = ()
    """Several seeds instead of --seed; mean and standard deviation are reported."""


class MadeOf(NamedTuple):
    """What methods are made of. Attributes: task, solver. make: `solver -> methods`, with another solver."""

    task: Task
    solver: Solver
    make: Callable[[Solver], Methods]


class Lead(NamedTuple):
    """A change of the practical setting.

    Attributes:
        text: what is changed, in words.
        source, clients, task, solver: change the data set, the clients, the model, local training.
        methods: `(methods, what they are made of) -> methods`.
    """

    text: str
    source: Callable[[Source], Source] = lambda source: source
    clients: Callable[[Federation], Federation] = lambda clients: clients
    task: Callable[[Task], Task] = lambda task: task
    solver: Callable[[Solver], Solver] = lambda solver: solver
    methods: Callable[[Methods, MadeOf], Methods] = lambda methods, made_of: methods


def tenth(clients: Federation) -> Federation:
    """A tenth of each client's training examples, drawn at random."""
    return clients._replace(train=fedamp_jax.data.hold_out(clients.train, 0.9, seed=0)[0])


def by_class(clients: Federation) -> Federation:
    """Each client's training examples in the order of their classes."""
    x, y, size = (np.asarray(a) for a in (clients.train.x, clients.train.y, clients.train.size))
    real = np.arange(y.shape[1]) < size[:, None]
    order = np.argsort(np.where(real, y, y.max() + 1), axis=1, kind="stable")
    rows = np.arange(len(y))[:, None]
    return clients._replace(train=clients.train._replace(x=jnp.asarray(x[rows, order]), y=jnp.asarray(y[rows, order])))


def even(source: Source) -> Source:
    """As many examples of each class as of the rarest in the pools, whose frequencies a client's other classes have."""
    for split in ("train", "test"):
        x, y = getattr(source, f"x_{split}"), getattr(source, f"y_{split}")
        rows = np.concatenate([np.flatnonzero(y == c)[: np.bincount(y).min()] for c in range(source.classes)])
        source = source._replace(**{f"x_{split}": x[rows], f"y_{split}": y[rows]})
    return source


def unscaled(task: Task) -> Task:
    """The model on pixels from 0 to 255."""
    raw = lambda x: x.astype(jnp.float32)  # noqa: E731
    return task._replace(
        loss=lambda variables, batch, key: task.loss(variables, batch._replace(x=raw(batch.x)), key),
        predict=lambda variables, x: task.predict(variables, raw(x)), features=None, head_loss=None,
    )  # fmt: skip


def l2(solver: Solver, weight: float) -> Solver:
    """`weight / 2 ||w||^2` in every loss, as PyTorch's `Adam(weight_decay=weight)`."""
    decay = optax.add_decayed_weights(weight)
    return dataclasses.replace(solver, optimizer=lambda k: optax.chain(decay, solver.at_round(k)))


def other_models(methods: Methods, made_of: MadeOf) -> Methods:
    """FedAvg judged before the average, FedAvg-FT after it, and FedAMP by u_i, which is after it, too.

    FedAvg's clients before the average are FedAvg-FT's, a round earlier. A round without training leaves u_i.
    """
    still = made_of.make(Solver(optax.set_to_zero(), 1, 1_000_000))["FedAMP"]

    def mixtures(key, state, data):
        return still.personalize(key, still.round(key, state, data)[0], data)

    mixed = methods["FedAMP"]._replace(personalize=mixtures)
    return {**methods, "FedAvg": methods["FedAvg-FT"], "FedAvg-FT": methods["FedAvg"], "FedAMP": mixed}


def proximal_tuning(methods: Methods, made_of: MadeOf) -> Methods:
    """FedAvg-FT fine-tuned with FedAMP's proximal term, `lam / (2 alpha_k) ||w - x||^2` for the global model x."""
    term = proximal(ALPHA, paper_values.LAMBDA)
    tuned = fedamp_jax.fine_tuned(made_of.task, made_of.solver, base=methods["FedAvg"], penalty=term)
    return {**methods, "FedAvg-FT": tuned}


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, kw_only=True)
class InTurn(Placement):
    """Clients train one after the other, in the order of their ids, and hand the optimizer's state on."""

    def for_each_client(self, step, out, *args, work, at_most=None):
        """As `Placement.for_each_client`, for the steps of `fedamp_jax.engine.for_each_client`."""
        order = jnp.argsort(args[1].id)

        def one(optimizer: Any, i: Any) -> tuple[Any, tuple]:
            (keep, *rest), *row = jax.tree.map(lambda a: a[i], (out, *args))
            keep, *rest = step((keep._replace(optimizer=optimizer), *rest), *row)
            return keep.optimizer, (keep._replace(optimizer=()), *rest)

        before = out[0].optimizer
        after, rows = jax.lax.scan(one, jax.tree.map(lambda a: a[0], before), order)
        keep, *rest = jax.tree.map(lambda a: a[jnp.argsort(order)], rows)
        shared = jax.tree.map(lambda a, b: jnp.broadcast_to(a, b.shape), after, before)
        return keep._replace(optimizer=shared), *rest


def one_optimizer(methods: Methods, made_of: MadeOf) -> Methods:
    """One optimizer state goes through all clients and rounds. APFL's SGD has none, so it is left out."""

    def change(algorithm: Algorithm) -> Algorithm:
        def round(key, state, data):
            return algorithm.round(key, state, data._replace(placement=InTurn()))

        return algorithm._replace(round=round)

    return {name: change(algorithm) for name, algorithm in methods.items() if name != "APFL"}


in_order = functools.partial(dataclasses.replace, shuffle=False)
LEADS = {
    "base": Lead("as in `practical.py`"),
    "tenth": Lead("a tenth of each client's training examples", clients=tenth),
    "l2-1e-3": Lead("1e-3 w added to every gradient", solver=functools.partial(l2, weight=1e-3)),
    "l2-1e-2": Lead("1e-2 w added to every gradient", solver=functools.partial(l2, weight=1e-2)),
    "in-order": Lead("examples are not shuffled", solver=in_order),
    "sorted": Lead("examples are not shuffled but sorted by class", clients=by_class, solver=in_order),
    "even": Lead("classes equally frequent in the data that clients draw from", source=even),
    "other-models": Lead("FedAvg judged before the average, FedAvg-FT and FedAMP after it", methods=other_models),
    "proximal-tuning": Lead("FedAvg-FT is fine-tuned with FedAMP's proximal term", methods=proximal_tuning),
    "one-optimizer": Lead("one optimizer state for all clients and rounds", methods=one_optimizer,
                          solver=functools.partial(dataclasses.replace, keep_optimizer=True)),
    "unscaled": Lead("pixels from 0 to 255", task=unscaled),
}  # fmt: skip


def variants_of(command: Command) -> list[grid.Variant]:
    """The options of a run for each lead."""
    names = [name for lead in command.leads for name in (LEADS if lead == "all" else (lead,))]
    unknown = [part for name in names for part in name.split("+") if part not in LEADS]
    if unknown:
        raise ValueError(f"--leads: there is no {' and no '.join(unknown)}; there are {' '.join(LEADS)} all")
    variants = []
    for name in names:
        one: dict[str, Any] = {f.name: getattr(command, f.name) for f in dataclasses.fields(Options)}
        one["lead"] = name
        if "one-optimizer" in name.split("+"):
            if (command.devices or 1) > 1:
                raise ValueError("--leads one-optimizer trains one client after the other: leave out --devices")
            one["devices"] = 1
        variants.append(grid.Variant(name, fedamp_paper.finish(Options(**one), "practical")))
    return variants


def prepare(options: Options) -> tuple[Federation, Task, Methods]:
    """The clients, the model, and every method by its name, with the changes of the leads."""
    leads = [LEADS[name] for name in options.lead.split("+")]

    def changed(what: str, value: Any) -> Any:
        return functools.reduce(lambda value, lead: getattr(lead, what)(value), leads, value)

    federation = fedamp_paper.load(options, "practical", changed("source", experiment.source_of(options)))
    federation = changed("clients", federation)
    task = changed("task", fedamp_paper.make_task(options, federation))
    make = functools.partial(fedamp_paper.make_algorithms, "practical", options, federation, task)
    solver = changed("solver", fedamp_paper.make_solver(options))
    every = make(solver)
    methods = {name: every[name] for name in METHODS}
    for lead in leads:
        methods = lead.methods(methods, MadeOf(task, solver, make))
    return federation, task, methods


def execute(options: Options, folder: Path) -> RunResults:
    """Train every chosen method with one lead, writing results into `folder`; returns the results."""
    federation, task, methods = prepare(options)
    paper = paper_values.bmta("practical", options.dataset, vars(options))
    results = train_methods("leads", options, folder, federation, task, methods, paper)
    write_files(results, folder)
    return results


def main() -> None:
    """Run from the command line."""
    with command_line.experiment(Command, __doc__, "leads") as (command, folder):
        variants = variants_of(command)
        if command.dry_run is not None:
            federation, _, methods = prepare(variants[0].options)
            return cost.show(variants[0].options, federation, methods)
        grid.run("leads", variants, command.seeds, folder, execute)


if __name__ == "__main__":
    main()
