"""pFedHN: the models that the hypernetwork makes, embeddings of clients that are away, and what is refused."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Solver
from fedamp_jax.algorithms.pfedhn import falling_rate
from tests.registry import federation, initial, run_rounds, tiny_task

TASK = tiny_task()
SGD = Solver(optax.sgd(0.3), epochs=2, batch_size=4)
KEY = jax.random.key(1)  # of `run_rounds`
SMALL = {"embedding_dim": 3, "hidden": 4, "hidden_layers": 1}


def test_models_start_apart_around_the_models_own_start():
    """Each client's with its own embedding, which follows its id. Failed with one embedding for all, and with random
    biases in place of the model's parameters.
    """
    data = federation()
    algorithm = fedamp_jax.pfedhn(TASK, SGD)
    state = initial(algorithm, KEY, data)
    models = algorithm.personalize(KEY, state, data).params
    own = TASK.init(KEY).params
    for a, b in zip(jax.tree.leaves(models), jax.tree.leaves(own)):
        assert a.shape == (8, *b.shape) and (np.asarray(a).std(axis=0) > 1e-4).all()
        assert np.abs(np.asarray(a) - b[None]).max() < 0.5
    assert state.embeddings.shape == (8, 16) and len(set(np.asarray(state.embeddings)[:, 0].tolist())) == 8
    some = initial(algorithm, KEY, data.select([5, 2]))
    chex.assert_trees_all_equal(some.embeddings, state.embeddings[jnp.array([5, 2])])
    assert state.network.layers[0][0].shape == (16, 100) and len(state.network.layers) == 4


def test_a_client_that_is_away_gets_a_new_model_and_keeps_its_embedding():
    """As the hypernetwork moves; its optimizer's moments wait. Failed with moments that decay meanwhile."""
    data = federation()
    algorithm = fedamp_jax.pfedhn(TASK, SGD, **SMALL)
    before, _ = run_rounds(algorithm, data, 1)
    first = jax.tree.map(np.asarray, before)
    old = jax.tree.map(np.asarray, algorithm.personalize(KEY, before, data).params)
    state, _ = run_rounds(algorithm, data._replace(online=jnp.arange(8) != 3), 1, state=before, first=1)

    def rows(state):
        return jax.tree.map(lambda a: np.asarray(a)[3], (state.embeddings, state.server[1]))

    chex.assert_trees_all_equal(rows(state), rows(first))
    new = algorithm.personalize(KEY, state, data).params
    assert np.abs(np.asarray(new["body"]["kernel"][3]) - old["body"]["kernel"][3]).max() > 1e-4


def test_without_rates_nothing_moves():
    """rate = 0, and embeddings alone where only theirs is not. Failed with one rate for both."""
    data = federation()
    fresh = initial(fedamp_jax.pfedhn(TASK, SGD, **SMALL), KEY, data)
    still, _ = run_rounds(fedamp_jax.pfedhn(TASK, SGD, **SMALL, rate=0.0), data, 2)
    chex.assert_trees_all_equal((still.network, still.embeddings), (fresh.network, fresh.embeddings))
    rates = np.array([0.1] * 7 + [0.0])
    state, _ = run_rounds(fedamp_jax.pfedhn(TASK, SGD, **SMALL, rate=0.0, embedding_rate=rates), data, 2)
    chex.assert_trees_all_equal(state.network, fresh.network)
    moved = np.abs(np.asarray(state.embeddings - fresh.embeddings)).max(axis=1)
    assert (moved[:7] > 1e-3).all() and moved[7] == 0


def test_the_rate_follows_the_round():
    """A schedule that ends. Failed with the first round's rate for network or embeddings."""
    assert np.allclose([falling_rate(k) for k in (0, 10, 90)], [1e-3, 5e-4, 1e-4])
    algorithm = fedamp_jax.pfedhn(TASK, SGD, **SMALL, rate=lambda k: jnp.where(k < 1, 0.02, 0.0))
    once, twice = (run_rounds(algorithm, federation(), rounds)[0] for rounds in (1, 2))
    chex.assert_trees_all_equal((once.network, once.embeddings), (twice.network, twice.embeddings))


def test_what_cannot_be_is_refused():
    """Before anything compiles. Failed with a rate that nobody reads."""
    for wrong, match in (
        ({"embedding_dim": 0}, "embedding_dim"),
        ({"hidden": 0}, "hidden"),
        ({"hidden_layers": -1}, "hidden_layers"),
        ({"rate": -1.0}, "rate"),
        ({"embedding_rate": np.array([0.1, -1.0])}, "embedding_rate must be at least 0"),
        ({"embedding_rate": 0.1, "server_optimizer": optax.sgd(0.1)}, "embedding_rate is for Adam"),
        ({"stats": "none"}, "stats"),
    ):
        with pytest.raises(ValueError, match=match):
            fedamp_jax.pfedhn(TASK, SGD, **wrong)
