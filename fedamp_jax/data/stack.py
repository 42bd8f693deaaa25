"""Clients of different sizes as one padded `Data`: from one array per client, a table with a client column, or indices.

All data are checked here, in NumPy: inside a compiled round, a label out of range or a NaN in x cannot raise an error
and would only give wrong numbers.
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
    """Shape of one example, without the example axis, and dtype of x in `Data`; the same for all clients."""

    shape: tuple[int, ...]
    dtype: np.dtype


def _array(value: Any, what: str) -> np.ndarray:
    """`np.asarray`, with `what` in the error message for ragged lists."""
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{what} is not an array, its rows have different lengths: {error}") from None


def _features(x: Any, what: str) -> np.ndarray:
    """Returns `x` as uint8 or finite float32, the two dtypes that `Data.x` can have."""
    x = _array(x, what)
    if x.ndim == 0:
        raise ValueError(f"{what} must have an example axis, got the single number {x}")
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind not in "biuf" and not jnp.issubdtype(x.dtype, jnp.floating):  # bfloat16's kind is "V"
        raise TypeError(f"{what} must be uint8 or numbers that can be converted to float32, got dtype {x.dtype}")
    with np.errstate(over="ignore"):  # a float64 out of float32's range becomes inf, which is refused below
        x = np.asarray(x, np.float32)
    if not np.isfinite(x).all():
        first = np.argwhere(~np.isfinite(x))[0].tolist()
        raise ValueError(
            f"{what} has NaN, Inf or a number out of float32's range, first at {first}: remove or impute it"
        )
    return x


def _labels(y: Any, what: str) -> np.ndarray:
    """Returns `y` as non-negative integers `[n]` of its own dtype; the range is checked before they become int32."""
    y = _array(y, what)
    if y.dtype.kind not in "iu":
        raise TypeError(f"{what} must hold integer labels, got dtype {y.dtype}: map them to 0..classes-1 first")
    if y.ndim != 1:
        raise ValueError(f"{what} must have shape [n], got {list(y.shape)}: one label per example, not one-hot")
    if y.size and y.min() < 0:
        raise ValueError(f"{what} has the negative label {y.min()}: map the labels to 0..classes-1 first")
    return y


def _per_client(values: Any, count: int, name: str, low: int) -> np.ndarray:
    """Returns `values`, an integer or `[M]` integers, as `[M]` int32."""
    array = np.asarray(values)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got {array.dtype} in {values!r}")
    if array.shape not in ((), (count,)):
        raise ValueError(f"{name} must be one number or one per client, [{count}], got shape {list(array.shape)}")
    if array.min() < low or array.max() > INT32_MAX:
        raise ValueError(f"{name} must be in {low}..{INT32_MAX}, got {array.min()} to {array.max()}")
    return np.broadcast_to(array, (count,)).astype(np.int32)


def _check_range(ys: Sequence[np.ndarray], classes: Any, name: Name) -> np.ndarray:
    """Returns `classes` as `[M]` int32, after checking that all labels are below their client's number."""
    highest = np.array([y.max() for y in ys], np.uint64)
    if classes is None and highest.max() >= INT32_MAX:
        raise ValueError(f"y has the label {highest.max()}, out of int32's range: map the labels to 0..classes-1 first")
    classes = _per_client(int(highest.max()) + 1 if classes is None else classes, len(ys), "classes", low=1)
    for i in np.flatnonzero(highest >= classes.astype(np.uint64)).tolist():
        raise ValueError(
            f"y of {name(i)} has the label {highest[i]}, but classes = {classes[i]} allows 0..{classes[i] - 1}: "
            "increase classes, or map the client's labels to 0..classes-1"
        )
    return classes


def _pack(xs: Iterable[np.ndarray], ys: Sequence[np.ndarray], example: _Example, classes: Any, ids: Any, name: Name):
    """Packs checked clients; `xs` is read once, one client at a time, so that the pool is never copied as a whole."""
    for i, y in enumerate(ys):
        if len(y) == 0:
            raise ValueError(f"{name(i)} (of {len(ys)}) has no examples: remove it, or give it at least one")
    classes = _check_range(ys, classes, name)
    ids = _per_client(np.arange(len(ys)) if ids is None else ids, len(ys), "ids", low=0)
    if len(np.unique(ids)) < len(ids):
        values, counts = np.unique(ids, return_counts=True)
        raise ValueError(
            f"ids must differ, but {values[np.argmax(counts)]} occurs {counts.max()} times: clients with the same id "
            "would draw the same random numbers"
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
    """Makes `Data` from one pair of arrays per client.

    Args:
        xs: M arrays `[n_i, ...]`. uint8 stays uint8; all other numbers (floats, bool, other integers) become float32.
            The shape of an example and the resulting dtype must be the same for all clients.
        ys: M integer arrays `[n_i]`, labels from 0.
        classes: number of classes: an integer for all clients, `[M]` integers if client i has its own labels
            `0..classes[i]-1`, or None for the highest label of all clients plus 1.
        ids: `[M]` distinct integers >= 0, which determine the clients' random numbers; None means `0..M-1`.

    Returns:
        `Data` padded with zeros to the largest `n_i`, all clients online.

    Raises:
        TypeError: if features are not numbers, or labels, classes or ids are not integers.
        ValueError: if there are no clients, a client has no examples, shapes do not match, a label is out of range, or
            x has NaN or Inf. The message names the client.

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
        x, y = _features(x, f"x of client {i}"), _array(y, f"y of client {i}")
        if len(x) == y.size == 0:  # before the dtype of y is checked: NumPy makes an empty list float64
            raise ValueError(f"client {i} (of {len(xs)}) has no examples: remove it, or give it at least one")
        y = _labels(y, f"y of client {i}")
        if len(x) != len(y):
            raise ValueError(f"x of client {i} has {len(x)} examples, but its y has {len(y)} labels")
        first = checked[0][0] if checked else x
        if x.shape[1:] != first.shape[1:]:
            raise ValueError(
                f"an example of client {i} has shape {list(x.shape[1:])}, but one of client 0 has "
                f"{list(first.shape[1:])}: give all clients the same shape"
            )
        if x.dtype != first.dtype:
            raise TypeError(
                f"x of client {i} is {x.dtype}, but x of client 0 is {first.dtype}: models scale uint8 to 0..1 and "
                "leave floats unchanged, so convert all clients to the same dtype"
            )
        checked.append((x, y))
    x0 = checked[0][0]
    example = _Example(x0.shape[1:], x0.dtype)
    return _pack((x for x, _ in checked), [y for _, y in checked], example, classes, ids, lambda i: f"client {i}")


def _rows(indices: Any, n: int, what: str) -> np.ndarray:
    """Returns `indices` as integers in 0..n-1; masks and negative indices, which NumPy would accept, are refused."""
    rows = np.asarray(indices)
    if rows.size == 0:
        return np.zeros(0, np.int64)
    if rows.dtype.kind not in "iu":
        raise TypeError(f"{what} must be integers, got {rows.dtype}; np.flatnonzero converts a mask to indices")
    if rows.ndim != 1:
        raise ValueError(f"{what} must have shape [n_i], got {list(rows.shape)}")
    if rows.min() < 0 or rows.max() >= n:
        raise ValueError(f"{what} must be in 0..{n - 1}, got {rows.min()} to {rows.max()}")
    return rows


def _from_pool(x: Any, y: Any, indices: Sequence[Any], classes: Any, name: Name) -> Data:
    """`from_indices`, with `name(i)` for client i in messages."""
    x, y = _features(x, "x"), _labels(y, "y")
    if len(x) != len(y):
        raise ValueError(f"x has {len(x)} examples (shape {list(x.shape)}), but y has {len(y)} labels")
    if len(indices) == 0:
        raise ValueError("indices is empty: at least one client is needed")
    rows = [_rows(r, len(x), f"indices of {name(i)}") for i, r in enumerate(indices)]
    example = _Example(x.shape[1:], x.dtype)
    return _pack((x[r] for r in rows), [y[r] for r in rows], example, classes, None, name)


def from_indices(x: Any, y: Any, indices: Sequence[Any], *, classes: Classes = None) -> Data:
    """Makes `Data` from a pool of examples and each client's indices into it, such as a `Partition`'s.

    Args:
        x: `[n, ...]` pool; uint8 stays uint8, all other numbers become float32.
        y: `[n]` integer labels from 0.
        indices: M integer arrays `[n_i]`, values in `0..n-1`.
        classes: as in `from_lists`.

    Returns:
        `Data` with ids `0..M-1`.

    Raises:
        TypeError, ValueError: as `from_lists`; also if an index is out of range.

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
    """Makes `Data` from a table with a column of client names.

    Args:
        x: `[n, ...]` features; uint8 stays uint8, all other numbers become float32.
        y: `[n]` integer labels from 0.
        client: `[n]` names of any hashable type, such as names of hospitals.
        classes: as in `from_lists`; if given per client, in the order of `names`.
        names: the names in the order of the clients, such as those returned for the training table. They must be
            exactly the names in the column. None means the names of the column, sorted.

    Returns:
        `(data, names)`: client i of `data` is `names[i]`.

    Raises:
        TypeError, ValueError: as `from_lists`; also if a name is missing, or `names` and the column differ.

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
        raise ValueError(f"client has {sum(map(len, rows))} rows, but x has {len(x)}")
    if names is not None:
        partition.match_names(list(names), found, "names", "client")
        rows = [rows[found.index(name)] for name in names]
        found = list(names)
    return _from_pool(x, y, rows, classes, lambda i: f"client {found[i]!r}"), found


def _check_rows(data: Data, name: str) -> None:
    """Checks the arrays against each other: `Data` made by hand or with `_replace` can be inconsistent."""
    y, size, classes, online = (np.asarray(a) for a in (data.y, data.size, data.classes, data.online))
    if y.dtype.kind not in "iu" or online.dtype != bool:
        raise TypeError(f"{name}.y must be int32 and {name}.online bool, got {y.dtype} and {online.dtype}")
    m, n = y.shape
    lengths = {field: len(getattr(data, field)) for field in ("x", "y", "size", "classes", "id", "online")}
    if set(lengths.values()) != {m} or data.x.shape[1] != n:
        raise ValueError(
            f"all arrays of {name} must be of the same clients, and x and y of the same examples: got x "
            f"{list(data.x.shape)}, y {list(y.shape)}, lengths {lengths}"
        )
    for i in np.flatnonzero((size < 0) | (size > n)):
        raise ValueError(f"{name}.size[{i}] is {size[i]}, but must be at least 0, and there is room for {n} examples")
    real = np.arange(n) < size[:, None]
    for i in np.flatnonzero((real & ((y < 0) | (y >= classes[:, None]))).any(axis=1)):
        labels = y[i][real[i]]
        raise ValueError(
            f"client {i} has labels {labels.min()} to {labels.max()} in {name}, but {classes[i]} classes: labels must "
            "be in 0..classes-1"
        )


def hold_out(data: Data, share: float, *, seed: int) -> tuple[Data, Data]:
    """Splits each client's examples at random, for choices that must not look at the test data.

    Args:
        data: of all clients, not placed yet.
        share: of each client's examples in the second part, between 0 and 1; rounded, and at least one in each part.
        seed: seed of the split.

    Returns:
        Two `Data` of the same clients.

    Raises:
        ValueError: the share is not between 0 and 1, or a client has a single example.

    >>> from fedamp_jax import data
    >>> train, test, groups = data.federation("digits")
    >>> part, validation = data.hold_out(train, 0.2, seed=0)
    >>> train.size.tolist()[::7], part.size.tolist()[::7], validation.size.tolist()[::7]
    ([70, 60, 40], [56, 48, 32], [14, 12, 8])
    """
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1, got {share}")
    sizes = np.asarray(data.size)
    for i in np.flatnonzero(sizes < 2):
        raise ValueError(f"client {i} has {sizes[i]} example: nothing can be held out")
    held = np.clip(np.round(share * sizes).astype(int), 1, sizes - 1)
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(n) for n in sizes]
    x, y = np.asarray(data.x), np.asarray(data.y)

    def part(rows: list[np.ndarray]) -> Data:
        made = from_lists([x[i][r] for i, r in enumerate(rows)], [y[i][r] for i, r in enumerate(rows)],
                          classes=np.asarray(data.classes))  # fmt: skip
        return made._replace(id=data.id, online=data.online)

    kept = [order[h:] for order, h in zip(orders, held, strict=True)]
    return part(kept), part([order[:h] for order, h in zip(orders, held, strict=True)])


def check_pair(train: Data, test: Data) -> None:
    """Checks that `train` and `test` are consistent, and belong to the same clients in the same order.

    Args:
        train: training data.
        test: test data; sizes may differ from the training data's.

    Raises:
        TypeError: if labels are not integers, or `online` is not bool.
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
    if train.x.shape[2:] != test.x.shape[2:] or train.x.dtype != test.x.dtype:
        raise ValueError(
            f"an example is {train.x.dtype} {list(train.x.shape[2:])} in train and "
            f"{test.x.dtype} {list(test.x.shape[2:])} in test: preprocess both the same way"
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
