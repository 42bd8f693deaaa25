"""FedALA: where a client without a model of its own starts, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Solver
from tests.registry import federation, initial, run_rounds, tiny_task

TASK = tiny_task()
SGD = Solver(optax.sgd(0.3), epochs=2, batch_size=4)
KEY = jax.random.key(2)


def test_without_steps_on_the_weights_rounds_are_fedavgs():
    """W_i stays 1. Failed with the client's own body in place of the global one."""
    data = federation()
    for layers in (None, ("body/bias",)):
        ours, _ = run_rounds(fedamp_jax.fedala(TASK, SGD, eta=0.0, layers=layers), data, 3)
        theirs, _ = run_rounds(fedamp_jax.fedavg(TASK, SGD), data, 3)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours.params, theirs.params)
        assert all((np.asarray(a) == 1).all() for a in jax.tree.leaves(ours.weights))


def test_a_client_that_comes_late_starts_from_the_global_model():
    """And has it until then. Failed with its initial model, mixed with the global one."""
    data = federation()
    algorithm = fedamp_jax.fedala(TASK, SGD, eta=20.0)
    state, _ = run_rounds(algorithm, data._replace(online=jnp.arange(8) < 7), 2)
    waiting = jax.tree.map(lambda a: a[7], algorithm.personalize(KEY, state, data).params)
    jax.tree.map(np.testing.assert_array_equal, waiting, state.params)
    late = data._replace(online=jnp.arange(8) == 7)
    average = initial(fedamp_jax.fedavg(TASK, SGD), KEY, data)
    average = average._replace(params=jax.tree.map(jnp.copy, state.params), round=state.round + 0)
    ours, _ = run_rounds(algorithm, late, 1, state=state, first=2)
    theirs, _ = run_rounds(fedamp_jax.fedavg(TASK, SGD), late, 1, state=average, first=2)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), ours.params, theirs.params)
    assert ours.turns.tolist() == [2] * 7 + [1]


def test_what_cannot_be_is_refused():
    """Before anything compiles. Failed with a prefix of half a name, and with eta of one client negative."""
    for wrong, match in (
        ({"layers": ("hea",)}, "layers=.*must be prefixes of the parameters' paths; there are: body/bias"),
        ({"layers": ()}, "must be prefixes"),
        ({"eta": np.array([1.0, -1.0])}, "eta must be at least 0"),
        ({"share": 0.0}, "share"),
        ({"share": 1.5}, "share"),
        ({"first_epochs": 0}, "first_epochs"),
        ({"stats": "none"}, "stats"),
    ):
        with pytest.raises(ValueError, match=match):
            fedamp_jax.fedala(TASK, SGD, **wrong)
