"""Data sets by name (`load`), partitions over clients (`partition`), and clients of any size as one `Data` (`from_*`).

There are three steps, and each can be replaced by your own code:

>>> from fedamp_jax import data
>>> digits = data.load("digits")
>>> part = data.partition.practical(digits.y_train, digits.y_test, data.partition.practical_groups("digits"), seed=0)
>>> train = data.from_indices(digits.x_train, digits.y_train, part.train, classes=digits.classes)
>>> test = data.from_indices(digits.x_test, digits.y_test, part.test, classes=digits.classes)
>>> data.check_pair(train, test)
>>> train.x.shape, train.x.dtype.name, train.size[::4].tolist()
((1000, 8, 8), 'uint8', [70, 60, 50, 40, 30])
"""

from fedamp_jax.data import partition
from fedamp_jax.data.checks import check_pair
from fedamp_jax.data.federations import SETTINGS, Federation, balanced, federation, small
from fedamp_jax.data.importers import from_flbench, from_leaf, from_pfllib
from fedamp_jax.data.select import concatenate, hold_out
from fedamp_jax.data.shifts import SHIFTS, shifted
from fedamp_jax.data.sources import NAMES, Omniglot, Source, load
from fedamp_jax.data.stack import from_indices, from_lists, from_table

__all__ = [
    "NAMES",
    "SETTINGS",
    "SHIFTS",
    "Federation",
    "Omniglot",
    "Source",
    "balanced",
    "check_pair",
    "concatenate",
    "federation",
    "from_flbench",
    "from_indices",
    "from_leaf",
    "from_lists",
    "from_pfllib",
    "from_table",
    "hold_out",
    "load",
    "partition",
    "shifted",
    "small",
]
