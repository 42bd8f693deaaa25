"""Real data sets by name: a `.npz` of yours, the cache, or a download whose checksum is verified.

TFDS can only prepare its builders where TensorFlow is installed (1.8 GB). What we need of it are the registered URLs
and checksums, and those work without: its download manager fetches and verifies, the standard library unpacks, and one
`.npz` per set is cached. No TFDS builders of our own in between: they would add a second file format and a copy of
every set on disk, and check nothing that the checksum and `_read` do not.

An archive is only ever read in memory, member by member; nothing in it decides where a file is written. Of CIFAR we
take the binary archive: the "python" one is a pickle, which can run code.
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

from fedamp_jax import checks

Arrays = dict[str, np.ndarray]
PROBE_SECONDS = 5.0


class Source(NamedTuple):
    """A data set with its official (or the file's) split.

    Attributes:
        name: as `load` was asked.
        x_train: `[n, height, width]` or `[n, height, width, 3]` uint8.
        y_train: `[n]` int32 labels in `0..classes-1`.
        x_test: `[n', ...]` uint8.
        y_test: `[n']` int32.
        classes: number of classes.
        coarse_train: `[n]` int32 superclasses; cifar100 only.
        coarse_test: `[n']` int32; cifar100 only.
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
    """Omniglot, which has alphabets instead of one set of classes and no split: `partition.omniglot` makes one.

    Attributes:
        name: "omniglot".
        x: `[n, 28, 28]` uint8, ink is high.
        alphabet: `[n]` int32 in 0..49.
        character: `[n]` int32, the character's number within its alphabet, from 1.
        drawer: `[n]` int32 in 1..20, who drew it.
    """

    name: str
    x: np.ndarray
    alphabet: np.ndarray
    character: np.ndarray
    drawer: np.ndarray


def _idx(data: bytes) -> np.ndarray:
    """The array in a gzipped IDX file: two zero bytes, type (8 = uint8), rank, sizes (big-endian), values."""
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
            out[f"x_{part}"] = images.transpose(0, 2, 1)  # EMNIST is stored by columns: letters lie on their side
            out[f"y_{part}"] = _idx(archive.read(f"{stem}-labels-idx1-ubyte.gz"))
    return out


def _cifar(path: Path, labels: tuple[str, ...], train: tuple[str, ...], test: str) -> Arrays:
    """A binary CIFAR archive: records of one byte per label and 3 x 32 x 32 bytes of colour planes."""
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
    """Members are `<archive>/<alphabet>/character<number>/<label>_<drawer>.png`, 105 x 105, ink is 0."""
    from PIL import Image, ImageOps

    rows, alphabets = [], {}
    for archive_name in ("images_background.zip", "images_evaluation.zip"):  # 30 + 20 alphabets, no name in both
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
    """A set: what its npz holds (key -> shape of an image, or how many labels), what to download, how to unpack."""

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


def _needed(name: str) -> str:
    """The npz that would do, for messages: one line per array."""
    return "\n".join(
        f"  {key:<13}uint8 [n, {', '.join(map(str, want))}]"
        if isinstance(want, tuple)
        else f"  {key:<13}integers [n] in 0..{want - 1}"
        for key, want in _KINDS[name].schema.items()
    )


def _absent(name: str, path: Path, why: str) -> FileNotFoundError:
    return FileNotFoundError(
        f"data set {name!r} is not on this machine: {why}.\n"
        f"Put it at {path}, written by numpy.savez with the arrays\n{_needed(name)}\n"
        f"or at FOLDER/{name}.npz anywhere and pass data_dir=FOLDER; load('digits') needs no file and no network."
    )


def _registered(name: str) -> dict[str, str]:
    """`{file name: URL}` of the archives that `name` is made from, as registered with their checksums in TFDS."""
    import tensorflow_datasets as tfds  # here, because a user with an npz pays no import for it

    urls = {url.rsplit("/", 1)[-1]: url for url in tfds.builder_cls(name).url_infos or {}}
    return {file: urls[file] for file in _KINDS[name].files}


def _unreachable(url: str) -> str | None:
    """None if a connection to the URL's host (or to the proxy for it) can be opened within seconds, else why not.

    Asked before TFDS is, which retries for over 200 s. In a thread, because a name server that does not answer blocks
    longer than any socket timeout.
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
    """Fetches `urls` into `folder` and verifies size and checksum of each; `{file name: path}`."""
    import tensorflow_datasets as tfds

    manager = tfds.download.DownloadManager(
        download_dir=folder,
        url_infos=tfds.builder_cls(name).url_infos,
        dataset_name=name,
        force_checksums_validation=True,
    )
    # One by one: of several at once, the others still write into `folder` when the first error comes out.
    return {file: Path(manager.download(url)) for file, url in urls.items()}


def _prepare(name: str, path: Path) -> Arrays:
    """Downloads and unpacks `name` and leaves it at `path`, whole and checked or not at all."""
    urls = _registered(name)
    for url in {urllib.parse.urlsplit(url).netloc: url for url in urls.values()}.values():
        if why := _unreachable(url):
            raise _absent(name, path, f"{path} does not exist, and {why}")
    path.parent.mkdir(parents=True, exist_ok=True)
    # Beside the target, so that the rename is atomic; a folder of our own, so that nobody meets our half-written files.
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{name}-", ignore_cleanup_errors=True) as folder:
        whole = Path(folder) / f"{name}.npz"
        try:
            unpacked = _KINDS[name].unpack(_download(name, urls, Path(folder)))
            np.savez(whole, **unpacked)  # pyright: ignore[reportArgumentType]
            arrays = _read(name, whole)
        except Exception as error:  # requests', TFDS's and the archives' own; to a user they are one: it did not arrive
            raise OSError(
                f"downloading data set {name!r} failed and nothing was kept ({type(error).__name__}: {error}).\n"
                f"Try again, or put the data at {path}, written by numpy.savez with the arrays\n{_needed(name)}"
            ) from error
        os.replace(whole, path)
    return arrays


def _read(name: str, path: Path) -> Arrays:
    """The arrays of `path` after a check of keys, shapes, dtypes, lengths and labels; labels as int32."""
    schema = _KINDS[name].schema
    try:
        # A pickle can run code, and data files travel. Opened here, because np.load leaks what is no zip after all.
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            missing = [key for key in schema if key not in file]
            if missing:
                raise KeyError(f"lacks {', '.join(missing)}; it holds {', '.join(file) or 'nothing'}")
            arrays = {key: file[key] for key in schema}
    except KeyError as error:
        raise ValueError(f"{path} {error.args[0]}. Data set {name!r} needs\n{_needed(name)}") from None
    except (ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"{path} is no npz file of plain arrays ({error}). Data set {name!r} needs\n{_needed(name)}"
        ) from error
    for key, want in schema.items():
        array, n = arrays[key], len(arrays[_images_of(key)]) if arrays[_images_of(key)].ndim else 0
        if isinstance(want, tuple):
            if array.shape[1:] == (*want, 1):  # grey images with a channel axis, as Keras and TFDS write them
                array = array[..., 0]
            good = array.dtype == np.uint8 and array.shape[1:] == want and len(array) > 0
        else:
            good = array.dtype.kind in "iu" and array.shape == (n,) and array.min() >= 0 and array.max() < want
            array = array.astype(np.int32) if good else array
        if not good:
            span = f" with values {array.min()}..{array.max()}" if array.dtype.kind in "iuf" and array.size else ""
            raise ValueError(
                f"{key} of {path} is {array.dtype} {list(array.shape)}{span}. Data set {name!r} needs, with one n "
                f"for all arrays of a split,\n{_needed(name)}"
            )
        arrays[key] = array
    return arrays


def _images_of(key: str) -> str:
    """The images that belong to the labels `key`."""
    return "x" + key[key.index("_") :] if "_" in key else "x"


def _digits() -> Source:
    """scikit-learn's 1,797 digits: 50 of each class for testing, chosen by a fixed seed, 1,297 for training."""
    from sklearn.datasets import load_digits

    flat, y = load_digits(return_X_y=True)
    x = np.round(flat.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)  # the file's values are 0..16
    y = y.astype(np.int32)
    rng = np.random.default_rng(0)
    test = np.sort(np.concatenate([rng.permutation(np.flatnonzero(y == c))[:50] for c in range(10)]))
    train = np.setdiff1d(np.arange(len(y)), test)
    return Source("digits", x[train], y[train], x[test], y[test], 10)


@overload
def load(name: Literal["omniglot"], data_dir: str | os.PathLike[str] | None = None) -> Omniglot:
    """Its alphabets, see below."""


@overload
def load(
    name: Literal["digits", "mnist", "fashion_mnist", "emnist", "cifar10", "cifar100"],
    data_dir: str | os.PathLike[str] | None = None,
) -> Source:
    """A set with labels, see below."""


@overload
def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Source | Omniglot:
    """A set whose name is not known before the program runs, see below."""


def load(name: str, data_dir: str | os.PathLike[str] | None = None) -> Source | Omniglot:
    """A real data set as NumPy arrays.

    `digits` comes with scikit-learn, is always the same and reads no file. Every other set is looked for

    1. at `<data_dir>/<name>.npz` if `data_dir` is given, and nowhere else: nothing is downloaded into your folders;
    2. else in the cache, `~/.cache/fedamp_jax` or the folder in the environment variable `FEDAMP_JAX_CACHE`;
    3. else on the internet: downloaded by TFDS from its registered URL, verified, unpacked and written to the cache.

    Args:
        name: `digits, mnist, fashion_mnist, emnist` (byclass, 62 classes, upright), `cifar10, cifar100` or `omniglot`.
        data_dir: folder of `<name>.npz` with uint8 images and integer labels: `x_train y_train x_test y_test`, for
            cifar100 also `coarse_train coarse_test`, for omniglot `x alphabet character drawer`. Others are ignored.

    Returns:
        `Source`; for omniglot `Omniglot`.

    Raises:
        ValueError: for an unknown name, or a file whose keys, shapes, dtypes or labels are not those of the set.
        FileNotFoundError: if there is neither file nor network; after seconds, and it says which file to put where.
        OSError: if a download breaks off or its checksum is wrong.

    >>> from fedamp_jax import data
    >>> digits = data.load("digits")
    >>> digits.x_train.shape, digits.x_test.shape, digits.x_train.dtype.name, int(digits.x_train.max())
    ((1297, 8, 8), (500, 8, 8), 'uint8', 255)
    """
    checks.choice("name", name, NAMES)
    if name == "digits":
        return _digits()
    if data_dir is not None:
        path = Path(data_dir).expanduser() / f"{name}.npz"
        if not path.is_file():
            raise _absent(name, path, f"{path} does not exist")
        arrays = _read(name, path)
    else:
        path = Path(os.environ.get("FEDAMP_JAX_CACHE") or "~/.cache/fedamp_jax").expanduser() / f"{name}.npz"
        arrays = _read(name, path) if path.is_file() else _prepare(name, path)
    if name == "omniglot":
        return Omniglot(name, **arrays)
    return Source(name=name, classes=int(_KINDS[name].schema["y_train"]), **arrays)  # pyright: ignore[reportArgumentType]
