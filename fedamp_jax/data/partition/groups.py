"""The practical setting of Huang et al. 2021: groups of clients, each with classes that dominate its data."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedamp_jax.checks import check_choice, check_integer, check_number
from fedamp_jax.data.partition.base import Partition, Rows, generators, pool


class Group(NamedTuple):
    """A group of clients with the same dominating classes, for `practical`.

    Attributes:
        clients: number of clients.
        classes: the dominating classes, which most of their samples belong to.
        train_size: number of training samples of each client.
    """

    clients: int
    classes: Sequence[int]
    train_size: int


def superclasses(fine: Any, coarse: Any) -> np.ndarray:
    """Finds the superclass of each fine label (CIFAR-100).

    Args:
        fine: `[n]` integer labels.
        coarse: `[n]` integer superclasses of the same samples.

    Returns:
        `[C]` int32, the superclass of each fine label `0..C-1`.

    Raises:
        ValueError: if a fine label has two superclasses or does not occur, or the lengths differ.

    >>> from fedamp_jax.data import partition
    >>> partition.superclasses([0, 1, 2, 1], [1, 0, 1, 0]).tolist()
    [1, 0, 1]
    """
    fine, coarse = pool(fine, "fine"), pool(coarse, "coarse")
    if len(fine) != len(coarse):
        raise ValueError(f"fine has {len(fine)} labels, but coarse has {len(coarse)}")
    of_fine = np.full(fine.max() + 1, -1, np.int32)
    of_fine[fine] = coarse
    for i in np.flatnonzero(of_fine[fine] != coarse):
        raise ValueError(f"fine label {fine[i]} has two superclasses, {coarse[i]} and {of_fine[fine[i]]}")
    for c in np.flatnonzero(of_fine < 0):
        raise ValueError(f"fine label {c} has no samples, so its superclass is unknown")
    return of_fine


def practical_groups(name: str, coarse_of_fine: Any = None) -> list[Group]:
    """The groups of the FedAMP paper's practical non-IID setting (Section 7 and Appendix C), for `practical`.

    MNIST and Fashion-MNIST have 100 clients in 5 groups, EMNIST has 62 in 3 groups, and CIFAR-100 has 100 in 20 groups,
    one per superclass. `digits` is not in the paper: its 20 clients in 5 groups are MNIST's setting scaled down to
    1,297 training images.

    Args:
        name: `"digits"`, `"mnist"`, `"fashion_mnist"`, `"emnist"` or `"cifar100"`.
        coarse_of_fine: `[100]` integers, the superclass of each fine label, as returned by `superclasses`; needed for
            cifar100 only.

    Returns:
        The groups.

    Raises:
        ValueError: for any other name, or for cifar100 without 20 superclasses.

    >>> from fedamp_jax.data import partition
    >>> partition.practical_groups("mnist")[1]
    Group(clients=20, classes=(2, 3), train_size=400)
    """
    check_choice("name", name, ("digits", "mnist", "fashion_mnist", "emnist", "cifar100"))
    if name == "cifar100":
        if coarse_of_fine is None:
            raise ValueError("cifar100 needs coarse_of_fine: pass superclasses(source.y_train, source.coarse_train)")
        of_fine = pool(coarse_of_fine, "coarse_of_fine")
        if len(of_fine) != 100 or np.unique(of_fine).tolist() != list(range(20)):
            raise ValueError(f"coarse_of_fine must map 100 fine labels to superclasses 0..19, got {of_fine.tolist()}")
        return [Group(5, tuple(np.flatnonzero(of_fine == g).tolist()), 500 - 100 * (g // 4)) for g in range(20)]
    if name == "emnist":  # labels 0-9 are digits, 10-35 upper-case, 36-61 lower-case letters
        return [Group(10, range(10), 1000), Group(26, range(10, 36), 700), Group(26, range(36, 62), 400)]
    clients, largest, step = {"digits": (4, 70, 10), "mnist": (20, 500, 100), "fashion_mnist": (20, 600, 100)}[name]
    return [Group(clients, (2 * g, 2 * g + 1), largest - step * g) for g in range(5)]


def _check_groups(groups: Sequence[Group], classes: np.ndarray) -> None:
    """Checks that groups are not empty and that their classes are distinct and occur in `classes`."""
    if len(groups) == 0:
        raise ValueError("groups is empty: at least one Group is needed")
    for g, group in enumerate(groups):
        check_integer(f"clients of group {g}", group.clients, low=1)
        check_integer(f"train_size of group {g}", group.train_size, low=1)
        listed = list(group.classes)
        unknown = sorted(set(listed) - set(classes.tolist()))
        if unknown or not listed or len(set(listed)) < len(listed):
            raise ValueError(
                f"classes of group {g} must be distinct labels of y_train, which has {_brief(classes.tolist())}; "
                f"got {_brief(listed)}"
            )


def _brief(labels: list[int]) -> str:
    """Labels for a message: all if there are few, else the first and the last."""
    return str(labels) if len(labels) <= 12 else f"[{labels[0]}, ..., {labels[-1]}] ({len(labels)} labels)"


def _draw(
    y: np.ndarray,
    groups: Sequence[Group],
    counts: list[tuple[int, int]],
    rng: np.random.Generator,
    part: str,
    disjoint: bool,
) -> Rows:
    """Draws `counts[g][0]` samples of dominating and `counts[g][1]` of other classes for each client of group g.

    The dominating parts of all groups are drawn first. Otherwise the 20% that CIFAR-100's clients draw from other
    superclasses would use up samples that those superclasses' own clients need. The dominating draws leave some classes
    with fewer samples than others, so the remaining samples are weighted by 1 / (share of their class that is left):
    the other parts then follow the class frequencies of the whole pool, as the test sets do.

    Args:
        y: `[n]` labels of the pool.
        groups: the groups.
        counts: for each group, the samples per client of dominating and of other classes.
        rng: random generator.
        part: "training" or "test", for messages.
        disjoint: whether no sample may be drawn by two clients.

    Returns:
        The indices of each client, ascending.
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
                there = "left: use fewer clients, replace=True," if disjoint else "available: use"
                raise ValueError(
                    f"group {g} (classes {_brief(list(group.classes))}) needs {copies} x {each} = {each * copies} "
                    f"{part} samples of its {what} classes, but {len(pool)} are {there} a smaller "
                    f"{'train_size' if part == 'training' else 'test_size'}, or another value of dominating"
                )
            drawn = pool
            if disjoint:
                weight = (total / np.maximum(np.bincount(y[pool], minlength=len(total)), 1))[y[pool]]
                drawn = rng.permutation(rng.choice(pool, each * copies, replace=False, p=weight / weight.sum()))
            for i in range(group.clients):
                mine = drawn[i * each : (i + 1) * each] if disjoint else rng.choice(pool, each, replace=False)
                shares[starts[g] + i].append(mine)
            if disjoint:
                free[drawn] = False
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
    """The FedAMP paper's practical non-IID setting (Section 7): groups of clients with common dominating classes.

    A share `dominating` of each client's samples (rounded to whole samples) is drawn uniformly from its group's
    classes, the others from all other classes, in proportion to their frequency in the pool.

    The paper leaves open: whether clients share samples. Here no training sample is given to two clients, unless
    `replace=True`. Test samples have to be shared: 100 clients with 100 test samples each need about 2,000 of MNIST's
    classes 4 and 5, which have 1,874. So each client draws its test set without repetition, but independently of the
    other clients. Training and test samples come from different pools.

    Args:
        y_train: `[n]` integer labels of the training pool.
        y_test: `[n']` integer labels of the test pool.
        groups: groups in the order of the clients, such as those of `practical_groups`.
        seed: random seed.
        test_size: number of test samples of each client.
        dominating: share of the dominating classes, from 0 to 1.
        replace: draw the training sets independently as well, so that clients can have the same samples. A client never
            has a sample twice.

    Returns:
        A `Partition` whose `groups` `[M]` int32 holds each client's index into the argument `groups`.

    Raises:
        ValueError: if a group's classes are unknown or there are too few samples; the message says which.

    >>> import numpy as np
    >>> from fedamp_jax.data import partition
    >>> y = np.arange(6000) % 10
    >>> part = partition.practical(y, y, [partition.Group(2, (0, 1), 50), partition.Group(1, (2,), 20)], seed=0)
    >>> [np.bincount(y[rows], minlength=3)[:3].tolist() for rows in part.train][2][2], part.groups.tolist()
    (16, [0, 0, 1])
    """
    y_train, y_test = pool(y_train, "y_train"), pool(y_test, "y_test")
    check_integer("test_size", test_size, low=1)
    check_number("dominating", dominating, low=0, high=1, strict=False)
    _check_groups(groups, np.unique(y_train))
    _, for_train, for_test = generators(seed)

    def split(size: int) -> tuple[int, int]:
        return round(size * dominating), size - round(size * dominating)

    train = _draw(y_train, groups, [split(g.train_size) for g in groups], for_train, "training", disjoint=not replace)
    test = _draw(y_test, groups, [split(test_size)] * len(groups), for_test, "test", disjoint=False)
    return Partition(train, test, np.repeat(np.arange(len(groups), dtype=np.int32), [g.clients for g in groups]))
