"""Federations that other libraries have written, client for client and example for example.

Nothing of these libraries is needed, nothing that their files hold is executed, and each file is read once.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from fedamp_jax.checks import check_choice
from fedamp_jax.data import tables
from fedamp_jax.data.checks import Examples, check_alike, check_examples, check_pair
from fedamp_jax.data.federations import Federation
from fedamp_jax.data.sources import Source
from fedamp_jax.data.stack import Classes, check_rows, pack, pack_lists
from fedamp_jax.data.unpickle import read_object, read_pickle
from fedamp_jax.files import local_path
from fedamp_jax.types import Data

Folder = str | os.PathLike[str]


def from_pfllib(
    folder: Folder, *, classes: int | None = None, channels_first: bool | None = None, keep_integers: bool = False
) -> Federation:
    """Reads the clients that PFLlib's `generate_NAME.py` has written.

    The layout is that of PFLlib's commit d832e76: `train/0.npz`, `train/1.npz`, ..., `test/0.npz`, ..., each a pickled
    dictionary of `x` and `y`, and `config.json`, which the script for Shakespeare does not write. Values stay as they
    are: PFLlib's images are float32 in -1..1, 4 bytes for each value, where those of `load` are uint8.

    Args:
        folder: PFLlib's `dataset/NAME`.
        classes: number of classes. None: `num_classes` of `config.json`; without that file the highest label plus 1.
        channels_first: whether x with four axes is `[n, channels, height, width]`, as torch has it; the channels then
            become the last axis, as the package's models expect: `[n, height, width, channels]`. Other x stay as they
            are. None: yes, but an x whose last axis looks like the channels is refused.
        keep_integers: as in `from_lists`, for texts, whose x are numbers of words or letters. If each example is a pair
            of words and their number, as of AG News, x becomes a tuple of two arrays, `[n, words]` and `[n]`.

    Returns:
        A `Federation` without groups. The clients are in the order of their numbers, which are their ids.

    Raises:
        FileNotFoundError: if the folder has no such files.
        ValueError: if a client is only in one of `train` and `test`, there are more or fewer clients than `config.json`
            says, a file holds anything that would have to be executed, a label is out of range, or x looks like
            channels last.
        TypeError, ValueError: as `from_lists`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from fedamp_jax import data
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for part in ("train", "test"):
    ...         Path(folder, part).mkdir()
    ...         for i in range(2):
    ...             client = {"x": np.zeros((3, 1, 28, 28), np.float32), "y": np.array([0, i, 2])}
    ...             np.savez_compressed(Path(folder, part, f"{i}.npz"), data=np.array(client))
    ...     train, test, _ = data.from_pfllib(folder)
    >>> train.x.shape, train.y.tolist(), train.classes.tolist()
    ((6, 28, 28, 1), [0, 0, 2, 0, 1, 2], [3, 3])
    """
    folder = local_path(folder, "folder")
    numbers = [
        {int(path.stem) for path in folder.glob(f"{part}/*.npz") if re.fullmatch("0|[1-9][0-9]*", path.stem)}
        for part in ("train", "test")
    ]
    if not any(numbers):
        raise _not_found(folder, "PFLlib's files train/0.npz, train/1.npz, ... and test/0.npz, test/1.npz, ...")
    for i in sorted(numbers[0] ^ numbers[1]):
        here, there = ("train", "test") if i in numbers[0] else ("test", "train")
        raise ValueError(f"{folder} has {here}/{i}.npz, but no {there}/{i}.npz: each client needs both")
    ids = sorted(numbers[0])
    config = _read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    if len(ids) != config.get("num_clients", len(ids)):
        raise ValueError(
            f"{folder / 'config.json'} is of {config['num_clients']} clients, but train and test have {len(ids)}, "
            f"numbers {ids[0]} to {ids[-1]}: copy what is missing, or remove what is left of an earlier partition"
        )
    classes = config.get("num_classes") if classes is None else classes

    def part(name: str) -> Data:
        clients = [_pfllib_client(folder / name / f"{i}.npz", channels_first) for i in ids]
        xs, ys = zip(*clients, strict=True)
        return pack_lists(xs, ys, classes, ids, None, keep_integers, False, lambda i: f"client {ids[i]} of {name}")

    return _pair(part("train"), part("test"))


def _pfllib_client(path: Path, channels_first: bool | None) -> tuple[Any, Any]:
    """x and y of one file."""
    client = read_object(path, "data")
    if not isinstance(client, Mapping) or not {"x", "y"} <= {*client}:
        raise ValueError(f"{path} must hold a dictionary of 'x' and 'y', but its 'data' is {_kind(client)}")
    x = tables.to_array(client["x"], f"x of {path}").view(np.ndarray)
    if x.dtype == object and x.ndim == 2 and x.shape[1] == 2:  # texts: words, and their number
        return tuple(tables.to_array(column.tolist(), f"x of {path}") for column in x.T), client["y"]
    if x.ndim != 4 or channels_first is False:
        return x, client["y"]
    if channels_first is None and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        raise ValueError(
            f"x of {path} has shape {list(x.shape)}, whose channels look like the last axis: give channels_first=False "
            "to leave them there, or True if they are the second"
        )
    return np.moveaxis(x, 1, 3), client["y"]


def from_flbench(folder: Folder, source: Source, *, held_out: str = "test") -> Federation:
    """Reads the clients that FL-bench's `generate_data.py` has made of a data set of torchvision.

    The layout is that of FL-bench's commit 06e658b: `partition.pkl` has for each client the indices `train`, `val` and
    `test` into the training set of torchvision followed by its test set. `all_stats.json` and `args.json` beside it,
    if they are there, tell whether `source` is what was divided: the numbers of each client's labels must agree.
    (FL-bench counts other examples than it takes if it divides a part of them evenly, `--iid`; they are not compared
    then.)

    Args:
        folder: FL-bench's `data/NAME`.
        source: the examples, such as `load("cifar10")`, uint8 and not normalized. With FL-bench's `--super_class 1`,
            `source._replace(y_train=..., y_test=..., classes=20)` with the labels that it numbers so.
        held_out: `"test"`, or `"val"` for choices that must not use the test data: the part that becomes `test` of the
            federation. The other one is in neither.

    Returns:
        A `Federation` without groups. The clients are in FL-bench's order, and their ids are its numbers. If it divided
        by users (`--split user`), clients without training examples are offline, and those without any in `held_out`
        NaN in every metric.

    Raises:
        FileNotFoundError: if the folder has no `partition.pkl`.
        TypeError: if `source` is none, such as Omniglot, which has no split.
        ValueError: if the file holds something else than such indices, or anything that would have to be executed; if
            an index is out of range, no client has examples in a part, or labels do not agree.

    >>> import pickle, tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from fedamp_jax import data
    >>> digits = data.load("digits")  # 1297 examples for training: 1296 is the last one, 1297 the first for testing
    >>> indices = [{"train": np.array([1297, 5]), "val": np.array([]), "test": np.array([1296])}] * 2
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     content = {"separation": {"train": [0, 1], "test": [0, 1], "total": 2}, "data_indices": indices}
    ...     _ = Path(folder, "partition.pkl").write_bytes(pickle.dumps(content))
    ...     train, test, _ = data.from_flbench(folder, digits)
    >>> bool((train.examples(1)[0][0] == digits.x_test[0]).all()), train.size.tolist(), test.size.tolist()
    (True, [2, 2], [1, 1])
    """
    check_choice("held_out", held_out, ("test", "val"))
    if not isinstance(source, Source):
        raise TypeError(f"source must be a Source, such as fedamp_jax.data.load('mnist'), got {_kind(source)}")
    folder = local_path(folder, "folder")
    path = folder / "partition.pkl"
    if not path.is_file():
        raise _not_found(folder, "FL-bench's file partition.pkl")
    content = read_pickle(path)
    clients = content.get("data_indices") if isinstance(content, Mapping) else None
    if not isinstance(clients, Sequence) or not clients or not all(isinstance(c, Mapping) for c in clients):
        raise ValueError(
            f"{path} must have a list 'data_indices' of a dictionary for each client, got {_kind(content)}"
        )
    total = (content.get("separation") or {}).get("total", len(clients))
    if total != len(clients):
        raise ValueError(f"{path} has the indices of {len(clients)} clients, but says that there are {total}")
    halves = [
        check_examples(x, y, f" of the {of} set", source.classes, None, False)
        for x, y, of in ((source.x_train, source.y_train, "training"), (source.x_test, source.y_test, "test"))
    ]
    check_alike(halves[1], halves[0], "the test set", "the training set")
    y = np.concatenate([half.y for half in halves])
    rows = {
        name: [check_rows(c.get(name, ()), len(y), f"{name} indices of client {i}") for i, c in enumerate(clients)]
        for name in ("train", "val", "test")
    }
    _check_labels(folder, rows, y)

    def part(name: str) -> Data:
        if not any(map(len, rows[name])):
            hint = (
                "divide with --val_ratio, or hold out with fedamp_jax.data.hold_out" if name == "val" else "divide anew"
            )
            raise ValueError(f"{path} has no {name!r} indices for any client: {hint}")
        own = (_of_both(halves, r) for r in rows[name])
        return pack(own, [y[r] for r in rows[name]], halves[0], source.classes, None, lambda i: f"client {i}", True)

    return _pair(part("train"), part(held_out))


def _of_both(halves: Sequence[Examples], rows: np.ndarray) -> Examples:
    """The examples `rows` of two sets, one after the other, which are not copied together for that."""
    first, second = halves
    late = rows >= len(first.y)
    y, *x = (np.empty((len(rows), *a.shape[1:]), a.dtype) for a in (first.y, *first.x))
    for out, a, b in zip((y, *x), (first.y, *first.x), (second.y, *second.x), strict=True):
        out[~late], out[late] = a[rows[~late]], b[rows[late] - len(first.y)]
    return first._replace(x=x, y=y)


def _check_labels(folder: Path, rows: Mapping[str, Sequence[np.ndarray]], y: np.ndarray) -> None:
    """Whether each client has the labels that FL-bench has counted: another data set may have as many examples."""
    stats, args = folder / "all_stats.json", folder / "args.json"
    if not stats.is_file() or not args.is_file() or _read_json(args).get("IID_ratio"):
        return
    stats = _read_json(stats)
    for i, parts in enumerate(zip(*rows.values(), strict=True)):
        counted = stats[str(i)].get("y") if isinstance(stats.get(str(i)), Mapping) else None
        if not isinstance(counted, Mapping):
            continue
        wanted = {label: count for label, count in counted.items() if count}
        found = {str(label): count for label, count in Counter(y[np.concatenate(parts)].tolist()).items()}
        if found != wanted:
            raise ValueError(
                f"client {i} has the labels {dict(sorted(found.items()))}, but FL-bench counted "
                f"{dict(sorted(wanted.items()))}: source must be the data set that was divided, with its examples in "
                "torchvision's order"
            )


def from_leaf(
    folder: Folder,
    *,
    shape: Sequence[int] | None = None,
    encode: Callable[[list[Any]], Any] | None = None,
    classes: Classes = None,
    class_names: Sequence[Any] | None = None,
    keep_integers: bool = False,
) -> tuple[Federation, list[str]]:
    """Reads the clients that LEAF's `preprocess.sh` has written, its users.

    The layout is that of LEAF's commit 09ec454: `train/*.json` and `test/*.json`, each with `users` and `user_data`.
    (Their `num_samples` are not looked at: those of LEAF's Shakespeare are too high for the test data.) The numbers of
    one file become arrays before the next one is read.

    Args:
        folder: LEAF's `data/NAME/data`.
        shape: of an example whose numbers are in one row, such as `(28, 28)` for FEMNIST. None: as it is in the file.
        encode: makes arrays of one user's list `x`, if these are no numbers but text (Shakespeare, Sent140) or names of
            files (CelebA).
        classes: as in `from_lists`. None: the highest label of both parts plus 1.
        class_names, keep_integers: as in `from_lists`. LEAF's Shakespeare has letters as labels.

    Returns:
        `(federation, names)`: client i is the user `names[i]`, in the order of LEAF, in which names are sorted as text.
        If LEAF divided by users, those of `train` are NaN in every metric, and those of `test` are offline.

    Raises:
        FileNotFoundError: if `train` or `test` has no such files.
        TypeError, ValueError: as `from_lists`; also if a file has no users, or a user is in two files of a part.

    >>> import json, tempfile
    >>> from pathlib import Path
    >>> from fedamp_jax import data
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for part in ("train", "test"):
    ...         Path(folder, part).mkdir()
    ...         user = {"x": [[0.0] * 784, [0.5] * 784], "y": [3, 61]}
    ...         content = {"users": ["f0001_41"], "num_samples": [2], "user_data": {"f0001_41": user}}
    ...         _ = Path(folder, part, "all_data_0.json").write_text(json.dumps(content))
    ...     (train, test, _), names = data.from_leaf(folder, shape=(28, 28))
    >>> names, train.x.shape, train.classes.tolist()
    (['f0001_41'], (2, 28, 28), [62])
    """
    folder = local_path(folder, "folder")
    users = {name: _leaf_users(folder, name, shape, encode) for name in ("train", "test")}
    names = sorted(users["train"] | users["test"])

    def part(name: str) -> Data:
        xs, ys = zip(*(users[name].get(user, ((), ())) for user in names), strict=True)
        options = (classes, None, class_names, keep_integers, True)
        return pack_lists(xs, ys, *options, lambda i: f"client {names[i]!r} of {name}")

    return _pair(part("train"), part("test")), names


def _leaf_users(folder: Path, part: str, shape: Any, encode: Any) -> dict[str, tuple[Any, Any]]:
    """`{user: (x, y)}` of all files of a part."""
    paths = sorted((folder / part).glob("*.json"))
    if not paths:
        raise _not_found(folder, "LEAF's files train/*.json and test/*.json")
    users: dict[str, tuple[Any, Any]] = {}
    for path in paths:
        content = _read_json(path)
        found = content.get("user_data")
        if not isinstance(found, Mapping) or {*content.get("users", ())} != {*found}:
            raise ValueError(f"{path} must have 'users' and the 'user_data' of each of them, got {_kind(content)}")
        for user, own in found.items():
            if user in users:
                raise ValueError(f"{path} has the user {user!r}, whom another file of {part} has: remove one of them")
            if not isinstance(own, Mapping) or not {"x", "y"} <= {*own}:
                raise ValueError(f"{path} must have 'x' and 'y' of the user {user!r}, got {_kind(own)}")
            users[user] = _leaf_array(own["x"], f"x of {user!r} in {path}", shape, encode), own["y"]
    return users


def _leaf_array(x: Any, what: str, shape: Sequence[int] | None, encode: Callable[[list[Any]], Any] | None) -> Any:
    """The examples of one user. Floats become float32 at once: those of JSON have twice as many digits."""
    if encode is not None:
        x = encode(x)
        if shape is None:  # perhaps several inputs
            return x
    x = tables.to_array(x, what)
    if (text := tables.text_in(x)) is not None:
        raise TypeError(
            f"{what} is text, such as {text[:40]!r}: give encode=, a function that makes an array of a list"
        )
    if x.dtype == np.float64:
        with np.errstate(over="ignore"):  # inf is refused later
            x = x.astype(np.float32)
    if shape is None or not len(x):
        return x
    if x[0].size != np.prod(shape):
        raise ValueError(f"{what} has examples of shape {list(x.shape[1:])}, which cannot be given the shape {shape}")
    return x.reshape(len(x), *shape)


def _pair(train: Data, test: Data) -> Federation:
    """Both, with the classes of both where they follow from the labels."""
    classes = jnp.maximum(train.classes, test.classes)
    train, test = train._replace(classes=classes), test._replace(classes=classes)
    check_pair(train, test)
    return Federation(train, test, None)


def _read_json(path: Path) -> Any:
    """A dictionary."""
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is damaged, or no JSON: {error}") from None
    if not isinstance(content, Mapping):
        raise ValueError(f"{path} must hold a dictionary, got {_kind(content)}")
    return content


def _kind(value: Any) -> str:
    """What a value is, for messages."""
    if isinstance(value, Mapping):
        return f"a dictionary of {', '.join(map(repr, list(value)[:6])) or 'nothing'}"
    return f"a {type(value).__name__}"


def _not_found(folder: Path, wanted: str) -> FileNotFoundError:
    """What is said of a folder that is not as it should be."""
    if not folder.is_dir():
        return FileNotFoundError(f"{folder} is no folder: give one that has {wanted}")
    found = sorted(path.relative_to(folder).as_posix() for pattern in ("*", "*/*") for path in folder.glob(pattern))
    listed = ", ".join([*found[:8], *[f"and {len(found) - 8} more"] * (len(found) > 8)]) or "nothing"
    return FileNotFoundError(f"{folder} must have {wanted}, but it has {listed}")
