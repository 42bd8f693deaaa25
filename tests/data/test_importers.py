"""Federations in other libraries' files, written here by the description of their formats: sample for sample ours."""

import itertools
import json
import os
import pickle
import re
import tracemalloc
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import data
from fedamp_jax.data import importers

DIGITS = data.load("digits")
TRAIN, TEST, _ = data.federation("digits")  # 20 clients: 10 comes before 2 as text
LATE = len(DIGITS.y_train)  # the first index of a test example, where both sets are one


def write_pfllib(folder, x=lambda images: (images / np.float32(127.5) - 1)[:, None], y=np.int64, **config):
    """Our clients as PFLlib has them: channels first, -1..1, each in a pickle in an npz."""
    for part, clients in (("train", TRAIN), ("test", TEST)):
        (folder / part).mkdir(parents=True)
        for i in range(clients.clients):
            images, labels = (np.asarray(a) for a in clients.examples(i))
            content = {"x": x(images), "y": labels.astype(y)}
            np.savez_compressed(folder / part / f"{i}.npz", data=content)
    usual = {"num_clients": 20, "num_classes": 10, "non_iid": True, "balance": False, "partition": "dir", "alpha": 0.1}
    (folder / "config.json").write_text(json.dumps(usual | config))
    return folder


def divided():
    """For FL-bench: 20 clients, whose indices go over both sets."""
    rng = np.random.default_rng(0)
    order = np.array_split(rng.permutation(LATE + len(DIGITS.y_test)).astype(np.int32), 20)
    return [{"train": r[30:], "val": r[20:30], "test": r[:20]} for r in order]


def write_flbench(folder, clients=None, stats=None, **args):
    """A partition, what is counted of it, and the arguments."""
    clients = divided() if clients is None else clients
    numbers = list(range(len(clients)))
    content = {"separation": {"train": numbers, "val": numbers, "test": numbers, "total": len(clients)}}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "partition.pkl").write_bytes(pickle.dumps(content | {"data_indices": clients}))
    (folder / "args.json").write_text(json.dumps({"client_num": len(clients), "IID_ratio": 0.0} | args))
    if stats is None:
        stats = {i: {"x": sum(map(len, c.values())), "y": counts(np.concatenate([*c.values()]))}
                 for i, c in enumerate(clients)}  # fmt: skip
    (folder / "all_stats.json").write_text(json.dumps(stats | {"samples_per_client": {"mean": 1.0}}))
    return folder


def counts(rows):
    """The labels of examples, each with its number; those without are 0, as where FL-bench adds two divisions."""
    labels = np.concatenate([DIGITS.y_train, DIGITS.y_test])[rows]
    return {c: int((labels == c).sum()) for c in range(10)}


NAMES = [f"f{i:04d}_{i % 3}" for i in range(20, 0, -1)]  # not sorted


def write_leaf(folder, users=None, x=lambda images: (images / 255).reshape(len(images), -1).tolist()):
    """Our clients as LEAF's users, in two files of each part; `users`: others, `{part: [(file, user, x, y)]}`."""
    for part, clients in (("train", TRAIN), ("test", TEST)):
        (folder / part).mkdir(parents=True)
        found = [(i % 2, NAMES[i], x(np.asarray(a)), np.asarray(b).tolist())
                 for i, (a, b) in enumerate(map(clients.examples, range(20)))]  # fmt: skip
        for number in (0, 1):
            own = {user: {"x": a, "y": b} for k, user, a, b in (users[part] if users else found) if k == number}
            content = {"users": [*own], "num_samples": [10_000] * len(own), "user_data": own}
            (folder / part / f"all_data_{number}_niid_0_keep_0_{part}_9.json").write_text(json.dumps(content))
    return folder


def same(found, wanted, order=None):
    """The same clients with the same examples, values and dtypes."""
    order = np.arange(wanted.clients) if order is None else order
    assert found.size.tolist() == wanted.size[np.asarray(order)].tolist() and found.clients == len(order)
    for i, j in enumerate(order):
        for a, b in zip(found.examples(i), wanted.examples(int(j)), strict=True):
            assert a.dtype == b.dtype and np.array_equal(a, b), (i, j)


def as_given(wanted, x):
    """Our clients with other values of x."""
    return wanted._replace(x=jax.numpy.asarray(x(np.asarray(wanted.x)), np.float32))


@pytest.mark.parametrize("config", [True, False], ids=["config", "no config"])
@pytest.mark.slow_variants
def test_pfllib_sample_for_sample(config, tmp_path):
    """Failed in the order of the files' names, and with the channels where they were."""
    folder = write_pfllib(tmp_path)
    if not config:
        (folder / "config.json").unlink()
    train, test, groups = data.from_pfllib(folder)
    for found, wanted in ((train, TRAIN), (test, TEST)):
        same(found, as_given(wanted, lambda x: (x / np.float32(127.5) - 1)[..., None]))
        assert found.id.tolist() == list(range(20)) and found.classes.tolist() == [10] * 20
    assert groups is None and train.x.shape[1:] == (8, 8, 1) and train.x.dtype == np.float32


def test_pfllib_numbers_are_ids(tmp_path):
    """Of a part of the clients; failed as 0, 1, 2, ..., so that they drew other random numbers."""
    folder = write_pfllib(tmp_path, num_clients=4)
    for part, i in itertools.product(("train", "test"), range(20)):
        if i not in (2, 3, 10, 19):
            (folder / part / f"{i}.npz").unlink()
    train, _, _ = data.from_pfllib(folder)
    assert train.id.tolist() == [2, 3, 10, 19]
    same(train, as_given(TRAIN, lambda x: (x / np.float32(127.5) - 1)[..., None]), [2, 3, 10, 19])


def test_pfllib_channels(tmp_path):
    """Moved where they are first; else as they are, or refused. Failed as images of 8 channels without a word."""
    last = write_pfllib(tmp_path / "last", x=lambda images: images[..., None])
    with pytest.raises(ValueError, match=r"train/0\.npz has shape \[70, 8, 8, 1\].*give channels_first=False"):
        data.from_pfllib(last)
    assert data.from_pfllib(last, channels_first=False).train.x.shape[1:] == (8, 8, 1)
    assert data.from_pfllib(last, channels_first=True).train.x.shape[1:] == (8, 1, 8)
    for name, x in (("flat", lambda a: a.reshape(len(a), -1)), ("grey", lambda a: a)):
        train, _, _ = data.from_pfllib(write_pfllib(tmp_path / name, x=x))
        assert train.x.dtype == np.uint8 and train.x.shape[1:] == x(np.zeros((1, 8, 8))).shape[1:]
        assert np.array_equal(np.asarray(train.x).reshape(TRAIN.x.shape), TRAIN.x)


def test_pfllib_texts(tmp_path):
    """Pairs of words and their number, as of AG News, are two inputs. Failed as an array of objects."""
    pairs = write_pfllib(tmp_path / "pairs", x=lambda images: np.array([(a[0].tolist(), 7) for a in images], object))
    train, _, _ = data.from_pfllib(pairs, keep_integers=True)
    assert [a.dtype for a in train.x] == [np.int32, np.int32] and train.x[1].tolist() == [7] * len(train.y)
    assert np.array_equal(train.x[0], TRAIN.x[:, 0])
    letters = write_pfllib(tmp_path / "letters", x=lambda images: images[:, 0].astype(np.int64))
    assert data.from_pfllib(letters, keep_integers=True).train.x.dtype == np.int32
    matrix = write_pfllib(tmp_path / "matrix", x=lambda images: images[:, 0].astype(np.float32).view(np.matrix))
    assert np.array_equal(data.from_pfllib(matrix).train.x, TRAIN.x[:, 0])


@pytest.mark.parametrize("held_out", ["test", "val"])
def test_flbench_sample_for_sample(held_out, tmp_path):
    """Failed with the first test example taken from the training set, and with `test` as `val`."""
    pool = np.concatenate([DIGITS.x_train, DIGITS.x_test]), np.concatenate([DIGITS.y_train, DIGITS.y_test])
    train, test, groups = data.from_flbench(write_flbench(tmp_path), DIGITS, held_out=held_out)
    for found, part in ((train, "train"), (test, held_out)):
        same(found, data.from_indices(*pool, [c[part] for c in divided()], classes=10))
        assert found.id.tolist() == list(range(20)) and found.x.dtype == np.uint8
    assert groups is None and train.classes.tolist() == test.classes.tolist() == [10] * 20


def test_flbench_divided_by_users(tmp_path):
    """Clients without training examples are offline, and those without test examples stay. Failed as "no examples"."""
    none = np.array([], np.int64)
    clients = [{"train": [0, LATE], "val": none, "test": none}] * 2 + [{"train": none, "val": none, "test": [5]}]
    train, test, _ = data.from_flbench(write_flbench(tmp_path, clients), DIGITS)
    assert train.online.tolist() == [True, True, False] and test.size.tolist() == [0, 0, 1]
    assert np.array_equal(test.examples(2)[0][0], DIGITS.x_train[5])
    older = [{"train": [0], "test": [1]}] * 2  # without validation
    assert data.from_flbench(write_flbench(tmp_path / "older", older), DIGITS).train.size.tolist() == [1, 1]
    with pytest.raises(ValueError, match="no 'val' indices for any client: divide with --val_ratio"):
        data.from_flbench(tmp_path / "older", DIGITS, held_out="val")


def test_flbench_of_another_data_set(tmp_path):
    """Labels other than FL-bench counted are refused. Failed as a federation of images that nobody divided so."""
    folder = write_flbench(tmp_path)
    swapped = DIGITS._replace(y_train=DIGITS.y_train[::-1])
    with pytest.raises(
        ValueError, match=r"client 0 has the labels \{.*\}, but FL-bench counted \{.*torchvision's order"
    ):
        data.from_flbench(folder, swapped)
    write_flbench(folder, IID_ratio=0.5)  # FL-bench's counts are of other examples then
    assert data.from_flbench(folder, swapped).train.clients == 20
    write_flbench(folder, stats={"train": {}, "0": {"x": 1, "y": None}})  # not counted
    assert data.from_flbench(folder, swapped).train.clients == 20


def test_flbench_pool_is_not_copied(tmp_path):
    """A few of many examples take the memory of these. Failed at 80 MB in place of 10 with both sets in one array."""
    x = np.broadcast_to(np.zeros((1000, 10), np.float32), (10_000, 1000, 10))[:, :, :1]
    source = data.Source("mine", x, np.zeros(10_000, int), x, np.zeros(10_000, int), 2)
    folder = write_flbench(tmp_path, [{"train": [1, 10_001], "val": [], "test": [19_999]}] * 2, stats={})
    tracemalloc.start()
    train, _, _ = data.from_flbench(folder, source)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert train.size.tolist() == [2, 2] and peak < 60e6, peak


def test_leaf_sample_for_sample(tmp_path):
    """By the users' sorted names, over two files. Failed in the order of the files, and with the last file alone."""
    (train, test, groups), names = data.from_leaf(write_leaf(tmp_path), shape=(8, 8))
    assert names == sorted(NAMES) and groups is None
    order = [NAMES.index(name) for name in names]
    for found, wanted in ((train, TRAIN), (test, TEST)):
        same(found, as_given(wanted, lambda x: x / 255), order)
        assert found.id.tolist() == list(range(20)) and found.classes.tolist() == [10] * 20
    arrays = importers._leaf_users(tmp_path, "train", None, None).values()  # held until the last file is read
    assert {x.dtype.name for x, _ in arrays} == {"float32"}
    (flat, _, _), _ = data.from_leaf(tmp_path, classes=12)
    assert flat.x.shape == (len(TRAIN.y), 64) and flat.classes.tolist() == [12] * 20


def test_leaf_users_of_one_part(tmp_path):
    """Their metrics are NaN, or they are offline; classes are of both. Failed with the classes of the training data."""
    users = {"train": [(0, "b", [[1, 2]], [0]), (1, "a", [[3, 4]], [1])], "test": [(1, "c", [[5, 6]], [4])]}
    (train, test, _), names = data.from_leaf(write_leaf(tmp_path, users))
    assert names == ["a", "b", "c"] and train.x.tolist() == [[3, 4], [1, 2]] and train.x.dtype == np.float32
    assert train.online.tolist() == [True, True, False] and test.size.tolist() == [0, 0, 1]
    assert train.classes.tolist() == test.classes.tolist() == [5, 5, 5]
    assert data.from_leaf(tmp_path, keep_integers=True)[0].train.x.dtype == np.int32


def test_leaf_texts(tmp_path):
    """Are encoded by a function of the caller, and labels may be letters. Failed as "number the categories"."""
    users = {part: [(0, "ROMEO", ["to be", "or no"], ["a", "b"])] for part in ("train", "test")}
    folder = write_leaf(tmp_path, users)
    with pytest.raises(TypeError, match=r"x of 'ROMEO' in .*json is text, such as 'to be': give encode="):
        data.from_leaf(folder)

    def encode(lines):
        return np.array([[ord(c) for c in line] for line in lines])

    options = {"class_names": ["a", "b", "c"], "keep_integers": True}
    (train, _, _), _ = data.from_leaf(folder, encode=encode, **options)
    assert train.x.tolist() == [[ord(c) for c in line] for line in ("to be", "or no")]
    assert train.y.tolist() == [0, 1] and train.classes.tolist() == [3]
    (train, _, _), _ = data.from_leaf(folder, encode=encode, shape=(5, 1), **options)
    assert train.x.shape == (2, 5, 1)
    (train, _, _), _ = data.from_leaf(folder, encode=lambda x: {"text": encode(x), "length": [5, 5]}, **options)
    assert train.x["length"].tolist() == [5, 5]


def test_a_run_on_imported_clients(tmp_path):
    """Two rounds give what they give on the same arrays in lists."""
    found = data.from_pfllib(write_pfllib(tmp_path))
    own = [
        data.from_lists(*zip(*[(np.asarray(x)[..., None] / np.float32(127.5) - 1, y)
                               for x, y in map(clients.examples, range(20))], strict=True), classes=10)
        for clients in (TRAIN, TEST)
    ]  # fmt: skip
    task = fedamp_jax.models.mlp(10, shape=(8, 8, 1), hidden=(8,))
    method = fedamp_jax.fedavg(task, fedamp_jax.Solver(optax.sgd(0.1), epochs=1, batch_size=32))
    runs = [fedamp_jax.run(task, method, *pair, rounds=2, progress=False) for pair in (found[:2], own)]
    assert runs[0].accuracy.shape == (2, 20) and np.array_equal(runs[0].accuracy, runs[1].accuracy)


WRITERS = {
    "pfllib": (write_pfllib, data.from_pfllib, 41),
    "flbench": (write_flbench, lambda folder: data.from_flbench(folder, DIGITS), 3),
    "leaf": (write_leaf, data.from_leaf, 4),
}


@pytest.mark.parametrize(("write", "read", "files"), WRITERS.values(), ids=WRITERS)
def test_each_file_is_read_once(write, read, files, tmp_path, monkeypatch):
    """Failed where LEAF's were read for each part."""
    folder, opened, usual = write(tmp_path), [], Path.open
    monkeypatch.setattr(Path, "open", lambda path, *args, **kw: (opened.append(path), usual(path, *args, **kw))[1])
    read(folder)
    opened = [path for path in opened if tmp_path in path.parents]
    assert len(opened) == len({*opened}) == files


@pytest.mark.parametrize(("write", "read", "files"), WRITERS.values(), ids=WRITERS)
def test_folders_that_are_none(write, read, files, tmp_path, monkeypatch):
    """Say what was expected and what is there; `~` is the home. Failed as an empty list of clients."""
    (tmp_path / "some").mkdir()
    with pytest.raises(FileNotFoundError, match=r"some must have .* files? .*, but it has nothing"):
        read(tmp_path / "some")
    for i in range(9):
        (tmp_path / "some" / f"{i}.csv").touch()
    with pytest.raises(FileNotFoundError, match=r"but it has 0\.csv, 1\.csv, .* 7\.csv, and 1 more"):
        read(tmp_path / "some")
    with pytest.raises(FileNotFoundError, match="none is no folder: give one that has"):
        read(tmp_path / "none")
    with pytest.raises(ValueError, match="is an address"):
        read("s3://bucket/some")
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "mine")
    read("~/mine")


class Call:
    """Pickled, a call of `os.system`."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("name", ["pfllib", "flbench"])
def test_nothing_is_executed(name, tmp_path):
    """Failed as a file that exists with `pickle.load` and `numpy.load(allow_pickle=True)`."""
    write, read, _ = WRITERS[name]
    folder, bad = write(tmp_path / "f"), Call(f"touch {tmp_path / 'touched'}")
    if name == "pfllib":
        np.savez(folder / "test" / "7.npz", data=np.array({"x": bad, "y": [0]}, object))
    else:
        (folder / "partition.pkl").write_bytes(pickle.dumps({"data_indices": [{"train": bad}]}))
    with pytest.raises(ValueError, match=r"it asks for (posix|nt)\.system.*if you trust the file"):
        read(folder)
    assert not (tmp_path / "touched").exists()


def _without(name):
    return lambda folder: (folder / name).unlink()


def _npz(content):
    return lambda folder: np.savez(folder / "train" / "3.npz", data=np.array(content, object))


def _json(name, content):
    return lambda folder: (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))


LEAF_FILE = "train/all_data_1_niid_0_keep_0_train_9.json"
ONE = {"train": np.array([0]), "val": [], "test": [1]}
REFUSED = {
    "no test file": ("pfllib", _without("test/7.npz"), "has train/7.npz, but no test/7.npz"),
    "no training file": ("pfllib", _without("train/7.npz"), "has test/7.npz, but no train/7.npz"),
    "earlier partition": ("pfllib", _json("config.json", {"num_clients": 19}), "19 clients, but .* have 20, numbers 0"),
    "label out of range": (
        "pfllib", _json("config.json", {"num_classes": 9}), "y of client 2 of train has the label 9, but classes = 9",
    ),
    "config is a list": ("pfllib", _json("config.json", [1]), "config.json must hold a dictionary, got a list"),
    "config is text": ("pfllib", _json("config.json", "{"), "config.json is damaged, or no JSON"),
    "no y": ("pfllib", _npz({"x": np.eye(2)}), "3.npz must hold a dictionary of 'x' and 'y', .* a dictionary of 'x'"),
    "no dictionary": ("pfllib", _npz([1, 2]), "3.npz must hold a dictionary of 'x' and 'y', but its 'data' is a"),
    "ragged": ("pfllib", _npz({"x": [[1], [2, 3]], "y": [0, 1]}), "x of .*3.npz is not an array, its rows"),
    "other shape": (
        "pfllib", _npz({"x": np.ones((1, 1, 8, 9), np.float32), "y": [0]}),
        r"an example of client 3 of train has shape \[8, 9, 1\], but one of client 0 of train has \[8, 8, 1\]",
    ),
    "no examples": ("pfllib", _npz({"x": [], "y": []}), "client 3 of train .* has no examples"),
    "more labels": ("pfllib", _npz({"x": np.ones((1, 1, 8, 8), "f4"), "y": [0, 1]}), "3 of train has 1 examples, but"),
    "no partition": ("flbench", _without("partition.pkl"), "must have FL-bench's file partition.pkl, but it has"),
    "index out of range": (
        "flbench", lambda f: write_flbench(f, [ONE | {"test": [1797]}], {}), r"test .* client 0 must be in 0\.\.1796",
    ),
    "no indices": ("flbench", lambda f: write_flbench(f, [ONE | {"train": []}], {}), "no 'train' indices for any"),
    "lists": ("flbench", lambda f: write_flbench(f, [[0], [1]], {}), "a list 'data_indices' of a dictionary for each"),
    "other total": (
        "flbench",
        lambda f: (f / "partition.pkl").write_bytes(pickle.dumps({"separation": {"total": 3}, "data_indices": [ONE]})),
        "indices of 1 clients, but says that there are 3",
    ),
    "a list": ("flbench", lambda f: (f / "partition.pkl").write_bytes(pickle.dumps([ONE])), "got a list"),
    "user twice": (
        "leaf",
        lambda f: (f / "train" / "b.json").write_bytes((f / LEAF_FILE).read_bytes()),
        "b.json has the user 'f0019_1', whom another file of train has",
    ),
    "no users": ("leaf", _json(LEAF_FILE, {"user_data": {"a": {"x": [], "y": []}}}), "must have 'users' and the"),
    "user without data": ("leaf", _json(LEAF_FILE, {"users": ["a"], "user_data": {}}), "'user_data' of each of them"),
    "user without y": (
        "leaf", _json(LEAF_FILE, {"users": ["a"], "user_data": {"a": {"x": []}}}), "'x' and 'y' of the user 'a', got a",
    ),
    "no numbers": (
        "leaf", _json(LEAF_FILE, '{"users": ["a"], "user_data": {"a": {"x": [[NaN]], "y": [0]}}}'),
        "x of client 'a' of train has NaN",
    ),
    "negative label": (
        "leaf", _json(LEAF_FILE, {"users": ["a"], "user_data": {"a": {"x": [[1]], "y": [-1]}}}),
        "y of client 'a' of train has the negative label -1",
    ),
    "no test folder": ("leaf", lambda f: [p.unlink() for p in f.glob("test/*")], "must have LEAF's files train/"),
}  # fmt: skip


@pytest.mark.parametrize(("name", "spoil", "message"), REFUSED.values(), ids=REFUSED)
def test_damaged_federations_are_refused(name, spoil, message, tmp_path):
    """By client and file. Failed, among others, as 19 clients with a federation of 20 files."""
    write, read, _ = WRITERS[name]
    folder = write(tmp_path)
    spoil(folder)
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        read(folder)


def test_arguments_that_are_refused(tmp_path):
    """With what to give. Failed for a source by name as an attribute that text does not have."""
    flbench, leaf = write_flbench(tmp_path / "a"), write_leaf(tmp_path / "b")
    with pytest.raises(TypeError, match=r"source must be a Source, such as .*load\('mnist'\), got a str"):
        data.from_flbench(flbench, "digits")
    with pytest.raises(ValueError, match="held_out"):
        data.from_flbench(flbench, DIGITS, held_out="train")
    wrong = DIGITS._replace(x_test=DIGITS.x_test[:, :4])
    with pytest.raises(
        ValueError, match=r"of the test set has shape \[4, 8\], but one of the training set has \[8, 8\]"
    ):
        data.from_flbench(flbench, wrong)
    with pytest.raises(ValueError, match=re.escape("of shape [64], which cannot be given the shape (28, 28)")):
        data.from_leaf(leaf, shape=(28, 28))
