"""The practical setting of Huang et al. 2021: groups of clients, each with classes that dominate its data."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedamp_jax import checks
from fedamp_jax.data.partition.base import Partition, Rows, generators, pool


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


def superclasses(fine: Any, coarse: Any) -> np.ndarray:
    """The superclass of each fine label, `[C]` int32, from the two labels of the same samples (CIFAR-100).

    Raises:
        ValueError: if a fine label lies in two superclasses or does not occur.

    >>> from fedamp_jax.data import partition
    >>> partition.superclasses([0, 1, 2, 1], [1, 0, 1, 0]).tolist()
    [1, 0, 1]
    """
    fine, coarse = pool(fine, "fine"), pool(coarse, "coarse")
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
        of_fine = pool(coarse_of_fine, "coarse_of_fine")
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
    would otherwise eat into pools of which the owners need four fifths. What they leave has few samples of the classes
    with many owners, so each sample of a class weighs as much more as fewer of it are left: the others come from every
    class as often as if nobody had drawn before, and as often as in the test sets.
    """
    total = np.bincount(y)
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
            dealt = pool
            if disjoint:
                weight = (total / np.maximum(np.bincount(y[pool], minlength=len(total)), 1))[y[pool]]
                dealt = rng.permutation(rng.choice(pool, each * copies, replace=False, p=weight / weight.sum()))
            for i in range(group.clients):
                mine = dealt[i * each : (i + 1) * each] if disjoint else rng.choice(pool, each, replace=False)
                shares[starts[g] + i].append(mine)
            if disjoint:
                free[dealt] = False
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
    y_train, y_test = pool(y_train, "y_train"), pool(y_test, "y_test")
    checks.whole("test_size", test_size, low=1)
    checks.number("dominating", dominating, low=0, high=1, strict=False)
    _check_groups(groups, np.unique(y_train))
    _, for_train, for_test = generators(seed)

    def split(size: int) -> tuple[int, int]:
        return round(size * dominating), size - round(size * dominating)

    train = _deal(y_train, groups, [split(g.train_size) for g in groups], for_train, "training", disjoint=not replace)
    test = _deal(y_test, groups, [split(test_size)] * len(groups), for_test, "test", disjoint=False)
    return Partition(train, test, np.repeat(np.arange(len(groups), dtype=np.int32), [g.clients for g in groups]))
