"""The one list of methods: their names, sources, and the hyper-parameters that the experiments give them.

Tables, `--methods`, the tests' property checks and the README's table follow from it.
"""

import ast
import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import optax

from fedamp_jax.algorithms.apfl import apfl
from fedamp_jax.algorithms.cfl import cfl
from fedamp_jax.algorithms.ditto import ditto
from fedamp_jax.algorithms.fedala import fedala
from fedamp_jax.algorithms.fedamp import Shared, attentive, fedamp
from fedamp_jax.algorithms.fedavg import fedavg, fedprox
from fedamp_jax.algorithms.fedbn import fedbn
from fedamp_jax.algorithms.fedfomo import fedfomo
from fedamp_jax.algorithms.fedpac import fedpac
from fedamp_jax.algorithms.fedproto import fedproto
from fedamp_jax.algorithms.fedrecon import fedrecon
from fedamp_jax.algorithms.fedrod import fedrod
from fedamp_jax.algorithms.fine_tuned import fine_tuned
from fedamp_jax.algorithms.heurfedamp import heurfedamp
from fedamp_jax.algorithms.ifca import ifca
from fedamp_jax.algorithms.knnper import knnper
from fedamp_jax.algorithms.lg_fedavg import lg_fedavg
from fedamp_jax.algorithms.perfedavg import perfedavg
from fedamp_jax.algorithms.pfedgraph import pfedgraph
from fedamp_jax.algorithms.pfedhn import pfedhn
from fedamp_jax.algorithms.pfedme import pfedme
from fedamp_jax.algorithms.pflego import pflego
from fedamp_jax.algorithms.scaffold import scaffold
from fedamp_jax.algorithms.separate import separate
from fedamp_jax.algorithms.shared_body import fedbabu, fedper, fedrep
from fedamp_jax.attention import Auto
from fedamp_jax.engine import Solver
from fedamp_jax.types import Algorithm, Task

Methods = dict[str, Algorithm]


class Setup(NamedTuple):
    """What an experiment knows when it makes its methods.

    Attributes:
        task: the model.
        solver: local training.
        sigma: FedAMP's, a number or `attention.auto()`.
        heur_sigma: HeurFedAMP's, likewise.
        self_weight: xi_ii of both, a number or one per client `[M]`; `attention.auto()` finds it.
        lam: weight of their proximal term.
        mu: FedProx's.
        apfl_alpha: APFL's mixing weight.
        sgd_rate: learning rate of SCAFFOLD and APFL, which have steps of their own.
        ditto_lam: Ditto's.
        pflego: `Solver` of PFLEGO, whose epochs are tau, and its rates `(solver, beta, rho)`.
    """

    task: Task
    solver: Solver
    sigma: float | Auto
    heur_sigma: float | Auto
    self_weight: Any
    lam: float
    mu: float
    apfl_alpha: float
    sgd_rate: float
    ditto_lam: float
    pflego: tuple[Solver, float, float]


class Method(NamedTuple):
    """One method.

    Attributes:
        name: as in tables and on the command line.
        factory: `(task, solver, **arguments) -> Algorithm`, public as `fedamp_jax.<its name>`.
        source: where the method was published.
        arguments: the hyper-parameters that an experiment gives it; a `"solver"` among them replaces the setup's.
        of_paper: whether the FedAMP paper's tables have it.
        base: the name of the method that it wraps, an earlier one.
        any_model: whether it trains every classifier of `fedamp_jax.models`; otherwise it has to be asked for by name.
    """

    name: str
    factory: Callable[..., Algorithm]
    source: str
    arguments: Callable[[Setup], dict[str, Any]] = lambda setup: {}
    of_paper: bool = False
    base: str | None = None
    any_model: bool = True


def _attentive(setup: Setup, sigma: float | Auto) -> dict[str, Any]:
    own = None if isinstance(sigma, Auto) else setup.self_weight
    return {"sigma": sigma, "self_weight": own, "lam": setup.lam}


def _pflego(setup: Setup) -> dict[str, Any]:
    solver, beta, rho = setup.pflego
    return {"solver": solver, "beta": beta, "rho": rho, "server_optimizer": optax.adam(rho)}


def _pfedme(setup: Setup) -> dict[str, Any]:
    """The authors' rate of theta."""
    return {"solver": dataclasses.replace(setup.solver, optimizer=optax.sgd(0.09), keep_optimizer=False)}


METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        Method("Separate", separate, "local training only", of_paper=True),
        Method("FedAvg", fedavg, "McMahan et al. 2017", of_paper=True),
        Method("FedProx", fedprox, "Li et al. 2020", lambda s: {"mu": s.mu}, of_paper=True),
        Method("FedAvg-FT", fine_tuned, "Wang et al. 2019, of any method", of_paper=True, base="FedAvg"),
        Method("FedProx-FT", fine_tuned, "Wang et al. 2019, of any method", of_paper=True, base="FedProx"),
        Method("SCAFFOLD", scaffold, "Karimireddy et al. 2020, options I and II",
               lambda s: {"learning_rate": s.sgd_rate}, of_paper=True),
        Method("APFL", apfl, "Deng et al. 2020, alpha fixed or adaptive",
               lambda s: {"alpha": s.apfl_alpha, "learning_rate": s.sgd_rate}, of_paper=True),
        Method("FedAMP", fedamp, "Huang et al. 2021, three attention functions",
               lambda s: _attentive(s, s.sigma), of_paper=True),
        Method("HeurFedAMP", heurfedamp, "Huang et al. 2021, Section 6",
               lambda s: _attentive(s, s.heur_sigma), of_paper=True),
        Method("Ditto", ditto, "Li et al. 2021", lambda s: {"lam": s.ditto_lam}),
        Method("FedPer", fedper, "Arivazhagan et al. 2019"),
        Method("FedRep", fedrep, "Collins et al. 2021"),
        Method("FedBABU", fedbabu, "Oh et al. 2022"),
        Method("FedRecon", fedrecon, "Singhal et al. 2021"),
        Method("PFLEGO", pflego, "Nikoloutsopoulos et al. 2023", _pflego),
        Method("pFedMe", pfedme, "Dinh et al. 2020", _pfedme),
        Method("FedFomo", fedfomo, "Zhang et al. 2021"),
        Method("pFedGraph", pfedgraph, "Ye et al. 2023"),
        Method("IFCA", ifca, "Ghosh et al. 2020"),
        Method("CFL", cfl, "Sattler et al. 2021"),
        Method("LG-FedAvg", lg_fedavg, "Liang et al. 2020"),
        Method("FedBN", fedbn, "Li, Jiang et al. 2021", any_model=False),
        Method("FedRoD", fedrod, "Chen and Chao 2022"),
        Method("Per-FedAvg", perfedavg, "Fallah et al. 2020", lambda s: {"alpha": 0.1, "beta": 0.1}),
        Method("FedProto", fedproto, "Tan et al. 2022"),
        Method("kNN-Per", knnper, "Marfoq et al. 2022"),
        Method("FedALA", fedala, "Zhang et al. 2023"),
        Method("FedPAC", fedpac, "Xu et al. 2023"),
        Method("pFedHN", pfedhn, "Shamsian et al. 2021"),
    )
}  # fmt: skip
"""Every method, in the order of the tables: the FedAMP paper's nine, then the others."""

PAPER_METHODS = tuple(name for name, method in METHODS.items() if method.of_paper)
"""The methods of the FedAMP paper's tables, in their order."""

BY_NAME = tuple(name for name, method in METHODS.items() if not method.any_model)
"""The methods that `--methods all` leaves out."""


def make(names: Iterable[str], setup: Setup, changes: Mapping[str, Mapping[str, Any]] | None = None) -> Methods:
    """Methods with an experiment's hyper-parameters, by name; those that wrap another one share its programs.

    Args:
        names: of `METHODS`; only these are made, and those that they wrap.
        setup: what the hyper-parameters follow from.
        changes: by method, hyper-parameters with other values, as of `parse`.
    """
    made: Methods = {}

    def one(name: str) -> Algorithm:
        if name not in made:
            method = METHODS[name]
            base = {} if method.base is None else {"base": one(method.base)}
            arguments = {"solver": setup.solver, **base, **method.arguments(setup), **(changes or {}).get(name, {})}
            made[name] = method.factory(setup.task, **arguments)
        return made[name]

    return {name: one(name) for name in names}


def hyperparameters(name: str) -> dict[str, Any]:
    """The hyper-parameters of a method that are numbers, words, or yes or no, with the factory's defaults.

    `inspect.Parameter.empty` stands for those without a default.

    >>> hyperparameters("Ditto")
    {'lam': 0.1, 'stats': 'local'}
    """
    found = {}
    for key, parameter in inspect.signature(METHODS[name].factory).parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:  # what FedAMP and HeurFedAMP share
            shared = inspect.signature(attentive).parameters
            found |= {one: shared[one].default for one in Shared.__annotations__}
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.annotation in (Any, bool, float, int, str):
            found[key] = parameter.default
    return found


def parse(words: Iterable[str], names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Hyper-parameters by method, from words such as `Ditto.lam=0.5`.

    Args:
        words: `METHOD.NAME=VALUE`; a value is a number, True, False, None, or a word.
        names: the methods that there are.

    Raises:
        ValueError: a word has another form, or there is no such method or hyper-parameter. Values are checked by the
            method's factory.

    >>> parse(["Ditto.lam=0.5", "FedAMP.start=personal"], METHODS)
    {'Ditto': {'lam': 0.5}, 'FedAMP': {'start': 'personal'}}
    """
    found: dict[str, dict[str, Any]] = {}
    by_name = {name.lower(): name for name in names if name in METHODS}
    for word in words:
        target, equals, value = word.partition("=")
        method, dot, key = target.partition(".")
        if not (equals and dot and key and value):
            raise ValueError(f"--set needs METHOD.NAME=VALUE, such as Ditto.lam=0.5, got {word!r}")
        if method.lower() not in by_name:
            there = ", ".join(by_name.values()) or "none whose hyper-parameters can be set"
            raise ValueError(f"--set {word}: there is no method {method} here; there are {there}")
        name = by_name[method.lower()]
        if key not in hyperparameters(name):
            there = ", ".join(hyperparameters(name)) or "none"
            raise ValueError(f"--set {word}: {name} has no hyper-parameter {key}; it has {there}")
        try:
            found.setdefault(name, {})[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found.setdefault(name, {})[key] = value
    return found
