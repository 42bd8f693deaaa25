"""FedPAC: the weights of heads against exact solutions, and clients that are not there."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Solver
from fedamp_jax.algorithms.fedpac import combination
from fedamp_jax.engine import server
from tests.oracles.fedpac import minimum
from tests.registry import federation, run_rounds, tiny_task

TASK = tiny_task()
SGD = Solver(optax.sgd(0.3), epochs=2, batch_size=4)


@pytest.mark.parametrize(("spread", "noise"), [(0.1, 0.01), (1.0, 0.1), (3.0, 0.001), (0.0, 1.0)])
def test_weights_are_the_minimum(spread, noise):
    """Of groups that are apart and of statistics that agree, with absent clients. Failed without the momentum, and with
    weights for absent clients.
    """
    rng = np.random.default_rng(0)
    s = spread * (rng.normal(size=(2, 12))[[0, 1, 0, 1, 1, 0, 0]] / 3 + rng.normal(size=(7, 12)) / 20)
    v, present = noise * rng.uniform(0.3, 3.0, 7), np.array([1, 1, 0, 1, 1, 0, 1], bool)
    distances = server.sq_dists(jnp.asarray(s, jnp.float32))
    found = jax.jit(combination)(distances, jnp.asarray(v, jnp.float32), jnp.asarray(present))
    np.testing.assert_allclose(found, [minimum(i, s, v, present) for i in range(7)], atol=1e-4)


def test_clients_alike_share_by_their_variance():
    """Weights are proportional to 1 / V. Failed with V in place of its inverse, and with equal weights."""
    v = jnp.array([1.0, 2.0, 4.0])
    found = combination(jnp.zeros((3, 3)), v, jnp.ones(3, bool))
    np.testing.assert_allclose(found, np.broadcast_to((1 / v) / jnp.sum(1 / v), (3, 3)), rtol=1e-4)
    none_present = combination(jnp.ones((3, 3)), v, jnp.zeros(3, bool))
    np.testing.assert_array_equal(none_present, np.eye(3))


def test_absent_clients_are_not_combined():
    """Nor are their statistics paired with the heads of others: with client 0 absent, the rest is as without it.

    Failed with heads in the order of those who came, and with statistics of zeros in place of the absent client's.
    """
    data = federation(sizes=(9, 7, 8, 6), kinds=1)
    algorithm = fedamp_jax.fedpac(TASK, SGD)
    ours, infos = run_rounds(algorithm, data._replace(online=jnp.arange(4) > 0), 2)
    theirs, others = run_rounds(algorithm, data.select([1, 2, 3]), 2)
    xi = np.asarray(infos[-1].xi)
    np.testing.assert_allclose(xi[1:, 1:], others[-1].xi, atol=1e-4)
    assert xi[0].tolist() == [1, 0, 0, 0] and not xi[1:, 0].any() and xi[1, 2] > 0.01
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[1:], b, rtol=1e-3, atol=1e-4), ours.model.own["head"],
                 theirs.model.own["head"])  # fmt: skip


def test_one_client_is_fedrep_with_aligned_features():
    """Its head is its own, and with lam = 0 it trains as FedRep does. Failed with the body trained first."""
    data = federation(sizes=(9,))
    head = Solver(optax.sgd(0.3), epochs=1, batch_size=4)
    ours, _ = run_rounds(fedamp_jax.fedpac(TASK, SGD, lam=0.0), data, 2)
    theirs, _ = run_rounds(fedamp_jax.fedrep(TASK, SGD, head_solver=head), data, 2)
    for a, b in zip(jax.tree.leaves((ours.model.shared, ours.model.own)), jax.tree.leaves((theirs.shared, theirs.own))):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
