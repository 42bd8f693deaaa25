"""Columns, tables and sparse matrices as people have them: converted, or refused by column or client with a way out."""

import decimal

import numpy as np
import pytest
import scipy.sparse

from fedamp_jax import data
from fedamp_jax.data import tables

CLIENT, LABELS = ["b", "a", "b", "a"], [0, 1, 1, 0]
POOL = np.arange(8.0).reshape(4, 2)
MASKED = np.ma.array([21, 22, -999, 24], mask=[False, False, True, False])


class Column:
    """A column like those of Hugging Face datasets and of polars: it has a length, entries and no `tolist`."""

    def __init__(self, values):
        self.values = values

    def __len__(self):
        return len(self.values)

    def __getitem__(self, key):
        return self.values[key]

    def __iter__(self):
        return iter(self.values)


class Nullable(Column):
    """A column like pyarrow's and polars': it counts what is missing, and its array has NaN in these places."""

    @property
    def null_count(self):
        return sum(v is None for v in self.values)

    def __array__(self, dtype=None, copy=None):
        return np.array([np.nan if v is None else v for v in self.values])

    def to_pylist(self):
        return list(self.values)


class Frame:
    """A table like pyarrow's: its columns by name."""

    def __init__(self, **columns):
        self.columns_by_name, self.column_names = columns, list(columns)
        self.shape = (len(next(iter(columns.values()))), len(columns))

    def __getitem__(self, name):
        return Column(self.columns_by_name[name])


def table(x=POOL, y=LABELS, client=CLIENT, **options):
    """The table's `Data`."""
    return data.from_table(x, y, client, **options)[0]


@pytest.mark.parametrize("column", [Column, Nullable, np.ma.array], ids=["column", "nullable", "masked"])
def test_columns_without_missing_values_are_arrays(column):
    """As features, labels, client names, names in order, indices. Failed where `tolist` was called on any column."""
    wanted, found = table(np.array(LABELS)), table(column(LABELS), column(LABELS), column([7, 3, 7, 3]))
    assert found.x.tolist() == wanted.x.tolist() and found.y.tolist() == wanted.y.tolist()
    named, names = data.from_table(POOL, column(LABELS), column([7, 3, 7, 3]), names=column([7, 3]), class_names=[1, 0])
    assert names == [7, 3] and named.y.tolist() == [1, 0, 0, 1]
    assert data.from_indices(POOL, LABELS, [column([2, 0]), column([1])]).y.tolist() == [1, 0, 1]
    pair = data.from_lists([(column(LABELS), column(LABELS))], [column(LABELS)], ids=column([5]))
    assert [a.tolist() for a in pair.x] == [LABELS, LABELS] and pair.id.tolist() == [5]
    part = data.partition.dirichlet(column(LABELS), column(LABELS), 2, 1.0, seed=0)
    assert sorted(np.concatenate(part.train)) == [0, 1, 2, 3]


def test_rows_that_are_arrays_are_stacked():
    """Failed with an array of objects, as `np.asarray` makes of a column of arrays."""
    rows = np.empty(4, object)
    rows[:] = [np.array([i, i + 1], np.uint8) for i in range(4)]
    for x in (rows, Column(list(rows)), Column([r.tolist() for r in rows])):
        assert data.from_indices(x, LABELS, [[0, 1, 2, 3]]).x.tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]
    assert table(rows).x.dtype == np.uint8


def test_columns_of_several_dtypes_are_side_by_side():
    """Failed as "dtype object" for a frame with bool and float columns, which NumPy makes objects."""
    mixed = Frame(age=[30, 40, 50, 60], dose=[0.5, 1.0, 1.5, 2.0], smokes=[True, False, True, False])
    wanted = [[30, 0.5, 1], [40, 1, 0], [50, 1.5, 1], [60, 2, 0]]
    assert data.from_indices(mixed, LABELS, [[0, 1, 2, 3]]).x.tolist() == wanted
    structured = np.array([(1, 0.5), (2, 1.5)], dtype=[("a", int), ("b", float)])
    assert data.from_lists([structured], [[0, 1]]).x.tolist() == [[1.0, 0.5], [2.0, 1.5]]
    pixels = Frame(a=list(np.uint8([1, 2])), b=list(np.uint8([3, 4])))
    assert data.from_lists([pixels], [[0, 1]]).x.dtype == np.uint8
    objects = np.array([[True, 0.5], [2, decimal.Decimal("1.5")]], object)
    assert data.from_lists([objects], [[0, 1]]).x.tolist() == [[1.0, 0.5], [2.0, 1.5]]


@pytest.mark.parametrize("kind", ["csr_matrix", "coo_array", "csc_array"])
def test_sparse_matrices_get_their_zeros(kind):
    """Failed with "the single number", because NumPy makes a sparse matrix one object, and in `len(x)`."""
    matrix = getattr(scipy.sparse, kind)(POOL)
    assert table(matrix).x.tolist() == table().x.tolist()
    assert table({"words": matrix}).x["words"].tolist() == table().x.tolist()
    assert data.from_lists([matrix], [LABELS]).x.tolist() == POOL.tolist()
    assert table(y=matrix, classes=0).y.tolist() == table(y=POOL, classes=0).y.tolist()


USER_DATA = {f"u{i}": {"x": POOL.tolist(), "y": LABELS} for i in range(2)}
XS, YS = ({name: client[key] for name, client in USER_DATA.items()} for key in "xy")
MISSING = r"has a missing value, first at \[2\]: fill it in, or drop the row"
REFUSED = {
    "masked features": (lambda: table(MASKED), ValueError, f"x {MISSING}"),
    "masked pixels": (lambda: table(MASKED.astype(np.uint8)), ValueError, f"x {MISSING}"),
    "masked labels": (lambda: table(y=MASKED), ValueError, f"y {MISSING}"),
    "masked targets": (lambda: table(y=MASKED, classes=0), ValueError, f"y {MISSING}"),
    "masked rows": (lambda: data.from_lists([[MASKED]], [[0]]), ValueError, f"row 0 of x of client 0 {MISSING}"),
    "masked name": (lambda: table(client=MASKED), ValueError, "client has no name in row 2"),
    "masked label by name": (lambda: table(y=MASKED, class_names=[21]), ValueError, "y has the label 22|in row 2"),
    "masked index": (lambda: data.from_indices(POOL, LABELS, [MASKED]), ValueError, f"indices of client 0 {MISSING}"),
    "masked pool": (lambda: data.partition.iid(MASKED, LABELS, 1), ValueError, f"y_train {MISSING}"),
    "null": (lambda: table(Nullable([1, 2, None, 4])), ValueError, f"x {MISSING}"),
    "null label": (lambda: table(y=Nullable([1, 0, None, 1])), ValueError, f"y {MISSING}"),
    "None": (lambda: table(Column([1, 2, None, 4])), ValueError, f"x {MISSING}"),
    "None label": (lambda: table(y=[0, 1, None, 1]), ValueError, f"y {MISSING}"),
    "NaN label": (lambda: table(y=[0, 1, np.nan, 1]), ValueError, f"y {MISSING}"),
    "null in a column": (lambda: table(Frame(a=[1] * 4, b=[1, 2, None, 4])), ValueError, f"column 'b' of x {MISSING}"),
    "NaN in a column": (
        lambda: table(Frame(a=[1] * 4, b=[1, 2, np.nan, 4])), ValueError,
        "column 'b' of x has NaN or Inf, first in row 2",
    ),
    "text in a column": (lambda: table(Frame(a=[1] * 4, b=CLIENT)), TypeError, "column 'b' of x .* text such as 'b'"),
    "arrays in a column": (lambda: table(Frame(a=[1] * 4, b=[[1, 2]] * 4)), ValueError, "'b' .* as a dictionary"),
    "table of clients": (lambda: table(client=Frame(a=CLIENT)), ValueError, r"client .* with the columns \['a'\]"),
    "ragged column": (
        lambda: table(np.array([[1], [2], [3, 4], [5]], object)), ValueError,
        r"different lengths: \[1\] in row 0 and \[2\]",
    ),
    "text as features": (lambda: table({"kind": np.array(CLIENT, object)}), TypeError, r"x\['kind'\] .* such as 'b'"),
    "dates": (lambda: table(np.arange(4).astype("datetime64[D]")), TypeError, "give a number, such as"),
    "text labels": (lambda: table(y=np.array(CLIENT, object)), TypeError, "names such as 'b': give class_names"),
    "text pool": (lambda: data.partition.iid(CLIENT, CLIENT, 1), TypeError, "y_train .* such as 'b': number them"),
    "text labels of a client": (
        lambda: data.from_lists([POOL], [np.array(CLIENT, object)]), TypeError, "y of client 0 .* give class_names",
    ),
    "clients by name": (lambda: data.from_lists(USER_DATA, USER_DATA), TypeError, r"xs is a dictionary .* 'u0', 'u1'"),
    "arrays by name": (lambda: data.from_lists(XS, YS), TypeError, r"xs = \[clients\[name\] for name in sorted"),
    "labels by name": (lambda: data.from_lists([POOL] * 2, YS), TypeError, "ys is a dictionary of clients"),
    "indices by name": (lambda: data.from_indices(POOL, LABELS, {"u0": [0]}), TypeError, "indices is a dictionary"),
    "records": (lambda: table([{"a": 1, "b": 2}] * 4), TypeError, "x has a dictionary of 'a', 'b' in its rows"),
    "a generator": (lambda: data.from_lists((POOL for _ in "ab"), [LABELS] * 2), TypeError, "xs .* got a generator"),
    "generated rows": (lambda: data.from_lists([iter(POOL)], [LABELS]), TypeError, "x of client 0 must .* got a"),
    "a set of names": (lambda: table(y=CLIENT, class_names={"a", "b"}), TypeError, "class_names .* got a set"),
    "a number for each name": (lambda: table(y=CLIENT, class_names={"a": 0, "b": 1}), TypeError, "got a dict"),
    "one name": (lambda: table(client="Oslo"), TypeError, "client must be a list or a column, in order, got a str"),
    "no features": (lambda: table(None), TypeError, "x must be an array, got a NoneType"),
    "rows of one input": (lambda: table({"a": POOL, "b": POOL[:3]}), ValueError, r"4 rows, but x\['b'\] has 3"),
    "huge": (lambda: table(scipy.sparse.csr_matrix((4, 10**11))), MemoryError, "x is a sparse matrix .* fewer columns"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_what_is_missing_or_no_numbers_is_named(call, error, message):
    """Failed with np.asarray alone: masks were dropped, -999 was data, and messages had neither column nor client."""
    with pytest.raises(error, match=message):
        call()


def test_pandas():
    """Failed in nullable columns ("boolean value of NA is ambiguous") and in frames of several dtypes."""
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"age": [30, 40, 50, 60], "dose": [0.5, 1.0, 1.5, 2.0], "smokes": [True, False, True, False]})
    assert table(frame).x.shape == (4, 3)
    for dtype in ("Int64", "Float64", "boolean"):
        whole, some = (pd.Series(values, dtype=dtype) for values in ([1, 0, 1, 1], [1, 0, None, 1]))
        assert table(whole).x.tolist() == [0.0, 1.0, 1.0, 1.0]
        for call in (lambda c: table(c), lambda c: table(y=c), lambda c: table(pd.DataFrame({"q": c}))):
            with pytest.raises(ValueError, match=MISSING):
                call(some)
        with pytest.raises(ValueError, match="client has no name in row 2"):
            table(client=some)
    with pytest.raises(TypeError, match="give class_names"):
        table(y=pd.Series(CLIENT, dtype="category"))
    assert data.from_table(POOL, LABELS, pd.Series(CLIENT, dtype="category"))[1] == ["a", "b"]


@pytest.mark.parametrize("library", ["polars", "pyarrow", "datasets"])
def test_other_libraries(library):
    """Failed with "no attribute 'tolist'" for client names, and where nulls became NaN in names and labels."""
    module = pytest.importorskip(library)
    columns = {"client": CLIENT, "label": LABELS, "dose": [0.5, 1.0, 1.5, 2.0], "gap": [1, 2, None, 4]}
    make = getattr(module, {"polars": "DataFrame", "pyarrow": "table", "datasets": "Dataset"}[library])
    frame = getattr(make, "from_dict", make)(columns)
    found, names = data.from_table(frame["dose"], frame["label"], frame["client"])
    assert names == ["a", "b"] and found.x.tolist() == [1.0, 2.0, 0.5, 1.5] and found.y.tolist() == [1, 0, 0, 1]
    select = "select_columns" if library == "datasets" else "select"
    assert table(getattr(frame, select)(["dose", "label"])).x.shape == (4, 2)
    for call in (lambda c: table(c), lambda c: table(y=c)):
        with pytest.raises(ValueError, match=MISSING):
            call(frame["gap"])
    with pytest.raises(ValueError, match="client has no name in row 2"):
        table(client=frame["gap"])


def test_an_array_is_not_copied():
    """Failed with a conversion of every entry, which copied arrays that were fine."""
    assert tables.to_array(POOL, "x") is POOL
