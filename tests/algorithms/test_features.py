"""Means of features by class, and methods that exchange them: FedProto and what it shares with FedPAC."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Solver, Variables
from fedamp_jax.data import from_lists
from fedamp_jax.engine import Centroids, aligned, class_means, init_centroids, mean_centroids
from tests.registry import CLASSES, FEATURES, HIDDEN, batch_of, initial, run_rounds, tiny_task

TASK = tiny_task()
SGD = Solver(optax.sgd(0.3), epochs=2, batch_size=4)
KEY = jax.random.key(2)


def labelled(labels):
    """A client for each list of labels."""
    rng = np.random.default_rng(1)
    return from_lists([rng.normal(size=(len(y), FEATURES)).astype(np.float32) for y in labels],
                      [np.array(y) for y in labels], classes=CLASSES)  # fmt: skip


def test_class_means_are_of_all_examples():
    """Of several minibatches, the last of which is not full; zeros for a class that a client does not have.

    Failed with padding counted as class 0, with the mean of the minibatches' means, and with 0 / 0.
    """
    data, variables = labelled([[0, 0, 0, 1, 0, 0, 0], [2]]), TASK.init(KEY)
    like = init_centroids("mean", TASK, data)
    assert like.mean.shape == (CLASSES, HIDDEN)
    with jax.debug_nans(True):
        found = [
            jax.jit(class_means, static_argnums=(0, 1))(TASK, SGD, data.client(i), variables, like) for i in (0, 1)
        ]
    for i, one in enumerate(found):
        x, y = data.examples(i)
        h = np.asarray(TASK.predict_features(variables, x))
        np.testing.assert_array_equal(one.counts, [(y == c).sum() for c in range(CLASSES)])
        for c in range(CLASSES):
            np.testing.assert_allclose(
                one.mean[c], h[y == c].mean(axis=0) if (y == c).any() else 0, rtol=1e-5, atol=1e-7
            )


def test_mean_centroids_weigh_by_class():
    """A class is the mean over the clients that have it and count; else it stays. Failed with one weight per client."""
    clients = Centroids(jnp.array([[[1.0], [5.0], [0.0]], [[3.0], [0.0], [0.0]], [[9.0], [9.0], [9.0]]]),
                        jnp.array([[1.0, 2.0, 0.0], [3.0, 0.0, 0.0], [4.0, 4.0, 4.0]]))  # fmt: skip
    old = Centroids(jnp.array([[7.0], [7.0], [7.0]]), jnp.array([0.0, 1.0, 6.0]))
    found = mean_centroids(clients, jnp.array([True, True, False]), old)
    assert found.mean.ravel().tolist() == [2.5, 5.0, 7.0] and found.counts.tolist() == [4.0, 2.0, 6.0]


def test_alignment_is_the_squared_distance_by_feature():
    """Over the real examples, of which those of an unknown class count as no distance. Failed with padding in the
    mean, and with the examples of known classes alone in the denominator.
    """
    data, variables = labelled([[0, 1, 1], [0] * 7]), TASK.init(KEY)
    batch = batch_of(data.client(0))
    targets = Centroids(jnp.full((CLASSES, HIDDEN), 0.5), jnp.array([0.0, 1.0, 1.0]))
    ours, running = aligned(TASK, targets, jnp.float32(3.0)).loss(variables, batch, KEY)
    plain, expected = TASK.loss(variables, batch, KEY)
    h = np.asarray(TASK.predict_features(variables, batch.x))[1:3]
    np.testing.assert_allclose(ours - plain, 3.0 * np.sum(np.mean((h - 0.5) ** 2, axis=1)) / 3, rtol=1e-5)
    np.testing.assert_array_equal(running["mean"], expected["mean"])


def test_a_class_that_nobody_had_keeps_its_prototype():
    """And before anybody had it, it has none: nearest prototypes leave it out. Failed with zeros as a prototype."""
    data = labelled([[0, 1, 0, 1], [2, 2, 1]])
    algorithm = fedamp_jax.fedproto(TASK, SGD, predict="prototype")
    alone = data._replace(online=jnp.array([True, False]))
    with jax.debug_nans(True):
        state, _ = run_rounds(algorithm, alone, 1)
    assert state.prototypes.counts.tolist() == [2, 2, 0] and not np.asarray(state.prototypes.mean[2]).any()
    logits = TASK.predict(jax.tree.map(lambda a: a[1], algorithm.personalize(KEY, state, data)), data.examples(1)[0])
    assert (logits.argmax(axis=1) < 2).all()
    state, _ = run_rounds(algorithm, data, 1, state=state, first=1)
    assert state.prototypes.counts.tolist() == [2, 3, 2]
    before = np.asarray(state.prototypes.mean)
    state, _ = run_rounds(algorithm, alone, 1, state=state, first=2)
    np.testing.assert_array_equal(state.prototypes.mean[2], before[2])
    assert np.abs(np.asarray(state.prototypes.mean) - before)[:2].min() > 1e-5


def test_logits_of_prototypes_are_distances():
    """-||h - P_c||^2 up to a number that all classes share; before any round the head's. Failed without the 2."""
    data = labelled([[0, 1, 2, 0], [2, 0, 1]])
    algorithm = fedamp_jax.fedproto(TASK, SGD, predict="prototype")
    fresh = initial(algorithm, KEY, data)
    start = algorithm.personalize(KEY, fresh, data).params["head"]
    jax.tree.map(np.testing.assert_array_equal, start, fresh.clients.variables.params["head"])
    state, _ = run_rounds(algorithm, data, 1)
    model = jax.tree.map(lambda a: a[0], algorithm.personalize(KEY, state, data))
    x = data.examples(0)[0]
    h = np.asarray(TASK.predict_features(model, x), np.float64)
    far = ((h[:, None] - np.asarray(state.prototypes.mean)[None]) ** 2).sum(axis=2)
    shift = np.asarray(TASK.predict(model, x)) + far
    np.testing.assert_allclose(shift, np.broadcast_to(shift[:, :1], shift.shape), rtol=1e-5, atol=1e-5)


def test_what_has_no_features_or_labels_is_refused():
    """Before anything compiles. Failed with an assertion."""
    with pytest.raises(
        ValueError, match="FedProto compares features, but the task has no features, head_loss: make it"
    ):
        fedamp_jax.fedproto(TASK._replace(features=None, head_loss=None), SGD)
    deep = TASK._replace(init=lambda key: Variables({"body": jnp.zeros(2), "head": {"a": jnp.zeros((4, 3))}}))
    fedamp_jax.fedproto(deep, SGD)
    with pytest.raises(
        ValueError, match="turns prototypes into the rows of a head, for which a head must be one linear"
    ):
        fedamp_jax.fedproto(deep, SGD, predict="prototype")
    targets = from_lists([np.zeros((4, FEATURES), np.float32)], [np.zeros(4, np.float32)], classes=0)
    with pytest.raises(TypeError, match="needs labels, but y is float32"):
        fedamp_jax.fedproto(TASK, SGD).init(KEY, targets)
