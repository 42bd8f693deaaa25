"""Programs that are compiled with less effort for a CPU."""

import gc

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Placement
from fedamp_jax.driver.rounds import compiled_round, need_of
from fedamp_jax.placement import InHostMemory, OnMesh, client_mesh
from fedamp_jax.programs import jitted
from fedamp_jax.programs.jitted import Jitted
from tests.registry import federation


@pytest.fixture
def _default_flags(monkeypatch):
    """Without the level that the test suite compiles with."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def programs():
    """A `Jitted`, and how many of its calls were compiled for a CPU and how many as `jax.jit` does."""
    program = Jitted(lambda scale, data: scale * data.y.sum(), static=1)
    return program, lambda: compiled_by(program, 2)


def compiled_by(program, *static):
    """How many programs were compiled with less effort, and how many as `jax.jit` does."""
    return tuple(program._made(level, *static).count for level in (1, None))


@jax.tree_util.register_static
class Elsewhere(Placement):
    """Of another platform."""

    @property
    def platform(self):
        return "tpu"


@pytest.mark.usefixtures("_default_flags")
def test_less_effort_on_a_cpu_only():
    """Failed when the platform was `jax.default_backend()`."""
    program, compiled = programs()
    program(2, federation())
    assert compiled() == (1, 0)
    program(2, federation()._replace(placement=Elsewhere()))
    assert compiled() == (1, 1)


@pytest.mark.usefixtures("_default_flags")
def test_full_effort_for_convolutions():
    """Images alone do not count. Failed when every program of a CPU had less effort."""
    program = Jitted(lambda model, data: model["w"].sum() * data.x.sum())
    data = federation()._replace(x=jnp.ones((46, 3, 3, 1)))
    for kernel, counts in ((jnp.ones((4, 9, 2)), (1, 0)), (jnp.ones((4, 3, 3, 1, 2)), (1, 1))):
        program({"w": kernel}, data)
        assert compiled_by(program) == counts


@pytest.mark.usefixtures("_default_flags")
def test_a_part_of_another_program():
    """With traced arguments and with none. Failed with "`compiler_options` can only be passed to top-level"."""
    program, data = programs()[0], federation()
    wanted = 2 * np.asarray(data.y).sum()
    assert jax.jit(lambda y: program(2, data._replace(y=y)))(data.y) == wanted
    assert jax.jit(lambda: program(2, data))() == wanted
    assert jax.jit(lambda: jnp.int32(0) + program(2, data))() == wanted


def test_the_users_level_counts(monkeypatch):
    """Failed when it was overridden: this suite would take a third longer to compile."""
    program, compiled = programs()
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=3")
    program(2, federation())
    assert compiled() == (0, 1)


PLACES = {
    "one device": Placement,
    "a mesh": lambda: OnMesh(mesh=client_mesh(3)),
    "the host": lambda: InHostMemory(device=jax.devices()[1], chunk=3),
}


def on_pretrained(weights):
    """A linear head on random features that all clients share, and that the task closes over."""

    def predict(variables, x):
        return jnp.tanh(x @ weights) @ variables.params["head"]

    def loss(variables, batch, key):
        return fedamp_jax.cross_entropy(predict(variables, batch.x), batch), variables.stats

    width = weights.shape[1]
    return fedamp_jax.Task(lambda key: fedamp_jax.Variables({"head": jnp.zeros((width, 3))}), loss, predict)


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.slow_variants
def test_large_arrays_of_a_task_are_arguments(name, monkeypatch):
    """The same results as with them in the program's text, which is as short as without them.

    Failed with a text of twice the bytes of the weights, and on a mesh with weights that lay on one device.
    """
    weights = jax.random.normal(jax.random.key(0), (5, 60_000)) / 100
    data, texts, results = federation(), [], []
    for large in (1 << 20, 1 << 30):
        monkeypatch.setattr(jitted, "_LARGE", large)
        task, placement = on_pretrained(weights), PLACES[name]()
        algorithm = fedamp_jax.fedavg(task, fedamp_jax.Solver(optax.sgd(0.1), epochs=1, batch_size=4))
        run = fedamp_jax.run(task, algorithm, data, data, rounds=2, progress=False, placement=placement)
        results.append((run.state, run.accuracy))
        placed = data.placement.place(data) if name == "the host" else placement.place(data)
        state = placed.placement.init(algorithm, jax.random.key(0), placed)
        texts.append(len(compiled_round.lower(algorithm.round, state, placed, jax.random.key(0)).as_text()))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), *results)
    assert texts[0] < 400_000 < weights.nbytes < texts[1]


@pytest.mark.slow
def test_large_arrays_are_placed_once():
    """One copy on each mesh for the programs of two methods, freed with them; the same method may run on two meshes.

    Failed with a copy for each program, and with the copy of the first mesh on the second.
    """
    weights, data = jax.random.normal(jax.random.key(0), (5, 60_000)) / 100, federation()
    gc.collect()
    before = len(jitted._PLACED)

    def used():
        task, kept = on_pretrained(weights), []
        for epochs in (1, 2):
            solver = fedamp_jax.Solver(optax.sgd(0.1), epochs=epochs, batch_size=4)
            algorithm = fedamp_jax.fedavg(task, solver)
            for devices in (2, 3):
                place = OnMesh(mesh=client_mesh(devices))
                kept.append(fedamp_jax.run(task, algorithm, data, data, rounds=1, progress=False, placement=place))
                kept.append(algorithm)
        return len(jitted._PLACED)

    assert used() == before + 2
    gc.collect()
    assert len(jitted._PLACED) == before


def test_what_a_round_takes_includes_them():
    """Failed when they were constants, which no estimate counts."""
    weights = jnp.ones((5, 60_000))
    sizes = []
    for used in (weights, weights[:, :60]):
        algorithm = fedamp_jax.separate(on_pretrained(used), fedamp_jax.Solver(optax.sgd(0.1), epochs=1))
        state = algorithm.init(jax.random.key(0), federation())
        need = need_of(algorithm, state, federation(), jax.random.key(0), Placement())
        sizes.append(need.held - sum(a.nbytes for a in jax.tree.leaves((state, federation()))))
    assert sizes[0] - sizes[1] >= weights.nbytes
