"""Columns, tables and sparse matrices as NumPy arrays, with messages that name the column and the way out.

Told by what they can do, so that nothing here imports pandas, polars, pyarrow, datasets or scipy. A value that is
missing is refused wherever its library says so: `np.asarray` drops a mask, and makes NaN of a null.
"""

import decimal
import numbers
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from fedamp_jax.programs.memory import of_machine, readable


def to_array(value: Any, what: str) -> np.ndarray:
    """An array of the values of an array, a column, a table, a sparse matrix, or lists of them.

    Args:
        value: arrays of any library, columns of pandas, polars, pyarrow and Hugging Face datasets, tables of these
            (a row for each example, the type that all columns have in common), SciPy's sparse matrices.
        what: name of the value, for messages.

    Returns:
        Numbers, or what the checks refuse in words of their own: text stays an array of objects.

    Raises:
        TypeError: if it is no array of anything, or a column of a table has no numbers.
        ValueError: if rows have different lengths, or values are missing: masked, null, None or NA.

    >>> to_array(np.ma.array([21, -999], mask=[False, True]), "age")
    Traceback (most recent call last):
        ...
    ValueError: age has a missing value, first at [1]: fill it in, or drop the row
    """
    if isinstance(value, np.ndarray) and not isinstance(value, np.ma.MaskedArray) and value.dtype.kind in "biuf":
        return value
    if is_table(value) or (isinstance(value, np.ndarray) and value.dtype.names):
        return _from_table(value, what)
    if callable(dense := getattr(value, "toarray", None)) and hasattr(value, "nnz"):
        return _from_sparse(value, dense, what)
    _check_mask(value, what)
    if isinstance(value, Mapping):
        raise TypeError(f"{what} must be an array, got a dictionary of {_some(value)}: give one array of each")
    if isinstance(value, (set, frozenset, str, bytes, Iterator)):
        raise TypeError(f"{what} must be an array, got a {type(value).__name__}: give an array or a list, in order")
    if not hasattr(value, "__array__") and _is_sized(value):
        if keys := next((v for v in value if isinstance(v, Mapping)), None):
            raise TypeError(
                f"{what} has a dictionary of {_some(keys)} in its rows: give one dictionary of columns, such as "
                "{name: [row[name] for row in rows] for name in rows[0]}"
            )
        value = [to_array(v, f"row {k} of {what}") if is_column(v) else v for k, v in enumerate(value)]
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{what} is not an array, its rows have different lengths: {error}") from None
    except (TypeError, RuntimeError) as error:  # such as a tensor that requires a gradient
        raise TypeError(f"{what} cannot be made an array, it is a {type(value).__name__}: {error}") from None
    return _from_objects(array, what) if array.dtype == object else array


def to_list(column: Any, what: str) -> list[Any]:
    """The values of a column, such as names, as Python objects: NumPy would convert both 1 and "1" to the string "1".

    Args:
        column: a list, an array or a column of any library.
        what: name of the column, for messages.

    Returns:
        The n values; a missing one is as the library has it (`is_missing`).

    Raises:
        TypeError: if it is no column, or has no order.
        ValueError: if it has several columns.

    >>> to_list(np.array(["Bern", "Ulm"]), "client"), to_list([1, "1"], "client")
    (['Bern', 'Ulm'], [1, '1'])
    """
    if is_table(column):
        raise ValueError(f"{what} must have shape [n], but is a table with the columns {_columns(column)[0]}: give one")
    if getattr(column, "ndim", 1) != 1:  # a list of tuples has no ndim: its names are tuples
        raise ValueError(f"{what} must have shape [n], got {list(column.shape)}")
    if isinstance(column, (list, tuple)):
        return list(column)
    for name in ("tolist", "to_list", "to_pylist"):
        if callable(values := getattr(column, name, None)):
            found: Any = values()
            return list(found)
    # In sets names have no order, and a string is one name.
    if isinstance(column, (str, bytes, set, frozenset, Mapping)) or not _is_sized(column):
        raise TypeError(f"{what} must be a list or a column, in order, got a {type(column).__name__}")
    return list(column)


def is_missing(value: Any) -> bool:
    """Whether one value of a column is missing: None, NaN, NaT, pandas' NA, or masked.

    >>> [is_missing(value) for value in (None, float("nan"), np.datetime64("NaT", "s"), 0, "", (1, None))]
    [True, True, True, False, False, False]
    """
    if value is None or value is np.ma.masked or type(value).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(value, (float, complex, decimal.Decimal, np.generic)) and bool(value != value)


def is_table(value: Any) -> bool:
    """Whether it has several columns by name: a frame of pandas or polars, a table of pyarrow or datasets."""
    if isinstance(value, (Mapping, np.ndarray, type)):
        return False
    frame = hasattr(value, "columns") and hasattr(value, "dtypes")  # pandas, polars
    return frame or (hasattr(value, "column_names") and hasattr(value, "__getitem__"))  # pyarrow, datasets


def count(value: Any) -> int | None:
    """Number of rows of what `to_array` takes; None if it is no array."""
    shape: Any = getattr(value, "shape", None)  # a sparse matrix has no len
    if isinstance(shape, tuple):
        return next((int(n) for n in shape), None)
    return len(value) if _is_sized(value) else None


def is_empty(value: Any) -> bool:
    """Whether an array to be has no elements, asked before it is converted."""
    shape = getattr(value, "shape", None)
    if isinstance(shape, tuple):
        return 0 in shape
    if isinstance(value, (list, tuple)):
        return all(map(is_empty, value))
    return _is_sized(value) and len(value) == 0


def with_dictionaries(x: Any) -> Any:
    """Makes dictionaries of other mappings, such as a batch of Hugging Face datasets: the trees of jax know no others.

    >>> import types
    >>> with_dictionaries(types.MappingProxyType({"age": [1]}))
    {'age': [1]}
    """
    return {key: with_dictionaries(item) for key, item in x.items()} if isinstance(x, Mapping) else x


def is_column(value: Any) -> bool:
    """Whether it is an array or a column of a library, and no list of numbers."""
    plain = isinstance(value, (list, tuple, range, np.generic, numbers.Number))
    return not plain and type(value) is not np.ndarray and (_is_sized(value) or hasattr(value, "nnz"))


def _is_sized(value: Any) -> bool:
    """Whether it has a length and can be read again and again."""
    return not isinstance(value, (str, bytes)) and hasattr(value, "__len__") and hasattr(value, "__iter__")


def _check_mask(value: Any, what: str) -> None:
    """Refuses the missing values that a masked array or a column knows of."""
    if isinstance(value, np.ma.MaskedArray):
        missing = np.argwhere(np.ma.getmaskarray(value))
    elif hasattr(value, "isna") and hasattr(value, "dtype") and not isinstance(value.dtype, np.dtype):
        missing = np.argwhere(np.asarray(value.isna()))  # pandas; NaN of NumPy's types is left to the checks
    elif hasattr(value, "null_count"):  # a number in pyarrow, a method in polars
        nulls = value.null_count() if callable(value.null_count) else value.null_count
        missing = np.argwhere([v is None for v in to_list(value, what)]) if nulls else np.zeros((0, 1))
    else:
        return
    if len(missing):
        raise missing_in(what, missing[0].tolist())


def missing_in(what: str, place: Any) -> ValueError:
    """What is said of a missing value."""
    return ValueError(f"{what} has a missing value, first at {place}: fill it in, or drop the row")


def _columns(table: Any) -> tuple[list[Any], list[Any]]:
    """Names and columns of a table; by position where names may occur twice."""
    if isinstance(table, np.ndarray):
        names = list(table.dtype.names or ())
        return names, [table[name] for name in names]
    if hasattr(table, "iloc"):
        return list(table.columns), [table.iloc[:, k] for k in range(len(table.columns))]
    names = list(table.column_names if hasattr(table, "column_names") else table.columns)
    return names, [table[name] for name in names]


def _from_table(table: Any, what: str) -> np.ndarray:
    """The columns side by side, `[n, columns]`."""
    names, columns = _columns(table)
    if not names:
        raise ValueError(f"{what} is a table without columns: give at least one")
    arrays = []
    for name, column in zip(names, columns, strict=True):
        a = to_array(column, f"column {name!r} of {what}")
        if a.dtype.kind not in "biuf":
            raise TypeError(f"column {name!r} of {what} must hold numbers, got {kind_of(a)}")
        if a.ndim != 1:
            raise ValueError(
                f"column {name!r} of {what} has arrays of shape {list(a.shape[1:])}: give the columns as a dictionary "
                f"of inputs, such as {{{name!r}: table[{name!r}]}}"
            )
        if a.dtype.kind == "f" and not np.isfinite(a).all():
            first = int(np.flatnonzero(~np.isfinite(a))[0])
            raise ValueError(f"column {name!r} of {what} has NaN or Inf, first in row {first}: remove or impute it")
        arrays.append(a)
    return np.stack(arrays, axis=1)


def _from_sparse(matrix: Any, dense: Any, what: str) -> np.ndarray:
    """The matrix with its zeros, if the machine has room for them."""
    needed, free = int(np.prod(matrix.shape, dtype=np.float64)) * np.dtype(matrix.dtype).itemsize, of_machine().free
    if needed > free:
        raise MemoryError(
            f"{what} is a sparse matrix of shape {list(matrix.shape)}, which takes {readable(needed)} with its zeros, "
            f"but this machine has {readable(free)} of free memory: keep fewer columns"
        )
    return np.asarray(dense())


def _from_objects(array: np.ndarray, what: str) -> np.ndarray:
    """Objects as numbers if all of them are, and as one array if all of them are arrays; else as they are."""
    if array.ndim == 0:
        raise TypeError(f"{what} must be an array, got a {type(array.item()).__name__}: give an array or a list")
    values = array.ravel().tolist()
    for place, value in enumerate(values):
        if is_missing(value) and not isinstance(value, float):  # NaN is a number, for the checks to refuse
            raise missing_in(what, [int(k) for k in np.unravel_index(place, array.shape)])
    if values and all(isinstance(v, (numbers.Real, decimal.Decimal, np.bool_)) for v in values):
        found = np.array([v if isinstance(v, (int, np.generic)) else float(v) for v in values])
        return (found.astype(np.float64) if found.dtype == object else found).reshape(array.shape)
    if values and array.ndim == 1 and all(map(_is_sized, values)):
        rows = [to_array(v, f"row {k} of {what}") for k, v in enumerate(values)]
        if other := [k for k, row in enumerate(rows) if row.shape != rows[0].shape]:
            shape, first = list(rows[other[0]].shape), list(rows[0].shape)
            raise ValueError(
                f"{what} is not an array, its rows have different lengths: {first} in row 0 and {shape} in row "
                f"{other[0]}"
            )
        return np.stack(rows)
    return array


def kind_of(array: np.ndarray) -> str:
    """What an array holds that is no number, for messages: its dtype, and how to make numbers of it."""
    if array.dtype.kind == "M":
        return f"dtype {array.dtype}: give a number, such as (t - t.min()) / np.timedelta64(1, 'D')"
    if array.dtype.kind == "m":
        return f"dtype {array.dtype}: give a number, such as t / np.timedelta64(1, 'D')"
    text = text_in(array)
    if text is not None:
        return f"text such as {text!r} (dtype {array.dtype}): number the categories, or give each a column of 0 and 1"
    if array.dtype == object and array.size:
        return f"a {type(array.flat[0]).__name__} in each place (dtype object)"
    return f"dtype {array.dtype}"


def text_in(array: np.ndarray) -> str | None:
    """The first text of an array, whatever its dtype; None if it has none."""
    if array.dtype.kind in "UST":
        return str(array.flat[0]) if array.size else ""
    return next((v for v in array.ravel().tolist() if isinstance(v, str)), None) if array.dtype == object else None


def _some(values: Mapping[Any, Any]) -> str:
    """The first keys of a dictionary, for messages."""
    return ", ".join([*(repr(key) for key in list(values)[:3]), *["..."] * (len(values) > 3)]) or "nothing"


def check_no_dictionary(values: Any, what: str, way_out: str) -> None:
    """Refuses a dictionary where there should be one entry for each client, in order.

    Raises:
        TypeError: with `way_out`, what to give in place of it.
    """
    if isinstance(values, Mapping):
        raise TypeError(f"{what} is a dictionary of clients, {_some(values)}: {way_out}")
