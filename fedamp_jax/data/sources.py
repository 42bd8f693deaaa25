"""Data sets by name: from a `.npz` file, from the cache, or from a download with a verified checksum.

TensorFlow Datasets (TFDS) can prepare a data set only if TensorFlow is installed. Its registered URLs and checksums and
its download manager work without TensorFlow: the manager downloads and verifies the archives, the standard library
unpacks them, and one `.npz` file per data set is cached.

Archives are read in memory, one member at a time; no member name is used as a path to write to. CIFAR's binary archives
are used because the "python" ones contain pickles, which can run code.
"""

import gzip
import io
import os
import socket
import tarfile
import tempfile
import threading
import urllib.parse
import urllib.request
import zipfile
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal, NamedTuple, overload

import numpy as np

from fedamp_jax.checks import check_choice
from fedamp_jax.files import local_path

Arrays = dict[str, np.ndarray]
PROBE_SECONDS = 5.0


class Source(NamedTuple):
    """A data set with a training and a test split.

    Attributes:
        name: name of the data set.
        x_train: `[n, height, width]` or `[n, height, width, 3]` uint8 images.
        y_train: `[n]` int32 labels in `0..classes-1`.
        x_test: `[n', height, width]` or `[n', height, width, 3]` uint8 images.
        y_test: `[n']` int32 labels.
        classes: number of classes.
        coarse_train: `[n]` int32 superclasses; None except for cifar100.
        coarse_test: `[n']` int32 superclasses; None except for cifar100.
    """

    name: str
    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray
    classes: int
    coarse_train: np.ndarray | None = None
    coarse_test: np.ndarray | None = None


class Omniglot(NamedTuple):
    """Omniglot, whose characters belong to alphabets. It has no split: `partition.omniglot` makes one.

    Attributes:
        name: `"omniglot"`.
        x: `[n, 28, 28]` uint8 images; ink is bright.
        alphabet: `[n]` int32 in 0..49.
        character: `[n]` int32, number of the character within its alphabet, from 1.
        drawer: `[n]` int32 in 1..20, the person who drew it.
    """

    name: str
    x: np.ndarray
    alphabet: np.ndarray
    character: np.ndarray
    drawer: np.ndarray


def _idx(data: bytes) -> np.ndarray:
    """Reads a gzipped IDX file of uint8: two zero bytes, type (8 = uint8), rank, sizes (big-endian), values."""
    raw = gzip.decompress(data)
    rank = raw[3] if len(raw) > 3 else 0
    shape = tuple(np.frombuffer(raw, ">u4", rank, 4).tolist()) if len(raw) >= 4 + 4 * rank else ()
    if raw[:3] != b"\0\0\x08" or len(raw) != 4 + 4 * rank + int(np.prod(shape)):
        raise ValueError(f"not an IDX file of uint8: starts with {raw[:4].hex()} and has {len(raw)} bytes")
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(shape)


def _unpack_mnist(files: Mapping[str, Path]) -> Arrays:
    parts = (("train", "train"), ("test", "t10k"))
    images = {f"x_{p}": _idx(files[f"{f}-images-idx3-ubyte.gz"].read_bytes()) for p, f in parts}
    return images | {f"y_{p}": _idx(files[f"{f}-labels-idx1-ubyte.gz"].read_bytes()) for p, f in parts}


def _unpack_emnist(files: Mapping[str, Path]) -> Arrays:
    out: Arrays = {}
    with zipfile.ZipFile(files["gzip.zip"]) as archive:
        for part in ("train", "test"):
            stem = f"gzip/emnist-byclass-{part}"
            images = _idx(archive.read(f"{stem}-images-idx3-ubyte.gz"))
            out[f"x_{part}"] = images.transpose(0, 2, 1)  # EMNIST stores its images transposed
            out[f"y_{part}"] = _idx(archive.read(f"{stem}-labels-idx1-ubyte.gz"))
    return out


def _cifar(path: Path, labels: tuple[str, ...], train: tuple[str, ...], test: str) -> Arrays:
    """Reads a binary CIFAR archive: records of one byte per label and 3 x 32 x 32 bytes, one plane per color."""
    members: dict[str, bytes] = {}
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            if member.isfile() and (file := archive.extractfile(member)):
                members[member.name.rsplit("/", 1)[-1]] = file.read()
    out: Arrays = {}
    for part, names in (("train", train), ("test", (test,))):
        raw = np.frombuffer(b"".join(members[name] for name in names), np.uint8).reshape(-1, len(labels) + 3072)
        out |= {f"{label}_{part}": raw[:, i] for i, label in enumerate(labels)}
        out[f"x_{part}"] = raw[:, len(labels) :].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return out


def _unpack_cifar10(files: Mapping[str, Path]) -> Arrays:
    train = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
    return _cifar(files["cifar-10-binary.tar.gz"], ("y",), train, "test_batch.bin")


def _unpack_cifar100(files: Mapping[str, Path]) -> Arrays:
    return _cifar(files["cifar-100-binary.tar.gz"], ("coarse", "y"), ("train.bin",), "test.bin")


def _unpack_omniglot(files: Mapping[str, Path]) -> Arrays:
    """Members are `<archive>/<alphabet>/character<number>/<label>_<drawer>.png`, 105 x 105 pixels; ink is 0."""
    from PIL import Image, ImageOps

    rows, alphabets = [], {}
    for archive_name in ("images_background.zip", "images_evaluation.zip"):  # 30 + 20 alphabets, all different
        with zipfile.ZipFile(files[archive_name]) as archive:
            for member in sorted(m for m in archive.namelist() if m.endswith(".png")):
                alphabet, character, drawing = member.split("/")[-3:]
                with Image.open(io.BytesIO(archive.read(member))) as image:
                    ink = ImageOps.invert(image.convert("L")).resize((28, 28), Image.Resampling.BOX)
                number = alphabets.setdefault(alphabet, len(alphabets))
                drawer = drawing.removesuffix(".png").rsplit("_", 1)[1]
                rows.append((np.asarray(ink), number, int(character.removeprefix("character")), int(drawer)))
    x, *columns = zip(*rows, strict=True)
    return {"x": np.stack(x), **dict(zip(("alphabet", "character", "drawer"), map(np.array, columns), strict=True))}


class _Kind(NamedTuple):
    """A data set: keys of its npz (with the shape of an image or the number of labels), archives, how to unpack."""

    schema: Mapping[str, tuple[int, ...] | int]
    files: tuple[str, ...]
    unpack: Callable[[Mapping[str, Path]], Arrays]


def _split_schema(shape: tuple[int, ...], **labels: int) -> dict[str, tuple[int, ...] | int]:
    return {f"{key}_{part}": value for part in ("train", "test") for key, value in {"x": shape, **labels}.items()}


_IDX_FILES = tuple(f"{p}-{f}-ubyte.gz" for p in ("train", "t10k") for f in ("images-idx3", "labels-idx1"))
_GREY, _COLOUR = (28, 28), (32, 32, 3)
_KINDS = {
    "mnist": _Kind(_split_schema(_GREY, y=10), _IDX_FILES, _unpack_mnist),
    "fashion_mnist": _Kind(_split_schema(_GREY, y=10), _IDX_FILES, _unpack_mnist),
    "emnist": _Kind(_split_schema(_GREY, y=62), ("gzip.zip",), _unpack_emnist),
    "cifar10": _Kind(_split_schema(_COLOUR, y=10), ("cifar-10-binary.tar.gz",), _unpack_cifar10),
    "cifar100": _Kind(_split_schema(_COLOUR, y=100, coarse=20), ("cifar-100-binary.tar.gz",), _unpack_cifar100),
    "omniglot": _Kind(
        {"x": _GREY, "alphabet": 50, "character": 56, "drawer": 21},
        ("images_background.zip", "images_evaluation.zip"),
        _unpack_omniglot,
    ),
}
NAMES = ("digits", *_KINDS)


def classes_of(name: str) -> int:
    """The number of classes of a data set with a split, without reading it.

    >>> classes_of("digits"), classes_of("emnist")
    (10, 62)
    """
    return 10 if name == "digits" else int(_KINDS[name].schema["y_train"])  # pyright: ignore[reportArgumentType]


def _needed(name: str) -> str:
    """The arrays that the npz must contain, one per line, for messages."""
    return "\n".join(
        f"  {key:<13}uint8 [n, {', '.join(map(str, want))}]"
        if isinstance(want, tuple)
        else f"  {key:<13}integers [n] in 0..{want - 1}"
        for key, want in _KINDS[name].schema.items()
    )


def _absent(name: str, path: Path, why: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"data set {name!r} was not found: {why}.\n"
        f"Save it as {path} with numpy.savez, with the arrays\n{_needed(name)}\n"
        f"or as {name}.npz in any folder, and give that folder: data_dir=FOLDER, or --data-dir FOLDER on the command "
        "line. The data set 'digits' needs no file and no network."
    )


def _registered(name: str) -> dict[str, str]:
    """The archives of data set `name`, `{file name: URL}`, as registered in TFDS."""
    import tensorflow_datasets as tfds  # a slow import, needed for downloads only

    urls = {url.rsplit("/", 1)[-1]: url for url in tfds.builder_cls(name).url_infos or {}}
    return {file: urls[file] for file in _KINDS[name].files}


def _unreachable(url: str) -> str | None:
    """Tries to connect to the URL's host, or to its proxy; returns None, or a message if that fails.

    Without a network, TFDS would retry for over 200 s. The attempt runs in a thread, because a socket timeout does not
    limit the name lookup.
    """
    parts = urllib.parse.urlsplit(url)
    proxy = urllib.request.getproxies().get(parts.scheme)
    if proxy and not urllib.request.proxy_bypass(parts.hostname or ""):
        parts = urllib.parse.urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    port = parts.port or {"https": 443}.get(parts.scheme, 80)
    outcome = [f"no answer within {PROBE_SECONDS:g} s"]

    def connect() -> None:
        try:
            socket.create_connection((parts.hostname or "", port), timeout=PROBE_SECONDS).close()
            outcome[0] = ""
        except OSError as error:
            outcome[0] = str(error)

    thread = threading.Thread(target=connect, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS + 1.0)
    return f"{parts.hostname}:{port} cannot be reached ({outcome[0]})" if outcome[0] else None


def _download(name: str, urls: Mapping[str, str], folder: Path) -> dict[str, Path]:
    """Downloads `urls` into `folder` and verifies their sizes and checksums; returns `{file name: path}`."""
    import tensorflow_datasets as tfds

    manager = tfds.download.DownloadManager(
        download_dir=folder,
        url_infos=tfds.builder_cls(name).url_infos,
        dataset_name=name,
        force_checksums_validation=True,
    )
    # One at a time: parallel downloads would still write to `folder` after the first error is raised.
    return {file: Path(manager.download(url)) for file, url in urls.items()}


def _prepare(name: str, path: Path) -> Arrays:
    """Downloads, unpacks and checks data set `name`, and writes it to `path` atomically."""
    urls = _registered(name)
    for url in {urllib.parse.urlsplit(url).netloc: url for url in urls.values()}.values():
        if why := _unreachable(url):
            raise _absent(name, path, f"{path} does not exist, and {why}")
    path.parent.mkdir(parents=True, exist_ok=True)
    # On the target's file system, so that the rename is atomic.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{name}-", ignore_cleanup_errors=True) as folder:
        complete = Path(folder) / f"{name}.npz"
        try:
            unpacked = _KINDS[name].unpack(_download(name, urls, Path(folder)))
            np.savez(complete, **unpacked)  # pyright: ignore[reportArgumentType]
            arrays = _read(name, complete)
        except Exception as error:  # requests, TFDS, gzip, zipfile, tarfile and Pillow each raise their own types
            raise OSError(
                f"downloading data set {name!r} failed and nothing was kept ({type(error).__name__}: {error}).\n"
                f"Try again, or save the data as {path} with numpy.savez, with the arrays\n{_needed(name)}"
            ) from error
        os.replace(complete, path)
    return arrays


def _read(name: str, path: Path) -> Arrays:
    """Reads `path`, checks keys, shapes, dtypes, lengths and labels, and returns the arrays, labels as int32."""
    schema = _KINDS[name].schema
    try:
        # No pickles, which can run code. Opened here, because np.load does not close a file that it cannot read.
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            missing = [key for key in schema if key not in file]
            if missing:
                raise KeyError(f"lacks {', '.join(missing)}; it contains {', '.join(file) or 'nothing'}")
            arrays = {key: file[key] for key in schema}
    except KeyError as error:
        raise ValueError(f"{path} {error.args[0]}. Data set {name!r} needs\n{_needed(name)}") from None
    except (ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is not an npz file of plain arrays ({error}). Data set {name!r} needs\n{_needed(name)}"
        ) from error
    for key, want in schema.items():
        array, n = arrays[key], len(arrays[_images_of(key)]) if arrays[_images_of(key)].ndim else 0
        if isinstance(want, tuple):
            if array.shape[1:] == (*want, 1):  # grayscale images with a channel axis, as in Keras and TFDS
                array = array[..., 0]
            good = array.dtype == np.uint8 and array.shape[1:] == want and len(array) > 0
        else:
            good = array.dtype.kind in "iu" and array.shape == (n,) and array.min() >= 0 and array.max() < want
            array = array.astype(np.int32) if good else array
        if not good:
            span = f" with values {array.min()}..{array.max()}" if array.dtype.kind in "iuf" and array.size else ""
            raise ValueError(
                f"{key} of {path} is {array.dtype} {list(array.shape)}{span}. Data set {name!r} needs, with the same n "
                f"for all arrays of a split,\n{_needed(name)}"
            )
        arrays[key] = array
    return arrays


def _images_of(key: str) -> str:
    """The key of the images that the labels `key` belong to."""
    return "x" + key[key.index("_") :] if "_" in key else "x"


def _digits() -> Source:
    """scikit-learn's 1,797 digits: 50 of each class for testing, drawn with a fixed seed, and 1,297 for training."""
    from sklearn.datasets import load_digits

    flat, y = load_digits(return_X_y=True)
    x = np.round(flat.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # scikit-learn's values are 0..16
    y = y.astype(np.int32)
    rng = np.random.default_rng(0)
    test = np.sort(np.concatenate([rng.permutation(np.flatnonzero(y == c))[:50] for c in range(10)]))
    train = np.setdiff1d(np.arange(len(y)), test)
    return Source("digits", x[train], y[train], x[test], y[test], 10)


@overload
def load(name: Literal["omniglot"], data_dir: str | os.PathLike[str] | None = None) -> Omniglot:
    """Omniglot, which has no split; see below."""


@overload
def load(
    name: Literal["digits", "mnist", "fashion_mnist", "emnist", "cifar10", "cifar100"],
    data_dir: str | os.PathLike[str] | None = None,
) -> Source:
    """A data set with a split; see below."""


@overload
def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Source | Omniglot:
    """A data set whose name is not known to the type checker; see below."""


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Source | Omniglot:
    """Loads a data set as NumPy arrays.

    `digits` is part of scikit-learn and needs neither a file nor a network. All other data sets are looked up

    1. in `<data_dir>/<name>.npz`, and nowhere else, if `data_dir` is given;
    2. in the cache: `$FEDAMP_JAX_CACHE`, or `~/.cache/fedamp_jax` if that environment variable is not set;
    3. on the internet: TFDS downloads the archives from their registered URLs and verifies them. The unpacked data are
       written to the cache.

    Args:
        name: `"digits"`, `"mnist"`, `"fashion_mnist"`, `"emnist"` (the byclass split with 62 classes, images upright),
            `"cifar10"`, `"cifar100"` or `"omniglot"`.
        data_dir: folder of `<name>.npz`, a file with uint8 images and integer labels under the keys `x_train`,
            `y_train`, `x_test` and `y_test`, for cifar100 also `coarse_train` and `coarse_test`, for omniglot `x`,
            `alphabet`, `character` and `drawer`. Other keys are ignored.

    Returns:
        A `Source`; an `Omniglot` if the name is omniglot.

    Raises:
        ValueError: if the name is unknown, a folder is none of this machine (see `files.local_path`), or the file has
            wrong keys, shapes, dtypes or labels.
        FileNotFoundError: if there is no file and the network cannot be reached; raised within seconds.
        OSError: if a download is interrupted or its checksum is wrong.

    >>> from fedamp_jax import data
    >>> digits = data.load("digits")
    >>> digits.x_train.shape, digits.x_test.shape, digits.x_train.dtype.name, int(digits.x_train.max())
    ((1297, 8, 8), (500, 8, 8), 'uint8', 255)
    """
    check_choice("name", name, NAMES)
    folder = None if data_dir is None else local_path(data_dir, "data_dir (--data-dir)")
    if name == "digits":
        return _digits()
    if folder is not None:
        path = folder / f"{name}.npz"
        if not path.is_file():
            raise _absent(name, path, f"{path} does not exist")
        arrays = _read(name, path)
    else:
        cache = os.environ.get("FEDAMP_JAX_CACHE") or "~/.cache/fedamp_jax"
        path = local_path(cache, "FEDAMP_JAX_CACHE") / f"{name}.npz"
        arrays = _read(name, path) if path.is_file() else _prepare(name, path)
    if name == "omniglot":
        return Omniglot(name, **arrays)
    return Source(name=name, classes=classes_of(name), **arrays)  # pyright: ignore[reportArgumentType]
