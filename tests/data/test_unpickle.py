"""Pickles of arrays and containers are read; what else they ask for is refused by name, before it runs."""

import builtins
import collections
import io
import os
import pickle
import zipfile

import numpy as np
import pytest

from fedamp_jax.data import unpickle

RAGGED = np.empty(2, object)
RAGGED[:] = [np.arange(2), np.arange(3.0)]
VALUES = {
    "integers": np.arange(6).reshape(2, 3),
    "columns first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "axes": np.arange(24, dtype=np.float32).reshape(2, 3, 4).transpose(1, 2, 0),
    "big-endian": np.arange(6, dtype=">i2"),
    "bool": np.array([True, False]),
    "text": np.array(["a", "bcd"]),
    "empty": np.zeros((0, 3), np.uint8),
    "ragged": RAGGED,
    "number": np.float32(1.5),
    "containers": {"a": [1, (2.5, None)], "b": {3}, "c": frozenset([4]), "d": collections.OrderedDict(e=True)},
}


def plain(value):
    """Nested lists in place of arrays, to compare."""
    if isinstance(value, (np.ndarray, np.generic)):
        return [str(value.dtype.newbyteorder("=")), *value.shape, plain(value.tolist())]
    return [plain(v) for v in value] if isinstance(value, list) else value


@pytest.mark.parametrize("protocol", [3, 4, 5])
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_arrays_and_containers_are_read(value, protocol, tmp_path):
    """As `pickle.load` does. Failed for protocol 5 without `_frombuffer`, big-endian ones without the state's order."""
    (tmp_path / "value.pkl").write_bytes(pickle.dumps(value, protocol=protocol))
    assert plain(unpickle.read_pickle(tmp_path / "value.pkl")) == plain(value)


@pytest.mark.parametrize(("old", "new"), [(b"numpy._core", b"numpy.core"), (b"numpy.core", b"numpy._core")])
def test_names_before_numpy_2_and_since(old, new, tmp_path):
    """Failed with the names of the NumPy that is installed alone."""
    (tmp_path / "value.pkl").write_bytes(pickle.dumps([np.arange(3), np.int64(7)], protocol=3).replace(old, new))
    found = unpickle.read_pickle(tmp_path / "value.pkl")
    assert plain(found) == plain([np.arange(3), np.int64(7)])


def test_objects_of_npz_files(tmp_path):
    """Compressed or not, by key; an array without axes is what it holds. Failed as an array that holds a dictionary."""
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "0.npz", other=np.arange(2), data=np.array({"x": np.eye(2)}, object), rows=RAGGED)
        assert unpickle.read_object(tmp_path / "0.npz", "data")["x"].tolist() == np.eye(2).tolist()
        assert plain(unpickle.read_object(tmp_path / "0.npz", "rows")) == plain(RAGGED)


class Call:
    """Pickled, a call of a function."""

    def __init__(self, function, *args):
        self.call = function, args

    def __reduce__(self):
        return self.call


def array(dtype, values):
    """An array of one element, whose state has this dtype and these values."""
    return b"\x80\x03cnumpy.core.multiarray\n_reconstruct\n)R(K\x01K\x01\x85" + dtype + b"\x89" + values + b"tb."


def dtype(code, state=None):
    """A dtype, and the state that it gets."""
    made = b"cnumpy\ndtype\nX" + len(code).to_bytes(4, "little") + code + b"\x85R"
    return made if state is None else made + pickle.dumps(state, protocol=3)[2:-1] + b"b"


POINTER = b"C\x08AAAAAAAA"
FIELDS = (3, "|", None, ("a",), {"a": 0}, 8, 1, 0)
REFUSED = {
    "system": (lambda m: pickle.dumps(Call(os.system, f"touch {m}")), r"asks for (posix|nt)\.system"),
    "eval": (lambda m: pickle.dumps([Call(builtins.eval, f"open({str(m)!r}, 'w')")]), r"asks for builtins\.eval"),
    "getattr": (lambda m: pickle.dumps(Call(getattr, dict, "get")), r"asks for builtins\.getattr"),
    "within NumPy": (lambda m: pickle.dumps(Call(np.save, m, np.eye(2))), r"asks for numpy\.save"),
    "dotted": (lambda m: b"\x80\x04\x8c\x05numpy\x8c\x0dndarray.dumps\x93.", r"asks for numpy\.ndarray\.dumps"),
    "old instance": (lambda m: f"(S'touch {m}'\nios\nsystem\n.".encode(), r"asks for os\.system"),
    "extension": (lambda m: b"\x80\x02\x82\x01.", "unregistered extension code 1"),
    "persistent": (lambda m: b"P1\n.", "persistent"),
    "fields": (lambda m: array(dtype(b"V8", FIELDS), POINTER), "dtype 'V8'"),
    "fields of numbers": (lambda m: array(dtype(b"f8", FIELDS), POINTER), "an array with fields"),
    "complex": (lambda m: pickle.dumps(np.zeros(1, "c8")), "dtype 'c8', which is neither numbers nor text"),
    "dtype as text": (lambda m: array(b"X\x02\x00\x00\x00f8", POINTER), "whose dtype is 'f8'"),
    "objects as bytes": (lambda m: array(dtype(b"O"), POINTER), "list"),
    "buffer of objects": (
        lambda m: b"\x80\x03cnumpy.core.numeric\n_frombuffer\n(" + POINTER + dtype(b"O") + b"K\x01U\x01CtR.",
        "OBJECT array",
    ),
    "attributes": (
        lambda m: b"\x80\x03cnumpy.core.multiarray\nscalar\nN}X\x0c\x00\x00\x00__defaults__K\x01\x85s\x86b.",
        "__defaults__",
    ),
    "cut": (lambda m: pickle.dumps(np.arange(9))[:-20], "truncated|ran out"),
    "text": (lambda m: b"a,b\n1,2\n", "FILE is not a file of NumPy arrays"),
    "two": (lambda m: pickle.dumps(1) + pickle.dumps(2), "more behind its end"),
    "empty": (lambda m: b"", "Ran out"),
}  # fmt: skip


@pytest.mark.parametrize(("make", "message"), REFUSED.values(), ids=REFUSED)
def test_anything_else_is_refused_and_not_run(make, message, tmp_path):
    """Failed as touched where names are imported, and as an array with fields with NumPy's own dtype."""
    touched = tmp_path / "touched"
    content = make(touched)
    (tmp_path / "value.pkl").write_bytes(content)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "|O", "fortran_order": False, "shape": ()})
    with zipfile.ZipFile(tmp_path / "0.npz", "w") as archive:
        archive.writestr("data.npy", header.getvalue() + content)
    for read in (
        lambda: unpickle.read_pickle(tmp_path / "value.pkl"),
        lambda: unpickle.read_object(tmp_path / "0.npz", "data"),
    ):
        with pytest.raises(ValueError, match=message.replace("FILE", r"(value\.pkl|0\.npz)")) as caught:
            read()
        assert "give its arrays to fedamp_jax.data.from_lists" in str(caught.value)
    assert not list(tmp_path.glob("touched*"))


def test_npz_files_that_are_none(tmp_path):
    """By name, with what they have. Failed as a KeyError of the zip file."""
    path = tmp_path / "0.npz"
    np.savez(path, x=np.eye(2), y=np.array([None]))
    with pytest.raises(ValueError, match=r"has no 'data', but x\.npy, y\.npy"):
        unpickle.read_object(path, "data")
    with pytest.raises(ValueError, match="array of float64, and no Python object"):
        unpickle.read_object(path, "x")
    np.savez(path, data=np.array({"x": np.arange(1000)}, object))
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ValueError, match="Bad CRC-32"):
        unpickle.read_object(path, "data")
    path.write_bytes(b"PK")
    with pytest.raises(ValueError, match="not a zip file"):
        unpickle.read_object(path, "data")
    with pytest.raises(FileNotFoundError):
        unpickle.read_object(tmp_path / "1.npz", "data")
