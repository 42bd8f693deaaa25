"""Hyper-parameters of which each client has its own."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Solver
from fedamp_jax.placement import InHostMemory, OnMesh, Placement, client_mesh
from tests.registry import federation, tiny_task

KEY = jax.random.key(0)
VALUES = np.linspace(0.0, 3.5, 8)
PLACES = {
    "one device": Placement,
    "chunks": lambda: Placement(chunk=3),
    "a mesh": lambda: OnMesh(mesh=client_mesh(3)),
    "the host": lambda: InHostMemory(device=jax.devices()[1], chunk=3),
}
METHODS = {
    "fedprox": lambda task, solver, v: fedamp_jax.fedprox(task, solver, mu=v),
    "ditto": lambda task, solver, v: fedamp_jax.ditto(task, solver, lam=v),
    "pfedme": lambda task, solver, v: fedamp_jax.pfedme(task, solver, lam=1.0, eta=v / 10 + 0.1),
    "pfedme, lam": lambda task, solver, v: fedamp_jax.pfedme(task, solver, lam=v, eta=0.1),
    "fedamp": lambda task, solver, v: fedamp_jax.fedamp(task, solver, sigma=2.0, self_weight=0.25, alpha=1.0, lam=v),
    "pflego": lambda task, solver, v: fedamp_jax.pflego(task, solver, beta=v / 10 + 0.1, rho=0.1),
    "scaffold": lambda task, solver, v: fedamp_jax.scaffold(task, solver, learning_rate=v / 10 + 0.1),
    "apfl": lambda task, solver, v: fedamp_jax.apfl(task, solver, learning_rate=v / 10 + 0.1),
    "pfedgraph": lambda task, solver, v: fedamp_jax.pfedgraph(task, solver, mu=v),
    "fedpac": lambda task, solver, v: fedamp_jax.fedpac(task, solver, lam=3 * v),
    "fedproto": lambda task, solver, v: fedamp_jax.fedproto(task, solver, lam=v),
    "perfedavg": lambda task, solver, v: fedamp_jax.perfedavg(task, solver, alpha=0.1, beta=v / 10 + 0.1),
}
RECEIVED = {
    "fedamp": lambda task, solver, v: fedamp_jax.fedamp(task, solver, sigma=v / 100 + 0.01, self_weight=0.25),
    "fedamp, Eq. 5": lambda task, solver, v: fedamp_jax.fedamp(task, solver, sigma=v + 0.5, self_weight=None,
                                                               alpha=0.05),
    "heurfedamp": lambda task, solver, v: fedamp_jax.heurfedamp(task, solver, sigma=v * 100 + 1, self_weight=0.25),
    "pfedgraph": lambda task, solver, v: fedamp_jax.pfedgraph(task, solver, lam=v + 0.1),
}  # fmt: skip
"""Methods with a number of the row that a client receives, `info.xi[i]`."""


def after(algorithm, data, **options):
    """The personal models after two rounds."""
    run = fedamp_jax.run(tiny_task(), algorithm, data, data, rounds=2, progress=False, **options)
    return jax.tree.map(np.asarray, jax.jit(algorithm.personalize)(KEY, run.state, data).params)


@pytest.mark.parametrize(
    "name",
    [
        "fedprox",
        *(pytest.param(n, marks=pytest.mark.slow) for n in METHODS if n != "fedprox"),
    ],
)
def test_each_client_has_its_own_number(name):
    """A client that is alone online ends as with its number for all. Failed with the first client's for all."""
    task, solver = tiny_task(), Solver(optax.sgd(0.1), epochs=2, batch_size=4)
    own = METHODS[name](task, solver, VALUES)
    for i in (2, 7):
        alone = federation()._replace(online=jnp.arange(8) == i)
        mine, wanted = (after(a, alone) for a in (own, METHODS[name](task, solver, float(VALUES[i]))))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), mine, wanted)
    other = after(METHODS[name](task, solver, float(VALUES[2])), alone)
    assert max(jax.tree.leaves(jax.tree.map(lambda a, b: np.abs(a - b).max(), mine, other))) > 1e-4


@pytest.mark.parametrize("place", ["one device", pytest.param("a mesh", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", ["fedamp", *(pytest.param(n, marks=pytest.mark.slow) for n in RECEIVED if n != "fedamp")]
)
def test_each_row_of_the_weights_has_its_own_number(name, place):
    """Row i is that of number i for all clients. Failed with the columns' numbers in place of the rows'."""
    task, solver, data = (
        tiny_task(),
        Solver(optax.sgd(0.3), epochs=2, batch_size=4),
        PLACES[place]().place(federation()),
    )

    def xi(value, state=None):
        algorithm = RECEIVED[name](task, solver, value)
        if state is None:
            state = fedamp_jax.round(algorithm, data.placement.init(algorithm, KEY, data), data, KEY)[0]
        kept = jax.tree.map(jnp.copy, state)
        return np.asarray(fedamp_jax.round(algorithm, state, data, KEY)[1].xi)[:8, :8], kept

    own, state = xi(VALUES)
    rows = [xi(float(v), jax.tree.map(jnp.copy, state))[0] for v in VALUES]
    np.testing.assert_allclose(own, [row[i] for i, row in enumerate(rows)], rtol=1e-4, atol=1e-7)
    assert np.abs(own - rows[0]).max() > 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_rates_and_epochs_of_each_client(place):
    """On every placement. Failed with rates by the position in a chunk, and with epochs that were drawn."""
    task, data = tiny_task(), federation()
    rates, epochs = jnp.array([0.1, 0.0, 0.2, 0.1, 0.3, 0.1, 0.2, 0.1]), np.array([1, 2, 3, 1, 2, 3, 1, 2])
    solver = Solver(lambda k, client: optax.sgd(rates[client.id]), epochs=epochs, batch_size=4)
    algorithm = fedamp_jax.separate(task, solver)
    run = fedamp_jax.run(task, algorithm, data, data, rounds=1, progress=False, placement=place())
    models = jax.tree.map(lambda a: np.asarray(a)[:8], run.state.clients.variables.params)
    for i in range(8):
        one = Solver(optax.sgd(float(rates[i])), epochs=int(epochs[i]), batch_size=4)
        wanted = fedamp_jax.run(task, fedamp_jax.separate(task, one), data, data, rounds=1, progress=False).state
        jax.tree.map(
            lambda a, b, i=i: np.testing.assert_allclose(a[i], b[i], rtol=1e-5, atol=1e-6),
            models, wanted.clients.variables.params,
        )  # fmt: skip


def test_optimizers_of_each_client_are_kept():
    """With momentum, over rounds. Failed when the state was made without a client."""
    task, data = tiny_task(), federation()
    solvers = [
        Solver(make, epochs=1, batch_size=4, keep_optimizer=True)
        for make in (
            lambda k, client: optax.sgd(jnp.full(8, 0.1)[client.id], momentum=0.9),
            optax.sgd(0.1, momentum=0.9),
        )
    ]
    one, two = (after(fedamp_jax.fedavg(task, solver), data) for solver in solvers)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, two)


def test_what_does_not_fit_the_clients_is_refused():
    """Numbers for other clients, and fractions of epochs. Failed when the last number was used for all the others."""
    task, solver, data = tiny_task(), Solver(optax.sgd(0.1), epochs=1), federation()
    with pytest.raises(ValueError, match="mu has 3 numbers for 8 clients"):
        fedamp_jax.run(task, fedamp_jax.fedprox(task, solver, mu=np.ones(3)), data, data, rounds=1, progress=False)
    few = Solver(optax.sgd(0.1), epochs=np.array([1, 2]))
    with pytest.raises(ValueError, match="epochs has 2 numbers for 8 clients"):
        fedamp_jax.run(task, fedamp_jax.fedavg(task, few), data, data, rounds=1, progress=False)
    with pytest.raises(TypeError, match="epochs must be whole numbers"):
        Solver(optax.sgd(0.1), epochs=np.ones(8) / 2)
    with pytest.raises(ValueError, match="mu must be at least 0"):
        fedamp_jax.fedprox(task, solver, mu=np.array([0.1, -1.0]))
