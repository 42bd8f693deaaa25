"""Tasks made from nnx modules, against the same model in Linen."""

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import fedamp_jax
from fedamp_jax import Solver
from fedamp_jax.models import from_linen, from_nnx, squared_error
from tests.registry import batch_of, federation

KEY = jax.random.key(0)


class Net(nnx.Module):
    """BatchNorm with a mask, and optional dropout."""

    def __init__(self, rngs, rate=0.0):
        self.zeta = nnx.Linear(5, 4, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.drop = nnx.Dropout(rate, rngs=rngs)
        self.alpha = nnx.Linear(4, 3, rngs=rngs)

    def __call__(self, x, mask):
        return self.alpha(self.drop(nnx.relu(self.norm(self.zeta(x), mask=mask[:, None]))))


class Linen(nn.Module):
    """The same without dropout."""

    @nn.compact
    def __call__(self, x, train, mask):
        x = nn.BatchNorm(use_running_average=not train, name="norm")(nn.Dense(4, name="zeta")(x), mask=mask[:, None])
        return nn.Dense(3, name="alpha")(nn.relu(x))


@pytest.mark.slow
def test_an_nnx_module_is_its_linen_twin():
    """Loss, gradient, statistics and predictions, with NaN in the padding; then three rounds of a method.

    Failed with predictions in training mode, and with statistics of a batch of padding only.
    """
    clients = federation()
    there, here = from_linen(Linen(), (5,)), from_nnx(lambda rngs: Net(rngs), (5,))
    assert here.head == there.head == ("alpha",)
    variables = here.init(KEY)
    chex.assert_trees_all_equal_shapes(variables, there.init(KEY))

    def step(task, variables, batch):
        def loss(params):
            return task.loss(variables._replace(params=params), batch, KEY)

        return jax.value_and_grad(loss, has_aux=True)(variables.params)

    for i in range(3):
        batch = batch_of(clients.client(i))
        batch = batch._replace(x=jnp.where(batch.mask[:, None], batch.x, jnp.nan))
        results = [step(task, variables, batch) for task in (there, here)]
        chex.assert_trees_all_close(*results, rtol=1e-5, atol=1e-6)
        variables = variables._replace(stats=results[0][0][1])
    np.testing.assert_allclose(here.predict(variables, clients.x), there.predict(variables, clients.x), rtol=1e-5)
    nothing = batch_of(clients.client(0))._replace(mask=jnp.zeros(10, bool))
    chex.assert_trees_all_equal(here.loss(variables, nothing, KEY)[1], variables.stats)
    solver, runs = Solver(optax.sgd(0.1), epochs=2, batch_size=4), []
    for task in (there, here):
        algorithm = fedamp_jax.fedrep(task._replace(init=here.init), solver)
        runs.append(fedamp_jax.run(task, algorithm, clients, clients, rounds=3, progress=False))
    chex.assert_trees_all_close(runs[0].state, runs[1].state, rtol=1e-4, atol=1e-5)


def test_dropout_follows_the_key_and_ends_with_training():
    """Failed with the generator that the module was made with: the same noise in every step of every client."""
    task, clients = from_nnx(lambda rngs: Net(rngs, 0.5), (5,)), federation()
    variables = task.init(KEY)

    def value(key):
        return float(task.loss(variables, batch_of(clients.client(2)), key)[0])

    assert value(KEY) == value(KEY) != value(jax.random.key(1))
    rows = jnp.broadcast_to(clients.x[:1], (4, 5))
    outputs = np.asarray(task.predict(variables, rows))
    np.testing.assert_array_equal(outputs, outputs[[0] * 4])


def test_every_key_is_another_model():
    """Failed with one module for all keys."""
    task = from_nnx(lambda rngs: nnx.Linear(5, 3, rngs=rngs), (5,), head="bias")
    a, b = jax.jit(jax.vmap(task.init))(jax.random.split(KEY, 2)).params["kernel"]
    assert not np.array_equal(a, b)


class Counts(nnx.Module):
    """A variable of a kind of its own."""

    def __init__(self, rngs):
        self.layer, self.seen = nnx.Linear(5, 3, rngs=rngs), nnx.Cache(jnp.zeros(()))

    def __call__(self, x):
        return self.layer(x)


@pytest.mark.parametrize(
    ("make", "options", "kind", "message"),
    [
        (nnx.Linear(5, 3, rngs=nnx.Rngs(0)), {}, TypeError, "make must be a function nnx.Rngs -> nnx module"),
        (lambda rngs: nn.Dense(3), {}, TypeError, "but gives a Dense"),
        (lambda rngs: nnx.Dropout(0.5, rngs=rngs), {}, ValueError, "the model has no parameters"),
        (lambda rngs: Counts(rngs), {}, ValueError, r"variables \['Cache'\], but only Param and BatchStat"),
        (lambda rngs: nnx.Linear(5, 3, rngs=rngs), {"head": "top"}, ValueError, "head='top' is not a prefix"),
        (lambda rngs: lambda x: x, {}, TypeError, "but gives a function"),
    ],
)
def test_refuses_modules_it_cannot_use(make, options, kind, message):
    """When the task is made. Failed when the first step of training said so, in terms of nnx's graphs."""
    with pytest.raises(kind, match=message):
        from_nnx(make, (5,), **options)


def test_linen_refuses_an_nnx_module():
    """Failed with an AttributeError about `apply`."""
    with pytest.raises(TypeError, match=r"must be a Flax Linen module, got a Linear: fedamp_jax.models.from_nnx"):
        from_linen(nnx.Linear(5, 3, rngs=nnx.Rngs(0)), (5,))


def test_losses_of_an_nnx_module():
    """A regression with its metrics. Failed with cross entropy whatever was asked for."""
    task = from_nnx(lambda rngs: nnx.Linear(5, 1, rngs=rngs), (5,), head="bias", loss=squared_error)
    clients = federation()
    clients = clients._replace(y=clients.x.sum(axis=1, keepdims=True), classes=jnp.zeros_like(clients.classes))
    algorithm = fedamp_jax.fedavg(task, Solver(optax.adam(0.1), epochs=20))
    result = fedamp_jax.run(task, algorithm, clients, clients, rounds=4, progress=False)
    assert list(result.metrics) == ["mse", "mae"] and result.metrics["mse"][-1].max() < 0.1
