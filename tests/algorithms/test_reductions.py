"""What a method becomes when its numbers are set to the edge."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Solver
from tests.registry import batch_of, federation, initial, run_rounds, tiny_task

TASK, LR = tiny_task(), 0.3
SGD = Solver(optax.sgd(LR), epochs=2, batch_size=4)
SEPARATE, FEDAVG = fedamp_jax.separate(TASK, SGD), fedamp_jax.fedavg(TASK, SGD)
KEY = jax.random.key(2)


@functools.partial(jax.jit, static_argnums=0)
def models(algorithm, state, data):
    return algorithm.personalize(KEY, state, data).params


def personal(algorithm, data, rounds=3):
    state, _ = run_rounds(algorithm, data, rounds)
    leaves = jax.tree.leaves(models(algorithm, state, data))
    return np.concatenate([np.asarray(a).reshape(a.shape[0], -1) for a in leaves], 1)


def close(a, b):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


PAIRS = {
    "FedAMP, lam = 0 and xi = I, is Separate": (
        lambda: fedamp_jax.fedamp(TASK, SGD, sigma=1.0, self_weight=1.0, lam=0.0),
        lambda: SEPARATE,
    ),
    "HeurFedAMP, lam = 0 and xi = I, is Separate": (
        lambda: fedamp_jax.heurfedamp(TASK, SGD, sigma=1.0, self_weight=1.0, lam=0.0),
        lambda: SEPARATE,
    ),
    "FedAMP from the personal models, lam = 0, is Separate": (
        lambda: fedamp_jax.fedamp(TASK, SGD, sigma=1.0, self_weight=0.1, lam=0.0, start="personal"),
        lambda: SEPARATE,
    ),
    "FedProx, mu = 0, is FedAvg": (
        lambda: fedamp_jax.fedprox(TASK, SGD, mu=jnp.float32(0)),
        lambda: FEDAVG,
    ),
    "APFL, alpha = 0, is FedAvg": (
        lambda: fedamp_jax.apfl(TASK, SGD, alpha=0.0, learning_rate=LR),
        lambda: FEDAVG,
    ),
    "Per-FedAvg, alpha = 0, is FedAvg": (
        lambda: fedamp_jax.perfedavg(TASK, SGD, alpha=0.0, beta=LR, hessian="exact"),
        lambda: FEDAVG,
    ),
    "FedProto, lam = 0, is Separate": (
        lambda: fedamp_jax.fedproto(TASK, SGD, lam=0.0),
        lambda: SEPARATE,
    ),
    "CFL that is never divided is FedAvg": (
        lambda: fedamp_jax.cfl(TASK, SGD, eps1=1e-9),
        lambda: FEDAVG,
    ),
    "IFCA of one model is FedAvg": (
        lambda: fedamp_jax.ifca(TASK, SGD, k=1),
        lambda: FEDAVG,
    ),
    "APFL, alpha = 1, is Separate": (
        lambda: fedamp_jax.apfl(TASK, SGD, alpha=1.0, learning_rate=LR),
        lambda: SEPARATE,
    ),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.slow_variants
def test_two_names_for_one_method(name):
    """Failed with a penalty that did not vanish with its weight, and with alpha and 1 - alpha turned."""
    a, b = PAIRS[name]
    data = federation()
    close(personal(a(), data), personal(b(), data))


def test_one_group_of_equal_clients_is_fedavg():
    """All alike to sigma, xi uniform: the cloud model is FedAvg's global one. Failed with rows of xi not summing to
    1.
    """
    data = federation(sizes=(6,) * 8)
    amp = fedamp_jax.fedamp(TASK, SGD, sigma=1e9, self_weight=1 / 8, lam=0.0)
    average = personal(amp, data).mean(0)
    close(np.broadcast_to(average, (8, len(average))), personal(FEDAVG, data))


def test_ditto_without_pull_is_separate_beside_fedavg():
    """Full batches, so that the order of examples does not matter. Failed with the personal model restarted each
    round.
    """
    data = federation()
    solver = Solver(optax.sgd(LR), epochs=3, batch_size=16)
    algorithm = fedamp_jax.ditto(TASK, solver, lam=0.0)
    close(personal(algorithm, data), personal(fedamp_jax.separate(TASK, solver), data))
    state, _ = run_rounds(algorithm, data, 3)
    average, _ = run_rounds(fedamp_jax.fedavg(TASK, solver), data, 3)
    for a, b in zip(jax.tree.leaves(state.shared.params), jax.tree.leaves(average.params)):
        close(a, b)


def test_scaffold_of_one_client_is_sgd():
    """With one client c = c_i, and nothing is corrected. Failed with c added and c_i forgotten."""
    data = federation(sizes=(7,))
    close(personal(fedamp_jax.scaffold(TASK, SGD, learning_rate=LR), data), personal(SEPARATE, data))


def test_pflego_with_one_step_is_gradient_descent_on_everything():
    """tau = 1, everybody online, heads weighted: psi <- psi - rho grad L(psi) of Eq. 1. Failed with I / r squared."""
    data, rho = federation(), 0.2
    algorithm = fedamp_jax.pflego(TASK, Solver(optax.sgd(1.0), epochs=1, batch_size=4), rho=rho, weigh_heads=True)
    state = initial(algorithm, jax.random.key(1), data)
    body, heads = state.model.shared["body"], state.model.own["head"]

    def objective(body, heads):
        def one(i):
            head = jax.tree.map(lambda a: a[i], heads)
            variables = fedamp_jax.Variables({"body": body, "head": head}, {"mean": jnp.zeros(5)})
            return TASK.loss(variables, batch_of(data.client(i)), KEY)[0] * (data.size[i] / jnp.sum(data.size))

        return sum(map(one, range(8)))

    expected = jax.tree.map(lambda w, g: w - rho * g, (body, heads), jax.jit(jax.grad(objective, (0, 1)))(body, heads))
    new, _ = jax.jit(algorithm.round)(KEY, state, data)
    for a, b in zip(jax.tree.leaves((new.model.shared["body"], new.model.own["head"])), jax.tree.leaves(expected)):
        close(a, b)
