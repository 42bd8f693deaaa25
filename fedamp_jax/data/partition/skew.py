"""Partitions by chance: IID, also with groups, Dirichlet-distributed classes or sizes, shards of sorted classes."""

import warnings
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


def concept(y_train: Any, y_test: Any, clients: int, groups: int = 5, *, seed: int) -> Partition:
    """The clients of `iid`, in groups that are to disagree; `fedamp_jax.data.shifted` changes their examples.

    Before that the groups are alike: clients are those of `iid` with the same seed, and consecutive clients form a
    group. The sizes of the groups differ by at most one client.

    Args:
        y_train: `[n]` integer labels of the training pool; only their number matters.
        y_test: `[n']` integer labels of the test pool.
        clients: number of clients.
        groups: number of groups, from 2 to `clients`.
        seed: random seed.

    Returns:
        A `Partition` with `groups`.

    Raises:
        ValueError: if there are more clients than samples, or more groups than clients.

    >>> from fedamp_jax.data import partition
    >>> partition.concept([0] * 20, [0] * 20, 7, groups=3, seed=0).groups.tolist()
    [0, 0, 0, 1, 1, 2, 2]
    """
    check_integer("groups", groups, low=2)
    part = iid(y_train, y_test, clients, seed=seed)
    if groups > clients:
        raise ValueError(f"{groups} groups of {clients} clients: use at most as many groups as clients")
    sizes = [len(members) for members in np.array_split(np.arange(clients), groups)]
    return part._replace(groups=np.repeat(np.arange(groups, dtype=np.int32), sizes))


_DRAWS = 1000
"""How often proportions are drawn before a partition whose clients are too small is given up."""


def dirichlet(
    y_train: Any, y_test: Any, clients: int, alpha: float, *, balanced: bool = False, min_size: int = 1, seed: int
) -> Partition:
    """Class proportions drawn from a Dirichlet distribution, what most papers since 2020 call non-IID.

    Each class is split over the clients in proportions drawn from `Dir(alpha)` (Yurochkin et al. 2019), which makes
    clients of very different sizes; all samples are used. With `balanced`, each client draws its own class proportions
    from `Dir(alpha p)`, with p the classes' frequencies, and all clients have equally many samples (Hsu et al. 2019);
    a class that runs out is replaced by the client's others. Training and test samples follow the same proportions. A
    client without training or test samples gets one from a client that has several. No client has test samples of a
    class that it does not train on, as long as another one, which does, can take them; else a warning says so. With
    `balanced` such samples are exchanged, and where classes run out, some may stay with clients that do not train on
    them; `relabel` then names the first such client.

    Args:
        y_train: `[n]` integer labels of the training pool.
        y_test: `[n']` integer labels of the test pool.
        clients: number of clients, at most n and at most n'.
        alpha: concentration, greater than 0: near 0, each class belongs to one client; large values approach IID.
        balanced: equally many samples for all clients, leaving out fewer samples than there are clients.
        min_size: least number of training samples of a client. Above 1, all proportions are drawn anew until every
            client has as many, as other libraries do; clients are then more alike than `alpha` says.
        seed: random seed.

    Returns:
        A `Partition` without groups.

    Raises:
        ValueError: if alpha is not positive, there are more clients than samples, or too few samples for `min_size`;
            also if a thousand draws leave a client below it.

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
    check_integer("min_size", min_size, low=1)
    if clients * min_size > len(y_train):
        raise ValueError(
            f"{clients} clients of min_size = {min_size} need {clients * min_size} training samples, but there are "
            f"{len(y_train)}: use fewer clients, or a smaller min_size"
        )
    plan, *streams = generators(seed)
    classes = np.union1d(y_train, y_test)
    if balanced:
        frequency = np.array([np.mean(y_train == c) for c in classes])
        # A concentration of exactly 0, of a class without training samples, is not one of a Dirichlet distribution.
        wanted = plan.dirichlet(np.maximum(alpha * frequency, 1e-12), clients)
        train, test = (_equal_parts(y, classes, wanted, rng) for y, rng in zip((y_train, y_test), streams))
    else:
        ends = _ends(y_train, classes, clients, alpha, min_size, plan)
        train, test = (_class_by_class(y, classes, ends, rng) for y, rng in zip((y_train, y_test), streams))
    train = fill_empty(train, [set()] * clients, y_train, streams[0])
    held = [set(y_train[rows].tolist()) for rows in train]
    test = fill_empty(_to_holders(test, held, y_test, balanced), held, y_test, streams[1])
    foreign = [i for i, rows in enumerate(test) if not set(y_test[rows].tolist()) <= held[i]]
    if foreign and not balanced:
        classes_of = sorted(set(y_test[test[foreign[0]]].tolist()) - held[foreign[0]])
        warnings.warn(
            f"{len(foreign)} of {clients} clients have test samples of classes that they do not train on, first client "
            f"{foreign[0]} of {classes_of}: use fewer clients, a larger alpha, or pools with the same classes",
            stacklevel=2,
        )
    return Partition(no_empty(train, "training", "use fewer clients"), no_empty(test, "test", "use fewer clients"))


def _ends(
    y: np.ndarray, classes: np.ndarray, clients: int, alpha: float, min_size: int, plan: np.random.Generator
) -> np.ndarray:
    """Where each class is cut, `[C, M - 1]` shares: the first draw that gives all clients `min_size` samples of y."""
    count = np.array([np.sum(y == c) for c in classes])[:, None]
    for _ in range(_DRAWS):
        ends = np.cumsum(plan.dirichlet(np.full(clients, float(alpha)), len(classes)), axis=1)[:, :-1]
        cuts = np.round(ends * count)
        sizes = np.diff(np.concatenate([0 * count, cuts, count], axis=1), axis=1).sum(axis=0)
        if min_size == 1 or sizes.min() >= min_size:  # a client without any samples gets one
            return ends
    raise ValueError(
        f"in {_DRAWS} draws with alpha = {alpha} some of {clients} clients always had fewer than min_size = {min_size} "
        "training samples: use a larger alpha, fewer clients, a smaller min_size, or balanced=True"
    )


def _to_holders(rows: Rows, held: list[set[int]], y: np.ndarray, keep_sizes: bool) -> Rows:
    """Hands test samples of classes that a client does not train on to one that does, if `keep_sizes` by exchange.

    Cuts of the two pools are rounded, so that a small share may have a test sample and no training sample.
    """
    mine = [list(r) for r in rows]
    for i, own in enumerate(mine):
        for k in [k for k, row in enumerate(own) if int(y[row]) not in held[i]][::-1]:
            c = int(y[own[k]])
            for j in (j for j, classes in enumerate(held) if c in classes):
                if not keep_sizes:
                    mine[j].append(own.pop(k))
                    break
                swap = next((n for n, row in enumerate(mine[j]) if int(y[row]) in held[i]), None)
                if swap is not None:
                    own[k], mine[j][swap] = mine[j][swap], own[k]
                    break
    return [np.array(r, np.int64) for r in mine]


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
