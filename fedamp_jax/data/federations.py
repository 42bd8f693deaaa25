"""The paper's federations by name: a data set, a setting, and out come the clients."""

from typing import NamedTuple

import numpy as np

from fedamp_jax import checks
from fedamp_jax.data import partition
from fedamp_jax.data.sources import Source, load
from fedamp_jax.data.stack import check_pair, from_indices
from fedamp_jax.types import Data

SETTINGS = ("iid", "pathological", "practical")
_CLIENTS = {"digits": 20, "emnist": 62}  # 100 for all others (Huang et al. 2021, Section 7 and Appendix C)
_TEST_SIZE = {"digits": 25}  # 100 for all others


class Federation(NamedTuple):
    """The clients of an experiment.

    Attributes:
        train: training data.
        test: test data of the same clients.
        groups: `[M]` int32, the group each client was drawn for; None where the setting has none.
    """

    train: Data
    test: Data
    groups: np.ndarray | None


def federation(
    name: str = "digits", setting: str = "practical", *, data_dir: str | None = None, seed: int = 0
) -> Federation:
    """Clients as in Huang et al. 2021, Section 7 and Appendix C.

    Args:
        name: a data set, see `load`.
        setting: `"iid"`, `"pathological"` (two classes per client) or `"practical"` (groups with dominating classes).
        data_dir: where `<name>.npz` lies, see `load`.
        seed: of the partition.

    Returns:
        A `Federation` of 100 clients; 62 for emnist, 20 for digits.

    Raises:
        ValueError: unknown name or setting.

    >>> train, test, groups = federation("digits")
    >>> train.y.shape[0], groups.tolist()[:6]
    (20, [0, 0, 0, 0, 1, 1])
    """
    checks.choice("setting", setting, SETTINGS)
    source = load(name, data_dir)
    if not isinstance(source, Source):
        raise ValueError(f"{name} comes with its own clients, its alphabets; see `fedamp_jax.data.partition.omniglot`")
    y_train, y_test = source.y_train, source.y_test
    clients = _CLIENTS.get(name, 100)
    if setting == "iid":
        part = partition.iid(y_train, y_test, clients, seed=seed)
    elif setting == "pathological":
        part = partition.pathological(y_train, y_test, clients, seed=seed)
    else:
        coarse = None if source.coarse_train is None else partition.superclasses(y_train, source.coarse_train)
        groups = partition.practical_groups(name, coarse)
        part = partition.practical(y_train, y_test, groups, seed=seed, test_size=_TEST_SIZE.get(name, 100))
    train = from_indices(source.x_train, y_train, part.train, classes=source.classes)
    test = from_indices(source.x_test, y_test, part.test, classes=source.classes)
    check_pair(train, test)
    return Federation(train, test, part.groups)


def dealt(clients: Federation) -> Federation:
    """The same clients in an order in which every consecutive share of them has about the same number of examples.

    Each of several devices trains a consecutive share, and all wait for the last. The practical setting's groups stand
    from the largest clients to the smallest, so that the first of two devices would have 70 % of MNIST's examples.
    Clients keep their `id`, and with it their initial models, shuffles and epochs. If all are of one size, nothing
    changes.

    >>> clients = federation("digits")
    >>> clients.train.size.tolist()[:8], dealt(clients).train.size.tolist()[:8]
    ([70, 70, 70, 70, 60, 60, 60, 60], [70, 40, 60, 30, 50, 70, 40, 60])
    """
    size = np.asarray(clients.train.size)
    if (size == size[0]).all():
        return clients
    rank = np.argsort(np.argsort(-size, kind="stable"))
    # Multiples of the golden ratio, modulo 1, are spread evenly however many there are: so is each rank over the rows.
    order = np.argsort(rank * (np.sqrt(5) - 1) / 2 % 1)
    train, test = (Data(*(a[order] for a in data)) for data in clients[:2])
    return Federation(train, test, None if clients.groups is None else clients.groups[order])
