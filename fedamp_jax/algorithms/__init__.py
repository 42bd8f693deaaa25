"""The federated methods, one file per family."""

from fedamp_jax.algorithms.apfl import apfl
from fedamp_jax.algorithms.ditto import ditto
from fedamp_jax.algorithms.fedamp import fedamp, heurfedamp
from fedamp_jax.algorithms.fedavg import fedavg, fedprox
from fedamp_jax.algorithms.fedrecon import fedrecon
from fedamp_jax.algorithms.fine_tuned import fine_tuned
from fedamp_jax.algorithms.partial import fedbabu, fedper, fedrep
from fedamp_jax.algorithms.pflego import pflego
from fedamp_jax.algorithms.scaffold import scaffold
from fedamp_jax.algorithms.separate import separate

__all__ = [
    "apfl",
    "ditto",
    "fedamp",
    "fedavg",
    "fedbabu",
    "fedper",
    "fedprox",
    "fedrecon",
    "fedrep",
    "fine_tuned",
    "heurfedamp",
    "pflego",
    "scaffold",
    "separate",
]
