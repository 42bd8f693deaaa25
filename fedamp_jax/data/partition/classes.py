"""Partitions by class: IID, few classes per client, Dirichlet-distributed class proportions, and by number."""

from typing import Any

import numpy as np

from fedamp_jax.checks import check_integer
from fedamp_jax.data.partition.base import Partition, Rows, generators, no_empty, pool


def _share(y: np.ndarray, held: list[set[int]], rng: np.random.Generator, part: str) -> Rows:
    """Splits each class equally among the clients that hold it; shares differ by at most 1 sample.

    A class with fewer samples than holders is an error in training, where some client would lack a class that it is
    meant to have. In testing, some holders get no samples of it.

    Args:
        y: `[n]` labels.
        held: the classes of each client.
        rng: random generator.
        part: "training" or "test".
    """
    rows: list[Rows] = [[np.zeros(0, np.int64)] for _ in held]
    for c in sorted(set().union(*held)):
        members = np.flatnonzero(y == c)
        holders = rng.permutation(
            [i for i, classes in enumerate(held) if c in classes]
        )  # the first get the odd samples
        if part == "training" and len(members) < len(holders):
            raise ValueError(
                f"class {c} is needed by {len(holders)} clients but has {len(members)} training samples: "
                "use fewer clients or fewer classes_per_client"
            )
        for i, share in zip(holders, np.array_split(rng.permutation(members), len(holders)), strict=True):
            rows[i].append(share)
    return no_empty([np.concatenate(r) for r in rows], part, "use fewer clients, or more samples")


def _classes_for(y_train: Any, y_test: Any, clients: int, classes_per_client: int):
    """Checks the arguments; returns both label arrays and the distinct training labels."""
    y_train, y_test = pool(y_train, "y_train"), pool(y_test, "y_test")
    check_integer("clients", clients, low=1)
    check_integer("classes_per_client", classes_per_client, low=1)
    classes = np.unique(y_train)
    if classes_per_client > len(classes):
        raise ValueError(f"classes_per_client = {classes_per_client}, but y_train has {len(classes)} classes")
    return y_train, y_test, classes


def pathological(y_train: Any, y_test: Any, clients: int, classes_per_client: int = 2, *, seed: int) -> Partition:
    """The pathological non-IID setting (McMahan et al. 2017): few classes per client, all classes equally frequent.

    Every class is cut into equal shards, and every client gets one shard of each of `classes_per_client` distinct
    classes. The `clients * classes_per_client` shards are spread over the classes as evenly as possible. All samples
    are used, unless there are fewer shards than classes.

    Departs from the paper: McMahan et al. cut the sorted labels every 300 samples, so a shard can contain two classes,
    and a client can get two shards of the same class. Here every client has exactly `classes_per_client` classes, as
    the FedAMP paper's "two classes" asks for.

    Args:
        y_train: `[n]` integer labels of the training pool.
        y_test: `[n']` integer labels of the test pool; each client gets the same classes as in training.
        clients: number of clients.
        classes_per_client: number of distinct classes of each client.
        seed: random seed.

    Returns:
        A `Partition` without groups.

    Raises:
        ValueError: if a class has fewer training samples than clients that need it, a client would get no test
            samples, or `classes_per_client` is larger than the number of classes.

    >>> import numpy as np
    >>> from fedamp_jax.data import partition
    >>> y = np.arange(600) % 10
    >>> part = partition.pathological(y, y[:300], 30, seed=0)
    >>> {len(np.unique(y[rows])) for rows in part.train}, {len(rows) for rows in part.train}
    ({2}, {20})
    """
    y_train, y_test, classes = _classes_for(y_train, y_test, clients, classes_per_client)
    plan, for_train, for_test = generators(seed)
    shards = np.full(len(classes), clients * classes_per_client // len(classes))
    shards[plan.permutation(len(classes))[: clients * classes_per_client % len(classes)]] += 1
    held = []
    for left in range(clients, 0, -1):
        # A class with as many shards as clients are left must go to each of them, this one included: a client takes
        # at most one shard of a class. The other classes are drawn in proportion to their remaining shards.
        must = np.flatnonzero(shards == left)
        rest = np.where(shards == left, 0, shards)
        free = classes_per_client - len(must)
        drawn = plan.choice(len(classes), free, replace=False, p=rest / rest.sum()) if free else must[:0]
        mine = np.concatenate([must, drawn])
        shards[mine] -= 1
        held.append(set(classes[mine].tolist()))
    plan.shuffle(held)  # the later clients have more forced draws: make the order uninformative
    return Partition(_share(y_train, held, for_train, "training"), _share(y_test, held, for_test, "test"))


def degrees(y_train: Any, y_test: Any, clients: int, classes_per_client: int, *, seed: int) -> Partition:
    """PFLEGO's degrees of personalization (section 4.3): K classes per client, drawn at random and independently.

    With C classes in all, K = 2 is the paper's "high-pers", K = C/2 "medium-pers" and K = C "no-pers". Each class is
    split equally among the clients that drew it.

    The paper leaves open: what happens to a class that no client drew. Here it replaces a class that another client
    also drew, so that all samples are used if `clients * classes_per_client >= C`.

    Args:
        y_train: `[n]` integer labels of the training pool.
        y_test: `[n']` integer labels of the test pool; if a class has fewer test samples than clients that drew it,
            some of them get none.
        clients: number of clients.
        classes_per_client: K.
        seed: random seed.

    Returns:
        A `Partition` without groups.

    Raises:
        ValueError: if a class has fewer training samples than clients that drew it, a client would get no test
            samples, or K is larger than C.

    >>> import numpy as np
    >>> from fedamp_jax.data import partition
    >>> y = np.arange(600) % 10
    >>> part = partition.degrees(y, y[:300], 30, 5, seed=0)
    >>> {len(np.unique(y[rows])) for rows in part.train}, len(np.unique(np.concatenate(part.train)))
    ({5}, 600)
    """
    y_train, y_test, classes = _classes_for(y_train, y_test, clients, classes_per_client)
    plan, for_train, for_test = generators(seed)
    drawn = plan.permuted(np.tile(np.arange(len(classes)), (clients, 1)), axis=1)[:, :classes_per_client]
    for c in np.setdiff1d(np.arange(len(classes)), drawn):
        counts = np.bincount(drawn.ravel(), minlength=len(classes))
        spare = np.argwhere(counts[drawn] > 1)
        if len(spare):  # empty if there are fewer draws than classes
            drawn[tuple(plan.choice(spare))] = c
    held = [set(classes[row].tolist()) for row in drawn]
    return Partition(_share(y_train, held, for_train, "training"), _share(y_test, held, for_test, "test"))


def relabel(y_train: Any, y_test: Any, part: Partition) -> tuple[Rows, Rows, list[int]]:
    """Renumbers the labels of each client as `0..C_i-1`, for methods with a head per client (PFLEGO, FedPer, ...).

    Args:
        y_train: `[n]` integer labels of the training pool.
        y_test: `[n']` integer labels of the test pool; for `omniglot`, the same array as `y_train`.
        part: the clients' samples.

    Returns:
        `(train_labels, test_labels, classes)`: M arrays `[n_i]` int32, M arrays `[n'_i]` int32, and a list of the M
        numbers of classes C_i. A client's classes are those in its training set, in ascending order.

    Raises:
        ValueError: if a client has test samples of a class that it has no training samples of.

    >>> from fedamp_jax.data import partition
    >>> import numpy as np
    >>> part = partition.Partition([np.array([0, 1]), np.array([2])], [np.array([1]), np.array([0])])
    >>> partition.relabel([7, 3, 5], [5, 3], part)
    ([array([1, 0], dtype=int32), array([0], dtype=int32)], [array([0], dtype=int32), array([0], dtype=int32)], [2, 1])
    """
    y_train, y_test = pool(y_train, "y_train"), pool(y_test, "y_test")
    own = [np.unique(y_train[rows]) for rows in part.train]
    for i, rows in enumerate(part.test):
        foreign = np.setdiff1d(y_test[rows], own[i])
        if len(foreign):
            raise ValueError(
                f"client {i} has test samples of class {foreign[0]}, but its training classes are {own[i].tolist()}"
            )
    train, test = (
        [np.searchsorted(own[i], y[rows]).astype(np.int32) for i, rows in enumerate(lists)]
        for y, lists in ((y_train, part.train), (y_test, part.test))
    )
    return train, test, [len(classes) for classes in own]
