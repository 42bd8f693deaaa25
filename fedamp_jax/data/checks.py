"""One client's examples, or a pool of them, checked and in the dtypes that `Data` can have.

The checks are NumPy's: inside a compiled round, a label out of range or a NaN in x cannot raise an error and would only
give wrong numbers.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedamp_jax.data import tables
from fedamp_jax.layout import positions
from fedamp_jax.programs.memory import of_machine, readable
from fedamp_jax.types import Data

INT32_MAX = np.iinfo(np.int32).max


class Examples(NamedTuple):
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

    def rows(self, rows: Any) -> "Examples":
        return self._replace(x=[a[rows] for a in self.x], y=self.y[rows])


def _features(x: Any, what: str, keep_integers: bool = False) -> np.ndarray:
    """Returns `x` as uint8 or finite float32, or with `keep_integers` as int32: the dtypes that `Data.x` can have."""
    x = tables.to_array(x, what)
    if x.ndim == 0:
        raise ValueError(f"{what} must have an example axis, got the single number {x}")
    if x.dtype == np.uint8:
        return x
    if x.dtype.kind not in "biuf" and not jnp.issubdtype(x.dtype, jnp.floating):  # bfloat16's kind is "V"
        raise TypeError(f"{what} must be uint8 or numbers that can be converted to float32, got {tables.kind_of(x)}")
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


def is_tree(x: Any) -> bool:
    """Whether x holds several inputs: a dictionary, or a tuple of arrays. Lists are arrays to be."""
    return isinstance(x, dict) or (isinstance(x, tuple) and any(_is_array(a) or is_tree(a) for a in x))


def _is_array(a: Any) -> bool:
    return hasattr(a, "shape") or tables.is_column(a) or tables.is_table(a)


def _inputs(x: Any, of: str, keep_integers: bool) -> tuple[list[np.ndarray], Any, list[str]]:
    """The arrays of x, their structure, and what messages call them; `of`: whose they are."""
    leaves, tree = jax.tree_util.tree_flatten_with_path(tables.with_dictionaries(x), is_leaf=lambda a: not is_tree(a))
    names = [f"x{jax.tree_util.keystr(path)}" for path, _ in leaves]
    if not names:
        raise ValueError(f"x{of} is an empty {type(x).__name__}: give at least one array")
    return [_features(a, f"{n}{of}", keep_integers) for n, (_, a) in zip(names, leaves)], tree, names


def are_targets(classes: Any) -> bool:
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
    class_names = tables.to_list(class_names, "class_names")
    position = {name: i for i, name in enumerate(class_names)}
    if len(position) < len(class_names):
        raise ValueError(f"class_names lists a name twice: {class_names}")
    labels = tables.to_list(y, what)
    for i, label in enumerate(labels):
        if tables.is_missing(label):
            raise ValueError(f"{what} has no label in row {i} ({label!r}): fill it in, or drop the row")
        try:
            known = label in position
        except TypeError:
            raise ValueError(f"{what} must have shape [n], one name per example, got {label!r} in row {i}") from None
        if not known:
            raise ValueError(f"{what} has the label {label!r}, which is not in class_names {class_names}")
    return np.array([position[label] for label in labels], np.int64)


def _labels(y: Any, what: str) -> np.ndarray:
    """Returns `y` as non-negative integers `[n]` of its own dtype; the range is checked before they become int32."""
    y = tables.to_array(y, what)
    text = tables.text_in(y)
    if text is not None:
        raise TypeError(
            f"{what} must hold integer labels, got names such as {text!r}: give class_names, "
            "the same list for training and test data"
        )
    if y.dtype.kind == "f" and (missing := np.argwhere(np.isnan(y))).size:
        raise tables.missing_in(what, missing[0].tolist())
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


def check_examples(x: Any, y: Any, of: str, classes: Any, class_names: Any, keep_integers: bool) -> Examples:
    """Inputs and targets of one client, or of a pool; `of`: whose they are, for messages."""
    leaves, tree, names = _inputs(x, of, keep_integers)
    y = _by_name(y, class_names, f"y{of}")
    return Examples(leaves, (_targets if are_targets(classes) else _labels)(y, f"y{of}"), tree, names)


def is_empty(x: Any, y: Any) -> bool:
    """Whether a client has no examples: NumPy makes an empty list float64, so it is asked before dtypes are checked."""
    leaves = jax.tree.leaves(tables.with_dictionaries(x), is_leaf=lambda a: not is_tree(a))
    return all(map(tables.is_empty, (y, *leaves)))


def check_alike(client: Examples, first: Examples, i: str, j: str) -> None:
    """Checks examples against those of the first client that has any; `i`, `j`: whose they are, for messages."""
    if client.tree != first.tree:
        raise ValueError(f"x of {i} is {client.tree}, but x of {j} is {first.tree}: give all the same inputs")
    for a, b, name in zip((*client.x, client.y), (*first.x, first.y), (*client.names, "y"), strict=True):
        inside = "" if name == "x" else f" in {name}"
        if a.shape[1:] != b.shape[1:]:
            raise ValueError(
                f"an example of {i} has shape {list(a.shape[1:])}{inside}, but one of {j} has {list(b.shape[1:])}: "
                "give all clients the same shape"
            )
        if a.dtype != b.dtype and name != "y":
            raise TypeError(
                f"{name} of {i} is {a.dtype}, but {name} of {j} is {b.dtype}: models scale uint8 to 0..1 and leave "
                "floats unchanged, so convert all clients to the same dtype"
            )


def check_fits(like: Examples, total: int, size: np.ndarray, name: Callable[[int], str]) -> None:
    """Checks that all clients' examples fit into this machine's memory, before they are copied.

    Args:
        like: an example's shapes and dtypes.
        total: number of examples.
        size: `[M]`, of each client.
        name: `i -> name` of client i.

    Raises:
        MemoryError: if they do not; it names the largest clients.
    """
    each = sum(math.prod(a.shape[1:]) * a.itemsize for a in like.x) + 4 * math.prod(like.y.shape[1:])
    needed, free = total * each, of_machine().free
    if needed <= free:
        return
    largest = ", ".join(f"{name(i)} with {size[i]}" for i in np.argsort(-size, kind="stable")[:3].tolist())
    raise MemoryError(
        f"{len(size)} clients have {total} examples of {readable(each)}, {readable(needed)} in all, but this machine "
        f"has {readable(free)} of free memory. The largest are {largest}. Give images as uint8, which takes a quarter "
        "of float32; leave out clients, or examples of the largest; or let each of several processes bring its own "
        "clients (fedamp_jax.launch)"
    )


def _check_rows(data: Data, name: str) -> None:
    """Checks the arrays against each other: `Data` made by hand or with `_replace` can be inconsistent."""
    y, size, classes, online = (np.asarray(a) for a in (data.y, data.size, data.classes, data.online))
    targets = y.dtype == np.float32 and not classes.any()
    if not (y.dtype.kind in "iu" or targets) or online.dtype != bool:
        raise TypeError(
            f"{name}.y must be int32 labels, or float32 with classes 0, and {name}.online bool, got {y.dtype} and "
            f"{online.dtype}"
        )
    m, n = len(size), len(y)
    lengths = {field: len(getattr(data, field)) for field in ("start", "size", "classes", "id", "online")}
    if set(lengths.values()) != {m} or any(len(a) != n for a in jax.tree.leaves(data.x)):
        raise ValueError(
            f"start, size, classes, id and online of {name} must be of the same clients, and x and y of the same "
            f"examples: got x {_shapes(data.x)}, y {list(y.shape)}, lengths {lengths}"
        )
    start, total = np.asarray(data.start), np.asarray(data.views[0].total if data.views else size)
    for i in np.flatnonzero((size < 0) | (start < 0) | (start + total > n) | (size > data.longest)):
        raise ValueError(
            f"client {i} of {name} has start {start[i]} and size {size[i]}, but there are {n} examples, and longest is "
            f"{data.longest}: take clients with data.select(positions), which leaves x and y as they are"
        )
    if targets:
        return
    labels, of = y[positions(data)], np.repeat(np.arange(m), size)
    for i in of[(labels < 0) | (labels >= classes[of])]:
        own = labels[of == i]
        raise ValueError(
            f"client {i} has labels {own.min()} to {own.max()} in {name}, but {classes[i]} classes: labels must "
            "be in 0..classes-1"
        )


def _shapes(x: Any, first: int = 0) -> Any:
    """The shapes of x, from axis `first` on: a list, or a tree of lists."""
    return jax.tree.map(lambda a: list(a.shape[first:]), x)


def _example(x: Any) -> Any:
    """The kind of an example for messages, such as `float32 [3]`."""
    return jax.tree.map(lambda a: f"{a.dtype} {list(a.shape[1:])}", x)


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
    if train.y.shape[1:] != test.y.shape[1:]:
        raise ValueError(
            f"a target has shape {list(train.y.shape[1:])} in train and {list(test.y.shape[1:])} in test: give both "
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
