"""Programs compiled before they are needed."""

import logging
import threading

import jax
import optax
import pytest

import fedamp_jax
from fedamp_jax import Participation, Placement, Solver
from fedamp_jax.driver.compile_ahead import compile_run, compiled_ahead
from fedamp_jax.placement import InHostMemory, OnMesh, client_mesh
from tests.registry import federation, tiny_task

PLACEMENTS = {
    "one device": lambda: Placement(chunk=3),
    "a mesh": lambda: OnMesh(mesh=client_mesh(3)),  # of 8 clients, so with padding
}


def separate():
    task = tiny_task()
    return task, fedamp_jax.separate(task, Solver(optax.sgd(0.1), epochs=1))


def compiled_in(caplog, fn):
    """The names of the programs that XLA compiles while `fn()` runs."""
    caplog.clear()
    with caplog.at_level(logging.WARNING), jax.log_compiles():
        fn()
    return [line.split()[4] for line in caplog.messages if "Finished XLA compilation of" in line]


@pytest.mark.parametrize("place", PLACEMENTS.values(), ids=PLACEMENTS.keys())
@pytest.mark.slow_variants
def test_a_run_finds_its_programs(place, caplog):
    """Round and evaluation. Failed with a state whose shapes did not say where it lies."""
    task, algorithm = separate()
    data, placement = federation(), place()
    made = compiled_in(caplog, lambda: compile_run(task, algorithm, data, data, placement))
    assert {"jit(compiled_round)", "jit(compiled_personal_scores)"} <= set(made)

    def run():
        who = Participation(0.5)
        fedamp_jax.run(task, algorithm, data, data, rounds=2, participation=who, progress=False, placement=placement)

    assert not {"jit(compiled_round)", "jit(compiled_personal_scores)"} & set(compiled_in(caplog, run))


def test_clients_in_the_hosts_memory_compile_nothing_ahead(caplog):
    """Their rounds are no programs. Failed with `Placement.compile`, which XLA refuses there."""
    task, algorithm = separate()
    placement = InHostMemory(device=jax.devices()[0], chunk=3)
    made = compiled_in(caplog, lambda: compile_run(task, algorithm, federation(), federation(), placement))
    assert not {"jit(compiled_round)", "jit(compiled_personal_scores)"} & set(made)


def test_methods_compile_in_threads_and_errors_wait_for_the_run():
    """A task that fails while it is traced says so in `run`. Failed when waiting for it raised it."""
    task, good = separate()
    threads = []

    def loss(variables, batch, key):
        threads.append(threading.current_thread())
        raise ValueError("no such loss")

    bad = fedamp_jax.separate(task._replace(loss=loss), Solver(optax.sgd(0.1), epochs=1))
    data = federation()
    with compiled_ahead(task, {"bad": bad, "good": good}, data, data, Placement()) as wait:
        assert wait("bad") >= 0 and wait("good") >= 0
    assert threads and threading.main_thread() not in threads
    with pytest.raises(ValueError, match="no such loss"):
        fedamp_jax.run(task, bad, data, data, rounds=1, progress=False)


def test_what_was_not_waited_for_is_given_up():
    """A run that stops early does not compile all that was to come. Failed without `cancel_futures`."""
    task, _ = separate()
    data, traced = federation(), []

    def loss(variables, batch, key):
        traced.append(batch)
        return task.loss(variables, batch, key)

    slow = {str(i): fedamp_jax.separate(task._replace(loss=loss), Solver(optax.sgd(0.1), epochs=1)) for i in range(40)}
    with compiled_ahead(task, slow, data, data, Placement()) as wait:
        wait("0")
    for thread in threading.enumerate():
        if thread.name.startswith("compile-ahead"):  # other libraries' pools may stay for ever
            thread.join()
    assert len(traced) < len(slow)
