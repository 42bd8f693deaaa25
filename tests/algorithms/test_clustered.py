"""IFCA: clusters that are found, and models that nobody may take."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Solver
from fedamp_jax.algorithms.ifca import least_loss
from tests.registry import federation, initial, run_rounds, tiny_task

TASK = tiny_task()
SOLVER = Solver(optax.adam(0.05), epochs=5, batch_size=8)
SIZES = (12, 9, 10, 14, 8, 11)
KINDS = [[0, 2, 4], [1, 3, 5]]
KEY = jax.random.key(4)


def clusters(info):
    """Who is in whose cluster."""
    return sorted({tuple(np.flatnonzero(row).tolist()) for row in np.asarray(info.xi)})


def test_ifca_finds_the_kinds():
    """Clients of two kinds with opposite labels. Failed with the model of the largest loss."""
    _, infos = run_rounds(fedamp_jax.ifca(TASK, SOLVER, k=2), federation(sizes=SIZES), 8)
    assert clusters(infos[-1]) == list(map(tuple, KINDS))


def test_a_model_without_a_loss_is_not_taken():
    """Failed with `argmin` alone, for which NaN is the least."""
    data = federation(sizes=SIZES)
    models = jax.vmap(TASK.init)(jax.random.split(KEY, 3))
    models = models._replace(params=jax.tree.map(lambda a: a.at[0].set(jnp.nan), models.params))
    chosen = jax.jit(lambda data: least_loss(TASK, SOLVER, data, models, 3))(data)
    assert set(chosen.tolist()) <= {1, 2}


def test_the_first_models_alone_may_be_taken():
    """Failed with all models as candidates: the last one fits, and does not count."""
    data = federation(sizes=SIZES)
    state, _ = run_rounds(fedamp_jax.fedavg(TASK, SOLVER), data, 8)
    models = jax.vmap(TASK.init)(jax.random.split(KEY, 3))
    put = lambda a, b: a.at[2].set(b)  # noqa: E731
    models = models._replace(params=jax.tree.map(put, models.params, state.params))
    chosen = [jax.jit(lambda data, n=n: least_loss(TASK, SOLVER, data, models, n))(data) for n in (3, 2)]
    assert (chosen[0] == 2).any() and not (chosen[1] == 2).any()


@pytest.mark.parametrize(("k", "error"), [(0, ValueError), (2.5, TypeError)])
def test_numbers_of_models_that_are_refused(k, error):
    """Failed inside of `init`, with a message about shapes."""
    with pytest.raises(error, match="k must be"):
        fedamp_jax.ifca(TASK, SOLVER, k=k)


def test_ifca_begins_with_models_that_differ():
    """Failed with one initial model for all clusters, of which no client ever takes the second."""
    state = initial(fedamp_jax.ifca(TASK, SOLVER, k=3), KEY, federation(sizes=SIZES))
    kernels = np.asarray(state.models.params["body"]["kernel"])
    assert all(np.abs(kernels[i] - kernels[j]).max() > 0.1 for i in range(3) for j in range(i))
