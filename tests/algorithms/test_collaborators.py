"""The number of others that each client learns from, found by the client itself: `attention.auto`."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn

import fedamp_jax
from fedamp_jax import Solver, attention
from fedamp_jax.algorithms.collaborators import candidates
from fedamp_jax.engine import loss_difference
from tests.oracles import attention as oracle
from tests.oracles.model import loss_and_gradient
from tests.registry import federation, run_rounds, tiny_task

KEY = jax.random.key(0)
SIZES = (40, 30, 25, 1, 35, 30, 45, 2, 30)


def disagreeing():
    """Clients of two kinds, whose labels contradict each other; some have too few examples to tell."""
    return federation(sizes=SIZES, kinds=2, seed=3)


def plain_task():
    """The tiny task without running statistics."""
    task = tiny_task()

    def loss(variables, batch, key):
        mean = fedamp_jax.cross_entropy(task.predict(variables, batch.x), batch)
        return jnp.where(jnp.any(batch.mask), mean, jnp.nan), ()  # a mean of nothing

    return fedamp_jax.Task(lambda key: task.init(key)._replace(stats=()), loss, task.predict)


def losses(params, data, i):
    """The float64 loss of each of client i's examples."""
    params = jax.tree.map(lambda a: np.asarray(a, np.float64), params)
    x, y = data.examples(i)
    return np.array([loss_and_gradient(params, x[n : n + 1], y[n : n + 1], 3)[0] for n in range(len(y))])


def of_losses(d):
    """Mean and standard error of the differences `d`."""
    return d.mean(), d.std(ddof=1) / np.sqrt(len(d))


def test_loss_difference():
    """Mean and standard error of paired differences. Failed with padding counted, and with the error of one loss."""
    task, data = plain_task(), disagreeing()
    one, other = (task.init(key) for key in jax.random.split(KEY))
    compute = jax.jit(loss_difference, static_argnums=(0, 1))
    for size, batch in ((40, 100), (25, 7), (2, 45)):
        i = SIZES.index(size)
        got = compute(task, Solver(optax.sgd(0.1), batch_size=batch), data.client(i), one, other)
        wanted = of_losses(losses(one.params, data, i) - losses(other.params, data, i))
        np.testing.assert_allclose(got, wanted, rtol=2e-4)
    mean, error = compute(task, Solver(optax.sgd(0.1)), data.client(SIZES.index(1)), one, other)
    assert np.isfinite(mean) and np.isinf(error)


def test_losses_of_examples_that_depend_on_each_other():
    """BatchNorm needs several examples. Failed for examples one by one, whose normalised features are all 0."""

    class Net(nn.Module):
        @nn.compact
        def __call__(self, x, train=False, mask=None):
            x = nn.BatchNorm(use_running_average=not train)(
                nn.Dense(6)(x), mask=None if mask is None else mask[:, None]
            )
            return nn.Dense(3, name="head")(nn.relu(x))

    task = fedamp_jax.models.from_linen(Net(), (5,))
    data = disagreeing()
    one, other = (task.init(key) for key in jax.random.split(KEY))
    other = other._replace(params={**one.params, "head": other.params["head"]})
    mean, error = jax.jit(loss_difference, static_argnums=(0, 1))(
        task, Solver(optax.sgd(0.1), batch_size=20), data.client(0), one, other
    )
    d = []
    for first in range(0, 40, 8):
        rows = jnp.arange(first, first + 8, dtype=jnp.int32)
        batch = fedamp_jax.engine.take_batch(data.client(0), rows, jnp.ones(8, bool))
        d.append(float(task.loss(one, batch, KEY)[0] - task.loss(other, batch, KEY)[0]))
    np.testing.assert_allclose((mean, error), of_losses(np.array(d)), rtol=2e-4)


def chosen(models, data, errors):
    """The perplexities that clients choose, in float64 from the rule's definition; 9 is the mean of all others."""
    m = len(SIZES)
    flat = np.stack([oracle.flatten(model) for model in models])
    t = ((flat[:, None] - flat[None]) ** 2).sum(-1)
    mean = oracle.cloud((1 - np.eye(m)) / (m - 1), models)
    found, least = np.where(np.array(SIZES) > 1, m, 0), np.zeros(m)
    for k in (6, 4, 3, 2, 1.0001):  # the root finder needs more than 1
        received = oracle.cloud(oracle.perplexity_weights(t, k, 0.0), models)
        for i in range(m):
            difference, error = of_losses(losses(received[i], data, i) - losses(mean[i], data, i))
            if difference + errors * error < least[i]:
                found[i], least[i] = round(k), difference + errors * error
    return found


@pytest.mark.filterwarnings("ignore:invalid value", "ignore:Degrees of freedom")
@pytest.mark.parametrize("errors", [pytest.param(0.0, marks=pytest.mark.slow), 2.0])
def test_each_client_chooses_once(errors):
    """The choice is that of the definition. Failed with the smaller of two that are equal, with the least loss, with
    the client's own model in the mixtures, and with a choice in every round."""
    task, data = plain_task(), disagreeing()
    solver = Solver(optax.adam(0.05), epochs=2, batch_size=10)
    algorithm = fedamp_jax.fedamp(task, solver, sigma=attention.auto(2, errors), self_weight=None)
    m = len(SIZES)
    state, infos = run_rounds(algorithm, data, 2)
    for info in infos:
        np.testing.assert_allclose(info.xi, np.full((m, m), 1 / m), rtol=1e-6)  # until then, the mean of all
    before = state.clients.variables.params
    wanted = chosen([jax.tree.map(lambda a, i=i: np.float64(a[i]), before) for i in range(m)], data, errors)
    state, (info, later) = run_rounds(algorithm, data, 2, state, first=2)
    np.testing.assert_array_equal(np.asarray(state.memory), wanted)
    assert len(set(wanted.tolist())) > 2 and wanted[SIZES.index(1)] == 0  # one example tells nothing
    wanted = np.where(wanted == 0, m, wanted)
    np.testing.assert_allclose(np.diagonal(info.xi), 1 / (np.minimum(wanted, m - 1) + 1), rtol=1e-6)
    np.testing.assert_allclose(np.diagonal(later.xi), np.diagonal(info.xi), rtol=1e-6)
    p = np.asarray(info.xi) * (1 - np.eye(m))
    p /= p.sum(1, keepdims=True)
    entropy = -np.sum(np.where(p > 0, p * np.log(np.where(p > 0, p, 1)), 0), axis=1)
    np.testing.assert_allclose(np.exp(entropy), np.minimum(wanted, m - 1), rtol=1e-3)


def test_who_is_away_chooses_later_and_so_do_newcomers():
    """Failed where everyone chose in the same round, and where newcomers got their neighbours' choice."""
    task, data = tiny_task(), disagreeing()
    solver = Solver(optax.adam(0.05), epochs=2, batch_size=10)
    algorithm = fedamp_jax.heurfedamp(task, solver, sigma=attention.auto(1), self_weight=None)
    here = jnp.arange(9) != 4
    state, _ = run_rounds(algorithm, data._replace(online=here), 2)
    assert np.array_equal(np.asarray(state.memory) > 0, here & (np.array(SIZES) > 8))
    state, _ = run_rounds(algorithm, data, 1, state, first=2)
    assert np.array_equal(np.asarray(state.memory) > 0, np.array(SIZES) > 8)  # with statistics, eight at a time


def test_bad_arguments():
    """Refused before anything compiles."""
    task, solver = tiny_task(), Solver(optax.sgd(0.1))
    for factory in (fedamp_jax.fedamp, fedamp_jax.heurfedamp):
        with pytest.raises(ValueError, match=r"auto\(\) finds the self weights, too"):
            factory(task, solver, sigma=attention.auto(), self_weight=0.25)
    with pytest.raises(ValueError, match=r"after of auto\(after\) must be at least 1, got 0"):
        attention.auto(0)
    with pytest.raises(ValueError, match=r"errors of auto\(errors\) must be at least 0, got -1"):
        attention.auto(errors=-1)
    assert candidates(1) == () and candidates(99) == (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96)
