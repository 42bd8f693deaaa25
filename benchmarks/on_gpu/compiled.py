"""Every candidate's round compiled for an H100 that need not be here: kernels, bytes and memory. Nothing is run."""

import time
from collections.abc import Iterator
from typing import Any

import jax

from fedamp_jax.driver.rounds import compiled_round
from fedamp_jax.placement import OnMesh, topology
from fedamp_jax.programs import memory
from fedamp_jax.programs.accelerators import ACCELERATORS
from on_gpu.cases import Case, cases
from on_gpu.column import Candidate, grid
from on_gpu.launches import launched
from on_gpu.record import Job, Settings


def described(case: Case, candidate: Candidate) -> dict[str, Any]:
    """What one round takes; `least` is the time of its bytes at the published bandwidth."""
    algorithm, place = case.algorithm(candidate.dtype), OnMesh(mesh=topology("h100"), chunk=candidate.together)
    key, data = jax.eval_shape(lambda: jax.random.key(0)), place.shapes(case.shapes())
    state = place.state_shapes(algorithm, key, data)
    began = time.perf_counter()
    with candidate.chosen():
        program = compiled_round.lower(algorithm.round, state, data, key).compile()
    found, need = launched(program.as_text() or ""), memory.need(program)
    return {
        **candidate._asdict(), "kernels": found.kernels, "tb": found.bytes / 1e12,
        "least": found.bytes / ACCELERATORS["h100"].bandwidth, "gib": (need.held + need.working) / 2**30,
        "working_gib": need.working / 2**30, "compiling": time.perf_counter() - began,
    }  # fmt: skip


def jobs(settings: Settings, name: str) -> Iterator[Job]:
    """Every candidate of a model, but the precisions: they change the arithmetic, which no compiler estimates."""
    case = cases(settings.tiny)[name]
    for candidate in grid(*case.traits):
        if candidate.precision == "tf32":
            yield candidate.name, lambda c=candidate: described(case, c)
