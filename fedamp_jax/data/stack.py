"""Clients of different sizes as one padded `Data`: from one array per client, a table with a client column, or indices.

All data are checked here, in NumPy: inside a compiled round, a label out of range or a NaN in x cannot raise an error
and would only give wrong numbers.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedamp_jax.data import partition
from fedamp_jax.types import Array, Data

Name = Callable[[int], str]
Classes = int | Sequence[int] | np.ndarray | Array | None
INT32_MAX = np.iinfo(np.int32).max


class _Checked(NamedTuple):
    """One client's examples, or a pool of them, as they will be in `Data`.

    Attributes:
        x: the inputs, in the order of `tree`'s leaves, each `[n, ...]`.
        y: `[n]` integer labels, or `[n, ...]` float32 targets.
        tree: the structure of x; a single array's is that of a leaf.
        names: what messages call the inputs.
    """

    x: list[np.ndarray]
    y: np.ndarray
    tree: Any
    names: list[str]

    def rows(self, rows: Any) -> "_Checked":
        return self._replace(x=[a[rows] for a in self.x], y=self.y[rows])


def _array(value: Any, what: str) -> np.ndarray:
    """`np.asarray`, with `what` in the error message for ragged lists."""
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{what} is not an array, its rows have different lengths: {error}") from None


def _features(x: Any, what: str, keep_integers: bool = False) -> np.ndarray:
    """Returns `x` as uint8 or finite float32, or with `keep_integers` as int32: the dtypes that `Data.x` can have."""
    x = _array(x, what)
    if x.ndim == 0:
        raise ValueError(f"{what} must have an example axis, got the single number {x}")
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind not in "biuf" and not jnp.issubdtype(x.dtype, jnp.floating):  # bfloat16's kind is "V"
        raise TypeError(f"{what} must be uint8 or numbers that can be converted to float32, got dtype {x.dtype}")
    if keep_integers and x.dtype.kind in "iu":
        if x.size and (x.min() < -INT32_MAX or x.max() > INT32_MAX):
            raise ValueError(f"{what} must be within int32's range, got {x.min()} to {x.max()}")
        return x.astype(np.int32)
    with np.errstate(over="ignore"):  # a float64 out of float32's range becomes inf, which is refused below
        x = np.asarray(x, np.float32)
    if not np.isfinite(x).all():
        first = np.argwhere(~np.isfinite(x))[0].tolist()
        raise ValueError(
            f"{what} has NaN, Inf or a number out of float32's range, first at {first}: remove or impute it"
        )
    return x


def _is_tree(x: Any) -> bool:
    """Whether x holds several inputs: a dictionary, or a tuple of arrays. Lists are arrays to be."""
    return isinstance(x, dict) or (isinstance(x, tuple) and any(hasattr(a, "shape") or _is_tree(a) for a in x))


def _inputs(x: Any, of: str, keep_integers: bool) -> tuple[list[np.ndarray], Any, list[str]]:
    """The arrays of x, their structure, and what messages call them; `of`: whose they are."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(x, is_leaf=lambda a: not _is_tree(a))
    names = [f"x{jax.tree_util.keystr(path)}" for path, _ in leaves]
    if not names:
        raise ValueError(f"x{of} is an empty {type(x).__name__}: give at least one array")
    return [_features(a, f"{n}{of}", keep_integers) for n, (_, a) in zip(names, leaves)], tree, names


def _are_targets(classes: Any) -> bool:
    """Whether `classes` says that y are no labels: 0, for all clients."""
    array = np.asarray(classes) if classes is not None else np.ones(1)
    return array.dtype.kind in "iu" and array.size > 0 and not array.any()


def _targets(y: Any, what: str) -> np.ndarray:
    """Returns `y` as finite float32 `[n, ...]`."""
    return np.asarray(_features(y, what), np.float32)


def _by_name(y: Any, class_names: Sequence[Any] | None, what: str) -> Any:
    """Returns the positions of the labels `y` in `class_names`; `y` itself without them."""
    if class_names is None:
        return y
    position = {name: i for i, name in enumerate(class_names)}
    if len(position) < len(class_names):
        raise ValueError(f"class_names lists a name twice: {list(class_names)}")
    labels = np.asarray(y, object) if np.ndim(y) == 1 else np.asarray(y)
    if labels.ndim != 1:
        raise ValueError(f"{what} must have shape [n], got {list(labels.shape)}: one name per example")
    for label in labels:
        if label not in position:
            raise ValueError(f"{what} has the label {label!r}, which is not in class_names {list(class_names)}")
    return np.array([position[label] for label in labels], np.int64)


def _labels(y: Any, what: str) -> np.ndarray:
    """Returns `y` as non-negative integers `[n]` of its own dtype; the range is checked before they become int32."""
    y = _array(y, what)
    if y.dtype.kind in "US":
        raise TypeError(
            f"{what} must hold integer labels, got names such as {str(y.flat[0])!r}: give class_names, "
            "the same list for training and test data"
        )
    if y.dtype.kind not in "iu":
        raise TypeError(
            f"{what} must hold integer labels, got dtype {y.dtype}: map them to 0..classes-1 first, or give classes=0 "
            "if they are no classes but numbers to predict"
        )
    if y.ndim != 1:
        raise ValueError(
            f"{what} must have shape [n], got {list(y.shape)}: one label per example, not one-hot; for several labels "
            "per example give classes=0"
        )
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
    if _are_targets(classes):
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


def _pack(
    clients: Iterable[_Checked],
    ys: Sequence[np.ndarray],
    like: _Checked,
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
    rows = (len(ys), size.max())
    x_all = [np.zeros((*rows, *a.shape[1:]), a.dtype) for a in like.x]
    y_all = np.zeros((*rows, *like.y.shape[1:]), np.int32 if like.y.dtype.kind in "iu" else np.float32)
    for i, client in enumerate(clients):
        for all_of, a in zip((*x_all, y_all), (*client.x, client.y), strict=True):
            all_of[i, : size[i]] = a
    x = jax.tree.unflatten(like.tree, [jnp.asarray(a) for a in x_all])
    online = jnp.ones(len(ys), dtype=bool)
    return Data(x, *(jnp.asarray(a) for a in (y_all, size, classes, ids)), online=online)


def _checked(x: Any, y: Any, of: str, classes: Any, class_names: Any, keep_integers: bool) -> _Checked:
    """Inputs and targets of one client, or of a pool; `of`: whose they are, for messages."""
    leaves, tree, names = _inputs(x, of, keep_integers)
    y = _by_name(y, class_names, f"y{of}")
    checked = (_targets if _are_targets(classes) else _labels)(y, f"y{of}")
    return _Checked(leaves, checked, tree, names)


def _classes(classes: Classes, class_names: Sequence[Any] | None) -> Classes:
    """The number of classes, as many as there are names if it is not given."""
    if class_names is not None and _are_targets(classes):
        raise ValueError("class_names are for labels: leave out classes=0, or the names")
    return len(class_names) if class_names is not None and classes is None else classes


def _is_empty(x: Any, y: Any) -> bool:
    """Whether a client has no examples: NumPy makes an empty list float64, so it is asked before dtypes are checked."""
    leaves = jax.tree.leaves(x, is_leaf=lambda a: not _is_tree(a))
    return all(np.asarray(a, object).size == 0 for a in (y, *leaves))


def _check_alike(client: _Checked, first: _Checked, i: int, j: int) -> None:
    """Checks client i's examples against those of client j, the first one that has any."""
    if client.tree != first.tree:
        raise ValueError(
            f"x of client {i} is {client.tree}, but x of client {j} is {first.tree}: give all the same inputs"
        )
    for a, b, name in zip((*client.x, client.y), (*first.x, first.y), (*client.names, "y"), strict=True):
        inside = "" if name == "x" else f" in {name}"
        if a.shape[1:] != b.shape[1:]:
            raise ValueError(
                f"an example of client {i} has shape {list(a.shape[1:])}{inside}, but one of client {j} has "
                f"{list(b.shape[1:])}: give all clients the same shape"
            )
        if a.dtype != b.dtype and name != "y":
            raise TypeError(
                f"{name} of client {i} is {a.dtype}, but {name} of client {j} is {b.dtype}: models scale uint8 to 0..1 "
                "and leave floats unchanged, so convert all clients to the same dtype"
            )


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
        allow_empty: clients may have no examples. For test data: they are trained, and NaN in every metric.

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
    >>> doses = data.from_lists([{"age": [[61], [40]], "scan": np.zeros((2, 8, 8), np.uint8)}], [[0.5, 1.5]], classes=0)
    >>> jax.tree.map(lambda a: a.shape, doses.x), doses.y.tolist()
    ({'age': (1, 2, 1), 'scan': (1, 2, 8, 8)}, [[0.5, 1.5]])
    """
    if len(xs) != len(ys):
        raise ValueError(f"xs and ys must have one entry per client, got {len(xs)} and {len(ys)}")
    if len(xs) == 0:
        raise ValueError("xs is empty: at least one client is needed")
    classes = _classes(classes, class_names)
    checked: dict[int, _Checked] = {}
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if _is_empty(x, y):
            if allow_empty:
                continue
            raise ValueError(f"client {i} (of {len(xs)}) has no examples: remove it, or give it at least one")
        client = _checked(x, y, f" of client {i}", classes, class_names, keep_integers)
        for a, name in zip(client.x, client.names):
            if len(a) != len(client.y):
                raise ValueError(f"{name} of client {i} has {len(a)} examples, but its y has {len(client.y)} labels")
        j = min(checked, default=i)
        _check_alike(client, checked.get(j, client), i, j)
        checked[i] = client
    if not checked:
        raise ValueError("no client has any examples: at least one must have some")
    like = next(iter(checked.values()))
    clients = [checked.get(i, like.rows(slice(0, 0))) for i in range(len(xs))]
    return _pack(clients, [c.y for c in clients], like, classes, ids, lambda i: f"client {i}", allow_empty)


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


def _from_pool(
    x: Any, y: Any, indices: Sequence[Any], classes: Any, class_names: Any, integers: bool, empty: bool, name: Name
) -> Data:
    """`from_indices`, with `name(i)` for client i in messages."""
    classes = _classes(classes, class_names)
    pool = _checked(x, y, "", classes, class_names, integers)
    for a, what in zip(pool.x, pool.names):
        if len(a) != len(pool.y):
            raise ValueError(f"{what} has {len(a)} examples (shape {list(a.shape)}), but y has {len(pool.y)} labels")
    if len(indices) == 0:
        raise ValueError("indices is empty: at least one client is needed")
    rows = [_rows(r, len(pool.y), f"indices of {name(i)}") for i, r in enumerate(indices)]
    return _pack((pool.rows(r) for r in rows), [pool.y[r] for r in rows], pool, classes, None, name, empty)


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
    [[1, 0], [1, 0]]
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
    (['Bern', 'Lyon'], [1, 3], [[0, 0, 0], [1, 0, 1]])
    >>> test, _ = data.from_table(np.eye(4)[:2], [1, 0], ["Lyon", "Bern"], classes=train.classes, names=names)
    >>> data.check_pair(train, test)
    """
    found, rows = partition.by_name(client, "client")
    for a in jax.tree.leaves(x, is_leaf=lambda a: not _is_tree(a)):
        if sum(map(len, rows)) != len(a):
            raise ValueError(f"client has {sum(map(len, rows))} rows, but x has {len(a)}")
    if names is not None:
        without = [name for name in names if name not in found] if allow_empty else []
        partition.match_names(list(names), found + without, "names", "client")
        rows = [rows[found.index(name)] if name in found else np.zeros(0, np.int64) for name in names]
        found = list(names)
    options = (classes, class_names, keep_integers, allow_empty)
    return _from_pool(x, y, rows, *options, lambda i: f"client {found[i]!r}"), found


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


def hold_out(data: Data, share: float, *, seed: int) -> tuple[Data, Data]:
    """Splits each client's examples at random, for choices that must not look at the test data.

    Args:
        data: of all clients, not placed yet.
        share: of each client's examples in the second part, between 0 and 1; rounded, and at least one in each part. A
            client with a single example keeps it in the first part.
        seed: seed of the split.

    Returns:
        Two `Data` of the same clients. In the second, some may have no examples, and thus NaN in every metric.

    Raises:
        ValueError: the share is not between 0 and 1, or no client has two examples.

    >>> from fedamp_jax import data
    >>> train, test, groups = data.federation("digits")
    >>> part, validation = data.hold_out(train, 0.2, seed=0)
    >>> train.size.tolist()[::7], part.size.tolist()[::7], validation.size.tolist()[::7]
    ([70, 60, 40], [56, 48, 32], [14, 12, 8])
    """
    if not 0 < share < 1:
        raise ValueError(f"share must be between 0 and 1, got {share}")
    sizes = np.asarray(data.size)
    if (sizes < 2).all():
        raise ValueError("no client has two examples: nothing can be held out")
    held = np.minimum(np.maximum(np.round(share * sizes).astype(int), 1), np.maximum(sizes - 1, 0))
    rng = np.random.default_rng(seed)
    orders = [rng.permutation(n) for n in sizes]
    x, y = jax.tree.map(np.asarray, (data.x, data.y))

    def part(rows: list[np.ndarray]) -> Data:
        made = from_lists([jax.tree.map(lambda a, i=i, r=r: a[i][r], x) for i, r in enumerate(rows)],
                          [y[i][r] for i, r in enumerate(rows)], classes=np.asarray(data.classes),
                          keep_integers=True, allow_empty=True)  # fmt: skip
        return made._replace(id=data.id, online=data.online)

    kept = [order[h:] for order, h in zip(orders, held, strict=True)]
    return part(kept), part([order[:h] for order, h in zip(orders, held, strict=True)])


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
