"""Clients of different sizes as one padded `Data`: from one array per client, a table with a client column, or indices.

Everything is checked here, once and in NumPy, because nothing after this can: inside a compiled round a label out of
range or a NaN pixel is a wrong number, not an error.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from fedamp_jax.data import partition
from fedamp_jax.types import Array, Data

Name = Callable[[int], str]
Classes = int | Sequence[int] | np.ndarray | Array | None
INT32_MAX = np.iinfo(np.int32).max


class _Example(NamedTuple):
    """What the examples of all clients share: `shape` without the example axis, and `dtype` as `Data` keeps it."""

    shape: tuple[int, ...]
    dtype: np.dtype


def _array(value: Any, what: str) -> np.ndarray:
    """`np.asarray`, whose own message about ragged lists names nobody."""
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{what} is no array, its rows are of different lengths: {error}") from None


def _pixels(x: Any, what: str) -> np.ndarray:
    """`x` as uint8 or finite float32: the only two kinds of input a step reads."""
    x = _array(x, what)
    if x.ndim == 0:
        raise ValueError(f"{what} must have an example axis, got the single number {x}")
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind not in "biuf" and not jnp.issubdtype(x.dtype, jnp.floating):  # bfloat16 is of no NumPy kind
        raise TypeError(f"{what} must hold numbers (uint8, or what becomes float32), got dtype {x.dtype}")
    with np.errstate(over="ignore"):  # a float64 beyond float32 becomes inf, which is refused by name below
        x = np.asarray(x, np.float32)
    if not np.isfinite(x).all():
        row = tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])
        raise ValueError(f"{what} holds NaN, Inf or a number beyond float32, first at {list(row)}: remove or impute it")
    return x


def _labels(y: Any, what: str) -> np.ndarray:
    """`y` as one-dimensional integers at or above 0, in the dtype it has: int32 comes after the range is known."""
    y = _array(y, what)
    if y.dtype.kind not in "iu":
        raise TypeError(f"{what} must hold integer labels, got dtype {y.dtype}: map them to 0..classes-1 first")
    if y.ndim != 1:
        raise ValueError(f"{what} must have shape [n], got {list(y.shape)}: one label per example, not one-hot")
    if y.size and y.min() < 0:
        raise ValueError(f"{what} holds the negative label {y.min()}: map the labels to 0..classes-1 first")
    return y


def _per_client(values: Any, count: int, name: str, low: int) -> np.ndarray:
    """`values`, one whole number or one per client, as `[M]` int32."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be whole numbers, got {array.dtype} in {values!r}")
    if array.shape not in ((), (count,)):
        raise ValueError(f"{name} must be one number or one per client, [{count}], got shape {list(array.shape)}")
    if array.min() < low or array.max() > INT32_MAX:
        raise ValueError(f"{name} must lie in {low}..{INT32_MAX}, got {array.min()} to {array.max()}")
    return np.broadcast_to(array, (count,)).astype(np.int32)


def _check_range(ys: Sequence[np.ndarray], classes: Any, name: Name) -> np.ndarray:
    """`classes [M]` int32, after every label was seen to lie below its client's."""
    highest = np.array([y.max() for y in ys], np.uint64)
    if classes is None and highest.max() >= INT32_MAX:
        raise ValueError(f"y holds the label {highest.max()}, beyond int32: map the labels to 0..classes-1 first")
    classes = _per_client(int(highest.max()) + 1 if classes is None else classes, len(ys), "classes", low=1)
    for i in np.flatnonzero(highest >= classes.astype(np.uint64)).tolist():
        raise ValueError(
            f"y of {name(i)} holds the label {highest[i]}, but classes = {classes[i]} allows 0..{classes[i] - 1}: "
            "raise classes, or map the client's labels to its own 0..classes-1"
        )
    return classes


def _pack(xs: Iterable[np.ndarray], ys: Sequence[np.ndarray], example: _Example, classes: Any, ids: Any, name: Name):
    """Checked clients as `Data`; `xs` is read once, client by client, so that the pool is never held twice."""
    for i, y in enumerate(ys):
        if len(y) == 0:
            raise ValueError(f"{name(i)} (of {len(ys)}) has no examples: leave it out, or give it at least one")
    classes = _check_range(ys, classes, name)
    ids = _per_client(np.arange(len(ys)) if ids is None else ids, len(ys), "ids", low=0)
    if len(np.unique(ids)) < len(ids):
        values, counts = np.unique(ids, return_counts=True)
        raise ValueError(
            f"ids must differ, but {values[np.argmax(counts)]} occurs {counts.max()} times: random numbers follow the "
            "id, so two clients of one id would draw the same"
        )
    size = np.array([len(y) for y in ys], np.int32)
    x_all = np.zeros((len(ys), size.max(), *example.shape), example.dtype)
    y_all = np.zeros((len(ys), size.max()), np.int32)
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        x_all[i, : len(y)] = x
        y_all[i, : len(y)] = y
    online = jnp.ones(len(ys), dtype=bool)
    return Data(*(jnp.asarray(a) for a in (x_all, y_all, size, classes, ids)), online=online)


def from_lists(xs: Sequence[Any], ys: Sequence[Any], *, classes: Classes = None, ids: Any = None) -> Data:
    """One `Data` from one pair of arrays per client, of any lengths.

    Args:
        xs: M arrays `[n_i, ...]`; uint8 stays uint8, every other kind of number (floats, bool, wider integers) becomes
            float32. All clients share the shape of an example and the resulting dtype.
        ys: M integer arrays `[n_i]`, labels from 0.
        classes: how many classes: one number for all, one per client (a client then has labels of its own,
            `0..classes[i]-1`), or None for the highest label of all clients + 1.
        ids: `[M]` whole numbers, the clients' names in random number generation, all different; None is `0..M-1`.

    Returns:
        `Data` with N the largest `n_i`, zeros beyond `size`, and everybody online.

    Raises:
        TypeError: for features that are no numbers, or labels, classes or ids that are no integers.
        ValueError: for no clients, an empty client, x and y or clients that do not match, labels out of range, NaN or
            Inf. The message names the client.

    >>> import numpy as np
    >>> from fedamp_jax import data
    >>> hospitals = data.from_lists([np.zeros((3, 5)), np.ones((2, 5))], [[0, 1, 1], [2, 0]])
    >>> hospitals.x.shape, hospitals.x.dtype.name, hospitals.y.tolist(), hospitals.classes.tolist()
    ((2, 3, 5), 'float32', [[0, 1, 1], [2, 0, 0]], [3, 3])
    """
    if len(xs) != len(ys):
        raise ValueError(f"xs and ys must have one entry per client, got {len(xs)} and {len(ys)}")
    if len(xs) == 0:
        raise ValueError("xs is empty: at least one client is needed")
    checked: list[tuple[np.ndarray, np.ndarray]] = []
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        x, y = _pixels(x, f"x of client {i}"), _array(y, f"y of client {i}")
        if len(x) == y.size == 0:  # said before the dtype of y is judged: an empty list is of dtype float64
            raise ValueError(f"client {i} (of {len(xs)}) has no examples: leave it out, or give it at least one")
        y = _labels(y, f"y of client {i}")
        if len(x) != len(y):
            raise ValueError(f"x of client {i} has {len(x)} examples, its y has {len(y)} labels: they must be as many")
        first = checked[0][0] if checked else x
        if x.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"an example of client {i} has shape {list(x.shape[1:])}, of client 0 {list(first.shape[1:])}: "
                "bring all clients to one shape"
            )
        if x.dtype != first.dtype:
            raise TypeError(
                f"x of client {i} is {x.dtype}, of client 0 {first.dtype}: uint8 is read as an image with values "
                "0..255, floats as they are, so convert all clients to one of them"
            )
        checked.append((x, y))
    x0 = checked[0][0]
    example = _Example(x0.shape[1:], x0.dtype)
    return _pack((x for x, _ in checked), [y for _, y in checked], example, classes, ids, lambda i: f"client {i}")


def _rows(indices: Any, n: int, what: str) -> np.ndarray:
    """`indices` as whole numbers in 0..n-1: NumPy would take -1 as the last row, and a mask as rows 0 and 1."""
    rows = np.asarray(indices)
    if rows.size == 0:
        return np.zeros(0, np.int64)
    if rows.dtype.kind not in "iu":
        raise TypeError(f"{what} must be whole numbers, got {rows.dtype}; np.flatnonzero turns a mask into indices")
    if rows.ndim != 1:
        raise ValueError(f"{what} must have shape [n_i], got {list(rows.shape)}")
    if rows.min() < 0 or rows.max() >= n:
        raise ValueError(f"{what} must lie in 0..{n - 1}, got {rows.min()} to {rows.max()}")
    return rows


def _from_pool(x: Any, y: Any, indices: Sequence[Any], classes: Any, name: Name) -> Data:
    """`from_indices`, with the clients called by `name` in messages."""
    x, y = _pixels(x, "x"), _labels(y, "y")
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} examples (shape {list(x.shape)}), y has {len(y)} labels")
    if len(indices) == 0:
        raise ValueError("indices is empty: at least one client is needed")
    rows = [_rows(r, len(x), f"indices of {name(i)}") for i, r in enumerate(indices)]
    example = _Example(x.shape[1:], x.dtype)
    return _pack((x[r] for r in rows), [y[r] for r in rows], example, classes, None, name)


def from_indices(x: Any, y: Any, indices: Sequence[Any], *, classes: Classes = None) -> Data:
    """One `Data` from a pool and, for each client, which rows of it are its own; what `partition` gives.

    Args:
        x: `[n, ...]` the pool; uint8 stays uint8, every other kind of number becomes float32.
        y: `[n]` integer labels from 0.
        indices: M arrays `[n_i]` of rows `0..n-1`.
        classes: as in `from_lists`.

    Returns:
        `Data` with ids `0..M-1`.

    Raises:
        TypeError, ValueError: as `from_lists`, and for an index outside the pool.

    >>> import numpy as np
    >>> from fedamp_jax import data
    >>> data.from_indices(np.arange(8).reshape(4, 2), [0, 1, 2, 1], [[3, 0], [1]], classes=5).y.tolist()
    [[1, 0], [1, 0]]
    """
    return _from_pool(x, y, indices, classes, lambda i: f"client {i}")


def from_table(
    x: Any,
    y: Any,
    client: Any,
    *,
    classes: Classes = None,
    names: Sequence[Any] | None = None,
) -> tuple[Data, list[Any]]:
    """One `Data` from a table with a column that says whose row it is.

    Args:
        x: `[n, ...]`; uint8 stays uint8, every other kind of number becomes float32.
        y: `[n]` integer labels from 0.
        client: `[n]` names of any hashable kind, such as hospitals.
        classes: as in `from_lists`; one per client follows the order of `names`.
        names: the order of the clients, such as the one returned for the training table: every name must have rows and
            no other name may occur. None takes the names of the column, sorted.

    Returns:
        `(Data, names)`: client i of `Data` is `names[i]`.

    Raises:
        TypeError, ValueError: as `from_lists`, and for names that are missing or that `names` does not list.

    >>> import numpy as np
    >>> from fedamp_jax import data
    >>> train, names = data.from_table(np.eye(4), [0, 1, 1, 0], ["Lyon", "Bern", "Lyon", "Lyon"])
    >>> names, train.size.tolist()
    (['Bern', 'Lyon'], [1, 3])
    >>> test, _ = data.from_table(np.eye(4)[:2], [1, 0], ["Lyon", "Bern"], classes=train.classes, names=names)
    >>> data.check_pair(train, test)
    """
    found, rows = partition.by_name(client, "client")
    if sum(map(len, rows)) != len(x):
        raise ValueError(f"client has {sum(map(len, rows))} rows, x has {len(x)}")
    if names is not None:
        partition.match_names(list(names), found, "names", "client")
        rows = [rows[found.index(name)] for name in names]
        found = list(names)
    return _from_pool(x, y, rows, classes, lambda i: f"client {found[i]!r}"), found


def _check_rows(data: Data, name: str) -> None:
    """Refuse labels, sizes and flags that `from_lists` would never make: by hand, with `_replace`, one can."""
    y, size, classes, online = (np.asarray(a) for a in (data.y, data.size, data.classes, data.online))
    if y.dtype.kind not in "iu" or online.dtype != bool:
        raise TypeError(f"{name}.y must be int32 and {name}.online bool, got {y.dtype} and {online.dtype}")
    m, n = y.shape
    lengths = {field: len(a) for field, a in data._asdict().items()}
    if set(lengths.values()) != {m} or data.x.shape[1] != n:
        raise ValueError(f"the arrays of {name} must be of the same clients and examples, got lengths {lengths}")
    for i in np.flatnonzero((size < 0) | (size > n)):
        raise ValueError(f"{name}.size[{i}] is {size[i]}, but a client has room for {n} examples")
    real = np.arange(n) < size[:, None]
    for i in np.flatnonzero((real & ((y < 0) | (y >= classes[:, None]))).any(axis=1)):
        labels = y[i][real[i]]
        raise ValueError(
            f"client {i} has labels {labels.min()} to {labels.max()} in {name}, and {classes[i]} classes: labels must "
            "be 0..classes-1"
        )


def check_pair(train: Data, test: Data) -> None:
    """Refuse data that are no clients' data, and test data of other clients than the training data's, or in another
    order.

    Args:
        train: `Data` to train on.
        test: `Data` to evaluate on; sizes may differ.

    Raises:
        TypeError: if labels are not integers.
        ValueError: if the number of clients, the shape or dtype of an example, the classes or the ids differ, or if
            labels or sizes lie outside of what the arrays say.

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
        raise ValueError(f"train has {len(train.size)} clients, test has {len(test.size)}: give each client both")
    if train.x.shape[2:] != test.x.shape[2:] or train.x.dtype != test.x.dtype:
        raise ValueError(
            f"an example is {train.x.dtype} {list(train.x.shape[2:])} in train and "
            f"{test.x.dtype} {list(test.x.shape[2:])} in test: prepare both the same way"
        )
    for i in np.flatnonzero(np.asarray(train.id) != np.asarray(test.id)):
        raise ValueError(f"client {i} has id {train.id[i]} in train and {test.id[i]} in test: use one order of clients")
    for i in np.flatnonzero(np.asarray(train.classes) != np.asarray(test.classes)):
        raise ValueError(
            f"client {i} has {train.classes[i]} classes in train and {test.classes[i]} in test: "
            "give both the same classes, such as classes=train.classes"
        )
