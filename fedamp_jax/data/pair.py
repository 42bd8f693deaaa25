"""Whether training and test data are consistent, and belong to the same clients."""

from typing import Any

import jax
import numpy as np

from fedamp_jax.types import Data


def _check_rows(data: Data, name: str) -> None:
    """Checks the arrays against each other: `Data` made by hand or with `_replace` can be inconsistent."""
    y, size, classes, online = (np.asarray(a) for a in (data.y, data.size, data.classes, data.online))
    targets = y.dtype == np.float32 and not classes.any()
    if not (y.dtype.kind in "iu" or targets) or online.dtype != bool:
        raise TypeError(
            f"{name}.y must be int32 labels, or float32 with classes 0, and {name}.online bool, got {y.dtype} and "
            f"{online.dtype}"
        )
    m, n = y.shape[:2]
    xs = jax.tree.leaves(data.x)
    lengths = {"x": len(xs[0]), **{field: len(getattr(data, field)) for field in data._fields[1:6]}}
    if set(lengths.values()) != {m} or any(a.shape[:2] != (m, n) for a in xs):
        raise ValueError(
            f"all arrays of {name} must be of the same clients, and x and y of the same examples: got x "
            f"{_shapes(data.x)}, y {list(y.shape)}, lengths {lengths}"
        )
    for i in np.flatnonzero((size < 0) | (size > n)):
        raise ValueError(f"{name}.size[{i}] is {size[i]}, but must be at least 0, and there is room for {n} examples")
    real = np.arange(n) < size[:, None]
    wrong = np.zeros(m, bool) if targets else (real & ((y < 0) | (y >= classes[:, None]))).any(axis=1)
    for i in np.flatnonzero(wrong):
        labels = y[i][real[i]]
        raise ValueError(
            f"client {i} has labels {labels.min()} to {labels.max()} in {name}, but {classes[i]} classes: labels must "
            "be in 0..classes-1"
        )


def _shapes(x: Any, first: int = 0) -> Any:
    """The shapes of x, from axis `first` on: a list, or a tree of lists."""
    return jax.tree.map(lambda a: list(a.shape[first:]), x)


def _example(x: Any) -> Any:
    """The kind of an example for messages, such as `float32 [3]`."""
    return jax.tree.map(lambda a: f"{a.dtype} {list(a.shape[2:])}", x)


def check_pair(train: Data, test: Data) -> None:
    """Checks that `train` and `test` are consistent, and belong to the same clients in the same order.

    Args:
        train: training data.
        test: test data; sizes may differ from the training data's.

    Raises:
        TypeError: if y are neither integer labels nor float32 targets with classes 0, or `online` is not bool.
        ValueError: if the number of clients, the shape or dtype of an example, the classes or the ids differ, or if
            labels or sizes are out of range.

    >>> import numpy as np
    >>> from fedamp_jax import data
    >>> train = data.from_lists([np.zeros((2, 3))], [[0, 2]])
    >>> data.check_pair(train, data.from_lists([np.zeros((1, 3))], [[1]]))
    Traceback (most recent call last):
        ...
    ValueError: client 0 has 3 classes in train and 2 in test: give both the same classes, such as classes=train.classes
    """
    for name, data in (("train", train), ("test", test)):
        _check_rows(data, name)
    if len(train.size) != len(test.size):
        raise ValueError(f"train has {len(train.size)} clients, but test has {len(test.size)}: each client needs both")
    if _example(train.x) != _example(test.x):
        raise ValueError(
            f"an example is {_example(train.x)} in train and {_example(test.x)} in test: preprocess both the same way"
        )
    if train.y.shape[2:] != test.y.shape[2:]:
        raise ValueError(
            f"a target has shape {list(train.y.shape[2:])} in train and {list(test.y.shape[2:])} in test: give both "
            "the same"
        )
    for i in np.flatnonzero(np.asarray(train.id) != np.asarray(test.id)):
        raise ValueError(
            f"client {i} has id {train.id[i]} in train and {test.id[i]} in test: use the same order of clients"
        )
    for i in np.flatnonzero(np.asarray(train.classes) != np.asarray(test.classes)):
        raise ValueError(
            f"client {i} has {train.classes[i]} classes in train and {test.classes[i]} in test: "
            "give both the same classes, such as classes=train.classes"
        )
