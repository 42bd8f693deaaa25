"""Compiled programs die with the algorithms that they were made for."""

import gc
import weakref

import jax
import optax
import pytest

import fedamp_jax
from fedamp_jax import Placement, Solver
from fedamp_jax.driver.compile_ahead import compile_run
from fedamp_jax.placement import InHostMemory, OnMesh, client_mesh
from fedamp_jax.programs.kept import kept
from tests.registry import federation, tiny_task

PLACES = {
    "one device": Placement,
    "a mesh": lambda: OnMesh(mesh=client_mesh(3)),
    "the host": lambda: InHostMemory(device=jax.devices()[1], chunk=3),
}


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.slow_variants
def test_no_cache_holds_an_algorithm(place):
    """Of rounds, evaluation, estimates and what was compiled ahead. Failed with static arguments of `jax.jit`, which
    JAX's own caches hold for ever: 12 to 16 MiB for each method of a sweep.
    """
    task, data, placement = tiny_task(), federation(), place()

    def used():
        solver = Solver(optax.sgd(0.1), epochs=1, batch_size=4)
        algorithm = fedamp_jax.fine_tuned(task, solver, base=fedamp_jax.fedavg(task, solver))
        compile_run(task, algorithm, data, data, placement)
        fedamp_jax.run(task, algorithm, data, data, rounds=2, progress=False, placement=placement)
        fedamp_jax.estimate(algorithm, data, placement)
        return weakref.ref(algorithm.round), weakref.ref(algorithm.personalize)

    functions = used()
    gc.collect()
    assert [function() for function in functions] == [None, None]


def test_a_task_of_ones_own_is_freed():
    """With what `evaluate` compiled for it. Failed when its programs were attached to a function of a module."""
    data = federation()

    def used():
        task = tiny_task()
        models = jax.vmap(task.init)(jax.random.split(jax.random.key(0), 8))
        fedamp_jax.evaluate(task, models, data)
        fedamp_jax.predict(task, models, data)
        return weakref.ref(task.predict)

    predict = used()
    gc.collect()
    assert predict() is None


def test_results_without_functions_are_few():
    """The last ones are kept. Failed without a limit."""
    made = []
    noted = kept(lambda number: made.append(number) or number)
    for number in range(100):
        assert noted(number) == number
    noted(99)
    assert len(made) == 100
    noted(0)
    assert len(made) == 101
