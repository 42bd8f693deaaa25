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

from fedamp_jax import attention, data, metrics, models, plan, sharding, stacked
from fedamp_jax._version import __version__
from fedamp_jax.algorithms import (
    apfl,
    ditto,
    fedamp,
    fedavg,
    fedbabu,
    fedper,
    fedprox,
    fedrecon,
    fedrep,
    fine_tuned,
    heurfedamp,
    pflego,
    scaffold,
    separate,
)
from fedamp_jax.driver import NegativeSelfWeightError, Run, evaluate, round, run
from fedamp_jax.local import Solver
from fedamp_jax.models import cross_entropy
from fedamp_jax.participation import sample_online
from fedamp_jax.types import Algorithm, Batch, Data, Info, Task, Variables

__all__ = [
    "Algorithm",
    "Batch",
    "Data",
    "Info",
    "NegativeSelfWeightError",
    "Run",
    "Solver",
    "Task",
    "Variables",
    "__version__",
    "apfl",
    "attention",
    "cross_entropy",
    "data",
    "ditto",
    "evaluate",
    "fedamp",
    "fedavg",
    "fedbabu",
    "fedper",
    "fedprox",
    "fedrecon",
    "fedrep",
    "fine_tuned",
    "heurfedamp",
    "metrics",
    "models",
    "pflego",
    "plan",
    "round",
    "run",
    "sample_online",
    "scaffold",
    "separate",
    "sharding",
    "stacked",
]
