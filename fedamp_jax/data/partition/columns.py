"""Partitions by columns of the data set: the names of the clients, or Omniglot's alphabets and characters."""

from typing import Any

import numpy as np

from fedamp_jax.checks import check_number
from fedamp_jax.data import tables
from fedamp_jax.data.partition.base import Partition, Rows, generators, pool


def rows_by_name(column: Any, what: str) -> tuple[list[Any], Rows]:
    """Groups rows by name.

    Args:
        column: `[n]` names of any hashable type; a list, an array or a column of a table.
        what: name of the column, for messages.

    Returns:
        The M distinct names, sorted, and M arrays `[n_i]` int64 of the rows of each.

    Raises:
        ValueError: if a name is missing (None, NaN, NA or masked) or the column is not one-dimensional.
        TypeError: if a name is not hashable.

    >>> from fedamp_jax.data import partition
    >>> names, rows = partition.rows_by_name(["b", "a", "b"], "client")
    >>> names, [r.tolist() for r in rows]
    (['a', 'b'], [[1], [0, 2]])
    """
    rows: dict[Any, list[int]] = {}
    for i, name in enumerate(tables.to_list(column, what)):
        if tables.is_missing(name):
            raise ValueError(f"{what} has no name in row {i} ({name!r}): fill it in or drop the row")
        try:
            rows.setdefault(name, []).append(i)
        except TypeError:
            raise TypeError(f"{what} has {name!r} in row {i}, which is not hashable: names must be") from None
    try:
        names = sorted(rows)
    except TypeError:  # names of several types, such as 7 and "7b", cannot be compared
        names = sorted(rows, key=lambda name: (type(name).__name__, repr(name)))
    return names, [np.array(rows[name], np.int64) for name in names]


def check_same_names(expected: list[Any], found: list[Any], of_expected: str, of_found: str) -> None:
    """Checks that two lists name the same clients.

    Args:
        expected: names, which must be distinct.
        found: names, distinct.
        of_expected: name of the first list, for messages.
        of_found: name of the second list, for messages.

    Raises:
        ValueError: if `expected` names a client twice, or one list has a client that the other lacks.
    """
    if len(set(expected)) < len(expected):
        raise ValueError(f"{of_expected} lists a client twice: {expected}")
    lists = ((expected, of_expected), (found, of_found))
    for (names, here), (others, there) in (lists, lists[::-1]):
        known = set(others)
        only = [name for name in names if name not in known]
        if only:
            raise ValueError(
                f"client {only[0]!r} is in {here} but not in {there}, as are {len(only)} of {len(names)} clients: "
                "both must name the same clients"
            )


def natural(clients_train: Any, clients_test: Any) -> Partition:
    """The partition given by one column of client names for each pool.

    Args:
        clients_train: `[n]` hashable names (of hospitals, writers or devices), one per training sample.
        clients_test: `[n']` names, one per test sample; the same set of names.

    Returns:
        A `Partition` without groups, the clients sorted by name; `rows_by_name(clients_train, "client")[0]` lists
        the names.

    Raises:
        ValueError: if a client has only training or only test samples, or a name is missing.
        TypeError: if a name is not hashable.

    >>> from fedamp_jax.data import partition
    >>> [rows.tolist() for rows in partition.natural(["Ulm", "Bern", "Ulm"], ["Bern", "Ulm"]).train]
    [[1], [0, 2]]
    """
    names_train, train = rows_by_name(clients_train, "clients_train")
    names_test, test = rows_by_name(clients_test, "clients_test")
    if not names_train:
        raise ValueError("clients_train is empty: at least one sample is needed")
    check_same_names(names_train, names_test, "clients_train", "clients_test")
    order = {name: i for i, name in enumerate(names_test)}
    return Partition(train, [test[order[name]] for name in names_train])


def omniglot(alphabet: Any, character: Any, *, seed: int, test_fraction: float = 0.25) -> Partition:
    """PFLEGO's Omniglot setting (section 4.2): one client per alphabet, 75% of each character's drawings for training.

    `relabel(character, character, part)` gives the labels within each alphabet.

    Args:
        alphabet: `[n]` integers, the alphabet of each drawing.
        character: `[n]` integers, the number of its character within the alphabet.
        seed: random seed.
        test_fraction: share of each character's drawings used for testing, in (0, 1]. At least one drawing of each
            character is used for testing and one for training.

    Returns:
        A `Partition` without groups, clients in ascending order of `alphabet`. Its `train` and `test` index the same
        pool.

    Raises:
        ValueError: if a character has only one drawing, or `alphabet` and `character` differ in length.

    >>> import numpy as np
    >>> from fedamp_jax.data import partition
    >>> alphabet, character = np.repeat([0, 0, 1], 20), np.repeat([1, 2, 1], 20)
    >>> part = partition.omniglot(alphabet, character, seed=0)
    >>> [len(r) for r in part.train], [len(r) for r in part.test], partition.relabel(character, character, part)[2]
    ([30, 15], [10, 5], [2, 1])
    """
    alphabet, character = pool(alphabet, "alphabet"), pool(character, "character")
    if len(alphabet) != len(character):
        raise ValueError(f"alphabet has {len(alphabet)} entries, but character has {len(character)}")
    check_number("test_fraction", test_fraction, low=0, high=1)
    _, rng, _ = generators(seed)
    train: Rows = []
    test: Rows = []
    for a in np.unique(alphabet):
        parts: tuple[Rows, Rows] = ([], [])
        for c in np.unique(character[alphabet == a]):
            drawings = rng.permutation(np.flatnonzero((alphabet == a) & (character == c)))
            if len(drawings) < 2:
                raise ValueError(f"character {c} of alphabet {a} has 1 drawing, but training and testing need one each")
            held_out = min(max(round(len(drawings) * test_fraction), 1), len(drawings) - 1)
            parts[0].append(drawings[held_out:])
            parts[1].append(drawings[:held_out])
        train.append(np.sort(np.concatenate(parts[0])))
        test.append(np.sort(np.concatenate(parts[1])))
    return Partition(train, test)
