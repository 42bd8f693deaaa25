"""The one list of methods: their names, sources, and the hyper-parameters that the experiments give them.

Tables, `--methods`, the tests' property checks and the README's table follow from it.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import optax

from fedamp_jax.algorithms.apfl import apfl
from fedamp_jax.algorithms.ditto import ditto
from fedamp_jax.algorithms.fedamp import fedamp
from fedamp_jax.algorithms.fedavg import fedavg, fedprox
from fedamp_jax.algorithms.fedfomo import fedfomo
from fedamp_jax.algorithms.fedrecon import fedrecon
from fedamp_jax.algorithms.fine_tuned import fine_tuned
from fedamp_jax.algorithms.heurfedamp import heurfedamp
from fedamp_jax.algorithms.pfedgraph import pfedgraph
from fedamp_jax.algorithms.pfedme import pfedme
from fedamp_jax.algorithms.pflego import pflego
from fedamp_jax.algorithms.scaffold import scaffold
from fedamp_jax.algorithms.separate import separate
from fedamp_jax.algorithms.shared_body import fedbabu, fedper, fedrep
from fedamp_jax.attention import Perplexity
from fedamp_jax.engine import Solver
from fedamp_jax.types import Algorithm, Task


class Setup(NamedTuple):
    """What an experiment knows when it makes its methods.

    Attributes:
        task: the model.
        solver: local training.
        sigma: FedAMP's, a number or `attention.perplexity(k)`.
        heur_sigma: HeurFedAMP's, likewise.
        self_weight: xi_ii of both, a number or one per client `[M]`; with a perplexity k it is `1 / (k + 1)` instead.
        lam: weight of their proximal term.
        mu: FedProx's.
        apfl_alpha: APFL's mixing weight.
        sgd_rate: learning rate of SCAFFOLD and APFL, which have steps of their own.
        ditto_lam: Ditto's.
        pflego: `Solver` of PFLEGO, whose epochs are tau, and its rates `(solver, beta, rho)`.
    """

    task: Task
    solver: Solver
    sigma: float | Perplexity
    heur_sigma: float | Perplexity
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
    """

    name: str
    factory: Callable[..., Algorithm]
    source: str
    arguments: Callable[[Setup], dict[str, Any]] = lambda setup: {}
    of_paper: bool = False
    base: str | None = None


def _attentive(setup: Setup, sigma: float | Perplexity) -> dict[str, Any]:
    # Appendix C's 1 / (N_i + 1), where N_i is the number of others that get weight.
    own = 1 / (sigma.k + 1) if isinstance(sigma, Perplexity) else setup.self_weight
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
    )
}  # fmt: skip
"""Every method, in the order of the tables: the FedAMP paper's nine, then the others."""

PAPER_METHODS = tuple(name for name, method in METHODS.items() if method.of_paper)
"""The methods of the FedAMP paper's tables, in their order."""


def make_all(setup: Setup) -> dict[str, Algorithm]:
    """Every method with an experiment's hyper-parameters, by name; one that wraps another shares its programs."""
    made: dict[str, Algorithm] = {}
    for name, method in METHODS.items():
        base = {} if method.base is None else {"base": made[method.base]}
        made[name] = method.factory(setup.task, **{"solver": setup.solver, **base, **method.arguments(setup)})
    return made
