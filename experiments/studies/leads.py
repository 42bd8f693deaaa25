"""What might explain the paper's FedAvg on MNIST: the practical setting with one thing changed at a time.

    python experiments/studies/leads.py                          # the bundled digits
    python experiments/studies/leads.py --dataset mnist --data-dir DIR --model mlp --lead tenth --methods FedAvg FedAMP
    python experiments/studies/leads.py --lead base l2-1e-2 l2-1e-2+sorted

There FedAvg is 16 points below FedAMP and 4 below training alone, and here it is not. Each lead is `practical.py`,
except for what `LEADS` says about it; leads that a + joins are applied together. `proximal-tuning` is about FedAMP's
lead over FedAvg-FT.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedamp_jax
from fedamp_jax import Algorithm, Placement, Solver, Task
from fedamp_jax.algorithms.fedamp import ALPHA, proximal
from fedamp_jax.data import Federation, Source
from fedamp_jax.experiments import fedamp_paper, paper_values
from fedamp_jax.layout import contiguous
from fedamp_jax.runner.entry import main
from fedamp_jax.runner.experiment import Panel, nothing, source_of
from fedamp_jax.runner.options import Options

METHODS = ("Separate", "FedAvg", "FedAvg-FT", "APFL", "FedAMP")
Methods = dict[str, Algorithm]


@dataclasses.dataclass(frozen=True)
class Changes:
    """The change."""

    lead: str = "base"
    """What is changed: leads by name (base, tenth, ...), or several joined by + (tenth+sorted)."""

    name = "practical"

    def arguments(self) -> dict[str, Any]:
        """Of `fedamp_jax.data.federation`: none."""
        return {}

    @property
    def leads(self) -> list["Lead"]:
        """The leads that are applied together."""
        return [LEADS[name] for name in self.lead.split("+")]


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
    train = contiguous(clients.train)
    x, y = np.asarray(train.x), np.asarray(train.y)
    order = np.lexsort((y, np.repeat(np.arange(train.clients), train.size)))
    return clients._replace(train=train._replace(x=jnp.asarray(x[order]), y=jnp.asarray(y[order])))


def even(source: Source) -> Source:
    """As many examples of each class as of the rarest in the pools, whose frequencies a client's other classes have."""
    for split in ("train", "test"):
        x, y = getattr(source, f"x_{split}"), getattr(source, f"y_{split}")
        rows = np.concatenate([np.flatnonzero(y == c)[: np.bincount(y).min()] for c in range(source.classes)])
        source = source._replace(**{f"x_{split}": x[rows], f"y_{split}": y[rows]})
    return source


def unscaled(task: Task) -> Task:
    """The model on pixels from 0 to 255."""

    def raw(x: jax.Array) -> jax.Array:
        return x.astype(jnp.float32)

    return task._replace(
        loss=lambda variables, batch, key: task.loss(variables, batch._replace(x=raw(batch.x)), key),
        predict=lambda variables, x: task.predict(variables, raw(x)),
        features=None, head_loss=None, predict_features=None,
    )  # fmt: skip


def l2(solver: Solver, weight: float) -> Solver:
    """`weight / 2 ||w||^2` in every loss, as PyTorch's `Adam(weight_decay=weight)`."""
    decay = optax.add_decayed_weights(weight)
    return dataclasses.replace(solver, optimizer=lambda k, client: optax.chain(decay, solver.at_round(k, client)))


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
    penalty = proximal(ALPHA, paper_values.LAMBDA)["penalty"]

    def term(start, k):
        return penalty(start, k, jnp.float32(paper_values.LAMBDA))

    tuned = fedamp_jax.fine_tuned(made_of.task, made_of.solver, base=methods["FedAvg"], penalty=term)
    return {**methods, "FedAvg-FT": tuned}


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, kw_only=True)
class InTurn(Placement):
    """Clients train one after the other, in the order of their ids, and hand the optimizer's state on."""

    def for_each_client(self, step, data, out, *args, work, at_most=None):
        """As `Placement.for_each_client`, for the steps of `fedamp_jax.engine.for_each_client`."""
        order = jnp.argsort(data.id)

        def one(optimizer: Any, i: Any) -> tuple[Any, tuple]:
            (keep, *rest), *row = jax.tree.map(lambda a: a[i], (out, *args))
            keep, *rest = step(data.client(i), (keep._replace(optimizer=optimizer), *rest), *row)
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


def finish(options: Options) -> Options:
    """As `fedamp_paper.finish`.

    Raises:
        ValueError: there is no such lead, or it does not fit the machine.
    """
    parts = options.setting.lead.split("+")
    if unknown := [part for part in parts if part not in LEADS]:
        raise ValueError(f"--lead: there is no {' and no '.join(unknown)}; there are {' '.join(LEADS)}")
    if "one-optimizer" in parts:
        if (options.machine.devices or 1) > 1:
            raise ValueError("--lead one-optimizer trains one client after the other: leave out --devices")
        options = options.replace(devices=1)
    return fedamp_paper.finish(options)


def changed(options: Options, what: str, value: Any) -> Any:
    """`value` with the changes of all leads to it."""
    return functools.reduce(lambda value, lead: getattr(lead, what)(value), options.setting.leads, value)


def clients(options: Options) -> Federation:
    """The clients, with the changes of the leads to them and to the data set."""
    return changed(options, "clients", fedamp_paper.clients(options, changed(options, "source", source_of(options))))


def model(options: Options, federation: Federation) -> Task:
    """The model, with the changes of the leads."""
    return changed(options, "task", fedamp_paper.model(options, federation))


def methods(options: Options, federation: Federation, task: Task, names: Sequence[str]) -> Methods:
    """The methods of these names, with the changes of the leads, which may leave one out."""

    def make(solver: Solver) -> Methods:
        return fedamp_paper.methods(options, federation, task, METHODS, solver)

    solver = changed(options, "solver", options.training.solver())
    made = make(solver)
    for lead in options.setting.leads:
        made = lead.methods(made, MadeOf(task, solver, make))
    return {name: made[name] for name in names if name in made}


EXPERIMENT = fedamp_paper.experiment(
    "leads",
    __doc__,
    options=Options(setting=Changes(), attention=fedamp_paper.Attention()),
    names=METHODS,
    quick_names=(),
    finish=finish,
    clients=clients,
    model=model,
    methods=methods,
    scales=nothing,
    panels={"lead": Panel(str, tuple(LEADS))},
)

if __name__ == "__main__":
    main(EXPERIMENT)
