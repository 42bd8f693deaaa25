"""FedRoD: counts of classes, classes that a client does not have, and the heads that can be added."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Solver, Variables
from fedamp_jax.algorithms.fedrod import log_counts
from fedamp_jax.data import from_lists
from tests.registry import CLASSES, FEATURES, federation, initial, run_rounds, tiny_task

TASK = tiny_task()
SGD = Solver(optax.sgd(0.3), epochs=2, batch_size=4)
KEY = jax.random.key(2)


def labelled(labels):
    """A client for each list of labels."""
    rng = np.random.default_rng(1)
    return from_lists([rng.normal(size=(len(y), FEATURES)).astype(np.float32) for y in labels],
                      [np.array(y) for y in labels], classes=CLASSES)  # fmt: skip


def test_log_counts_are_of_all_examples():
    """Of several minibatches, the last of which is not full. Failed with padding counted as class 0."""
    data = labelled([[0] * 5 + [2], [1, 1, 1], [2]])
    for i, counts in enumerate(([5, 0, 1], [0, 3, 0], [0, 0, 1])):
        found = np.asarray(log_counts(SGD, data.client(i), CLASSES))
        np.testing.assert_allclose(np.exp(found), counts, rtol=1e-6)
        assert np.isfinite(found).all()


def test_equal_frequencies_are_fedavg():
    """log n_ic is the same for all classes, so that the generic model is FedAvg's; a client without a round has it.

    Failed with the personal loss's gradient through the body.
    """
    data = labelled([[0, 1, 2] * n for n in (1, 2, 4)])._replace(online=jnp.array([True, True, False]))
    ours, theirs = (run_rounds(make(TASK, SGD), data, 2) for make in (fedamp_jax.fedrod, fedamp_jax.fedavg))
    assert not any(info.rejected.any() for info in ours[1])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), ours[0].shared["model"],
                 theirs[0].params)  # fmt: skip
    algorithm = fedamp_jax.fedrod(TASK, SGD)
    mine = jax.jit(algorithm.personalize)(KEY, ours[0], data).params
    moved = [np.abs(np.asarray(mine["head"]["kernel"][i] - theirs[0].params["head"]["kernel"])).max() for i in range(3)]
    assert min(moved[:2]) > 1e-2 and moved[2] < 1e-5


def test_a_class_that_a_client_does_not_have_takes_no_part():
    """The generic head's row of it does not move, under jax_debug_nans; the personal head's does.

    Failed with log 0, and with max(count, 1).
    """
    data = labelled([[0, 1, 0, 1, 1]])
    algorithm = fedamp_jax.fedrod(TASK, SGD)
    before = jax.tree.map(np.asarray, initial(algorithm, jax.random.key(1), data))
    with jax.debug_nans(True):
        state, [info] = run_rounds(algorithm, data, 1)
    assert np.isfinite(info.loss).all()
    generic, old = state.shared["model"]["head"], before.shared["model"]["head"]
    for name in ("kernel", "bias"):
        change = np.abs(np.asarray(generic[name]) - old[name]).reshape(-1, CLASSES).max(axis=0)
        assert change[2] == 0 and change[:2].min() > 1e-3
        assert np.abs(np.asarray(state.own["own"]["head"][name][0])).reshape(-1, CLASSES)[:, 2].max() > 1e-3


def test_heads_that_cannot_be_added_are_refused():
    """Before anything compiles. Failed with a head of two layers taken for one."""
    params = {"body": jnp.zeros((5, 4)), "head": {"kernel": jnp.zeros((4, 3)), "bias": jnp.zeros(3)}}
    heads = {
        "no bias": {"kernel": jnp.zeros((4, 3))},
        "two layers": {"a": params["head"], "b": params["head"]},
        "one logit": {"kernel": jnp.zeros((4, 1)), "bias": jnp.zeros(1)},
        "another length": {"kernel": jnp.zeros((4, 3)), "scale": jnp.zeros(4)},
    }
    for head in heads.values():
        task = TASK._replace(init=lambda key, head=head: Variables({**params, "head": head}))
        with pytest.raises(ValueError, match=r"must be one linear layer, with a bias .* give the model such"):
            fedamp_jax.fedrod(task, SGD)
    targets = from_lists([np.zeros((4, FEATURES), np.float32)], [np.zeros(4, np.float32)], classes=0)
    with pytest.raises(TypeError, match="counts the labels of each class, but y is float32"):
        fedamp_jax.fedrod(TASK, SGD).init(KEY, targets)


def test_both_losses_share_the_forward_pass():
    """A step has the products of FedAvg's and those of the heads, 1.23 times as many; with other parameters in the
    second loss, times 1.001, it were 1.37 times.
    """
    task, data = fedamp_jax.models.mlp(CLASSES, hidden=(64,), shape=(FEATURES,)), federation()

    def flops(make):
        algorithm = make(task, SGD)
        state = initial(algorithm, KEY, data)
        return jax.jit(algorithm.round).lower(KEY, state, data).compile().cost_analysis()["flops"]

    assert flops(fedamp_jax.fedrod) < 1.3 * flops(fedamp_jax.fedavg)
