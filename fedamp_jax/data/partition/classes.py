"""Partitions by class: IID, few classes per client, Dirichlet-distributed class proportions, and by number."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from fedamp_jax.checks import check_integer, check_number
from fedamp_jax.data.partition.base import Partition, Rows, generators, no_empty, pool


def iid(y_train: Any, y_test: Any, clients: int, *, seed: int = 0) -> Partition:
    """Splits all samples at random into equal parts; sizes differ by at most 1.

    Args:
        y_train: `[n]` integer labels of the training pool; only their number matters.
        y_test: `[n']` integer labels of the test pool.
        clients: number of clients.
        seed: random seed.

    Returns:
        A `Partition` without groups.

    Raises:
        ValueError: if there are more clients than samples.

    >>> from fedamp_jax.data import partition
    >>> [len(rows) for rows in partition.iid([0] * 8, [0] * 3, 3).train]
    [3, 3, 2]
    """
    check_integer("clients", clients, low=1)
    _, *streams = generators(seed)
    pools = pool(y_train, "y_train"), pool(y_test, "y_test")
    train, test = (
        no_empty(np.array_split(rng.permutation(len(y)), clients), part, f"use at most {len(y)} clients")
        for y, rng, part in zip(pools, streams, ("training", "test"), strict=True)
    )
    return Partition(train, test)


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


def _fill_empty(rows: Rows, wanted: Sequence[set[int]], y: np.ndarray, rng: np.random.Generator) -> Rows:
    """Moves one sample to each empty client, from a client with at least two; if possible of a class in `wanted`."""
    for i in [i for i, r in enumerate(rows) if len(r) == 0]:
        donors = [j for j, r in enumerate(rows) if len(r) > 1]
        wish = [j for j in donors if wanted[i] & set(y[rows[j]].tolist())]
        donor = max(wish or donors, key=lambda j: len(rows[j]))
        liked = np.flatnonzero(np.isin(y[rows[donor]], list(wanted[i])))
        k = rng.choice(liked if len(liked) else len(rows[donor]))
        rows[i], rows[donor] = rows[donor][k : k + 1], np.delete(rows[donor], k)
    return rows


def _enough(y_train: np.ndarray, y_test: np.ndarray, clients: int) -> None:
    check_integer("clients", clients, low=1)
    for y, part in ((y_train, "training"), (y_test, "test")):
        if len(y) < clients:
            raise ValueError(f"{clients} clients need a {part} sample each, but there are {len(y)}: use fewer clients")


def dirichlet(y_train: Any, y_test: Any, clients: int, alpha: float, *, balanced: bool = False, seed: int) -> Partition:
    """Class proportions drawn from a Dirichlet distribution, what most papers since 2020 call non-IID.

    Each class is split over the clients in proportions drawn from `Dir(alpha)` (Yurochkin et al. 2019), which makes
    clients of very different sizes; all samples are used. With `balanced`, each client draws its own class proportions
    from `Dir(alpha p)`, with p the classes' frequencies, and all clients have equally many samples (Hsu et al. 2019);
    a class that runs out is replaced by the client's others. Training and test samples follow the same proportions. A
    client without training or test samples gets one from a client that has several; a test sample is of a class that
    it trains on, if there is one.

    Args:
        y_train: `[n]` integer labels of the training pool.
        y_test: `[n']` integer labels of the test pool.
        clients: number of clients, at most n and at most n'.
        alpha: concentration, greater than 0: near 0, each class belongs to one client; large values approach IID.
        balanced: equally many samples for all clients, leaving out fewer samples than there are clients.
        seed: random seed.

    Returns:
        A `Partition` without groups.

    Raises:
        ValueError: if alpha is not positive or there are more clients than samples.

    >>> import numpy as np
    >>> from fedamp_jax.data import partition
    >>> y = np.arange(300) % 3
    >>> sorted(len(rows) for rows in partition.dirichlet(y, y, 4, 0.5, seed=0).train), len(y)
    ([10, 66, 108, 116], 300)
    >>> part = partition.dirichlet(y, y, 4, 0.5, balanced=True, seed=0)
    >>> [np.bincount(y[rows], minlength=3).tolist() for rows in part.train]
    [[62, 13, 0], [0, 0, 75], [0, 75, 0], [38, 12, 25]]
    """
    y_train, y_test = pool(y_train, "y_train"), pool(y_test, "y_test")
    check_number("alpha", alpha, low=0)
    _enough(y_train, y_test, clients)
    plan, *streams = generators(seed)
    classes = np.union1d(y_train, y_test)
    if balanced:
        frequency = np.array([np.mean(y_train == c) for c in classes])
        # A concentration of exactly 0, of a class without training samples, is not one of a Dirichlet distribution.
        wanted = plan.dirichlet(np.maximum(alpha * frequency, 1e-12), clients)
        train, test = (_equal_parts(y, classes, wanted, rng) for y, rng in zip((y_train, y_test), streams))
    else:
        ends = np.cumsum(plan.dirichlet(np.full(clients, float(alpha)), len(classes)), axis=1)[:, :-1]
        train, test = (_class_by_class(y, classes, ends, rng) for y, rng in zip((y_train, y_test), streams))
    train = _fill_empty(train, [set()] * clients, y_train, streams[0])
    held = [set(y_train[rows].tolist()) for rows in train]
    test = _fill_empty(test, held, y_test, streams[1])
    return Partition(no_empty(train, "training", "use fewer clients"), no_empty(test, "test", "use fewer clients"))


def _class_by_class(y: np.ndarray, classes: np.ndarray, ends: np.ndarray, rng: np.random.Generator) -> Rows:
    """Cuts each class at its `ends [C, M - 1]`, shares from 0 to 1, into a part for each client."""
    members = [rng.permutation(np.flatnonzero(y == c)) for c in classes]
    parts = [np.split(m, np.round(e * len(m)).astype(int)) for m, e in zip(members, ends, strict=True)]
    return [np.concatenate(shares) for shares in zip(*parts, strict=True)]


def _equal_parts(y: np.ndarray, classes: np.ndarray, wanted: np.ndarray, rng: np.random.Generator) -> Rows:
    """Equally many samples for each client, of classes drawn by its proportions `wanted [M, C]` while they last."""
    members = [rng.permutation(np.flatnonzero(y == c)) for c in classes]
    left = np.array([len(m) for m in members])
    rows = []
    for share in wanted:
        taken, need = np.zeros_like(left), len(y) // len(wanted)
        while need > taken.sum():
            p = np.where(left > taken, share, 0.0)
            p = p if p.sum() > 0 else (left - taken).astype(float)
            taken = np.minimum(taken + rng.multinomial(need - taken.sum(), p / p.sum()), left)
        rows.append(np.concatenate([m[n - t : n] for m, n, t in zip(members, left, taken, strict=True)]))
        left = left - taken
    return rows


def shards(y_train: Any, y_test: Any, clients: int, shards_per_client: int = 2, *, seed: int) -> Partition:
    """Sorts the samples by class and deals out consecutive shards of equal size (McMahan et al. 2017).

    A shard can contain two classes, and a client can get two shards of the same class; `pathological` gives every
    client the same number of classes instead. The test pool is cut at the same places as the training pool, relative to
    its length, and a client gets the same shards of both.

    Args:
        y_train: `[n]` integer labels of the training pool.
        y_test: `[n']` integer labels of the test pool, with about the same class frequencies.
        clients: number of clients.
        shards_per_client: number of shards of each client.
        seed: random seed.

    Returns:
        A `Partition` without groups.

    Raises:
        ValueError: if a pool has fewer samples than there are shards.

    >>> import numpy as np
    >>> from fedamp_jax.data import partition
    >>> y = np.arange(600) % 10
    >>> [len(np.unique(y[rows])) for rows in partition.shards(y, y, 5, seed=0).train]
    [2, 2, 2, 2, 2]
    """
    y_train, y_test = pool(y_train, "y_train"), pool(y_test, "y_test")
    check_integer("clients", clients, low=1)
    check_integer("shards_per_client", shards_per_client, low=1)
    count = clients * shards_per_client
    _enough(y_train, y_test, count)
    plan, *streams = generators(seed)
    dealt = plan.permutation(count).reshape(clients, shards_per_client)

    def deal(y: np.ndarray, rng: np.random.Generator) -> Rows:
        mixed = rng.permutation(len(y))
        parts = np.array_split(mixed[np.argsort(y[mixed], kind="stable")], count)
        return [np.sort(np.concatenate([parts[s] for s in mine])) for mine in dealt]

    train, test = (deal(y, rng) for y, rng in zip((y_train, y_test), streams))
    return Partition(train, test)


def quantity_skew(y_train: Any, y_test: Any, clients: int, alpha: float, *, seed: int) -> Partition:
    """Clients of the same distribution, and of sizes drawn from a Dirichlet distribution (Li et al. 2022).

    Args:
        y_train: `[n]` integer labels of the training pool; only their number matters.
        y_test: `[n']` integer labels of the test pool; split in the same proportions.
        clients: number of clients, at most n and at most n'.
        alpha: concentration, greater than 0: near 0, one client has nearly everything; large values make them equal.
        seed: random seed.

    Returns:
        A `Partition` without groups; a client that would get no sample gets one.

    Raises:
        ValueError: if alpha is not positive or there are more clients than samples.

    >>> from fedamp_jax.data import partition
    >>> [len(rows) for rows in partition.quantity_skew([0] * 100, [0] * 50, 4, 0.5, seed=0).train]
    [75, 19, 5, 1]
    """
    y_train, y_test = pool(y_train, "y_train"), pool(y_test, "y_test")
    check_number("alpha", alpha, low=0)
    _enough(y_train, y_test, clients)
    plan, *streams = generators(seed)
    ends = np.cumsum(plan.dirichlet(np.full(clients, float(alpha))))[:-1]

    def split(y: np.ndarray, rng: np.random.Generator) -> Rows:
        rows = np.split(rng.permutation(len(y)), np.round(ends * len(y)).astype(int))
        return _fill_empty(rows, [set()] * clients, y, rng)

    train, test = (split(y, rng) for y, rng in zip((y_train, y_test), streams))
    return Partition(no_empty(train, "training", "use fewer clients"), no_empty(test, "test", "use fewer clients"))
