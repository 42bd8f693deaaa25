"""The clients of the FedAMP paper's experiments, by data set and setting."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedamp_jax.checks import check_choice, check_integer, check_number
from fedamp_jax.data import partition
from fedamp_jax.data.checks import check_pair
from fedamp_jax.data.shifts import SHIFTS, check_groups, shifted
from fedamp_jax.data.sources import NAMES, Source, classes_of, load
from fedamp_jax.data.stack import from_indices
from fedamp_jax.layout import contiguous
from fedamp_jax.types import Data

SETTINGS = ("iid", "pathological", "practical", "dirichlet", "dirichlet-balanced", "shards", "quantity", "concept")
_CLIENTS = {"digits": 20, "emnist": 62}  # all other data sets: 100 (Huang et al. 2021, Section 7 and Appendix C)
_TEST_SIZE = {"digits": 25}  # all other data sets: 100


class Federation(NamedTuple):
    """The clients of an experiment.

    Attributes:
        train: training data of M clients.
        test: test data of the same clients, in the same order.
        groups: `[M]` int32, each client's group; None if the setting has no groups.
    """

    train: Data
    test: Data
    groups: np.ndarray | None


def federation(
    name: str = "digits",
    setting: str = "practical",
    *,
    data_dir: str | None = None,
    seed: int = 0,
    source: Source | None = None,
    clients: int | None = None,
    alpha: float = 0.1,
    shift: str | None = None,
    groups: int | None = None,
    strength: float | None = None,
) -> Federation:
    """Loads a data set and partitions it over clients as in Huang et al. 2021, Section 7 and Appendix C.

    Args:
        name: name of the data set, see `load`.
        setting: `"iid"`, `"pathological"` (two classes per client) or `"practical"` (groups with dominating classes).
            Not in the paper: `"dirichlet"`, `"dirichlet-balanced"`, `"shards"` and `"quantity"`, see
            `partition.dirichlet`, `partition.shards` and `partition.quantity_skew`, and `"concept"`, groups of clients
            that disagree, see `partition.concept` and `shifted`.
        data_dir: folder of `<name>.npz`, see `load`.
        seed: seed of the partition.
        source: the data set, if it has been loaded already.
        clients: their number. None: 100; 62 for emnist, 20 for digits, which is not in the paper. In the practical
            setting the data set decides it.
        alpha: concentration of the Dirichlet distribution, in the settings that have one.
        shift: what the groups of `"concept"` disagree about, one of `SHIFTS`. None: `"labels"`.
        groups: their number. None: 5.
        strength: how much they disagree, from 0 to 1. None: 1.

    Returns:
        A `Federation`.

    Raises:
        ValueError: if the name or setting is unknown, or the name is omniglot, which has clients of its own; if shift,
            groups or strength are given in another setting than `"concept"`, or are none that the data set can have.
        FileNotFoundError, OSError: see `load`.

    >>> train, test, groups = federation("digits")
    >>> train.clients, groups.tolist()[:6]
    (20, [0, 0, 0, 0, 1, 1])
    """
    check_choice("setting", setting, SETTINGS)
    if clients is not None:
        check_integer("clients", clients, low=1)
    concept = _concept(setting, {"shift": shift, "groups": groups, "strength": strength})
    if concept and source is None and name in NAMES and name != "omniglot":
        check_groups(concept["shift"], concept["groups"], classes_of(name))
    found = source or load(name, data_dir)
    if not isinstance(found, Source):
        raise ValueError(f"{name}'s clients are its alphabets: use `fedamp_jax.data.partition.omniglot`")
    y_train, y_test = found.y_train, found.y_test
    if clients is not None and setting == "practical":
        raise ValueError("in the practical setting the data set decides the number of clients: leave out clients")
    clients = clients or clients_of(name)
    if setting == "iid":
        part = partition.iid(y_train, y_test, clients, seed=seed)
    elif setting == "pathological":
        part = partition.pathological(y_train, y_test, clients, seed=seed)
    elif setting in ("dirichlet", "dirichlet-balanced"):
        part = partition.dirichlet(y_train, y_test, clients, alpha, balanced=setting != "dirichlet", seed=seed)
    elif setting == "shards":
        part = partition.shards(y_train, y_test, clients, seed=seed)
    elif setting == "quantity":
        part = partition.quantity_skew(y_train, y_test, clients, alpha, seed=seed)
    elif setting == "concept":
        part = partition.concept(y_train, y_test, clients, concept["groups"], seed=seed)
        found = shifted(found, part, concept["shift"], concept["strength"], seed=seed)
    else:
        coarse = None if found.coarse_train is None else partition.superclasses(y_train, found.coarse_train)
        of_paper = partition.practical_groups(name, coarse)
        part = partition.practical(y_train, y_test, of_paper, seed=seed, test_size=_TEST_SIZE.get(name, 100))
    train = from_indices(found.x_train, found.y_train, part.train, classes=found.classes)
    test = from_indices(found.x_test, found.y_test, part.test, classes=found.classes)
    check_pair(train, test)
    return Federation(train, test, part.groups)


def _concept(setting: str, given: dict[str, Any]) -> dict[str, Any]:
    """How the groups of the setting `"concept"` disagree, checked; nothing in other settings, which refuse it."""
    if setting != "concept":
        for name in (name for name, value in given.items() if value is not None):
            raise ValueError(f"{name} is for the setting 'concept', not for {setting!r}: leave it out")
        return {}
    usual = {"shift": "labels", "groups": 5, "strength": 1.0}
    concept = {name: usual[name] if value is None else value for name, value in given.items()}
    check_choice("shift", concept["shift"], SHIFTS)
    check_integer("groups", concept["groups"], low=2)
    check_number("strength", concept["strength"], low=0, high=1, strict=False)
    return concept


def clients_of(name: str) -> int:
    """The number of clients of a data set, unless another is asked for.

    >>> clients_of("mnist"), clients_of("digits")
    (100, 20)
    """
    return _CLIENTS.get(name, 100)


def small(clients: Federation, count: int = 8, examples: int = 40) -> Federation:
    """A small part of a federation, to try something out: a few clients of several groups, with few examples each.

    Args:
        clients: training and test data, and groups.
        count: at most so many clients; of each group two, or more if there are few groups.
        examples: at most so many training and test examples of each, the first ones.

    Returns:
        The part, whose clients keep their `id`.

    >>> part = small(federation("digits"))
    >>> part.train.id.tolist(), part.groups.tolist(), part.train.size.max().item()
    ([0, 1, 4, 5, 8, 9, 12, 13], [0, 0, 1, 1, 2, 2, 3, 3], 40)
    """
    groups = np.zeros(len(clients.train.size), int) if clients.groups is None else clients.groups
    first = {g: np.flatnonzero(groups == g) for g in np.unique(groups)}
    each = max(2, count // len(first))
    rows = np.sort(np.concatenate([members[:each] for members in first.values()])[:count])

    def part(data: Data) -> Data:
        data = data.select(rows)
        size = np.minimum(data.size, examples)
        return contiguous(data._replace(size=jnp.asarray(size)))

    return Federation(part(clients.train), part(clients.test), None if clients.groups is None else groups[rows])


def balanced(clients: Federation) -> Federation:
    """Reorders the clients so that consecutive blocks have about the same number of examples.

    Several devices train one block of clients each, and a round takes as long as the slowest device. The practical
    setting orders its groups from large clients to small ones, which would give the first of two devices 70 % of
    MNIST's examples. Clients keep their `id`, which determines their initial models, shuffles and epochs.

    Args:
        clients: training and test data, and groups.

    Returns:
        The same clients in another order; `clients` itself if all have the same number of training examples.

    >>> clients = federation("digits")
    >>> clients.train.size.tolist()[:8], balanced(clients).train.size.tolist()[:8]
    ([70, 70, 70, 70, 60, 60, 60, 60], [70, 40, 60, 30, 50, 70, 40, 60])
    """
    size = np.asarray(clients.train.size)
    if (size == size[0]).all():
        return clients
    rank = np.argsort(np.argsort(-size, kind="stable"))
    # The first n multiples of the golden ratio, modulo 1, are spread evenly for every n: large and small clients mix.
    order = np.argsort(rank * (np.sqrt(5) - 1) / 2 % 1)
    return part(clients, order)


def part(clients: Federation, rows: np.ndarray) -> Federation:
    """Some of the clients, or all in another order: by index `[K]` or mask `[M]`."""
    train, test = clients.train.select(rows), clients.test.select(rows)
    return Federation(train, test, None if clients.groups is None else clients.groups[rows])
