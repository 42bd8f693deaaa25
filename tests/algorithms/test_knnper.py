"""kNN-Per: what a client remembers, and that all which reads models reads its memory."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Solver
from fedamp_jax.algorithms.knnper import Memory, neighbours
from fedamp_jax.data import from_lists
from fedamp_jax.driver.evaluation import personal_models
from tests.registry import CLASSES, FEATURES, federation, initial, run_rounds, tiny_task

TASK = tiny_task()
SGD = Solver(optax.sgd(0.3), epochs=2, batch_size=4)
KEY = jax.random.key(2)


def trained(data, rounds=2, **hyper):
    """The algorithm, its state and the personal models after some rounds."""
    algorithm = fedamp_jax.knnper(TASK, SGD, **{"k": 2, **hyper})
    state, _ = run_rounds(algorithm, data, rounds)
    return algorithm, state, jax.jit(algorithm.personalize)(KEY, state, data)


def of(models, i):
    return jax.tree.map(lambda a: a[i], models)


def test_neighbours():
    """By hand: two of three examples count, with weights exp(-d^2 / (F scale)); rows without an example never do.

    Failed with the padding row as the nearest, and with 0 / 0 where all are far away.
    """
    memory = Memory(jnp.array([[1.0, 0.0], [0.0, 2.0], [9.0, 9.0], [0.0, 0.0]]), jnp.array([0, 1, 1, -1]),
                    jnp.float32(0.5), jnp.float32(4.0), jnp.int32(3))  # fmt: skip
    found = neighbours(memory, jnp.zeros((1, 2)), 2, 3)
    one, two = np.exp(-1 / 8), np.exp(-4 / 8)
    np.testing.assert_allclose(found, [[one / (one + two), two / (one + two), 0]], rtol=1e-6)
    with jax.debug_nans(True):
        far = neighbours(memory._replace(scale=jnp.float32(1e-6)), jnp.full((1, 2), 1e3), 9, 3)
        nobody = neighbours(memory._replace(labels=jnp.full(4, -1)), jnp.zeros((1, 2)), 2, 3)
    np.testing.assert_allclose(far.sum(), 1.0, rtol=1e-6)
    assert not np.asarray(nobody).any()


def test_all_examples_are_remembered():
    """Of every minibatch, the last one too; the rest of the rows is empty. Failed with one row for each minibatch."""
    data = federation()
    _, state, models = trained(data)
    memory = models.stats["memory"]
    assert memory.features.shape == (8, 10, 4) and memory.labels.dtype == jnp.int32
    for i in range(8):
        x, y = data.examples(i)
        np.testing.assert_array_equal(memory.labels[i], np.pad(y, (0, 10 - len(y)), constant_values=-1))
        h = TASK.predict_features(fedamp_jax.Variables(state.params), x)
        np.testing.assert_allclose(memory.features[i, : len(y)], h, rtol=1e-5, atol=1e-6)
        assert not np.asarray(memory.features[i, len(y) :]).any()


def test_capacity_draws_examples():
    """Different ones of each client, without replacement. Failed with the first ones."""
    data = federation(sizes=(10, 10, 2))
    _, _, models = trained(data, capacity=4)
    memory, rows = models.stats["memory"], []
    assert memory.features.shape == (3, 4, 4) and (np.asarray(memory.labels[2]) >= 0).sum() == 2
    for i in (0, 1):
        h = np.asarray(TASK.predict_features(of(models, i), data.examples(i)[0]))
        apart = np.abs(np.asarray(memory.features[i])[:, None] - h[None]).max(axis=2)
        rows.append(apart.argmin(axis=1).tolist())
        assert apart.min(axis=1).max() < 1e-5 and len(set(rows[i])) == 4
        np.testing.assert_array_equal(memory.labels[i], np.asarray(data.examples(i)[1])[rows[i]])
    assert rows[0] != rows[1] != [0, 1, 2, 3]


def test_without_neighbours_it_is_fedavg():
    """With lam = 0, and for clients with one example or none that choose. Failed with lam = 1 for one example, which
    is its own neighbour, and with logits of classes that a client lacks in the softmax.
    """
    data = federation(sizes=(6, 1, 2), classes=(2, 3, 3))
    data = data._replace(size=data.size.at[2].set(0))
    for hyper, clients in (({"lam": 0.0}, (0, 1, 2)), ({"lam": None}, (1, 2))):
        algorithm, state, models = trained(data, **hyper)
        assert not any(float(models.stats["memory"].lam[i]) for i in clients)
        x = np.random.default_rng(0).normal(size=(5, FEATURES)).astype(np.float32)
        for i in clients:
            own = int(data.classes[i])
            expected = jax.nn.log_softmax(TASK.predict(fedamp_jax.Variables(state.params), x)[:, :own])
            if i != 2:  # which does not even know its classes
                found = algorithm.reader(data).predict(of(models, i), x)[:, :own]
                np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_run_reads_the_memory(tmp_path):
    """`run`, `evaluate`, `predict` and files of models agree. Failed with the global model's accuracies in a run."""
    train, test = federation(), federation(seed=1)
    algorithm = fedamp_jax.knnper(TASK, SGD, k=3, lam=0.9)
    result = fedamp_jax.run(TASK, algorithm, train, test, rounds=2, progress=False)
    models = personal_models(algorithm, KEY, result.state, train, 8)
    reads = algorithm.reader(train)
    assert reads is algorithm.reader(test)  # or every evaluation would compile
    np.testing.assert_array_equal(fedamp_jax.evaluate(reads, models, test), result.accuracy[-1])
    with pytest.raises(TypeError, match=r"no models of this task.*algorithm.reader\(train\)"):
        fedamp_jax.evaluate(TASK, models, test)
    average = fedamp_jax.fedavg(TASK, SGD)
    plain = fedamp_jax.run(TASK, average, train, test, rounds=2, progress=False)
    assert (plain.accuracy[-1] != result.accuracy[-1]).any()
    fedamp_jax.save_models(tmp_path / "models.npz", reads, models)
    saved = fedamp_jax.load_models(tmp_path / "models.npz", algorithm.reader(train))
    x = test.examples(3)[0]
    np.testing.assert_array_equal(saved.predict(3, x), reads.predict(of(models, 3), x))


def test_what_cannot_be_is_refused():
    """Before anything compiles. Failed deep inside of local training."""
    algorithm = fedamp_jax.knnper(TASK, SGD)
    with pytest.raises(ValueError, match="base gives models that are none of the task, as kNN-Per's with their memory"):
        fedamp_jax.fine_tuned(TASK, SGD, base=algorithm)
    with pytest.raises(ValueError, match="kNN-Per compares features, but the task has no features"):
        fedamp_jax.knnper(TASK._replace(features=None), SGD)
    for wrong in ({"k": 0}, {"lam": 1.5}, {"scale": 0.0}, {"validation": 1}, {"capacity": 0}, {"split_seed": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            fedamp_jax.knnper(TASK, SGD, **wrong)
    targets = from_lists([np.zeros((4, FEATURES), np.float32)], [np.zeros(4, np.float32)], classes=0)
    with pytest.raises(TypeError, match="kNN-Per needs labels, but y is float32"):
        initial(algorithm, KEY, targets)
    assert CLASSES == 3
