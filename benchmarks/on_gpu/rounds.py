"""FedAMP rounds of one model under every candidate, on few steps, extrapolated to the paper's round."""

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import bench
import jax
import jax.numpy as jnp
import numpy as np

import fedamp_jax
from fedamp_jax.driver.rounds import compiled_round
from fedamp_jax.placement import Placement
from fedamp_jax.programs import memory
from on_gpu.cases import Case, cases
from on_gpu.column import Candidate, default, grid
from on_gpu.launches import launched
from on_gpu.record import Job, Settings


class Probe:
    """A round compiled for one candidate, with the number of clients and of steps as arguments.

    Args:
        case: the model and its data.
        candidate: how to run it.

    Attributes:
        compiling: seconds that it took.
        program: what came of it.
        once: clients of one loop over the chunk.
    """

    def __init__(self, case: Case, candidate: Candidate):
        self.case, self.once = case, min(candidate.together, case.clients)
        algorithm = case.algorithm(candidate.dtype, epochs=case.probe)
        self._data = Placement(chunk=self.once).place(case.data())
        self._key = jax.random.key(0)
        shapes = jax.eval_shape(algorithm.init, self._key, self._data)
        with candidate.chosen():
            began = time.perf_counter()
            lowered = compiled_round.lower(algorithm.round, shapes, self._data, self._key)
            self.program = lowered.compile()
            self.compiling = time.perf_counter() - began
        self._shapes, self._state = shapes, None

    def run(self, steps: int) -> float:
        """Seconds of a round in which one chunk trains that many steps of each pass; with 0, none does."""
        size = jnp.full(self._data.size.shape, min(steps * self.case.batch, self.case.examples), jnp.int32)
        online = (jnp.arange(len(size)) < self.once) & (steps > 0)
        data = self._data._replace(size=jnp.maximum(size, 1), online=online)
        self._state = numbers(self._shapes) if self._state is None else self._state
        jax.block_until_ready((data, self._state))
        began = time.perf_counter()
        self._state, info = self.program(self._state, data, self._key)
        jax.block_until_ready((self._state, info))
        return time.perf_counter() - began

    def whole(self, repeats: int, limit: float) -> dict[str, Any]:
        """A round of all clients and passes, from medians with none, with few and with all steps of a chunk.

        Args:
            repeats: of each, in turns.
            limit: seconds after which no further repetition begins.
        """
        case, counts = self.case, sorted({0, 1, self.case.steps})
        began = time.perf_counter()
        times = {n: [self.run(n)] for n in counts}  # the first ones are thrown away
        first = time.perf_counter() - began
        times = {n: [] for n in counts}
        for _ in range(repeats):
            for n in counts:
                times[n].append(self.run(n))
            if time.perf_counter() - began + first > limit:
                break
        none, *some = (float(np.median(times[n])) for n in counts)
        each = (some[-1] - some[0]) / case.probe / (case.steps - 1) if len(some) > 1 else (some[0] - none) / case.probe
        each = max(0.0, each)  # on a busy machine a difference of two small numbers can be anything
        fixed = max(0.0, some[0] - none - case.probe * each)
        chunks = -(-case.clients // self.once)
        return {
            "round": none + chunks * (fixed + case.epochs * case.steps * each), "server": none,
            "us_per_client_step": 1e6 * each / self.once, "chunk_start": fixed, "repeats": len(times[0]),
            "spread": [min(times[counts[-1]]), max(times[counts[-1]])],
        }  # fmt: skip

    def fitting(self) -> int:
        """How many clients side by side fit into the memory, by what the compiler says of this many."""
        need, room = memory.need(self.program), memory.room(jax.devices()[0])
        if room is None or need.held + need.working <= room:
            return self.once
        return max(1, min(self.once - 1, (room - 2 * need.held) * self.once // need.working))

    def described(self) -> dict[str, Any]:
        """What the compiler says: kernels and bytes of the paper's round, and the program's memory."""
        case, need = self.case, memory.need(self.program)
        text = self.program.as_text() or ""
        all_steps = {case.probe * case.steps: case.epochs * case.steps}
        count = launched(text, all_steps)
        return {
            "compiling": self.compiling, "kernels": count.kernels, "tb": count.bytes / 1e12,
            "gib": (need.held + need.working) / 2**30, "working_gib": need.working / 2**30,
        }  # fmt: skip


def numbers(shapes: Any) -> Any:
    """A state of small random parameters, without the time that a model's own initial ones take to compile."""
    rng = np.random.default_rng(1)

    def leaf(a: jax.ShapeDtypeStruct) -> jax.Array:
        if not a.shape:
            return jnp.zeros(a.shape, a.dtype)
        one = 0.03 * rng.standard_normal(a.shape[1:], np.float32)
        return jnp.broadcast_to(jnp.abs(one) if len(a.shape) == 2 else one, a.shape).astype(a.dtype)

    return jax.tree.map(leaf, shapes)


def measured(case: Case, candidate: Candidate, settings: Settings) -> dict[str, Any]:
    """A row. Where not all clients fit side by side, as many as do are; `together` says how many."""
    probe = Probe(case, candidate)
    while probe.fitting() < probe.once:
        candidate = candidate._replace(together=probe.fitting())
        probe = Probe(case, candidate)
    found = probe.whole(3, 0.3 * max(3.0, settings.left))
    described: dict[str, Any] = {}
    with contextlib.suppress(KeyError, ValueError, AssertionError):  # a newer compiler may write otherwise
        described = probe.described()
    stats = jax.devices()[0].memory_stats() or {}
    return {**candidate._asdict(), **found, **described, "peak_gib": stats.get("peak_bytes_in_use", 0) / 2**30}


def best(rows: list[dict[str, Any]]) -> Candidate | None:
    """The fastest of rows."""
    rows = [row for row in rows if row.get("round") is not None]
    if not rows:
        return None
    row = min(rows, key=lambda row: row["round"])
    return Candidate(*(row[field] for field in Candidate._fields))


def jobs(settings: Settings, name: str) -> Iterator[Job]:
    """The default first, then lowerings and clients side by side, then the fastest of them otherwise, then the rest."""
    case = cases(settings.tiny)[name]
    every = grid(*case.traits)
    usual = default(*case.traits)
    first = [c for c in every if c.precision == "tf32" and c.pooling == usual.pooling]

    def named(c):
        return (c.name, lambda: measured(case, c, settings))

    yield named(usual)
    if settings.tiny:  # compiling takes seconds: one more shows that candidates are kept apart
        yield from (named(c) for c in first[1:2] if case.pools)
        return
    ahead = 8 if case.convolves else len(first)
    yield from (named(c) for c in first[:ahead] if c != usual)
    found = best(settings.results.rows(f"rounds {name}"))
    for one in (found, usual):
        if one is not None:
            near = [one._replace(precision="bfloat16"), one._replace(precision="float32")]
            near += [one._replace(pooling="window")] if case.pools else []
            yield from (named(c) for c in near)
    yield from (named(c) for c in every)


def machine() -> dict[str, Any]:
    """The device and the versions, for the head of the results."""
    limit = (jax.devices()[0].memory_stats() or {}).get("bytes_limit")
    return {**bench.machine(), "memory_gib": limit and limit / 2**30, "package": fedamp_jax.__version__}
