"""Clients of any sizes as one `Data`: from one array per client, a table with a client column, or indices."""

from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedamp_jax.data import partition, tables
from fedamp_jax.data.checks import (
    INT32_MAX,
    Examples,
    are_targets,
    check_alike,
    check_examples,
    check_fits,
    is_empty,
    is_tree,
)
from fedamp_jax.layout import lengths
from fedamp_jax.types import Array, Data

Name = Callable[[int], str]
Classes = int | Sequence[int] | np.ndarray | Array | None


def _per_client(values: Any, count: int, name: str, low: int) -> np.ndarray:
    """Returns `values`, an integer or `[M]` integers, as `[M]` int32."""
    array = tables.to_array(values, name)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers, got {array.dtype} in {values!r}")
    if array.shape not in ((), (count,)):
        raise ValueError(f"{name} must be one number or one per client, [{count}], got shape {list(array.shape)}")
    if array.min() < low or array.max() > INT32_MAX:
        raise ValueError(f"{name} must be in {low}..{INT32_MAX}, got {array.min()} to {array.max()}")
    return np.broadcast_to(array, (count,)).astype(np.int32)


def _check_range(ys: Sequence[np.ndarray], classes: Any, name: Name) -> np.ndarray:
    """Returns `classes` as `[M]` int32, after checking that all labels are below their client's number."""
    if are_targets(classes):
        return _per_client(classes, len(ys), "classes", low=0)
    highest = np.array([y.max() if y.size else 0 for y in ys], np.uint64)
    if classes is None and highest.max() >= INT32_MAX:
        raise ValueError(f"y has the label {highest.max()}, out of int32's range: map the labels to 0..classes-1 first")
    classes = _per_client(int(highest.max()) + 1 if classes is None else classes, len(ys), "classes", low=1)
    for i in np.flatnonzero(highest >= classes.astype(np.uint64)).tolist():
        raise ValueError(
            f"y of {name(i)} has the label {highest[i]}, but classes = {classes[i]} allows 0..{classes[i] - 1}: "
            "increase classes, or map the client's labels to 0..classes-1"
        )
    return classes


def pack(
    clients: Iterable[Examples],
    ys: Sequence[np.ndarray],
    like: Examples,
    classes: Any,
    ids: Any,
    name: Name,
    empty: bool,
) -> Data:
    """Packs checked clients.

    Args:
        clients: read once, one client at a time, so that a pool is never copied as a whole.
        ys: their labels or targets.
        like: gives the shapes and dtypes of an example.
        classes, ids: as in `from_lists`.
        name: `i -> name` of client i in messages.
        empty: whether clients may have no examples.
    """
    for i, y in enumerate(ys):
        if len(y) == 0 and not (empty and any(map(len, ys))):
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
    ends = np.cumsum(size, dtype=np.int64)
    check_fits(like, int(ends[-1]), size, name)
    x_all = [np.empty((ends[-1], *a.shape[1:]), a.dtype) for a in like.x]
    y_all = np.empty((ends[-1], *like.y.shape[1:]), np.int32 if like.y.dtype.kind in "iu" else np.float32)
    for end, client in zip(ends, clients):
        for all_of, a in zip((*x_all, y_all), (*client.x, client.y), strict=True):
            all_of[end - len(client.y) : end] = a
    x = jax.tree.unflatten(like.tree, [jnp.asarray(a) for a in x_all])
    numbers = (y_all, ends - size, size, classes, ids)
    y, start, sizes, classes, ids = (jnp.asarray(a, a.dtype if a is y_all else np.int32) for a in numbers)
    known = lengths(size)
    return Data(x, y, start, sizes, classes, ids, jnp.asarray(size > 0), known.pop("longest"))._replace(**known)


def _classes(classes: Classes, class_names: Sequence[Any] | None) -> Classes:
    """The number of classes, as many as there are names if it is not given."""
    if class_names is not None and are_targets(classes):
        raise ValueError("class_names are for labels: leave out classes=0, or the names")
    if class_names is None or classes is not None:
        return classes
    return len(tables.to_list(class_names, "class_names"))


def from_lists(
    xs: Sequence[Any],
    ys: Sequence[Any],
    *,
    classes: Classes = None,
    ids: Any = None,
    class_names: Sequence[Any] | None = None,
    keep_integers: bool = False,
    allow_empty: bool = False,
) -> Data:
    """Makes `Data` from one pair of arrays per client.

    Args:
        xs: M arrays `[n_i, ...]`. uint8 stays uint8; all other numbers (floats, bool, other integers) become float32.
            The shape of an example and the resulting dtype must be the same for all clients. If an example has several
            inputs, M dictionaries or tuples of such arrays.
        ys: M integer arrays `[n_i]`, labels from 0; with `class_names` their names, and with `classes=0` arrays of
            numbers to predict `[n_i, ...]`, which become float32.
        classes: number of classes: an integer for all clients, `[M]` integers if client i has its own labels
            `0..classes[i]-1`, or None for the highest label of all clients plus 1. 0 if y are no labels.
        ids: `[M]` distinct integers >= 0, which determine the clients' random numbers; None means `0..M-1`.
        class_names: the classes in order, if `ys` hold their names; give training and test data the same list.
        keep_integers: integers other than uint8 become int32 in place of float32, for models that look up tokens.
        allow_empty: clients may have no examples. In test data: they are trained, and NaN in every metric. In training
            data: they are offline.

    Returns:
        `Data`; all clients that have examples are online.

    Raises:
        TypeError: if features are not numbers, or labels, classes or ids are not integers.
        ValueError: if there are no clients, a client has no examples, shapes do not match, a label is out of range, or
            x has NaN or Inf. The message names the client.

    >>> import numpy as np
    >>> from fedamp_jax import data
    >>> hospitals = data.from_lists([np.zeros((3, 5)), np.ones((2, 5))], [[0, 1, 1], [2, 0]])
    >>> hospitals.x.shape, hospitals.x.dtype.name, hospitals.y.tolist(), hospitals.classes.tolist()
    ((5, 5), 'float32', [0, 1, 1, 2, 0], [3, 3])
    >>> doses = data.from_lists([{"age": [[61], [40]], "scan": np.zeros((2, 8, 8), np.uint8)}], [[0.5, 1.5]], classes=0)
    >>> jax.tree.map(lambda a: a.shape, doses.x), doses.y.tolist()
    ({'age': (2, 1), 'scan': (2, 8, 8)}, [0.5, 1.5])
    """
    for clients, name in ((xs, "xs"), (ys, "ys")):
        tables.check_no_dictionary(
            clients,
            name,
            f"give lists in one order, such as {name} = [clients[name] for name in sorted(clients)], "
            'and if each client is a dictionary of "x" and "y", xs = [clients[name]["x"] for name in sorted(clients)]',
        )
        if not isinstance(clients, Sized):
            raise TypeError(f"{name} must be a list with an entry for each client, got a {type(clients).__name__}")
    if len(xs) != len(ys):
        raise ValueError(f"xs and ys must have one entry per client, got {len(xs)} and {len(ys)}")
    if len(xs) == 0:
        raise ValueError("xs is empty: at least one client is needed")
    options = (classes, ids, class_names, keep_integers, allow_empty)
    return pack_lists(xs, ys, *options, lambda i: f"client {i}")


def pack_lists(
    xs: Sequence[Any],
    ys: Sequence[Any],
    classes: Any,
    ids: Any,
    class_names: Any,
    integers: bool,
    empty: bool,
    of: Name,
) -> Data:
    """`from_lists`, with `of(i)` for client i in messages."""
    classes = _classes(classes, class_names)
    checked: dict[int, Examples] = {}
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if is_empty(x, y):
            if empty:
                continue
            raise ValueError(f"{of(i)} (of {len(xs)}) has no examples: remove it, or give it at least one")
        client = check_examples(x, y, f" of {of(i)}", classes, class_names, integers)
        for a, name in zip(client.x, client.names):
            if len(a) != len(client.y):
                raise ValueError(f"{name} of {of(i)} has {len(a)} examples, but its y has {len(client.y)} labels")
        j = min(checked, default=i)
        check_alike(client, checked.get(j, client), of(i), of(j))
        checked[i] = client
    if not checked:
        raise ValueError("no client has any examples: at least one must have some")
    like = next(iter(checked.values()))
    clients = [checked.get(i, like.rows(slice(0, 0))) for i in range(len(xs))]
    return pack(clients, [c.y for c in clients], like, classes, ids, of, empty)


def check_rows(indices: Any, n: int, what: str) -> np.ndarray:
    """Returns `indices` as integers in 0..n-1; masks and negative indices, which NumPy would accept, are refused."""
    rows = tables.to_array(indices, what)
    if rows.size == 0:
        return np.zeros(0, np.int64)
    if rows.dtype.kind not in "iu":
        raise TypeError(f"{what} must be integers, got {rows.dtype}; np.flatnonzero converts a mask to indices")
    if rows.ndim != 1:
        raise ValueError(f"{what} must have shape [n_i], got {list(rows.shape)}")
    if rows.min() < 0 or rows.max() >= n:
        raise ValueError(f"{what} must be in 0..{n - 1}, got {rows.min()} to {rows.max()}")
    return rows


def _from_pool(
    x: Any, y: Any, indices: Sequence[Any], classes: Any, class_names: Any, integers: bool, empty: bool, name: Name
) -> Data:
    """`from_indices`, with `name(i)` for client i in messages."""
    classes = _classes(classes, class_names)
    pool = check_examples(x, y, "", classes, class_names, integers)
    for a, what in zip(pool.x, pool.names):
        if len(a) != len(pool.y):
            raise ValueError(f"{what} has {len(a)} examples (shape {list(a.shape)}), but y has {len(pool.y)} labels")
    tables.check_no_dictionary(
        indices, "indices", "give a list in one order, such as [indices[name] for name in sorted(indices)]"
    )
    if len(indices) == 0:
        raise ValueError("indices is empty: at least one client is needed")
    rows = [check_rows(r, len(pool.y), f"indices of {name(i)}") for i, r in enumerate(indices)]
    return pack((pool.rows(r) for r in rows), [pool.y[r] for r in rows], pool, classes, None, name, empty)


def from_indices(
    x: Any,
    y: Any,
    indices: Sequence[Any],
    *,
    classes: Classes = None,
    class_names: Sequence[Any] | None = None,
    keep_integers: bool = False,
    allow_empty: bool = False,
) -> Data:
    """Makes `Data` from a pool of examples and each client's indices into it, such as a `Partition`'s.

    Args:
        x: `[n, ...]` pool; uint8 stays uint8, all other numbers become float32. A dictionary or tuple of such arrays
            for several inputs.
        y: `[n]` integer labels from 0, or with `classes=0` numbers to predict `[n, ...]`.
        indices: M integer arrays `[n_i]`, values in `0..n-1`.
        classes, class_names, keep_integers, allow_empty: as in `from_lists`.

    Returns:
        `Data` with ids `0..M-1`.

    Raises:
        TypeError, ValueError: as `from_lists`; also if an index is out of range.

    >>> import numpy as np
    >>> from fedamp_jax import data
    >>> data.from_indices(np.arange(8).reshape(4, 2), [0, 1, 2, 1], [[3, 0], [1]], classes=5).y.tolist()
    [1, 0, 1]
    """
    options = (classes, class_names, keep_integers, allow_empty)
    return _from_pool(x, y, indices, *options, lambda i: f"client {i}")


def from_table(
    x: Any,
    y: Any,
    client: Any,
    *,
    classes: Classes = None,
    names: Sequence[Any] | None = None,
    class_names: Sequence[Any] | None = None,
    keep_integers: bool = False,
    allow_empty: bool = False,
) -> tuple[Data, list[Any]]:
    """Makes `Data` from a table with a column of client names.

    Args:
        x: `[n, ...]` features; uint8 stays uint8, all other numbers become float32. A dictionary or tuple of such
            arrays for several inputs.
        y: `[n]` integer labels from 0, with `class_names` their names, or with `classes=0` numbers `[n, ...]`.
        client: `[n]` names of any hashable type, such as names of hospitals.
        classes: as in `from_lists`; if given per client, in the order of `names`.
        names: the names in the order of the clients, such as those returned for the training table. They must be
            exactly the names in the column. None means the names of the column, sorted.
        class_names, keep_integers: as in `from_lists`.
        allow_empty: `names` may list clients that have no rows, as in a test table.

    Returns:
        `(data, names)`: client i of `data` is `names[i]`.

    Raises:
        TypeError, ValueError: as `from_lists`; also if a name is missing, or `names` and the column differ.

    >>> import numpy as np
    >>> from fedamp_jax import data
    >>> ill = ["yes", "no", "no", "yes"]
    >>> train, names = data.from_table(np.eye(4), ill, ["Lyon", "Bern", "Lyon", "Lyon"], class_names=["no", "yes"])
    >>> names, train.size.tolist(), train.y.tolist()
    (['Bern', 'Lyon'], [1, 3], [0, 1, 0, 1])
    >>> test, _ = data.from_table(np.eye(4)[:2], [1, 0], ["Lyon", "Bern"], classes=train.classes, names=names)
    >>> data.check_pair(train, test)
    """
    found, rows = partition.rows_by_name(client, "client")
    rows_of = dict(zip(found, rows, strict=True))
    total = sum(map(len, rows))
    leaves, _ = jax.tree_util.tree_flatten_with_path(tables.with_dictionaries(x), is_leaf=lambda a: not is_tree(a))
    for path, a in leaves:
        if (n := tables.count(a)) not in (None, total):
            raise ValueError(f"client has {total} rows, but x{jax.tree_util.keystr(path)} has {n}")
    if names is not None:
        names = tables.to_list(names, "names")
        without = [name for name in names if name not in rows_of] if allow_empty else []
        partition.check_same_names(list(names), found + without, "names", "client")
        rows = [rows_of.get(name, np.zeros(0, np.int64)) for name in names]
        found = list(names)
    options = (classes, class_names, keep_integers, allow_empty)
    return _from_pool(x, y, rows, *options, lambda i: f"client {found[i]!r}"), found
