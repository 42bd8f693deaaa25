"""Per-FedAvg: the exact gradient of the loss after a step, through convolutions too, and its three batches."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Solver, engine
from fedamp_jax.data import from_lists
from tests.registry import batch_of, federation, run_rounds, tiny_task

KEY = jax.random.key(1)  # of `run_rounds`


@pytest.mark.parametrize("kind", ["mlp", pytest.param("cnn", marks=pytest.mark.slow)])
def test_a_step_is_along_the_gradient_of_the_loss_after_a_step(kind):
    """Where a batch has all examples, by differentiating through the step. Failed with the Hessian left out."""
    rng = np.random.default_rng(0)
    shape = (8, 8)
    task = getattr(fedamp_jax.models, kind)(classes=3, shape=shape)
    data = from_lists([rng.normal(size=(6, *shape)).astype(np.float32)], [np.arange(6) % 3], classes=3)
    batch, alpha, beta = batch_of(data.client(0)), 0.3, 0.5
    start = task.init(KEY)

    def loss(params):
        return task.loss(start._replace(params=params), batch, KEY)[0]

    def after(params):
        return loss(jax.tree.map(lambda w, g: w - alpha * g, params, jax.grad(loss)(params)))

    expected = jax.tree.map(lambda w, g: w - beta * g, start.params, jax.jit(jax.grad(after))(start.params))
    solver = Solver(optax.sgd(1.0), epochs=1, batch_size=10)
    for hessian, close in (("exact", True), ("none", False)):
        algorithm = fedamp_jax.perfedavg(task, solver, alpha=alpha, beta=beta, hessian=hessian)
        state, _ = run_rounds(algorithm, data, 1)
        error = max(jax.tree.leaves(jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), state.params, expected)))
        assert (error < 1e-5) == close, (hessian, error)


@pytest.mark.slow
def test_batches_are_drawn_without_replacement():
    """From the client's own examples, all of them where there are fewer than a batch, and others with another key.

    Failed with padding among the rows, and with one order for all keys.
    """
    solver, data = Solver(optax.sgd(0.1), batch_size=4), federation()
    for i, size in enumerate(data.size.tolist()):
        client = data.client(i)
        batches = [engine.sample_batch(solver, client, jax.random.fold_in(KEY, t)) for t in range(20)]
        rows = [np.asarray(batch.rows)[np.asarray(batch.mask)].tolist() for batch in batches]
        assert all(len(set(some)) == len(some) == min(4, size) and max(some) < size for some in rows)
        assert set().union(*rows) == set(range(size))  # everyone's turn comes
        np.testing.assert_array_equal(batches[0].y[batches[0].mask], data.examples(i)[1][np.array(rows[0])])


def test_numbers_out_of_range_are_refused():
    """Before anything compiles."""
    task, solver = tiny_task(), Solver(optax.sgd(0.1))
    for wrong in ({"alpha": -0.1}, {"beta": 0.0}, {"hessian": "FO"}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            fedamp_jax.perfedavg(task, solver, **wrong)


@pytest.mark.slow
def test_each_client_has_its_own_alpha():
    """Where it is alone online it trains and adapts as with this rate for all. Failed with the first client's for all,
    in training and in use.
    """
    task, solver, rates = tiny_task(), Solver(optax.sgd(0.1), epochs=2, batch_size=4), np.linspace(0.0, 0.7, 8)
    for i in (2, 7):
        alone, models = federation()._replace(online=jnp.arange(8) == i), []
        for alpha in (rates, float(rates[i])):
            algorithm = fedamp_jax.perfedavg(task, solver, alpha=alpha, beta=0.2)
            state, _ = run_rounds(algorithm, alone, 2)
            models.append((state.params, jax.jit(algorithm.personalize)(KEY, state, alone).params))
        (a, mine), (b, theirs) = models
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), a, b)
        jax.tree.map(lambda a, b, i=i: np.testing.assert_allclose(a[i], b[i], rtol=1e-5, atol=1e-6), mine, theirs)
        assert np.abs(mine["head"]["kernel"][0] - theirs["head"]["kernel"][0]).max() > 1e-3
