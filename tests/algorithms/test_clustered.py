"""IFCA and CFL: clusters that are found, models that nobody may take, and the best division of a cluster."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Solver
from fedamp_jax.algorithms.cfl import bipartition
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

    def put(a, b):
        return a.at[2].set(b)

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


def test_cfl_finds_the_kinds():
    """With the default thresholds, and alike clients stay together. Failed with `eps2` as an upper bound."""
    for kinds, expected in ((2, KINDS), (1, [range(6)])):
        _, infos = run_rounds(fedamp_jax.cfl(TASK, SOLVER), federation(sizes=SIZES, kinds=kinds), 12)
        assert clusters(infos[-1]) == list(map(tuple, expected)), kinds


def test_the_best_division():
    """Of 1 to 6 members among 8, of which all divisions are tried: none has a smaller largest similarity.

    Failed with average linkage, with the edge to the first member as the weakest, and with others than the members.
    """
    divide = jax.jit(bipartition)
    for seed, size in itertools.product(range(10), range(2, 7)):
        rng = np.random.default_rng([seed, size])
        members = np.isin(np.arange(8), rng.permutation(8)[:size])
        a = rng.uniform(-1, 1, (8, 8)).astype(np.float32)
        similar = np.where(np.eye(8, dtype=bool), 1, (a + a.T) / 2)
        found = np.asarray(divide(jnp.asarray(similar), jnp.asarray(members)))
        who = np.flatnonzero(members)
        parts = [set(part) for n in range(1, size) for part in itertools.combinations(who.tolist(), n)]
        worst = lambda part: max(similar[i, j] for i in part for j in set(who.tolist()) - part)  # noqa: B023, E731
        assert not (found & ~members).any() and 0 < found.sum() < size
        assert worst(set(np.flatnonzero(found).tolist())) == min(map(worst, parts))


@pytest.mark.slow
def test_no_more_clusters_than_k_max():
    """Failed with `<=`: the new cluster's number had no model."""
    for k_max in (1, 2):
        state, _ = run_rounds(
            fedamp_jax.cfl(TASK, SOLVER, eps1=9.0, eps2=1e-6, k_max=k_max), federation(sizes=SIZES), 4
        )
        assert int(state.cluster.max()) == k_max - 1 and state.models.params["body"]["bias"].shape[0] == k_max


@pytest.mark.parametrize(("name", "value"), [("eps1", 0.0), ("eps2", -1.0), ("k_max", 0), ("relative", "false")])
def test_hyperparameters_of_cfl_that_are_refused(name, value):
    """Failed with `--set CFL.relative=false`, a word that counted as True."""
    with pytest.raises((ValueError, TypeError), match=f"{name} must be"):
        fedamp_jax.cfl(TASK, SOLVER, **{name: value})


def test_a_client_alone_is_not_divided():
    """From those that are absent. Failed when their updates of zero were compared, too."""
    data = federation(sizes=SIZES)
    data = data._replace(online=jnp.arange(6) == 2)
    state, _ = run_rounds(fedamp_jax.cfl(TASK, SOLVER, eps1=9.0, eps2=1e-6), data, 2)
    assert int(state.clusters) == 1 and state.cluster.tolist() == [-1, -1, 0, -1, -1, -1]


@pytest.mark.slow
def test_a_newcomer_takes_no_model_that_is_not_in_use():
    """Its labels are the opposite of the others', so the initial model, in the second place, has a smaller loss.

    Failed with all of the k_max models to choose from.
    """
    everybody, key = federation(sizes=SIZES), jax.random.key(1)
    first, last = everybody.select([0, 2, 4]), everybody.select([1])
    algorithm = fedamp_jax.cfl(TASK, SOLVER, eps1=1e-9)
    state, _ = run_rounds(algorithm, first, 8)
    state, together = fedamp_jax.join(algorithm, state, first, last, key)
    assert int(jax.jit(lambda d: least_loss(TASK, SOLVER, d, state.models, 2))(together)[3]) == 1
    personal = jax.jit(algorithm.personalize)(key, state, together)
    np.testing.assert_array_equal(personal.params["head"]["kernel"][3], state.models.params["head"]["kernel"][0])
