"""Clients that the data bring with them: a column of names, and Omniglot's alphabets."""

from typing import Any

import numpy as np

from fedamp_jax import checks
from fedamp_jax.data.partition.base import Partition, Rows, generators, pool


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
    alphabet, character = pool(alphabet, "alphabet"), pool(character, "character")
    if len(alphabet) != len(character):
        raise ValueError(f"alphabet has {len(alphabet)} entries, character {len(character)}")
    checks.number("test_fraction", test_fraction, low=0, high=1)
    _, rng, _ = generators(seed)
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
