"""What all partitions share: their type, checked labels, independent streams of random numbers."""

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


def pool(y: Any, name: str) -> np.ndarray:
    """`y` as labels `[n]`, n at least 1."""
    y = np.asarray(y)
    if y.dtype.kind not in "iu":
        raise TypeError(f"{name} must hold integer labels, got dtype {y.dtype}")
    if y.ndim != 1 or y.size == 0 or y.min() < 0:
        lowest = f" and minimum {y.min()}" if y.size else ""
        raise ValueError(f"{name} must be labels [n] from 0, n at least 1, got shape {list(y.shape)}{lowest}")
    return y


def generators(seed: int) -> tuple[np.random.Generator, np.random.Generator, np.random.Generator]:
    """Three independent generators: who gets which classes, the training draws, the test draws."""
    checks.whole("seed", seed, low=0)
    plan, train, test = (np.random.default_rng(s) for s in np.random.SeedSequence(seed).spawn(3))
    return plan, train, test


def no_empty(rows: Rows, part: str, how: str) -> Rows:
    """`rows` sorted, or an error about the first client that got nothing."""
    for i, r in enumerate(rows):
        if len(r) == 0:
            raise ValueError(f"client {i} (of {len(rows)}) would get no {part} sample: {how}")
    return [np.sort(r).astype(np.int64) for r in rows]
