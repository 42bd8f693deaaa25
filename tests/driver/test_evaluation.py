"""Accuracies of personal models, against counting by hand."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedamp_jax
from fedamp_jax import Placement
from fedamp_jax.driver import evaluation
from fedamp_jax.placement import InHostMemory, OnMesh, client_mesh
from tests.registry import federation, find, made, tiny_task

KEY = jax.random.key(3)
PLACEMENTS = {
    "one device": lambda: Placement(),
    "in chunks": lambda: Placement(chunk=3),
    "mesh": lambda: OnMesh(mesh=client_mesh(8)),
    "host": lambda: InHostMemory(device=jax.devices()[5], chunk=3),
}


@pytest.mark.parametrize("block", [4, pytest.param(256, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name == "in chunks")) for name in PLACEMENTS]
)
@pytest.mark.slow_variants
def test_accuracies_are_those_counted_by_hand(name, block, monkeypatch):
    """Of every client, also offline ones, in blocks of examples; a class that a client does not have is no answer.

    Failed with padding counted as examples, and with the highest of all logits.
    """
    monkeypatch.setattr(evaluation, "_EXAMPLES", block)
    jax.clear_caches()
    task, data = tiny_task(), federation()
    data = data._replace(classes=jnp.array([3, 2] * 4, jnp.int32), y=jnp.where(data.y < 2, data.y, 0),
                         online=jnp.arange(8) > 3)  # fmt: skip
    models = jax.vmap(task.init)(jax.random.split(KEY, 8))
    wanted = []
    for i in range(8):
        (x, y), own = data.examples(i), int(data.classes[i])
        logits = task.predict(jax.tree.map(lambda a, i=i: a[i], models), x)[:, :own]
        wanted.append(np.mean(np.argmax(logits, axis=1) == y))
    placed = PLACEMENTS[name]().place(data)
    if isinstance(placed.placement, OnMesh):
        models = jax.device_put(models, placed.x.sharding)
    np.testing.assert_allclose(fedamp_jax.evaluate(task, models, placed), wanted, atol=1e-6)
    assert 0 < np.mean(wanted) < 1


def test_a_model_with_too_few_outputs_is_refused():
    """Failed when labels beyond the outputs silently counted as a loss of 0."""
    task, algorithm = made(find("separate"))
    data = federation()
    more = data._replace(classes=data.classes.at[2].set(4))
    with pytest.raises(ValueError, match="the model has 3 outputs, but the data have 4 classes"):
        fedamp_jax.run(task, algorithm, more, more, rounds=1, progress=False)
    with pytest.raises(ValueError, match="the model has 3 outputs, but the data have 4 classes"):
        fedamp_jax.evaluate(task, algorithm.init(KEY, data).clients.variables, more)


def test_what_evaluate_refuses():
    """A state in place of its models, and one model in place of one for each client."""
    task, separate = made(find("separate"))
    state = separate.init(KEY, federation())
    with pytest.raises(TypeError, match=r"what algorithm.personalize.*gives, got a SeparateState"):
        fedamp_jax.evaluate(task, state, federation())
    with pytest.raises(ValueError, match=r"one model for each of 8 clients, leaves \[8, ...\]"):
        fedamp_jax.evaluate(task, task.init(KEY), federation())


def test_a_model_that_diverged_is_right_about_nothing():
    """NaN logits, of any of the client's own classes. Failed when NaN was the largest, so that label 0 was right."""
    batch = fedamp_jax.types.Batch(jnp.zeros((3, 1)), jnp.array([0, 1, 0]), jnp.ones(3, bool), jnp.int32(2), None)
    logits = jnp.array([[jnp.nan, 0.0, 0.0], [0.0, 1.0, jnp.nan], [1.0, jnp.nan, 0.0]])
    assert fedamp_jax.types.correct(logits, batch).tolist() == [0, 1, 0]
    one = batch._replace(x=None)
    assert fedamp_jax.models.BINARY_ACCURACY.function(jnp.full((3, 1), jnp.nan), one).tolist() == [0, 0, 0]


@pytest.mark.parametrize("name", PLACEMENTS)
def test_a_class_that_a_client_does_not_have_is_not_predicted(name):
    """Its logits are -inf, the others and padding as they were; so argmax is right as often as `evaluate` says.

    Failed with the logits of all classes: a client of two classes was predicted the third.
    """
    task, data = tiny_task(), federation(classes=[3, 2] * 4)
    models = jax.vmap(task.init)(jax.random.split(KEY, 8))
    placed = PLACEMENTS[name]().place(data)
    if isinstance(placed.placement, OnMesh):
        models = jax.device_put(models, placed.x.sharding)
    found = np.asarray(fedamp_jax.predict(task, models, placed))
    guesses, foreign = [], 0
    for i in range(8):
        (x, y), own = data.examples(i), int(data.classes[i])
        logits = np.asarray(task.predict(jax.tree.map(lambda a, i=i: a[i], models), x))
        np.testing.assert_allclose(found[i, : len(y), :own], logits[:, :own], rtol=1e-5)
        assert (found[i, : len(y), own:] == -np.inf).all() and not found[i, len(y) :].any()
        foreign += (logits.argmax(axis=1) >= own).sum()
        guesses.append(np.mean(found[i, : len(y)].argmax(axis=1) == y))
    assert foreign  # else the test says nothing
    np.testing.assert_allclose(fedamp_jax.evaluate(task, models, placed), guesses, atol=1e-6)
    for score in (fedamp_jax.analysis.f1_scores, fedamp_jax.analysis.auc_scores):  # read the client's own classes only
        np.testing.assert_array_equal(score(found, data), score(np.where(np.isinf(found), 1e3, found), data))


def test_outputs_that_are_no_logits_of_classes_stay():
    """A single logit for two classes, and numbers to predict. Failed with -inf for all where `classes` is 0."""
    x = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    one = fedamp_jax.models.from_linen(nn.Dense(1), (5,), head="bias", loss=fedamp_jax.models.binary_cross_entropy)
    labels = fedamp_jax.data.from_lists([x], [[0, 1] * 3], classes=2)
    two = fedamp_jax.models.from_linen(nn.Dense(2), (5,), head="bias", loss=fedamp_jax.models.squared_error)
    numbers = fedamp_jax.data.from_lists([x], [np.ones((6, 2))], classes=0)
    for task, data in ((one, labels), (two, numbers)):
        models = jax.vmap(task.init)(jax.random.split(KEY, 1))
        wanted = task.predict(jax.tree.map(lambda a: a[0], models), x)
        np.testing.assert_allclose(fedamp_jax.predict(task, models, data)[0], wanted, rtol=1e-5)


@pytest.mark.parametrize("name", ["fedavg", "fedamp", "pflego, server Adam", "fedfomo"])
@pytest.mark.slow_variants
def test_runs_under_debug_nans(name):
    """Clients without test data are NaN, which is no error; one has no training data either.

    Failed where the flag was on in the compiled evaluation, and stopped a run.
    """
    train, test = (
        federation(sizes=(7, 3, 4, 5))._replace(size=jnp.array(size), online=jnp.array(size) > 0)
        for size in ([7, 3, 0, 5], [0, 3, 0, 5])
    )
    task, algorithm = made(find(name))
    with jax.debug_nans(True):
        run = fedamp_jax.run(task, algorithm, train, test, rounds=2, progress=False)
        models = jax.jit(algorithm.personalize)(jax.random.key(0), run.state, train)
        found = fedamp_jax.evaluate(task, models, test)
    assert isinstance(found, jax.Array) and found.dtype == jnp.float32
    for accuracy in (run.accuracy[-1], found):
        assert np.isnan(accuracy).tolist() == [True, False, True, False]
    inside = jax.jit(lambda models: fedamp_jax.evaluate(task, models, test))(models)
    np.testing.assert_array_equal(inside, found)
