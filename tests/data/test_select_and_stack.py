"""`fedamp_jax.data.from_*`: clients of different sizes as one `Data`, and an error message for every mistake."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedamp_jax import data
from fedamp_jax.data import checks
from fedamp_jax.programs.memory import Machine


def clients(sizes=(3, 1, 2), shape=(4,), dtype=np.float32, seed=0):
    """`(xs, ys)` of clients of the given sizes; no value of x is 0, unlike padding."""
    rng = np.random.default_rng(seed)
    xs = [(rng.integers(1, 200, (n, *shape))).astype(dtype) for n in sizes]
    return xs, [rng.integers(0, 5, n) for n in sizes]


def test_from_lists_keeps_every_example():
    """One client's after the other's. Fails if clients begin at other rows than their examples do."""
    xs, ys = clients(sizes=(3, 1, 7))
    packed = data.from_lists(xs, ys)
    chex.assert_shape((packed.x, packed.y, packed.size), [(11, 4), (11,), (3,)])
    assert packed.size.tolist() == [3, 1, 7] and packed.start.tolist() == [0, 3, 4] and packed.longest == 7
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        jax.tree.map(np.testing.assert_array_equal, packed.examples(i), (x, y))


def test_the_typical_size_is_that_of_most_clients():
    """The largest of those up to twice the median. Failed for parts that are held out, which kept the whole's."""
    packed = data.from_lists(*clients(sizes=(10, 30, 20, 41, 500)))
    assert (packed.longest, packed.typical, packed.larger) == (500, 41, 1)
    part, validation = data.hold_out(packed, 0.2, seed=0)
    assert (part.longest, part.typical, validation.longest, validation.typical) == (400, 33, 100, 8)
    both = data.concatenate(packed, data.from_lists(*clients(sizes=(100, 90, 80, 70, 60)), classes=5))
    assert (both.longest, both.typical, both.larger) == (500, 100, 1)


def test_every_field_has_the_documented_dtype():
    """Fails if labels keep NumPy's int64, or if `online` is missing."""
    packed = data.from_lists(*clients())
    fields = packed[:7]
    assert all(isinstance(field, jax.Array) for field in fields)
    assert [field.dtype.name for field in fields] == ["float32", *["int32"] * 5, "bool"]
    assert packed.id.tolist() == [0, 1, 2] and packed.online.tolist() == [True] * 3


@pytest.mark.parametrize(
    ("dtype", "kept"),
    [(np.uint8, "uint8"), (np.float64, "float32"), (np.float16, "float32"), (np.int64, "float32"), (bool, "float32"),
     (np.uint16, "float32"), (jnp.bfloat16, "float32")],
)  # fmt: skip
def test_only_uint8_stays_an_integer(dtype, kept):
    """Fails if int64 features stay integers."""
    xs, ys = clients(dtype=dtype)
    packed = data.from_lists(xs, ys)
    assert packed.x.dtype == kept
    np.testing.assert_array_equal(packed.examples(0)[0], np.asarray(xs[0], kept))


def test_what_does_not_fit_is_refused_before_it_is_packed(monkeypatch):
    """With the bytes, the largest clients and a way out. Failed with NumPy's bare error."""
    monkeypatch.setattr(checks, "of_machine", lambda: Machine(total=10_000, free=1_000))
    x, y, column = np.zeros((300, 5)), np.zeros(300, int), ["Bern"] * 60 + ["Lyon"] * 200 + ["Oslo"] * 40
    message = (
        r"3 clients have 300 examples of 24 B, 7.031 KiB in all, .*largest are client 'Lyon' with 200, client 'Bern'"
    )
    monkeypatch.setattr(np, "empty", None)
    with pytest.raises(MemoryError, match=message):
        data.from_table(x, y, column)


def test_classes_are_shared_given_or_one_per_client():
    """Fails if None gives each client its own highest label + 1."""
    xs, ys = [np.ones((2, 1))] * 2, [[0, 1], [4, 2]]
    assert data.from_lists(xs, ys).classes.tolist() == [5, 5]
    assert data.from_lists(xs, ys, classes=10).classes.tolist() == [10, 10]
    assert data.from_lists(xs, ys, classes=[2, 7]).classes.tolist() == [2, 7]
    again = data.from_lists(xs, ys, classes=jnp.array([2, 7], jnp.int32))
    assert again.classes.tolist() == [2, 7] and again.classes.dtype == jnp.int32


def test_from_indices_is_from_lists_of_the_rows():
    """Fails if the indices are sorted."""
    rng = np.random.default_rng(1)
    x, y = rng.integers(0, 255, (9, 2, 2)).astype(np.uint8), rng.integers(0, 3, 9)
    rows = [np.array([4, 0, 8]), [2], np.array([5, 1], np.uint16)]
    a, b = data.from_indices(x, y, rows), data.from_lists([x[r] for r in rows], [y[r] for r in rows])
    chex.assert_trees_all_equal(a, b)


@pytest.mark.parametrize(
    "column",
    [["Zürich", "Bern", "Zürich", "東京"], np.array([7, 3, 7, 12]), [("a", 1), ("a", 0), ("a", 1), ("b", 0)],
     np.array([7, "x", 7, "7"], object), [1, "1", 1, 2.5]],
    ids=["unicode", "ints", "tuples", "objects", "mixed"],
)  # fmt: skip
def test_from_table_groups_rows_by_any_hashable_name(column):
    """Fails with np.unique, which merges 1 and "1" and treats tuples as a second axis."""
    x = np.arange(8.0).reshape(4, 2)
    packed, names = data.from_table(x, [0, 1, 1, 0], column)
    plain = column.tolist() if isinstance(column, np.ndarray) else column
    assert len(names) == 3 and set(names) == set(plain)
    for i, name in enumerate(names):
        mine = [row for row, of in enumerate(plain) if of == name]
        np.testing.assert_array_equal(packed.examples(i)[0], x[mine])
    assert packed.size.tolist() == [plain.count(name) for name in names]


def test_from_table_follows_the_order_of_names():
    """Fails if `names` only renames the sorted clients: a client would get another client's test rows."""
    _, names = data.from_table(np.ones((2, 1)), [0, 1], ["b", "a"])
    assert names == ["a", "b"]
    test, _ = data.from_table(np.array([[1.0], [2.0]]), [0, 1], ["b", "a"], names=["b", "a"])
    assert test.x[:, 0].tolist() == [1.0, 2.0]


X, Y = [np.ones((2, 3)), np.ones((1, 3))], [np.array([0, 1]), np.array([2])]
NAN = [np.ones((2, 3)), np.array([[1.0, np.nan, 1.0]])]
LISTS = {
    "no clients": (([], []), {}, ValueError, "at least one client"),
    "counts differ": ((X, Y[:1]), {}, ValueError, "got 2 and 1"),
    "empty client": (([X[0], np.ones((0, 3))], [Y[0], []]), {}, ValueError, r"client 1 \(of 2\) has no examples"),
    "x and y differ": ((X, [Y[0], Y[0]]), {}, ValueError, "x of client 1 has 1 examples, but its y has 2 labels"),
    "negative label": ((X, [Y[0], [-1]]), {}, ValueError, "y of client 1 has the negative label -1"),
    "label too high": (
        (X, Y),
        {"classes": 2},
        ValueError,
        r"y of client 1 has the label 2, but classes = 2 allows 0..1",
    ),
    "label too high for its client": ((X, Y), {"classes": [1, 3]}, ValueError, "client 0 has the label 1"),
    "label beyond int32": ((X, [Y[0], [2**40]]), {}, ValueError, "out of int32's range"),
    "label wraps around": ((X, [Y[0], [2**32]]), {"classes": 3}, ValueError, "client 1 has the label 4294967296"),
    "float labels": ((X, [Y[0], [2.0]]), {}, TypeError, "y of client 1 must hold integer labels, got dtype float64"),
    "one-hot labels": ((X, [Y[0], [[0, 1]]]), {}, ValueError, "not one-hot"),
    "nan": ((NAN, Y), {}, ValueError, r"x of client 1 has NaN, Inf or .*, first at \[0, 1\]"),
    "beyond float32": (([X[0], X[1] * 1e300], Y), {}, ValueError, "out of float32's range"),
    "shapes differ": (
        ([X[0], np.ones((1, 4))], Y),
        {},
        ValueError,
        r"client 1 has shape \[4\], but one of client 0 has \[3\]",
    ),
    "dtypes differ": (
        ([X[0], np.ones((1, 3), np.uint8)], Y),
        {},
        TypeError,
        "client 1 is uint8, but x of client 0 is float32",
    ),
    "object": (([X[0], np.array([[len, 1, 2]], object)], Y), {}, TypeError, "x of client 1 must be uint8 or numbers"),
    "text": (([X[0], np.array([["a", "b", "c"]])], Y), {}, TypeError, "x of client 1 must be uint8 or numbers"),
    "complex": (([X[0], np.ones((1, 3), complex)], Y), {}, TypeError, "x of client 1 must be uint8 or numbers"),
    "ragged": (([X[0], [[1, 2], [3]]], Y), {}, ValueError, "x of client 1 is not an array"),
    "a number": (([X[0], 3.0], Y), {}, ValueError, "x of client 1 must have an example axis"),
    "classes of other length": (
        (X, Y),
        {"classes": [3, 3, 3]},
        ValueError,
        r"classes must be .* \[2\], got shape \[3\]",
    ),
    "classes zero": ((X, Y), {"classes": [0, 3]}, ValueError, "classes must be in 1.."),
    "classes float": ((X, Y), {"classes": 3.0}, TypeError, "classes must be integers"),
    "ids twice": ((X, Y), {"ids": [4, 4]}, ValueError, "ids must differ, but 4 occurs 2 times"),
    "ids negative": ((X, Y), {"ids": [-1, 4]}, ValueError, "ids must be in 0.."),
    "ids of other length": ((X, Y), {"ids": [1]}, ValueError, "ids must be"),
}


@pytest.mark.parametrize(("args", "options", "error", "message"), LISTS.values(), ids=LISTS)
def test_from_lists_refuses(args, options, error, message):
    """Fails for "label wraps around" if y is cast to int32 before the range check: 2**32 becomes label 0."""
    with pytest.raises(error, match=message):
        data.from_lists(*args, **options)


POOL = (np.ones((4, 3)), np.array([0, 1, 2, 1]))
INDICES = {
    "empty client": ([[0], []], ValueError, r"client 1 \(of 2\) has no examples"),
    "no clients": ([], ValueError, "indices is empty"),
    "beyond the end": ([[0], [4]], ValueError, r"indices of client 1 must be in 0..3, got 4 to 4"),
    "from the end": ([[-1], [2]], ValueError, "indices of client 0 must be in 0..3, got -1"),
    "a mask": ([[True, False, True, False]], TypeError, "np.flatnonzero"),
    "floats": ([[0.0]], TypeError, "indices of client 0 must be integers, got float64"),
    "two axes": ([[[0, 1]]], ValueError, "must have shape"),
}


@pytest.mark.parametrize(("indices", "error", "message"), INDICES.values(), ids=INDICES)
def test_from_indices_refuses(indices, error, message):
    """Fails for "from the end" and "a mask" (which selects rows 0 and 1) if NumPy's indexing is the only check."""
    with pytest.raises(error, match=message):
        data.from_indices(*POOL, indices)


TABLES = {
    "column of other length": ((["a", "b"], {}), ValueError, "client has 2 rows, but x has 4"),
    "missing name": ((["a", None, "b", "a"], {}), ValueError, "client has no name in row 1"),
    "nan name": ((np.array([1.0, 2.0, np.nan, 1.0]), {}), ValueError, "client has no name in row 2"),
    "no hashable name": (([["a"], ["b"], ["a"], ["a"]], {}), TypeError, "not hashable"),
    "two columns": ((np.zeros((4, 2)), {}), ValueError, r"client must have shape \[n\], got \[4, 2\]"),
    "absent from names": ((["a", "b", "a", "c"], {"names": ["a", "b"]}), ValueError, "client 'c' is in client but not"),
    "without rows": ((["a", "a", "a", "b"], {"names": ["a", "b", "c"]}), ValueError, "client 'c' is in names but not"),
    "names twice": ((["a", "a", "a", "b"], {"names": ["a", "b", "b"]}), ValueError, "names lists a client twice"),
    "label by name": ((["a", "a", "b", "b"], {"classes": 2}), ValueError, "y of client 'b' has the label 2"),
}


@pytest.mark.parametrize(("args", "error", "message"), TABLES.values(), ids=TABLES)
def test_from_table_refuses(args, error, message):
    """Fails for "nan name" without a check: np.unique makes one client of all NaNs, a dict one client per row."""
    with pytest.raises(error, match=message):
        data.from_table(*POOL, args[0], **args[1])


def test_pool_of_other_length_is_refused():
    """Fails if only the indices are checked against x."""
    with pytest.raises(ValueError, match=r"x has 4 examples \(shape \[4, 3\]\), but y has 3 labels"):
        data.from_indices(POOL[0], POOL[1][:3], [[0]])


PAIRS = {
    "clients": (data.from_lists, (X[:1], [Y[1][:1].repeat(2)]), {}, "train has 2 clients, but test has 1"),
    "shape": (
        data.from_lists,
        ([np.ones((2, 5)), np.ones((1, 5))], Y),
        {},
        r"float32 \[3\] in train and float32 \[5\]",
    ),
    "dtype": (data.from_lists, ([x.astype(np.uint8) for x in X], Y), {}, r"float32 \[3\] in train and uint8 \[3\]"),
    "classes": (data.from_lists, (X, Y), {"classes": 4}, "client 0 has 3 classes in train and 4 in test"),
    "ids": (data.from_lists, (X, Y), {"ids": [0, 2]}, "client 1 has id 1 in train and 2 in test"),
}


@pytest.mark.parametrize(("make", "args", "options", "message"), PAIRS.values(), ids=PAIRS)
def test_check_pair_refuses(make, args, options, message):
    """Fails for each case if its comparison is removed."""
    train = data.from_lists(X, Y)
    data.check_pair(train, data.from_lists(X[::-1], Y[::-1]))
    with pytest.raises(ValueError, match=message):
        data.check_pair(train, make(*args, **options))


def rows_of(clients, i):
    """One client's examples with their labels."""
    return [(*np.asarray(x), int(y)) for x, y in zip(*clients.examples(i))]


def test_hold_out_splits_each_client():
    """Every example is in one of the parts, which stay with their client, and none is copied.

    Failed with rows of the next client among the permuted, with parts that overlap, and with ids numbered anew.
    """
    whole = data.from_lists(*clients(sizes=(30, 2, 7)))
    whole = whole._replace(id=whole.id[::-1])
    kept, held = data.hold_out(whole, 0.3, seed=1)
    assert kept.size.tolist() == [21, 1, 5] and held.size.tolist() == [9, 1, 2]
    for i in range(3):
        assert sorted(rows_of(kept, i) + rows_of(held, i)) == sorted(rows_of(whole, i))
        assert held.x is kept.x is whole.x
    assert held.id.tolist() == kept.id.tolist() == whole.id.tolist()
    assert kept.classes.tolist() == whole.classes.tolist()
    other = data.hold_out(whole, 0.3, seed=2)[1]
    assert rows_of(other, 0) != rows_of(held, 0)
    with pytest.raises(ValueError, match="share must be between 0 and 1, got 1"):
        data.hold_out(whole, 1, seed=0)
    kept, held = data.hold_out(data.from_lists(*clients(sizes=(3, 1))), 0.5, seed=0)
    assert kept.size.tolist() == [1, 1] and held.size.tolist() == [2, 0]
    with pytest.raises(ValueError, match="no client has two examples: nothing can be held out"):
        data.hold_out(data.from_lists(*clients(sizes=(1, 1))), 0.5, seed=0)


def test_balanced_clients_are_equal_work_for_every_device():
    """With MNIST's sizes and 2 or 4 devices, no device has more than 1.05 times the mean number of examples.

    Clients keep their id, examples and group. Fails in the order of the groups (1.4 and 1.6 times the mean), and if
    `groups` is not reordered.
    """
    size = np.repeat([500, 400, 300, 200, 100], 20)
    train = data.from_lists([np.full((n, 1), i) for i, n in enumerate(size)], [np.zeros(n, int) for n in size])
    clients = data.balanced(data.Federation(train, train, np.repeat(np.arange(5), 20)))
    for devices in (2, 4):
        share = np.asarray(clients.train.size).reshape(devices, -1).sum(axis=1)
        assert share.max() <= 1.05 * share.mean()
    ids = np.asarray(clients.test.id)
    assert sorted(ids) == list(range(100)) and (clients.groups == ids // 20).all()
    assert all((np.asarray(clients.train.examples(i)[0]) == row).all() for i, row in enumerate(ids))
    assert (np.asarray(clients.train.size) == size[ids]).all()
    same_size = data.Federation(train._replace(size=np.full(100, 7)), train, None)
    assert data.balanced(same_size) is same_size


@pytest.mark.parametrize("setting", ["practical", "pathological"])
def test_a_small_part_of_a_federation(setting):
    """Two clients of each of several groups, their first examples, their ids.

    Failed with the first clients, all of one group, and with sizes beyond the examples that are left.
    """
    whole = data.federation("digits", setting)
    part = data.small(whole, count=6, examples=33)
    assert len(part.train.size) == len(part.test.size) == 6
    data.check_pair(part.train, part.test)
    if setting == "practical":
        assert part.groups.tolist() == [0, 0, 1, 1, 2, 2]
    for i, row in enumerate(part.train.id):
        n = int(part.train.size[i])
        assert n == min(33, int(whole.train.size[row])) and int(part.test.id[i]) == row
        first = jax.tree.map(lambda a, n=n: a[:n], whole.train.examples(int(row)))
        jax.tree.map(np.testing.assert_array_equal, part.train.examples(i), first)
