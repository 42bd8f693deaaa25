"""Partitions of a data set over clients: pure functions from labels and a seed to index lists.

Every partition function returns a `Partition`. No training sample is given to two clients, unless `replace=True` is
passed to `practical`. Training and test draws use separate random streams of `seed`: changing `test_size` does not
change the training sets.
"""

from fedamp_jax.data.partition.base import Partition
from fedamp_jax.data.partition.classes import degrees, pathological, relabel
from fedamp_jax.data.partition.columns import check_same_names, natural, omniglot, rows_by_name
from fedamp_jax.data.partition.groups import Group, practical, practical_groups, superclasses
from fedamp_jax.data.partition.skew import concept, dirichlet, iid, quantity_skew, shards

__all__ = [
    "Group",
    "Partition",
    "check_same_names",
    "concept",
    "degrees",
    "dirichlet",
    "iid",
    "natural",
    "omniglot",
    "pathological",
    "practical",
    "practical_groups",
    "quantity_skew",
    "relabel",
    "rows_by_name",
    "shards",
    "superclasses",
]
