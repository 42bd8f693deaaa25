"""Partitions by chance: IID, Dirichlet-distributed class proportions or sizes, shards of sorted classes."""

from typing import Any

import numpy as np

from fedamp_jax.checks import check_integer, check_number
from fedamp_jax.data.partition.base import Partition, Rows, enough, fill_empty, generators, no_empty, pool


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
    enough(y_train, y_test, clients)
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
    train = fill_empty(train, [set()] * clients, y_train, streams[0])
    held = [set(y_train[rows].tolist()) for rows in train]
    test = fill_empty(test, held, y_test, streams[1])
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
    enough(y_train, y_test, count)
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
    enough(y_train, y_test, clients)
    plan, *streams = generators(seed)
    ends = np.cumsum(plan.dirichlet(np.full(clients, float(alpha))))[:-1]

    def split(y: np.ndarray, rng: np.random.Generator) -> Rows:
        rows = np.split(rng.permutation(len(y)), np.round(ends * len(y)).astype(int))
        return fill_empty(rows, [set()] * clients, y, rng)

    train, test = (split(y, rng) for y, rng in zip((y_train, y_test), streams))
    return Partition(no_empty(train, "training", "use fewer clients"), no_empty(test, "test", "use fewer clients"))
