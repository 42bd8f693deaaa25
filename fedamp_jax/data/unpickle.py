"""Pickles of NumPy arrays and plain containers, read without running anything that they name.

A pickle is a program: it names functions of any module and calls them, so that `pickle.load` and
`numpy.load(allow_pickle=True)` do whatever the author of a file wished. Here no name is imported. The few that arrays
and containers need are taken from a table of this module. It has stand-ins for NumPy's own, because these believe what
a file says: a dtype whose state has fields of objects makes NumPy read bytes of the file as pointers.
"""

import collections
import pickle
import re
import zipfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

_DTYPE = re.compile(r"(b1|[iuf][1248]|f16|[SU]\d{1,9}|O8?)")


class _Dtype:
    """`numpy.dtype(code, align, copy)`, whose state is the byte order and nothing else."""

    def __init__(self, code: str, align: Any = False, copy: Any = False):
        if not isinstance(code, str) or not _DTYPE.fullmatch(code):
            raise pickle.UnpicklingError(f"it holds an array of dtype {code!r}, which is neither numbers nor text")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: Any) -> None:
        _, order, *fields = state[:5]
        if any(field is not None for field in fields):
            raise pickle.UnpicklingError("it holds an array with fields")
        self.dtype = self.dtype.newbyteorder(order)


class _Array(np.ndarray):
    """`numpy.ndarray`, empty until its state is set; a dtype in the state is a `_Dtype`."""

    def __new__(cls) -> "_Array":
        return super().__new__(cls, (0,), np.int8)

    def __setstate__(self, state: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        version, shape, dtype, columns_first, values = state
        super().__setstate__((version, shape, _real(dtype), columns_first, values))  # pyright: ignore


def _real(dtype: Any) -> np.dtype:
    if not isinstance(dtype, _Dtype):
        raise pickle.UnpicklingError(f"it holds an array whose dtype is {dtype!r}")
    return dtype.dtype


class _Unpickler(pickle.Unpickler):
    """Knows the names of `_KNOWN`, and imports none.

    Functions are methods: an attribute of a function could be set by a pickle, for all that are read later.
    """

    def find_class(self, module: str, name: str) -> Any:
        known = _KNOWN.get((module.replace("numpy._core", "numpy.core"), name))  # since NumPy 2, and before
        if known is None:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return getattr(self, known) if isinstance(known, str) else known

    def reconstruct(self, *_: Any) -> _Array:
        """`numpy.core.multiarray._reconstruct(ndarray, (0,), b"b")`: an array whose state follows."""
        return _Array()

    def from_buffer(self, values: Any, dtype: Any, shape: Any, order: Any, axes: Any = None) -> np.ndarray:
        """`numpy.core.numeric._frombuffer`, for which pickles of protocol 5 ask."""
        flat = np.frombuffer(values, _real(dtype))
        return flat.reshape(shape).transpose(axes) if order == "K" else flat.reshape(shape, order=order)

    def scalar(self, dtype: Any, values: Any) -> Any:
        """`numpy.core.multiarray.scalar`: a number of NumPy's."""
        return np.frombuffer(values, _real(dtype))[0]


_KNOWN: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _Dtype,
    ("numpy", "ndarray"): _Array,
    ("numpy", "matrix"): _Array,  # what `todense()` of a sparse matrix is
    ("numpy.core.multiarray", "_reconstruct"): "reconstruct",
    ("numpy.core.multiarray", "scalar"): "scalar",
    ("numpy.core.numeric", "_frombuffer"): "from_buffer",
    ("collections", "OrderedDict"): collections.OrderedDict,
    ("builtins", "set"): set,
    ("builtins", "frozenset"): frozenset,
}


def _load(file: BinaryIO) -> Any:
    value = _Unpickler(file).load()
    if file.read(1):  # the end of a member of a zip file, where its checksum is compared
        raise pickle.UnpicklingError("there is more behind its end")
    return value


def read_pickle(path: Path) -> Any:
    """The content of a pickle of arrays and plain containers.

    Args:
        path: of the file.

    Returns:
        Dictionaries, lists, tuples, sets, numbers, text, and arrays of numbers, text or objects.

    Raises:
        ValueError: if it asks for anything else, by the name of what it asks for; nothing has been run then. Or if it
            is damaged, or no pickle.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "partition.pkl")
    ...     _ = path.write_bytes(pickle.dumps({"train": np.arange(3), "total": 1}))
    ...     read_pickle(path)["train"].tolist()
    [0, 1, 2]
    """
    with path.open("rb") as file:
        return _checked(path, file, _load)


def read_object(path: Path, key: str) -> Any:
    """The object that `numpy.savez(path, key=object)` has saved, which is a pickle in an array in a zip file.

    Args:
        path: of the npz file.
        key: the name of the object.

    Returns:
        As `read_pickle`: of an array without axes what it holds, else the array.

    Raises:
        ValueError: as `read_pickle`; or the file is no npz file, or has no such key.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.savez(Path(folder, "0.npz"), data=np.array({"y": np.arange(3)}, object))
    ...     read_object(Path(folder, "0.npz"), "data")["y"].tolist()
    [0, 1, 2]
    """

    def member(file: BinaryIO) -> Any:
        with zipfile.ZipFile(file) as archive:
            if f"{key}.npy" not in archive.namelist():
                raise pickle.UnpicklingError(f"it has no {key!r}, but {', '.join(archive.namelist()) or 'nothing'}")
            with archive.open(f"{key}.npy") as array:
                return _object(array)  # pyright: ignore[reportArgumentType]

    with path.open("rb") as file:
        return _checked(path, file, member)


def _object(file: BinaryIO) -> Any:
    """What is in an npy file: its header, then a pickle."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise pickle.UnpicklingError(f"its version is {version}")
    read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    _, _, dtype = read_header(file)
    if dtype.kind != "O":
        raise pickle.UnpicklingError(f"it holds an array of {dtype}, and no Python object")
    value = _load(file)
    return value.item() if isinstance(value, np.ndarray) and value.ndim == 0 else value


def _checked(path: Path, file: BinaryIO, read: Any) -> Any:
    try:
        return read(file)
    except OSError:
        raise
    except Exception as error:  # what a damaged pickle does has no end of types
        why = str(error).rstrip(".") or type(error).__name__
        raise ValueError(
            f"{path} is not a file of NumPy arrays in dictionaries, lists and tuples: {why}. Nothing else is read of a "
            "pickle, as it could run any program; if you trust the file, load it yourself, and give its arrays to "
            "fedamp_jax.data.from_lists"
        ) from error
