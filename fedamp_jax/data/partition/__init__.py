"""Who gets which samples: pure functions from labels and a seed to index lists; no pixel is ever touched.

Every function returns a `Partition`. Training samples are dealt without repetition, so no sample is in two places, and
training and test draws come from separate streams of `seed`: another `test_size` leaves the training sets as they are.
"""

from fedamp_jax.data.partition.base import Partition
from fedamp_jax.data.partition.classes import degrees, dirichlet, iid, pathological, relabel
from fedamp_jax.data.partition.given import by_name, match_names, natural, omniglot
from fedamp_jax.data.partition.groups import Group, practical, practical_groups, superclasses

__all__ = [
    "Group",
    "Partition",
    "by_name",
    "degrees",
    "dirichlet",
    "iid",
    "match_names",
    "natural",
    "omniglot",
    "pathological",
    "practical",
    "practical_groups",
    "relabel",
    "superclasses",
]
