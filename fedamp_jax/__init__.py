"""FedAMP, HeurFedAMP and the methods they are compared with: personalized federated learning in one compiled program.

>>> import jax, optax, fedamp_jax
>>> train, test, groups = fedamp_jax.data.federation("digits")
>>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
>>> solver = fedamp_jax.Solver(optax.adam(1e-3), epochs=2)
>>> algorithm = fedamp_jax.heurfedamp(task, solver, sigma=25.0, self_weight=1 / 4)
>>> key = jax.random.key(0)
>>> state = algorithm.init(key, train)
>>> for k in range(2):
...     state, info = fedamp_jax.round(algorithm, state, train, jax.random.fold_in(key, k))
>>> accuracy = fedamp_jax.evaluate(task, algorithm.personalize(key, state, train), test)
>>> accuracy.shape
(20,)
"""

import importlib
from typing import Any

from fedamp_jax import algorithms, analysis, attention, data, engine, models, placement, trees, writers
from fedamp_jax._version import __version__
from fedamp_jax.algorithms.apfl import apfl
from fedamp_jax.algorithms.cfl import cfl
from fedamp_jax.algorithms.corrupted import corrupted
from fedamp_jax.algorithms.ditto import ditto
from fedamp_jax.algorithms.fedala import fedala
from fedamp_jax.algorithms.fedamp import attentive, fedamp
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
from fedamp_jax.attention import NegativeSelfWeightError
from fedamp_jax.driver.checkpoint import Checkpoint
from fedamp_jax.driver.estimate import estimate
from fedamp_jax.driver.evaluation import evaluate, predict
from fedamp_jax.driver.history import Evaluation, Run, Snapshots
from fedamp_jax.driver.loop import run
from fedamp_jax.driver.participation import Participation
from fedamp_jax.driver.patience import Patience
from fedamp_jax.driver.rounds import round, scan_rounds
from fedamp_jax.driver.signals import Stopped
from fedamp_jax.driver.states import join
from fedamp_jax.engine.solver import Solver
from fedamp_jax.models import cross_entropy
from fedamp_jax.placement.placement import Placement
from fedamp_jax.saving import Saved, load_models, save_models
from fedamp_jax.types import Algorithm, Batch, Data, Info, Metric, RoundError, Task, Variables


def __getattr__(name: str) -> Any:
    """Load what a run does not need when it is asked for: `report`, for matplotlib and plotly, and `silos`."""
    if name in ("report", "silos"):
        return importlib.import_module(f"fedamp_jax.{name}")
    if name == "traffic":
        return importlib.import_module("fedamp_jax.silos").traffic
    raise AttributeError(f"module 'fedamp_jax' has no attribute {name!r}")


__all__ = [
    # The contract.
    "Algorithm",
    "Batch",
    "Data",
    "Info",
    "Metric",
    "NegativeSelfWeightError",
    "RoundError",
    "Task",
    "Variables",
    # Training and evaluating.
    "Checkpoint",
    "Evaluation",
    "Participation",
    "Patience",
    "Placement",
    "Run",
    "Snapshots",
    "Solver",
    "Stopped",
    "estimate",
    "evaluate",
    "join",
    "predict",
    "round",
    "run",
    "scan_rounds",
    "traffic",  # pyright: ignore[reportUnsupportedDunderAll]
    # Keeping models.
    "Saved",
    "load_models",
    "save_models",
    # Methods.
    "apfl",
    "cfl",
    "ditto",
    "fedala",
    "fedamp",
    "fedavg",
    "fedbabu",
    "fedbn",
    "fedfomo",
    "fedpac",
    "fedper",
    "fedproto",
    "fedprox",
    "fedrecon",
    "fedrep",
    "fedrod",
    "fine_tuned",
    "heurfedamp",
    "ifca",
    "knnper",
    "lg_fedavg",
    "perfedavg",
    "pfedgraph",
    "pfedhn",
    "pfedme",
    "pflego",
    "scaffold",
    "separate",
    # Writing a method.
    "attentive",
    "corrupted",
    "cross_entropy",
    # Modules.
    "algorithms",
    "analysis",
    "attention",
    "data",
    "engine",
    "models",
    "placement",
    "trees",
    "writers",
    "__version__",
]
