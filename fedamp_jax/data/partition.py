"""Who gets which samples: pure functions from labels and a seed to index lists; no pixel is ever touched.

Every function returns a `Partition`. Training samples are dealt without repetition, so no sample is in two places, and
training and test draws come from separate streams of `seed`: another `test_size` leaves the training sets as they are.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedamp_jax import checks

Rows = list[np.ndarray]


class Partition(NamedTuple):
    """Index lists of M clients, each ascending.

    Attributes:
        train: M arrays `[n_i]` int64 of rows of the training pool.
        test: M arrays of rows of the test pool (`omniglot`: of the one pool that there is).
        groups: `[M]` int32, the group that a client was drawn for; None where the setting has no groups.
    """

    train: Rows
    test: Rows
    groups: np.ndarray | None = None


class Group(NamedTuple):
    """Clients of like data in `practical`.

    Attributes:
        clients: how many clients.
        classes: the dominating classes, from which most of their data come.
        train_size: training samples of each client.
    """

    clients: int
    classes: Sequence[int]
    train_size: int


def _pool(y: Any, name: str) -> np.ndarray:
    """`y` as labels `[n]`, n at least 1."""
    y = np.asarray(y)
    if y.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold integer labels, got dtype {y.dtype}")
    if y.ndim != 1 or y.size == 0 or y.min() < 0:
        lowest = f" and minimum {y.min()}" if y.size else ""
        raise ValueError(f"{name} must be labels [n] from 0, n at least 1, got shape {list(y.shape)}{lowest}")
    return y


def _streams(seed: int) -> tuple[np.random.Generator, np.random.Generator, np.random.Generator]:
    """Three independent generators: who gets which classes, the training draws, the test draws."""
    checks.whole("seed", seed, low=0)
    plan, train, test = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(3))
    return plan, train, test


def _no_empty(rows: Rows, part: str, how: str) -> Rows:
    """`rows` sorted, or an error about the first client that got nothing."""
    for i, r in enumerate(rows):
        if len(r) == 0:
            raise ValueError(f"client {i} (of {len(rows)}) would get no {part} sample: {how}")
    return [np.sort(r).astype(np.int64) for r in rows]


def iid(y_train: Any, y_test: Any, clients: int, *, seed: int = 0) -> Partition:
    """All samples dealt at random, equally many to each client (sizes differ by at most 1).

    Args:
        y_train: `[n]` integer labels of the training pool; only their number matters.
        y_test: `[n']` of the test pool.
        clients: how many clients.
        seed: of the random draw.

    Raises:
        ValueError: if there are more clients than samples.

    >>> from fedamp_jax.data import partition
    >>> [len(rows) for rows in partition.iid([0] * 8, [0] * 3, 3).train]
    [3, 3, 2]
    """
    checks.whole("clients", clients, low=1)
    _, *streams = _streams(seed)
    pools = _pool(y_train, "y_train"), _pool(y_test, "y_test")
    train, test = (
        _no_empty(np.array_split(rng.permutation(len(y)), clients), part, f"use at most {len(y)} clients")
        for y, rng, part in zip(pools, streams, ("training", "test"), strict=True)
    )
    return Partition(train, test)


def _share(y: np.ndarray, held: list[set[int]], rng: np.random.Generator, part: str) -> Rows:
    """Each class cut into equal shares, one for each client whose set in `held` has it (sizes differ by at most 1).

    A class of fewer samples than holders is refused in training, where it would leave a client without a class it is
    said to have. In testing some holders go without: EMNIST's rarest letters are fewer than 100 clients.
    """
    rows: list[Rows] = [[np.zeros(0, np.int64)] for _ in held]
    for c in sorted(set().union(*held)):
        members = np.flatnonzero(y == c)
        holders = rng.permutation([i for i, classes in enumerate(held) if c in classes])  # who gets the odd sample
        if part == "training" and len(members) < len(holders):
            raise ValueError(
                f"class {c} is asked for by {len(holders)} clients and has {len(members)} training samples: "
                "use fewer clients or fewer classes_per_client"
            )
        for i, share in zip(holders, np.array_split(rng.permutation(members), len(holders)), strict=True):
            rows[i].append(share)
    return _no_empty([np.concatenate(r) for r in rows], part, "use fewer clients, or more samples")


def _classes_for(y_train: Any, y_test: Any, clients: int, classes_per_client: int):
    """Checked labels and the classes that occur in training."""
    y_train, y_test = _pool(y_train, "y_train"), _pool(y_test, "y_test")
    checks.whole("clients", clients, low=1)
    checks.whole("classes_per_client", classes_per_client, low=1)
    classes = np.unique(y_train)
    if classes_per_client > len(classes):
        raise ValueError(f"classes_per_client = {classes_per_client}, but y_train has {len(classes)} classes")
    return y_train, y_test, classes


def pathological(y_train: Any, y_test: Any, clients: int, classes_per_client: int = 2, *, seed: int) -> Partition:
    """The pathological non-IID setting (McMahan et al. 2017): few classes per client, all classes equally popular.

    Every class is cut into equal shards and every client gets one shard of each of `classes_per_client` distinct
    classes. The `clients * classes_per_client` shards are spread over the classes as evenly as they go; all samples are
    used, unless there are fewer shards than classes.

    Departs from the paper: McMahan cuts the sorted labels every 300 samples, so that a shard can straddle two classes
    and a client can get two shards of one; FedAMP's text wants "two classes", which this keeps exactly.

    Args:
        y_train: `[n]` integer labels of the training pool.
        y_test: `[n']` of the test pool, cut the same way for the same clients.
        clients: how many clients.
        classes_per_client: distinct classes of each client.
        seed: of the random draw.

    Raises:
        ValueError: if a class has fewer samples than clients that need it, or there are fewer classes than asked for.

    >>> import numpy as np
    >>> from fedamp_jax.data import partition
    >>> y = np.arange(600) % 10
    >>> part = partition.pathological(y, y[:300], 30, seed=0)
    >>> {len(np.unique(y[rows])) for rows in part.train}, {len(rows) for rows in part.train}
    ({2}, {20})
    """
    y_train, y_test, classes = _classes_for(y_train, y_test, clients, classes_per_client)
    plan, for_train, for_test = _streams(seed)
    shards = np.full(len(classes), clients * classes_per_client // len(classes))
    shards[plan.permutation(len(classes))[: clients * classes_per_client % len(classes)]] += 1
    held = []
    for left in range(clients, 0, -1):
        # Whatever has a shard for each client left must go to this one too, or the last clients could not be served
        # with distinct classes. The others are drawn in proportion to their shards, as from McMahan's deck.
        must = np.flatnonzero(shards == left)
        rest = np.where(shards == left, 0, shards)
        free = classes_per_client - len(must)
        drawn = plan.choice(len(classes), free, replace=False, p=rest / rest.sum()) if free else must[:0]
        mine = np.concatenate([must, drawn])
        shards[mine] -= 1
        held.append(set(classes[mine].tolist()))
    plan.shuffle(held)  # forced draws happen to the later clients: let no position tell
    return Partition(_share(y_train, held, for_train, "training"), _share(y_test, held, for_test, "test"))


def degrees(y_train: Any, y_test: Any, clients: int, classes_per_client: int, *, seed: int) -> Partition:
    """PFLEGO's degrees of personalization (section 4.3): K classes per client, drawn at random and independently.

    K = 2 is its "high-pers", C/2 "medium-pers", C "no-pers". Each class is shared out equally among the clients that
    have it, so a popular class comes in smaller shares.

    The paper leaves open what becomes of a class that nobody drew: here it takes the place of a class that someone else
    has too, as long as there are at least as many draws as classes, so that no data lie idle.

    Args:
        y_train: `[n]` integer labels of the training pool.
        y_test: `[n']` of the test pool; a class of fewer test samples than clients leaves some without it.
        clients: how many clients.
        classes_per_client: K.
        seed: of the random draw.

    Raises:
        ValueError: if a class has fewer training samples than clients that drew it, or K is larger than C.

    >>> import numpy as np
    >>> from fedamp_jax.data import partition
    >>> y = np.arange(600) % 10
    >>> part = partition.degrees(y, y[:300], 30, 5, seed=0)
    >>> {len(np.unique(y[rows])) for rows in part.train}, len(np.unique(np.concatenate(part.train)))
    ({5}, 600)
    """
    y_train, y_test, classes = _classes_for(y_train, y_test, clients, classes_per_client)
    plan, for_train, for_test = _streams(seed)
    drawn = plan.permuted(np.tile(np.arange(len(classes)), (clients, 1)), axis=1)[:, :classes_per_client]
    for c in np.setdiff1d(np.arange(len(classes)), drawn):
        counts = np.bincount(drawn.ravel(), minlength=len(classes))
        spare = np.argwhere(counts[drawn] > 1)
        if len(spare):  # else there are fewer draws than classes
            drawn[tuple(plan.choice(spare))] = c
    held = [set(classes[row].tolist()) for row in drawn]
    return Partition(_share(y_train, held, for_train, "training"), _share(y_test, held, for_test, "test"))


def relabel(y_train: Any, y_test: Any, part: Partition) -> tuple[Rows, Rows, list[int]]:
    """Labels of each client's own, `0..C_i-1`, for methods with a head per client (PFLEGO, FedPer, ...).

    Args:
        y_train: `[n]` integer labels of the training pool.
        y_test: `[n']` of the test pool (`omniglot`: the same array twice).
        part: who has what.

    Returns:
        `(train labels, test labels, classes)`: M arrays `[n_i]` int32, M arrays, and M numbers of classes. A client's
        classes are those it trains on, in ascending order.

    Raises:
        ValueError: if a client tests on a class it does not train on.

    >>> from fedamp_jax.data import partition
    >>> import numpy as np
    >>> part = partition.Partition([np.array([0, 1]), np.array([2])], [np.array([1]), np.array([0])])
    >>> partition.relabel([7, 3, 5], [5, 3], part)
    ([array([1, 0], dtype=int32), array([0], dtype=int32)], [array([0], dtype=int32), array([0], dtype=int32)], [2, 1])
    """
    y_train, y_test = _pool(y_train, "y_train"), _pool(y_test, "y_test")
    own = [np.unique(y_train[rows]) for rows in part.train]
    for i, rows in enumerate(part.test):
        foreign = np.setdiff1d(y_test[rows], own[i])
        if len(foreign):
            raise ValueError(f"client {i} has test samples of class {foreign[0]}, but trains on {own[i].tolist()} only")
    train, test = (
        [np.searchsorted(own[i], y[rows]).astype(np.int32) for i, rows in enumerate(lists)]
        for y, lists in ((y_train, part.train), (y_test, part.test))
    )
    return train, test, [len(classes) for classes in own]


def superclasses(fine: Any, coarse: Any) -> np.ndarray:
    """The superclass of each fine label, `[C]` int32, from the two labels of the same samples (CIFAR-100).

    Raises:
        ValueError: if a fine label lies in two superclasses or does not occur.

    >>> from fedamp_jax.data import partition
    >>> partition.superclasses([0, 1, 2, 1], [1, 0, 1, 0]).tolist()
    [1, 0, 1]
    """
    fine, coarse = _pool(fine, "fine"), _pool(coarse, "coarse")
    if len(fine) != len(coarse):
        raise ValueError(f"fine has {len(fine)} labels, coarse {len(coarse)}")
    of_fine = np.full(fine.max() + 1, -1, np.int32)
    of_fine[fine] = coarse
    for i in np.flatnonzero(of_fine[fine] != coarse):
        raise ValueError(f"fine label {fine[i]} lies in superclasses {coarse[i]} and {of_fine[fine[i]]}")
    for c in np.flatnonzero(of_fine < 0):
        raise ValueError(f"fine label {c} has no sample, so its superclass is unknown")
    return of_fine


def practical_groups(name: str, coarse_of_fine: Any = None) -> list[Group]:
    """The groups of FedAMP's practical non-IID setting (Section 7 and Appendix C), for `practical`.

    100 clients in 5 groups on MNIST and Fashion-MNIST, 62 in 3 groups on EMNIST, 100 in 20 groups on CIFAR-100, whose
    dominating classes are those of one superclass. `digits` is not in the paper: 20 clients in 5 groups, MNIST's
    setting cut to its 1,297 training images.

    Args:
        name: `digits, mnist, fashion_mnist, emnist` or `cifar100`.
        coarse_of_fine: for cifar100 `[100]`, the superclass of each fine label, such as `superclasses` gives.

    Raises:
        ValueError: for another name, or for cifar100 without 20 superclasses.

    >>> from fedamp_jax.data import partition
    >>> partition.practical_groups("mnist")[1]
    Group(clients=20, classes=(2, 3), train_size=400)
    """
    checks.choice("name", name, ("digits", "mnist", "fashion_mnist", "emnist", "cifar100"))
    if name == "cifar100":
        if coarse_of_fine is None:
            raise ValueError("coarse_of_fine is needed for cifar100: superclasses(source.y_train, source.coarse_train)")
        of_fine = _pool(coarse_of_fine, "coarse_of_fine")
        if len(of_fine) != 100 or np.unique(of_fine).tolist() != list(range(20)):
            raise ValueError(f"coarse_of_fine must map 100 fine labels to superclasses 0..19, got {of_fine.tolist()}")
        return [Group(5, tuple(np.flatnonzero(of_fine == g).tolist()), 500 - 100 * (g // 4)) for g in range(20)]
    if name == "emnist":  # labels 0-9 are digits, 10-35 upper-case, 36-61 lower-case letters
        return [Group(10, range(10), 1000), Group(26, range(10, 36), 700), Group(26, range(36, 62), 400)]
    clients, largest, step = {"digits": (4, 70, 10), "mnist": (20, 500, 100), "fashion_mnist": (20, 600, 100)}[name]
    return [Group(clients, (2 * g, 2 * g + 1), largest - step * g) for g in range(5)]


def _check_groups(groups: Sequence[Group], classes: np.ndarray) -> None:
    """Refuse groups that are empty or that name classes twice or unknown ones."""
    if len(groups) == 0:
        raise ValueError("groups is empty: at least one Group is needed")
    for g, group in enumerate(groups):
        checks.whole(f"clients of group {g}", group.clients, low=1)
        checks.whole(f"train_size of group {g}", group.train_size, low=1)
        listed = list(group.classes)
        unknown = sorted(set(listed) - set(classes.tolist()))
        if unknown or not listed or len(set(listed)) < len(listed):
            raise ValueError(
                f"classes of group {g} must be distinct labels of y_train, which has {_brief(classes.tolist())}; "
                f"got {_brief(listed)}"
            )


def _brief(labels: list[int]) -> str:
    """Labels for a message: all of a few, the ends of many."""
    return str(labels) if len(labels) <= 12 else f"[{labels[0]}, ..., {labels[-1]}] ({len(labels)} of them)"


def _deal(
    y: np.ndarray,
    groups: Sequence[Group],
    counts: list[tuple[int, int]],
    rng: np.random.Generator,
    part: str,
    disjoint: bool,
) -> Rows:
    """For each client `counts[group][0]` samples of dominating classes and `counts[group][1]` of the others.

    All dominating parts are drawn before any other: the 20% that CIFAR-100's clients take from foreign superclasses
    would otherwise eat into pools of which the owners need four fifths.
    """
    free = np.ones(len(y), bool)
    shares: list[Rows] = [[] for group in groups for _ in range(group.clients)]
    starts = np.cumsum([0] + [group.clients for group in groups])
    for kind, what in enumerate(("dominating", "other")):
        for g, group in enumerate(groups):
            pool = np.flatnonzero((np.isin(y, list(group.classes)) == (kind == 0)) & free)
            each, copies = counts[g][kind], group.clients if disjoint else 1
            if each * copies > len(pool):
                there = "left: use fewer clients or replace=True," if disjoint else "there: use"
                raise ValueError(
                    f"group {g} (classes {_brief(list(group.classes))}) asks for {copies} x {each} = {each * copies} "
                    f"{part} samples of its {what} classes, and {len(pool)} are {there} a smaller "
                    f"{'train_size' if part == 'training' else 'test_size'}, or another share (dominating)"
                )
            dealt = rng.permutation(pool) if disjoint else pool
            for i in range(group.clients):
                mine = dealt[i * each : (i + 1) * each] if disjoint else rng.choice(pool, each, replace=False)
                shares[starts[g] + i].append(mine)
            if disjoint:
                free[dealt[: each * group.clients]] = False
    return [np.sort(np.concatenate(share)).astype(np.int64) for share in shares]


def practical(
    y_train: Any,
    y_test: Any,
    groups: Sequence[Group],
    *,
    seed: int,
    test_size: int = 100,
    dominating: float = 0.8,
    replace: bool = False,
) -> Partition:
    """The paper's practical non-IID setting (Section 7): groups of clients that share their dominating classes.

    Of each client's data `dominating` (80%, rounded to whole samples) are drawn uniformly from the samples of its
    group's classes, the others uniformly from all other samples.

    The paper leaves open whether clients share samples. Training samples do not, unless `replace=True`. Test samples
    must: 100 clients with 100 test samples each want 2,000 samples of MNIST's classes 4 and 5 alone, which has 1,874.
    So each client draws its test set without repetition, but independently of the other clients; no test sample is
    ever a training sample, since the two come from different pools.

    Args:
        y_train: `[n]` integer labels of the training pool.
        y_test: `[n']` of the test pool.
        groups: in the order of the clients, such as `practical_groups` gives.
        seed: of the random draw.
        test_size: test samples of each client.
        dominating: share of the dominating classes, from 0 to 1.
        replace: let clients draw their training sets independently too. A client never has a sample twice.

    Returns:
        `Partition` whose `groups [M]` is the number of each client's group.

    Raises:
        ValueError: if a group's classes are unknown, or if there are too few samples (the message says of what).

    >>> import numpy as np
    >>> from fedamp_jax.data import partition
    >>> y = np.arange(6000) % 10
    >>> part = partition.practical(y, y, [partition.Group(2, (0, 1), 50), partition.Group(1, (2,), 20)], seed=0)
    >>> [np.bincount(y[rows], minlength=3)[:3].tolist() for rows in part.train][2][2], part.groups.tolist()
    (16, [0, 0, 1])
    """
    y_train, y_test = _pool(y_train, "y_train"), _pool(y_test, "y_test")
    checks.whole("test_size", test_size, low=1)
    checks.number("dominating", dominating, low=0, high=1, strict=False)
    _check_groups(groups, np.unique(y_train))
    _, for_train, for_test = _streams(seed)

    def split(size: int) -> tuple[int, int]:
        return round(size * dominating), size - round(size * dominating)

    train = _deal(y_train, groups, [split(g.train_size) for g in groups], for_train, "training", disjoint=not replace)
    test = _deal(y_test, groups, [split(test_size)] * len(groups), for_test, "test", disjoint=False)
    return Partition(train, test, np.repeat(np.arange(len(groups), dtype=np.int32), [g.clients for g in groups]))


def _fill_empty(rows: Rows, wanted: Sequence[set[int]], y: np.ndarray, rng: np.random.Generator) -> Rows:
    """Give each empty client one sample of a client that has at least two, if possible of a class in its `wanted`."""
    for i in [i for i, r in enumerate(rows) if len(r) == 0]:
        donors = [j for j, r in enumerate(rows) if len(r) > 1]
        wish = [j for j in donors if wanted[i] & set(y[rows[j]].tolist())]
        donor = max(wish or donors, key=lambda j: len(rows[j]))
        liked = np.flatnonzero(np.isin(y[rows[donor]], list(wanted[i])))
        k = rng.choice(liked if len(liked) else len(rows[donor]))
        rows[i], rows[donor] = rows[donor][k : k + 1], np.delete(rows[donor], k)
    return rows


def dirichlet(y_train: Any, y_test: Any, clients: int, alpha: float, *, seed: int) -> Partition:
    """Every class is split over the clients in proportions drawn from a Dirichlet distribution (Hsu et al. 2019).

    Training and test samples follow the same proportions, and all are used. A client that would have no training (or
    test) sample gets one of a client that has several, so sizes are at least 1; a test sample of a class that it trains
    on where there is one.

    Args:
        y_train: `[n]` integer labels of the training pool.
        y_test: `[n']` of the test pool.
        clients: how many clients, at most n and n'.
        alpha: concentration: near 0 a class lies with one client, large values approach IID.
        seed: of the random draw.

    Raises:
        ValueError: if alpha is not positive or there are more clients than samples.

    >>> import numpy as np
    >>> from fedamp_jax.data import partition
    >>> y = np.arange(300) % 3
    >>> sorted(len(rows) for rows in partition.dirichlet(y, y, 4, 0.5, seed=0).train), len(y)
    ([10, 66, 108, 116], 300)
    """
    y_train, y_test = _pool(y_train, "y_train"), _pool(y_test, "y_test")
    checks.whole("clients", clients, low=1)
    checks.number("alpha", alpha, low=0)
    for y, part in ((y_train, "training"), (y_test, "test")):
        if len(y) < clients:
            raise ValueError(f"{clients} clients need a {part} sample each and there are {len(y)}: use fewer clients")
    plan, *streams = _streams(seed)
    classes = np.union1d(y_train, y_test)
    ends = np.cumsum(plan.dirichlet(np.full(clients, float(alpha)), len(classes)), axis=1)[:, :-1]

    def split(y: np.ndarray, rng: np.random.Generator) -> Rows:
        members = [rng.permutation(np.flatnonzero(y == c)) for c in classes]
        parts = [np.split(m, np.round(e * len(m)).astype(int)) for m, e in zip(members, ends, strict=True)]
        return [np.concatenate(shares) for shares in zip(*parts, strict=True)]

    train = _fill_empty(split(y_train, streams[0]), [set()] * clients, y_train, streams[0])
    held = [set(y_train[rows].tolist()) for rows in train]
    test = _fill_empty(split(y_test, streams[1]), held, y_test, streams[1])
    return Partition(_no_empty(train, "training", "use fewer clients"), _no_empty(test, "test", "use fewer clients"))


def by_name(column: Any, what: str) -> tuple[list[Any], Rows]:
    """The distinct names in a column, sorted, and the rows `[n_i]` of each.

    Raises:
        ValueError: if a name is missing (None or NaN) or the column is not one-dimensional.
        TypeError: if a name is not hashable.

    >>> from fedamp_jax.data import partition
    >>> names, rows = partition.by_name(["b", "a", "b"], "client")
    >>> names, [r.tolist() for r in rows]
    (['a', 'b'], [[1], [0, 2]])
    """
    if getattr(column, "ndim", 1) != 1:  # a list of tuples has no ndim: it is a column of tuples
        raise ValueError(f"{what} must have shape [n], got {list(column.shape)}")
    # Plain Python objects: NumPy would make one string type of 1 and "1".
    values: list[Any] = list(column) if isinstance(column, (list, tuple)) else column.tolist()
    rows: dict[Any, list[int]] = {}
    for i, name in enumerate(values):
        if name is None or name != name:
            raise ValueError(f"{what} has no name in row {i} ({name!r}): fill it in or drop the row")
        try:
            rows.setdefault(name, []).append(i)
        except TypeError:
            raise TypeError(f"{what} has {name!r} in row {i}, which is not hashable and can be no name") from None
    try:
        names = sorted(rows)
    except TypeError:  # names of several types, such as 7 and "7b", have no order of their own
        names = sorted(rows, key=lambda name: (type(name).__name__, repr(name)))
    return names, [np.array(rows[name], np.int64) for name in names]


def match_names(expected: list[Any], found: list[Any], of_expected: str, of_found: str) -> None:
    """Refuse two lists of clients that are not the same set.

    Raises:
        ValueError: naming the first client that only one of them has.
    """
    if len(set(expected)) < len(expected):
        raise ValueError(f"{of_expected} lists a client twice: {expected}")
    ours, theirs = (expected, of_expected), (found, of_found)
    for (names, there), (others, gone) in ((ours, theirs), (theirs, ours)):
        only = [name for name in names if name not in set(others)]
        if only:
            raise ValueError(
                f"client {only[0]!r} is in {there} but not in {gone} ({len(only)} of {len(names)} clients are): "
                "both must name the same clients"
            )


def natural(clients_train: Any, clients_test: Any) -> Partition:
    """The partition that the data come with: a column of client ids for each pool.

    Args:
        clients_train: `[n]` hashable names (hospital, writer, device), one per training sample.
        clients_test: `[n']`, one per test sample; the same set of names.

    Returns:
        `Partition` with the clients sorted by name; `by_name(clients_train, "client")[0]` lists the names.

    Raises:
        ValueError: if a client has only training or only test samples.

    >>> from fedamp_jax.data import partition
    >>> [rows.tolist() for rows in partition.natural(["Ulm", "Bern", "Ulm"], ["Bern", "Ulm"]).train]
    [[1], [0, 2]]
    """
    names_train, train = by_name(clients_train, "clients_train")
    names_test, test = by_name(clients_test, "clients_test")
    if not names_train:
        raise ValueError("clients_train is empty: at least one sample is needed")
    match_names(names_train, names_test, "clients_train", "clients_test")
    order = {name: i for i, name in enumerate(names_test)}
    return Partition(train, [test[order[name]] for name in names_train])


def omniglot(alphabet: Any, character: Any, *, seed: int, test_fraction: float = 0.25) -> Partition:
    """PFLEGO's Omniglot setting (section 4.2): one client per alphabet, 75% of each character's drawings for training.

    Labels within the alphabet come from `relabel(character, character, part)`.

    Args:
        alphabet: `[n]` integers, whose drawing it is.
        character: `[n]` integers, its number within the alphabet.
        seed: of the random draw.
        test_fraction: share of each character's drawings for testing, between 0 and 1; at least 1, and 1 remains.

    Returns:
        `Partition` of the one pool, clients in ascending order of `alphabet`.

    Raises:
        ValueError: if a character has a single drawing, or the columns do not match.

    >>> import numpy as np
    >>> from fedamp_jax.data import partition
    >>> alphabet, character = np.repeat([0, 0, 1], 20), np.repeat([1, 2, 1], 20)
    >>> part = partition.omniglot(alphabet, character, seed=0)
    >>> [len(r) for r in part.train], [len(r) for r in part.test], partition.relabel(character, character, part)[2]
    ([30, 15], [10, 5], [2, 1])
    """
    alphabet, character = _pool(alphabet, "alphabet"), _pool(character, "character")
    if len(alphabet) != len(character):
        raise ValueError(f"alphabet has {len(alphabet)} entries, character {len(character)}")
    checks.number("test_fraction", test_fraction, low=0, high=1)
    _, rng, _ = _streams(seed)
    train: Rows = []
    test: Rows = []
    for a in np.unique(alphabet):
        parts: tuple[Rows, Rows] = ([], [])
        for c in np.unique(character[alphabet == a]):
            drawings = rng.permutation(np.flatnonzero((alphabet == a) & (character == c)))
            if len(drawings) < 2:
                raise ValueError(f"character {c} of alphabet {a} has 1 drawing: training and testing need one each")
            held_out = min(max(round(len(drawings) * test_fraction), 1), len(drawings) - 1)
            parts[0].append(drawings[held_out:])
            parts[1].append(drawings[:held_out])
        train.append(np.sort(np.concatenate(parts[0])))
        test.append(np.sort(np.concatenate(parts[1])))
    return Partition(train, test)
