"""What all partition functions share: the return type, checked labels, independent random generators."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fedamp_jax.checks import check_integer
from fedamp_jax.data import tables

Rows = list[np.ndarray]


class Partition(NamedTuple):
    """Which samples each of M clients has.

    Attributes:
        train: M arrays `[n_i]` int64, ascending indices into the training pool.
        test: M arrays `[n'_i]` int64, ascending indices into the test pool; for `omniglot`, into its only pool.
        groups: `[M]` int32, each client's group; None if the setting has no groups.
    """

    train: Rows
    test: Rows
    groups: np.ndarray | None = None


def pool(y: Any, name: str) -> np.ndarray:
    """Returns `y` as an array of labels `[n]`, n >= 1; raises TypeError or ValueError if it is not one."""
    y = tables.to_array(y, name)
    text = tables.text_in(y)
    if text is not None:
        raise TypeError(
            f"{name} must hold integer labels, got names such as {text!r}: number them, as by "
            "np.unique(labels, return_inverse=True)[1]"
        )
    if y.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold integer labels, got dtype {y.dtype}")
    if y.ndim != 1 or y.size == 0 or y.min() < 0:
        lowest = f" and minimum {y.min()}" if y.size else ""
        raise ValueError(f"{name} must be non-negative labels of shape [n], n >= 1, got shape {list(y.shape)}{lowest}")
    return y


def generators(seed: int) -> tuple[np.random.Generator, np.random.Generator, np.random.Generator]:
    """Three independent generators: for the assignment of classes, the training draws and the test draws."""
    check_integer("seed", seed, low=0)
    plan, train, test = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(3))
    return plan, train, test


def no_empty(rows: Rows, part: str, how: str) -> Rows:
    """Returns `rows` sorted; raises ValueError if a client has none, with `how` to avoid it."""
    for i, r in enumerate(rows):
        if len(r) == 0:
            raise ValueError(f"client {i} (of {len(rows)}) would get no {part} samples: {how}")
    return [np.sort(r).astype(np.int64) for r in rows]


def fill_empty(rows: Rows, wanted: Sequence[set[int]], y: np.ndarray, rng: np.random.Generator) -> Rows:
    """Moves one sample to each empty client, from a client with at least two; if possible of a class in `wanted`."""
    for i in [i for i, r in enumerate(rows) if len(r) == 0]:
        donors = [j for j, r in enumerate(rows) if len(r) > 1]
        wish = [j for j in donors if wanted[i] & set(y[rows[j]].tolist())]
        donor = max(wish or donors, key=lambda j: len(rows[j]))
        liked = np.flatnonzero(np.isin(y[rows[donor]], list(wanted[i])))
        k = rng.choice(liked if len(liked) else len(rows[donor]))
        rows[i], rows[donor] = rows[donor][k : k + 1], np.delete(rows[donor], k)
    return rows


def enough(y_train: np.ndarray, y_test: np.ndarray, clients: int) -> None:
    """Refuse more clients than there are training or test samples."""
    check_integer("clients", clients, low=1)
    for y, part in ((y_train, "training"), (y_test, "test")):
        if len(y) < clients:
            raise ValueError(f"{clients} clients need a {part} sample each, but there are {len(y)}: use fewer clients")
