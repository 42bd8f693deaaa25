"""Whatever comes in, a public function works, or refuses it by name and says what it expects.

200 cases by default; 2,400 with `HYPOTHESIS_PROFILE=nightly`. Only the last two tests compile anything, once: their
cases share one shape.
"""

import functools
import os
import re

import hypothesis
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedamp_jax
from fedamp_jax import Participation, Placement, Solver, analysis, data
from fedamp_jax.data import partition
from fedamp_jax.driver import checkpoint
from fedamp_jax.report import files, run_page
from tests.registry import CLASSES, FEATURES, tiny_task

CASES = {"ci": 1, "nightly": 12}[os.environ.get("HYPOTHESIS_PROFILE", "ci")]
SLOW = [hypothesis.HealthCheck.too_slow, hypothesis.HealthCheck.data_too_large, hypothesis.HealthCheck.filter_too_much]


def cases(count):
    """So many cases, and twelve times as many at night. By day they are always the same ones."""
    return hypothesis.settings(max_examples=count * CASES, deadline=None, suppress_health_check=SLOW,
                               derandomize=CASES == 1, database=None)  # fmt: skip


EXPECTED = re.compile(
    r"\bmust (be|have|hold|list|differ|name|not|map)\b|\bneeds?\b|\ballows\b|, but\b|at least one"
    r"|: (map|remove|give|fill|use|increase|convert|enlarge|every|each)\b|is not an array|call it, such as"
    r"|no .* samples|lists a client twice"
)
"""How a message says what is expected of an argument. Python's own, such as "'<=' not supported", never do."""


def attempt(call, *names):
    """What `call` returns; None if it refuses, in words that name one of the arguments and say what it should be."""
    try:
        return call()
    except (ValueError, TypeError) as error:
        said = f"{type(error).__name__}: {error}"
        assert any(re.search(rf"(^|\W){re.escape(name)}", str(error)) for name in names), said  # noqa: PT017
        assert EXPECTED.search(str(error)), said  # noqa: PT017
        return None


def test_an_error_of_pythons_own_is_no_refusal():
    """That `attempt` does not take any error that happens to have an argument's name in it for the intended one."""

    def epochs():
        return None <= 3

    def named():
        raise TypeError("bad operand type for epochs: 'NoneType'")

    for call in (epochs, named):
        with pytest.raises(AssertionError, match="TypeError: "):
            attempt(call, "epochs", "'<='")


seeds = st.integers(0, 2**32 - 1)
three = st.lists(st.floats(0, 100), min_size=3, max_size=3)
junk = st.one_of(
    st.none(), st.booleans(), st.floats(), st.integers(-3, 300), st.text(max_size=3), st.just([]), st.just((1, 2, 3)),
    st.just({}), st.just(np.nan), st.just(np.float32(0.5)), st.just(np.int64(2)), st.just(-1), st.just("0.5"),
)  # fmt: skip
kinds = st.sampled_from(["u1", "u1", "f4", "f8", "i8", "?", "f2", "u2", "c8", "U1", "O"])
label_kinds = st.sampled_from(["i4", "i8", "u1", "u8", "f4"])
names = st.one_of(
    st.text(min_size=1, max_size=6), st.integers(-5, 5), st.sampled_from(["Ülm", "医院", "🏥", "a\0b", " "])
)


def rarely(*strategies):
    """Mostly None, which is the default of what is fuzzed with it."""
    return st.integers(0, 3).flatmap(lambda i: st.one_of(*strategies) if i == 3 else st.none())


@st.composite
def ragged(draw, good=False):
    """Clients of any sizes: `(xs, ys)`; mostly of one kind, sometimes with one that does not fit."""
    rng = np.random.default_rng(draw(seeds))
    m = draw(st.integers(1 if good else 0, 5))
    shape = draw(st.sampled_from([(), (2,), (2, 2), (1, 2, 1)]))
    kind, label = ("f4", "i4") if good else (draw(kinds), draw(label_kinds))
    low = 0 if good else draw(st.sampled_from([0, 0, 0, -1]))
    least = 1 if good else draw(st.sampled_from([1, 1, 1, 0]))
    sizes = [draw(st.integers(least, 6)) for _ in range(m)]
    xs = [(100 * rng.random((n, *shape))).astype(kind) for n in sizes]
    ys = [rng.integers(low, draw(st.sampled_from([1, 2, 5])), n).astype(label) for n in sizes]
    if not good and m and draw(st.integers(0, 3)) == 3:
        i = draw(st.integers(0, m - 1))
        ys[i] = draw(
            st.sampled_from([ys[i][:-1], ys[i][:, None], list(ys[i]) + [2**40], "labels", [[1], [2, 3]], None])
        )
    if not good and m and draw(st.integers(0, 3)) == 3:
        i = draw(st.integers(0, m - 1))
        xs[i] = draw(st.sampled_from([xs[i][:-1], 3.0, np.full((2, *shape), np.inf), [[1], [2, 3]], None, xs[i][None]]))
    return xs, ys


@cases(30)
@given(st.one_of(ragged(good=True), ragged()), st.one_of(st.none(), st.integers(0, 9), junk), rarely(junk))
def test_from_lists(clients, classes, ids):
    """Failed without the check of labels against `classes`."""
    xs, ys = clients
    made = attempt(lambda: data.from_lists(xs, ys, classes=classes, ids=ids),
                   "client", "xs", "ys", "x of", "y of", "classes", "ids")  # fmt: skip
    if made is not None:
        assert made.size.tolist() == [len(y) for y in ys] and made.x.dtype in (jnp.uint8, jnp.float32)
        for i, (x, y) in enumerate(zip(xs, ys)):
            jax.tree.map(np.testing.assert_array_equal, made.examples(i), (np.asarray(x, made.x.dtype), np.asarray(y)))
            assert int(made.classes[i]) > np.max(y)


@st.composite
def columns(draw):
    """A column of a few names, each at least once, in any order."""
    few = draw(st.lists(names, min_size=1, max_size=4))
    return draw(st.permutations(few + draw(st.lists(st.sampled_from(few), max_size=8))))


@cases(20)
@given(columns(), seeds, rarely(st.lists(names, max_size=4)), rarely(st.just(1)))
def test_from_table(column, seed, order, short):
    """Any names, of several types and scripts. Failed with `np.unique`, which makes one name of 1 and "1"."""
    rng = np.random.default_rng(seed)
    n = len(column) - (short or 0)
    x, y = rng.random((n, 2)), rng.integers(0, 3, n)
    made = attempt(lambda: data.from_table(x, y, column, names=order), "client", "names", "indices")
    if made is not None:
        clients, found = made
        assert set(found) == set(column) and int(clients.size.sum()) == len(column)
        for i, name in enumerate(found):
            np.testing.assert_array_equal(clients.examples(i)[1], [b for a, b in zip(column, y) if a == name])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*test samples of classes that they do not train on")
@cases(20)
@given(seeds, st.integers(0, 20), st.integers(0, 20), st.integers(1, 4), st.integers(0, 8), rarely(junk),
       st.sampled_from(["iid", "iid", "pathological", "degrees", "dirichlet"]))  # fmt: skip
def test_partitions(seed, n, n_test, classes, clients, extra, how):
    """Each client gets something, nothing is assigned twice. Failed without the check for clients that get nothing."""
    rng = np.random.default_rng(seed)
    y, y_test = rng.integers(0, classes, n), rng.integers(0, classes + 1, n_test)
    more = () if how == "iid" else (2 if extra is None else extra,)
    part = attempt(lambda: getattr(partition, how)(y, y_test, clients, *more, seed=seed), "client", "y_train", "y_test",
                   "classes_per_client", "alpha", "class ")  # fmt: skip
    if part is not None:
        for rows, size in ((part.train, n), (part.test, n_test)):
            given_ = np.concatenate(rows)
            assert len(rows) == clients and min(map(len, rows)) > 0 and len(np.unique(given_)) == len(given_)
            assert given_.min() >= 0 and given_.max() < size


@cases(15)
@given(columns(), st.randoms(use_true_random=False), rarely(names))
def test_natural(train, random, other):
    """Unicode client ids. Failed with columns made arrays: "a" and "a\0" are one name there, and so are 1 and "1"."""
    test = random.sample(train, len(train)) + [other] * (other is not None)
    part = attempt(lambda: partition.natural(train, test), "client")
    if part is not None:
        for a, b in zip(part.train, part.test, strict=True):
            assert {train[i] for i in a} == {test[i] for i in b}


@cases(20)
@given(junk, junk, junk, junk)
def test_solver_and_placement(epochs, batch_size, chunk, other):
    """Failed without the check of a pair's length: "not enough values to unpack" for `epochs=()`."""
    made = attempt(lambda: Solver(optax.sgd(0.1), epochs, batch_size), "epochs", "batch_size")
    assert made is None or (1 <= made.epochs_range[0] <= made.max_epochs and made.batch_size >= 1)
    assert attempt(lambda: Solver(other), "optimizer") is None
    made = attempt(lambda: Placement(chunk=chunk), "chunk")
    assert made is None or chunk is None or 1 <= made.side_by_side(10**6) <= chunk
    made = attempt(lambda: Placement(transmit=other), "transmit")
    assert made is None or other is None


FACTORIES = {
    "fedprox": ("mu", "stats"), "fedamp": ("sigma", "self_weight", "alpha", "lam", "start", "stats", "stale"),
    "heurfedamp": ("sigma", "self_weight", "alpha"), "scaffold": ("learning_rate", "global_step", "option", "personal"),
    "apfl": ("alpha", "learning_rate"), "ditto": ("lam", "stats"), "fedper": ("stats",), "fedbabu": ("tune_part",),
    "fedrecon": ("support", "server_step"), "pflego": ("beta", "rho"), "fine_tuned": ("base",),
}  # fmt: skip


@cases(25)
@given(st.sampled_from(sorted(FACTORIES)), st.data())
def test_factories(name, source):
    """One hyper-parameter is rubbish: it is named. Failed for NaN, which no comparison refuses."""
    wrong = source.draw(st.sampled_from(FACTORIES[name]))
    given_ = {"sigma": 1.0, "self_weight": 0.5} if "amp" in name else {}
    value = source.draw(st.one_of(st.sampled_from([float("nan"), float("inf")]), junk))
    made = attempt(
        lambda: getattr(fedamp_jax, name)(tiny_task(), Solver(optax.sgd(0.1)), **{**given_, wrong: value}), wrong
    )
    assert made is None or not isinstance(value, float) or np.isfinite(value)


@cases(15)
@given(junk, junk, st.one_of(junk, st.just((8, 8))), st.sampled_from(["mlp", "cnn", "resnet18"]))
def test_models(classes, hidden, shape, name):
    """Failed for `shape=None` and `hidden=None`, as they were, with "'NoneType' object is not iterable"."""
    own = {"hidden": hidden} if name == "mlp" else {}
    attempt(lambda: getattr(fedamp_jax.models, name)(classes, shape=shape, **own), "classes", "hidden", "shape")


@cases(15)
@given(seeds, st.integers(0, 4), st.integers(0, 4), st.sampled_from([0.0, np.nan, -1.0, 1e30, 0.5]), junk)
def test_metrics(seed, rounds, m, value, k):
    """Failed for `groups_from_xi(xi, None)`, as it was, with "'<=' not supported"."""
    rng = np.random.default_rng(seed)
    table, xi, groups = rng.random((rounds, m)), rng.random((m, m)), rng.integers(0, 2, m)
    if table.size and xi.size:
        table[0, 0] = xi[-1, 0] = value
    with np.errstate(over="ignore"):
        attempt(lambda: analysis.bmta(table), "accuracy")
        attempt(lambda: analysis.accuracy_summary(table), "accuracy", "rounds")
        if rounds > 1:
            attempt(lambda: analysis.wilcoxon(table[0], table[1]), "a ", "b ")
        attempt(lambda: analysis.in_group_weight(xi, groups), "xi", "groups")
        attempt(lambda: analysis.group_recovery(xi, groups), "xi", "groups")
        attempt(lambda: analysis.groups_from_xi(xi, k), "xi", "k ")


@cases(10)
@given(st.integers(1, 30), junk, junk)
def test_participation(m, share, drop_rate):
    """Failed for `drop_rate=None`, as it was, with "'<=' not supported"."""
    staying = attempt(lambda: Participation(share, drop_rate).present(m), "participation", "drop_rate")
    if staying is not None:
        few = data_of(m)
        assert 1 <= staying <= m
        assert int(Participation(share, drop_rate).online(jax.random.key(0), few).sum()) == staying


@functools.cache
def data_of(m):
    """So many clients of one example."""
    return data.from_lists([np.zeros((1, 2))] * m, [[0]] * m)


@cases(10)
@given(st.dictionaries(st.text(max_size=5), three, min_size=1, max_size=3), st.text(max_size=20))
def test_reports(accuracies, text):
    """Methods and commands of any characters, none of which becomes HTML. Failed without escaping."""
    own = {"loss": [np.nan], "rejected": {text: 1}}
    methods = {name: {**analysis.accuracy_summary([a], [1]), **own} for name, a in accuracies.items()}
    said = dict.fromkeys(["experiment", "created", "command", "device"], text)
    results = {**said, "dataset": "<x>", "settings": {text: text}, "versions": {}, "clients": 3, "rounds": 1,
               "methods": methods, "wilcoxon": analysis.wilcoxon_table(accuracies)}  # fmt: skip
    page = run_page.html(results)
    assert "<x>" not in page and page.partition("<script")[0].count("<title>") == 1
    assert len(files.history_rows(results)) == len(methods)


M, N = 4, 6


@functools.cache
def methods():
    """Two methods and their task; batches larger than any client's data."""
    task, solver = tiny_task(), Solver(optax.adam(0.05), epochs=(1, 2), batch_size=4)
    return task, fedamp_jax.fedavg(task, solver), fedamp_jax.fedamp(task, solver, sigma=1.0, self_weight=0.25)


@st.composite
def bucket(draw):
    """Four clients of 1 to 6 examples, padded to six: one shape, whatever they hold."""
    rng = np.random.default_rng(draw(seeds))
    sizes = [draw(st.integers(1, N)) for _ in range(M - 1)]
    sizes.insert(draw(st.integers(0, M - 1)), N)
    scale = draw(st.sampled_from([0.0, 1.0, 1e3, 1e-30]))
    xs = [scale * rng.normal(size=(n, FEATURES)) for n in sizes]

    def labels(n):
        return [rng.integers(0, CLASSES, n), np.zeros(n, int), np.full(n, CLASSES - 1)]

    ys = [draw(st.sampled_from(labels(n))) for n in sizes]
    ids = draw(st.permutations(range(M)))
    clients = data.from_lists(xs, ys, classes=CLASSES, ids=[i * 1000 for i in ids])
    return clients._replace(online=jnp.array(draw(st.lists(st.booleans(), min_size=M, max_size=M))))


@pytest.mark.slow
@cases(15)
@given(bucket(), st.integers(0, 2**31 - 1), st.sampled_from([1, 2]))
def test_rounds(clients, seed, which):
    """Any data that `from_lists` takes train without a NaN, and accuracies are whole numbers of examples.

    Failed when clients that are offline trained as well.
    """
    task, *both = methods()
    algorithm = both[which - 1]
    state = algorithm.init(jax.random.key(seed), clients)
    before = jax.tree.map(np.array, state)
    state, info = fedamp_jax.round(algorithm, state, clients, jax.random.key(seed))
    accuracy = fedamp_jax.evaluate(task, algorithm.personalize(jax.random.key(0), state, clients), clients)
    assert not np.asarray(info.rejected).any() and all(np.isfinite(a).all() for a in jax.tree.leaves(state))
    assert ((np.asarray(info.epochs) > 0) == np.asarray(clients.online)).all()
    right = np.asarray(accuracy) * np.asarray(clients.size)
    np.testing.assert_allclose(right, np.round(right), atol=1e-4)
    assert (right <= np.asarray(clients.size) + 1e-4).all()
    if not clients.online.any():
        assert all(np.array_equal(a, b) for a, b in zip(jax.tree.leaves(before[0]), jax.tree.leaves(state[0])))


@cases(5)
@given(bucket(), ragged(good=True))
def test_pairs_and_fingerprints(train, other):
    """Data of other clients are refused as test data, and described otherwise. Failed with shapes alone digested."""
    xs, ys = other
    test = data.from_lists([np.resize(x, (len(y), FEATURES)) for x, y in zip(xs, ys)], ys, classes=9)
    with pytest.raises(ValueError, match="train"):
        data.check_pair(train, test)
    assert checkpoint.describe(train, M) != checkpoint.describe(test, len(ys))
    assert checkpoint.describe(train, M) != checkpoint.describe(train._replace(x=train.x.at[0, 0].add(1.0)), M)
    assert checkpoint.describe(train, M) == checkpoint.describe(jax.tree.map(jnp.array, train), M)
