"""Tasks beyond integer labels, all the way through: targets that are numbers, inputs that are trees, own metrics."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Metric, Solver, Task, Variables, analysis, data
from fedamp_jax.driver import evaluation
from fedamp_jax.engine.task_checks import check_loss_fits, check_task, check_task_fits
from fedamp_jax.models import ACCURACY, MAE, MSE, binary_cross_entropy, from_linen, multi_label, squared_error
from fedamp_jax.placement import InHostMemory, OnMesh, client_mesh
from tests.registry import federation, find, make, tiny_task

KEY = jax.random.key(2)
SIZES = (7, 3, 10, 1, 5, 10, 4, 6)
PLACEMENTS = {
    "one device": lambda: fedamp_jax.Placement(),
    "mesh": lambda: OnMesh(mesh=client_mesh(4)),
    "host": lambda: InHostMemory(device=jax.devices()[3], chunk=3),
}


def regression(seed=0, sizes=SIZES, shape=(2,)):
    """Targets that are two linear functions of the inputs, of opposite sign for every other client."""
    rng = np.random.default_rng(seed)
    xs = [rng.normal(size=(n, 4)) for n in sizes]
    w = rng.normal(size=(4, *shape))
    return data.from_lists(xs, [(-1) ** i * np.tensordot(x, w, 1) for i, x in enumerate(xs)], classes=0)


def linear(metrics=(MSE, MAE)):
    """`x W + b` with the squared error."""

    def init(key):
        return Variables({"body": {"w": jax.random.normal(key, (4, 2))}, "head": {"b": jnp.zeros(2)}})

    def predict(variables, x):
        return x @ variables.params["body"]["w"] + variables.params["head"]["b"][None]

    def loss(variables, batch, key):
        return squared_error(predict(variables, batch.x), batch), variables.stats

    return Task(init, loss, predict, metrics=metrics)


def one(tree, i):
    return jax.tree.map(lambda a: a[i], tree)


def test_fedavg_of_a_regression_is_the_loop_of_numpy():
    """Two rounds of full gradients, averaged by examples, in float64. Failed when targets were cut to integers."""
    clients, task = regression(), linear()
    algorithm = fedamp_jax.fedavg(task, Solver(optax.sgd(0.05), epochs=1, batch_size=100))
    result = fedamp_jax.run(task, algorithm, clients, clients, rounds=2, progress=False)
    start = algorithm.init(jax.random.key(0), clients).params
    w, b = (np.asarray(a, np.float64) for a in (start["body"]["w"], start["head"]["b"]))
    for _ in range(2):
        steps = []
        for i in range(len(SIZES)):
            x, y = (np.asarray(a, np.float64) for a in clients.examples(i))
            slope = 2 * (x @ w + b - y) / y.size  # of the mean over rows and over the numbers of a row
            steps.append((w - 0.05 * x.T @ slope, b - 0.05 * slope.sum(axis=0)))
        w, b = (sum(n * step[j] for n, step in zip(SIZES, steps)) / sum(SIZES) for j in (0, 1))
    np.testing.assert_allclose(result.state.params["body"]["w"], w, rtol=1e-4)
    np.testing.assert_allclose(result.state.params["head"]["b"], b, rtol=1e-3, atol=1e-6)
    examples = [map(np.asarray, clients.examples(i)) for i in range(len(SIZES))]
    errors = [x @ w + b - y for x, y in examples]
    np.testing.assert_allclose(result.metrics["mse"][-1], [(e**2).mean() for e in errors], rtol=1e-4)
    np.testing.assert_allclose(result.metrics["mae"][-1], [np.abs(e).mean() for e in errors], rtol=1e-4)
    with pytest.raises(AttributeError, match=r"no metric 'accuracy': read Run.metrics, which has 'mse', 'mae'"):
        _ = result.accuracy


@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.slow_variants
def test_metrics_and_predictions_are_those_by_hand(name, monkeypatch):
    """In blocks of four examples, of every client. Failed with blocks that started over at row 0."""
    monkeypatch.setattr(evaluation, "_EXAMPLES", 4)
    jax.clear_caches()
    task, clients = linear(), regression()
    models = jax.vmap(task.init)(jax.random.split(KEY, 8))
    made = [np.asarray(task.predict(one(models, i), clients.examples(i)[0])) for i in range(8)]
    ys = [clients.examples(i)[1] for i in range(8)]
    placed = PLACEMENTS[name]().place(clients)
    if name == "mesh":
        models = jax.device_put(models, placed.y.sharding)
    found = np.asarray(fedamp_jax.predict(task, models, placed))
    assert found.shape == (8, 10, 2)
    for i, n in enumerate(SIZES):
        np.testing.assert_allclose(found[i, :n], made[i], rtol=1e-5)
        assert not found[i, n:].any()
    wanted = [np.abs(a - y).mean() for a, y in zip(made, ys)]
    np.testing.assert_allclose(fedamp_jax.evaluate(task, models, placed, "mae"), wanted, rtol=1e-5)
    squares = [np.square(a - y).mean() for a, y in zip(made, ys)]
    np.testing.assert_allclose(fedamp_jax.evaluate(task, models, placed), squares, rtol=1e-5)
    with pytest.raises(ValueError, match="metric must be one of 'mse', 'mae', got 'accuracy'"):
        fedamp_jax.evaluate(task, models, placed, "accuracy")


@pytest.mark.parametrize("name", ["separate", "fedamp", "scaffold", "fedfomo", "fedrecon", "pfedme", "pflego"])
def test_methods_learn_numbers(name):
    """Every kind of loop over a client's data takes float targets `[N, 2]`. Failed with `data.y.shape[-1]` examples."""
    clients, task = regression(sizes=(9, 8, 10, 9)), linear()
    solver = Solver(optax.sgd(0.1), epochs=5, batch_size=4)
    small = {"learning_rate": 0.02} if name == "scaffold" else {}  # a step of its own
    algorithm = fedamp_jax.scaffold(task, solver, **small) if small else find(name).make(task, solver)
    result = fedamp_jax.run(task, algorithm, clients, clients, rounds=6, progress=False)
    mean = result.metrics["mse"].mean(axis=1)
    assert mean[-1] < 0.9 * mean[0] and np.isfinite(mean).all()


# --- inputs that are trees -------------------------------------------------------------------------------------------


def in_parts(task):
    """The same task for examples whose five features come as a dictionary of two arrays and a tuple."""

    def join(x):
        return jnp.concatenate([x["a"], x["rest"][0], x["rest"][1][:, None]], axis=1)

    def split(fn):
        return lambda variables, batch, key: fn(variables, batch._replace(x=join(batch.x)), key)

    return task._replace(loss=split(task.loss), features=split(task.features),
                         predict=lambda variables, x: task.predict(variables, join(x)))  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", ["separate", "fedamp", "scaffold", "fedfomo", "fedrecon", "pfedme", "pflego"])
def test_inputs_in_parts_train_as_one_array(name):
    """Bit for bit, also through held-out examples and PFLEGO's features. Failed with only the first leaf indexed."""
    task, entry, whole = tiny_task(), find(name), federation()
    xs, ys = zip(*(whole.examples(i) for i in range(len(SIZES))))
    xs = [{"a": x[:, :2], "rest": (x[:, 2:4], x[:, 4])} for x in xs]
    parts = data.from_lists(xs, ys, classes=3)
    results = []
    for one_task, clients in ((task, whole), (in_parts(task), parts)):
        algorithm = entry.make(one_task, Solver(optax.adam(0.05), epochs=2, batch_size=4))
        results.append(fedamp_jax.run(one_task, algorithm, clients, clients, rounds=2, progress=False))
    chex.assert_trees_all_equal(results[0].state, results[1].state)
    np.testing.assert_array_equal(results[0].accuracy, results[1].accuracy)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mesh", "host"])
def test_inputs_in_parts_on_other_placements(name):
    """Failed where a placement took x for one array."""
    task = in_parts(tiny_task())
    rng = np.random.default_rng(0)
    xs = [{"a": rng.normal(size=(n, 2)), "rest": (rng.normal(size=(n, 2)), rng.normal(size=n))} for n in SIZES[:6]]
    clients = data.from_lists(xs, [rng.integers(0, 3, n) for n in SIZES[:6]], classes=3)
    algorithm = find("fedamp").make(task, Solver(optax.sgd(0.05), epochs=1, batch_size=4))
    there, here = (
        fedamp_jax.run(task, algorithm, clients, clients, rounds=2, progress=False, placement=p)
        for p in (PLACEMENTS[name](), None)
    )
    np.testing.assert_allclose(there.loss, here.loss, rtol=1e-4)
    np.testing.assert_allclose(there.accuracy, here.accuracy, atol=1e-6)


class Sentences(nn.Module):
    """The mean of the embeddings of a sentence's tokens, of which there are `length`."""

    @nn.compact
    def __call__(self, x, mask):
        vectors = nn.Embed(20, 3)(x["tokens"])
        inside = jnp.arange(5)[None] < x["length"][:, None]
        total = jnp.where(inside[..., None], vectors, 0.0).sum(axis=1)
        return nn.Dense(2, name="head")(total / jnp.maximum(x["length"], 1).astype(jnp.float32)[:, None])


def test_a_module_of_several_inputs_with_integers():
    """Tokens stay int32 from the data to the embedding. Failed when all integers became float32."""
    sample = {"tokens": jax.ShapeDtypeStruct((5,), jnp.int32), "length": jax.ShapeDtypeStruct((), jnp.int32)}
    task = from_linen(Sentences(), sample)
    x = {"tokens": np.array([[3, 4, 0, 0, 0], [19, 1, 2, 3, 4]]), "length": np.array([2, 5])}
    clients = data.from_lists([x], [[0, 1]], keep_integers=True)
    assert jax.tree.map(lambda a: a.dtype.name, clients.x) == {"length": "int32", "tokens": "int32"}
    variables = task.init(KEY)
    table, head = variables.params["Embed_0"]["embedding"], variables.params["head"]
    wanted = np.stack([(table[3] + table[4]) / 2, table[np.array([19, 1, 2, 3, 4])].mean(axis=0)]) @ head["kernel"]
    np.testing.assert_allclose(task.predict(variables, clients.x), wanted, rtol=1e-5)
    result = fedamp_jax.run(task, fedamp_jax.fedavg(task, Solver(optax.adam(0.1), epochs=9)), clients, clients,
                            rounds=2, progress=False)  # fmt: skip
    assert result.accuracy[-1] == 1
    with pytest.raises(ValueError, match=r"this model was made for PyTreeDef.*length"):
        task.predict(variables, jnp.zeros((2, 5)))
    with pytest.raises(ValueError, match=r"x\['tokens'\] has shape \(2, 4\), but this model was made for .* \(5,\)"):
        task.predict(variables, {"tokens": jnp.zeros((2, 4)), "length": jnp.zeros(2)})


# --- data ------------------------------------------------------------------------------------------------------------


def test_the_ways_to_make_data_agree_on_targets_and_trees():
    """From lists, indices and a table; and a split of them. Failed when the table's parts kept another order."""
    rng = np.random.default_rng(1)
    x = {"image": rng.integers(0, 255, (6, 2, 2)).astype(np.uint8), "age": rng.normal(size=6)}
    y, column = rng.normal(size=(6, 3)), list("baabba")
    rows = [[1, 2, 5], [0, 3, 4]]

    def pick(r):
        return jax.tree.map(lambda a: a[r], x)

    lists = data.from_lists([pick(r) for r in rows], [y[r] for r in rows], classes=0)
    table, names = data.from_table(x, y, column, classes=0)
    chex.assert_trees_all_equal(lists, data.from_indices(x, y, rows, classes=0), table)
    assert names == ["a", "b"] and lists.y.shape == (6, 3) and lists.y.dtype == jnp.float32
    assert lists.x["image"].dtype == jnp.uint8 and lists.classes.tolist() == [0, 0]
    data.check_pair(lists, table)
    kept, held = data.hold_out(lists, 0.34, seed=0)
    assert kept.size.tolist() == [2, 2] and held.size.tolist() == [1, 1] and held.x["image"].dtype == jnp.uint8
    whole = sorted(np.asarray(lists.y).ravel().tolist())
    parts = [part.examples(i)[1].ravel().tolist() for part in (kept, held) for i in (0, 1)]
    assert sorted(a for part in parts for a in part) == whole


def test_class_names_number_the_labels():
    """Alike in training and test data, whatever labels each has. Failed with the labels of each table sorted."""
    names = ["ham", "spam", "other"]
    train = data.from_lists([np.zeros((2, 1))], [["spam", "ham"]], class_names=names)
    test, _ = data.from_table(np.zeros((1, 1)), np.array(["other"]), ["a"], class_names=names)
    assert train.y.tolist() == [1, 0] and test.y.tolist() == [2] and train.classes.tolist() == [3]
    data.check_pair(train, test)


def test_clients_without_test_data_are_nan():
    """They train, and are left out of means. Failed with an accuracy of 0, and with a mean that was NaN."""
    task, algorithm = make(find("fedamp"))
    train, rng = federation(), np.random.default_rng(0)
    test = data.from_lists([rng.normal(size=(n % 4, 5)) if n % 4 else [] for n in range(8)],
                           [[0] * (n % 4) for n in range(8)], classes=3, allow_empty=True)  # fmt: skip
    assert test.size.tolist() == [0, 1, 2, 3] * 2
    result = fedamp_jax.run(task, algorithm, train, test, rounds=1, progress=False)
    assert np.isnan(result.accuracy[0]).tolist() == [n % 4 == 0 for n in range(8)]
    for chunk in (1, 8):  # one at a time, clients without examples may not be run at all
        placed = fedamp_jax.Placement(chunk=chunk).place(test)
        scores = fedamp_jax.evaluate(task, algorithm.personalize(KEY, result.state, train), placed)
        np.testing.assert_array_equal(scores, result.accuracy[0])
    from fedamp_jax.driver.progress import note_of

    assert note_of(ACCURACY, np.array([np.nan, 0.5])) == "50.00 %" and note_of(MSE, np.array([np.nan])) == ""
    rows, _ = data.from_table(np.ones((1, 2)), [1], ["b"], names=["a", "b"], classes=2, allow_empty=True)
    assert rows.size.tolist() == [0, 1]


REFUSED = {
    "targets and labels": (([[0.5]], {"classes": None}), TypeError, "or give classes=0 if they are no classes"),
    "names": ((["spam"], {}), TypeError, "got names such as 'spam': give class_names"),
    "unknown name": (
        (["spam"], {"class_names": ["ham"]}),
        ValueError,
        r"the label 'spam', which is not in class_names",
    ),
    "name twice": ((["a"], {"class_names": ["a", "a"]}), ValueError, "class_names lists a name twice"),
    "names of numbers": ((["a"], {"class_names": ["a"], "classes": 0}), ValueError, "class_names are for labels"),
    "nan": (([np.nan], {"classes": 0}), ValueError, "y of client 0 has NaN"),
    "no examples at all": (([], {"allow_empty": True}), ValueError, "no client has any examples"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_targets_and_names_that_are_refused(case):
    """Each with what to do about it. Failed for floats, which were taken for labels of no class."""
    (y, options), kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        data.from_lists([np.zeros((len(y), 2))], [y], **options)


def test_trees_that_differ_are_refused():
    """Failed when the lengths of the first input alone were compared with y."""
    both = {"a": np.zeros((2, 1)), "b": np.zeros(2)}
    with pytest.raises(ValueError, match=r"x\['b'\] of client 0 has 3 examples, but its y has 2"):
        data.from_lists([{**both, "b": np.zeros(3)}], [[0, 1]])
    with pytest.raises(ValueError, match=r"client 1 is PyTreeDef.* but x of client 0 is"):
        data.from_lists([both, {"a": np.zeros((2, 1))}], [[0, 1], [0, 1]])
    with pytest.raises(ValueError, match=r"client 1 has shape \[2\] in x\['a'\], but one of client 0 has \[1\]"):
        data.from_lists([both, {**both, "a": np.zeros((2, 2))}], [[0, 1], [0, 1]])
    a, b = (data.from_lists([x], [[0, 1]]) for x in (both, {**both, "a": np.zeros((2, 3))}))
    with pytest.raises(ValueError, match=r"'a': 'float32 \[1\]'.* in train and .*'a': 'float32 \[3\]'"):
        data.check_pair(a, b)
    c, d = (data.from_lists([both], [np.zeros((2, n))], classes=0) for n in (1, 2))
    with pytest.raises(ValueError, match=r"a target has shape \[1\] in train and \[2\] in test"):
        data.check_pair(c, d)


# --- what a task is refused for --------------------------------------------------------------------------------------

TINY = tiny_task()
CONTRACT = {
    "a dict": ({"init": lambda key: {"w": jnp.zeros(3)}}, TypeError, "task.init must return .*Variables, got a dict"),
    "no stats": ({"loss": lambda v, b, k: TINY.loss(v, b, k)[0]}, TypeError, "must return two values, .*got float32 "),
    "a vector": ({"loss": lambda v, b, k: (TINY.predict(v, b.x), v.stats)}, TypeError, "one float32 number.*got float"),
    "other stats": ({"loss": lambda v, b, k: (TINY.loss(v, b, k)[0], ())}, TypeError, "like those of task.init.*mean"),
    "no rows": ({"predict": lambda v, x: TINY.predict(v, x).mean(axis=0)}, ValueError, "a row for each example"),
    "a mean": (
        {"metrics": (Metric("mean", lambda o, b: jnp.mean(o)),)}, ValueError, "'mean' must return one number for each"
    ),
    "a list": ({"metrics": [ACCURACY]}, TypeError, "must be hashable.*make metrics and head tuples"),
    "a list of heads": ({"head": ["head"]}, TypeError, "must be hashable.*make metrics and head tuples"),
    "a name twice": ({"metrics": (ACCURACY, ACCURACY)}, ValueError, "different names, got accuracy, accuracy"),
    "no metric": ({"metrics": (jnp.mean,)}, TypeError, "each of task.metrics must be of type Metric"),
    "nothing": ({"metrics": ()}, TypeError, "a tuple of at least one"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTRACT)
def test_a_task_that_breaks_the_contract_is_refused(case):
    """By tracing, before anything compiles. Each ended in an error deep inside of a compiled round, or in none."""
    change, kind, message = CONTRACT[case]
    with pytest.raises(kind, match=message):
        fedamp_jax.run(TINY._replace(**change), make(find("separate"))[1], federation(), federation(), rounds=1)
    check_task(TINY)
    check_task_fits(TINY, federation())
    check_loss_fits(TINY, federation())


def test_methods_look_at_the_task_when_they_are_made():
    """Failed when a wrong `init` came to light in the first round; and a slope by name in a round's trace."""
    broken = TINY._replace(init=lambda key: {"w": jnp.zeros(3)})
    with pytest.raises(TypeError, match="got a dict"):
        fedamp_jax.fedavg(broken, Solver(optax.sgd(0.1)))
    with pytest.raises(TypeError, match=r"slope must be a function, .*scad.* got 'scad'"):
        fedamp_jax.fedamp(TINY, Solver(optax.sgd(0.1)), sigma=1.0, self_weight=0.5, slope="scad")


def test_accuracy_needs_classes():
    """Failed with the accuracy of numbers: how many are exactly an index."""
    task = linear(metrics=(ACCURACY,))
    with pytest.raises(TypeError, match=r"accuracy compares integer labels .* give the task other metrics"):
        check_task_fits(task, regression())
    with pytest.raises(TypeError, match="cross_entropy needs integer labels"):
        check_loss_fits(tiny_task(), regression()._replace(x=jnp.zeros((9, 5)), y=jnp.zeros(9)))


def test_one_logit_is_enough_for_two_classes():
    """Failed with "1 outputs, but the data have 2 classes"; and when a third class was let pass."""
    task = from_linen(nn.Dense(1), (5,), head="kernel", loss=binary_cross_entropy)
    clients = federation(classes=[2] * 8)
    algorithm = fedamp_jax.separate(task, Solver(optax.adam(0.1), epochs=20))
    result = fedamp_jax.run(task, algorithm, clients, clients, rounds=2, progress=False)
    assert result.accuracy[-1].mean() > 0.9
    with pytest.raises(ValueError, match="a single logit tells 2 classes apart, but the data have 3"):
        check_task_fits(task, federation())


def test_several_labels_of_an_example():
    """Each logit learns its own. Failed with a softmax over them."""
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(20, 4)) for _ in range(3)]
    clients = data.from_lists(xs, [(x > 0).astype(float) for x in xs], classes=0)
    task = from_linen(nn.Dense(4), (4,), head="bias", loss=multi_label)
    algorithm = fedamp_jax.fedavg(task, Solver(optax.adam(0.1), epochs=20))
    result = fedamp_jax.run(task, algorithm, clients, clients, rounds=3, progress=False)
    assert (result.metrics["exact_match"][-1] > 0.6).all()
    assert (result.metrics["label_accuracy"][-1] >= result.metrics["exact_match"][-1]).all()


def test_metrics_of_a_module():
    """Those of the loss, or those that are given. Failed when a loss of one's own was evaluated by accuracy."""

    def own(outputs, batch):
        return jnp.float32(0)

    with pytest.raises(ValueError, match="a loss of your own needs metrics of its own"):
        from_linen(nn.Dense(1), (5,), loss=own)
    task = from_linen(nn.Dense(1), (5,), head="bias", loss=own, metrics=[MAE, MSE])
    assert task.metrics == (MAE, MSE) and hash(task)
    with pytest.raises(ValueError, match="with different names"):
        from_linen(nn.Dense(1), (5,), loss=own, metrics=[MAE, MAE])
    with pytest.raises(TypeError, match="sample_shape must be the shape of one example"):
        from_linen(nn.Dense(1), "28x28")


# --- scores from predictions -----------------------------------------------------------------------------------------


def test_f1_and_auc_by_hand():
    """Pairs of examples counted one by one, within each client's own classes. Failed with padding among the examples,
    with the F1 of class 1 alone, and with NaN for all where one client has a single class.
    """
    rng = np.random.default_rng(0)
    ys = [rng.integers(0, 3, 12), rng.integers(0, 2, 9), np.zeros(4, int)]
    clients = data.from_lists([np.zeros((len(y), 1)) for y in ys], ys, classes=[3, 2, 2])
    outputs = rng.normal(size=(3, 12, 3)).astype(np.float32)
    f1, auc = analysis.f1_scores(outputs, clients), analysis.auc_scores(outputs, clients)
    for i, y in enumerate(ys):
        z = outputs[i, : len(y), : int(clients.classes[i])].astype(np.float64)
        guess, p, f1s, aucs = z.argmax(axis=1), np.exp(z) / np.exp(z).sum(axis=1, keepdims=True), [], []
        for c in np.unique(y):
            hits = ((guess == c) & (y == c)).sum()
            f1s.append(2 * hits / ((guess == c).sum() + (y == c).sum()))
            pairs = [(a > b) + 0.5 * (a == b) for a in p[y == c, c] for b in p[y != c, c]]
            aucs.append(np.mean(pairs) if pairs else np.nan)
        np.testing.assert_allclose(f1[i], np.mean(f1s))
        np.testing.assert_allclose(auc[i], np.mean(aucs))
    assert np.isnan(auc[2]) and not np.isnan(auc[:2]).any()
    with pytest.raises(TypeError, match=r"must be integer labels"):
        analysis.f1_scores(outputs, clients._replace(y=clients.y.astype(jnp.float32)))
    with pytest.raises(ValueError, match=r"what fedamp_jax.predict gives"):
        analysis.auc_scores(outputs[:, :5], clients)
