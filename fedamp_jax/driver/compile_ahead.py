"""Compiles the programs of several methods in parallel, while one of them trains, before `run` needs them."""

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import jax

from fedamp_jax.driver.evaluation import compiled_personal_scores, reader_of
from fedamp_jax.driver.rounds import compiled_round, fitted
from fedamp_jax.placement.placement import Placement
from fedamp_jax.types import Algorithm, Data, Task


def compile_run(task: Task, algorithm: Algorithm, train: Data, test: Data, placement: Placement | None = None) -> None:
    """Compile the round and the evaluation of a `run` with these arguments, which then finds them compiled.

    It computes nothing and takes no memory of a device; the arguments' arrays may be `jax.ShapeDtypeStruct`s.

    >>> import optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.separate(task, fedamp_jax.Solver(optax.adam(1e-3), epochs=1))
    >>> compile_run(task, algorithm, train, test)
    """
    placement = train.placement if placement is None else placement
    train, test = placement.shapes(train), placement.shapes(test)
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = placement.state_shapes(algorithm, key, train)
    train = fitted(algorithm, state, train, key)
    train.placement.compile(compiled_round, (algorithm.round,), state, train, key)
    static = reader_of(task, algorithm, train), algorithm.personalize
    train.placement.compile(compiled_personal_scores, static, key, state, train, test)


@contextlib.contextmanager
def compiled_ahead(
    task: Task, algorithms: Mapping[str, Algorithm], train: Data, test: Data, placement: Placement
) -> Iterator[Callable[[str], float]]:
    """Compile the programs of methods that will be `run` one after the other, in the order in which they are given.

    XLA's CPU compiler works on one core, and without Python's lock: as many methods are compiled at once as there are
    cores. On other platforms nothing is done ahead, as their compilers try kernels on the device that trains; nor with
    several processes, which may have to compile in the same order.

    Args:
        task, train, test, placement: as for `run`.
        algorithms: the methods by name.

    Yields:
        `name -> seconds`: waits until a method's programs are compiled, and says how long that took. What went wrong
        there goes wrong again in its `run`.
    """
    if placement.platform != "cpu" or jax.process_count() > 1:
        yield lambda name: 0.0
        return
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    pool = ThreadPoolExecutor(cores, thread_name_prefix="compile-ahead")
    made = {name: pool.submit(compile_run, task, one, train, test, placement) for name, one in algorithms.items()}

    def wait(name: str) -> float:
        began = time.perf_counter()
        made[name].exception()
        return time.perf_counter() - began

    try:
        yield wait
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
