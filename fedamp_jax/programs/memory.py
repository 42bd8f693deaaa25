"""What a compiled program takes of a device's memory and exchanges, and how many clients side by side fit."""

import contextlib
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from fedamp_jax.programs.accelerators import accelerator
from fedamp_jax.programs.jaxpr import array_bytes

_COLLECTIVES = "(?:ragged-)?all-to-all|all-gather|all-reduce|reduce-scatter|collective-permute|collective-broadcast"
_SHAPE = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")
_BITS = re.compile(r"\d+")


class Need(NamedTuple):
    """Bytes that a compiled program takes of each device.

    Attributes:
        held: its arguments, which are there already.
        working: everything else at the worst moment.
    """

    held: int
    working: int


def need(program: jax.stages.Compiled) -> Need:
    """What XLA planned for the program. Outputs that overwrite an argument are counted with it."""
    used: Any = program.memory_analysis()
    working = used.temp_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes
    return Need(used.argument_size_in_bytes, working)


def need_if_compiled(program: jax.stages.Lowered) -> Need | None:
    """Compiles the program; None if the compiler refuses it as too large for the device."""
    try:
        return need(program.compile())
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None


def room(device: Any) -> int | None:
    """Bytes of a device that a program may use; None where nothing limits it, such as a CPU.

    >>> room(jax.local_devices(backend="cpu")[0]) is None
    True
    """
    if device.platform == "cpu":
        return None
    known = accelerator(device)
    try:
        return (device.memory_stats() or {})["bytes_limit"]
    except (KeyError, jax.errors.JaxRuntimeError):  # of a topology, or of a plugin that does not tell
        return known and known.memory


class Machine(NamedTuple):
    """Bytes of this machine's memory. Attributes: total: all of it. free: what programs can still take."""

    total: int
    free: int


def of_machine() -> Machine:
    """This machine's memory.

    >>> 0 < of_machine().free <= of_machine().total
    True
    """
    page = os.sysconf("SC_PAGE_SIZE")
    total = page * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = Path("/proc/meminfo").read_text()
        return Machine(total, 1024 * int(re.search(r"MemAvailable:\s+(\d+)", lines)[1]))  # pyright: ignore
    except (OSError, TypeError):  # not Linux
        return Machine(total, total)


def side_by_side(room: int, standing: int, peak: int) -> int:
    """How many clients fit side by side into a device, estimated before compiling.

    Args:
        room: bytes of the device.
        standing: bytes of all clients' models and data that it holds anyway.
        peak: bytes of one client's training at the worst moment, if nothing is fused.

    Returns:
        How many, 0 if not even one. A fifth of the memory stays free: for the padding of arrays, and for the next
        clients' data on their way.

    >>> side_by_side(room=100, standing=20, peak=10)
    6
    """
    return max(0, int(0.8 * room) - standing) // max(1, peak)


def largest_chunk(taken: Callable[[int | None], Need | None], chosen: Callable[[], int], room: int) -> int | None:
    """How many of a device's clients to train side by side so that a round fits.

    Args:
        taken: what a round takes with so many of them side by side, None for as many as the placement chooses; it
            returns None where the compiler refuses a program that is too large for the device, as a TPU's does.
        chosen: how many the placement chooses; only asked if these do not fit.
        room: bytes that the device has for the round.

    Returns:
        None if the round fits as it is, or if one client at a time was chosen; else the first number tried that fits,
        or 1. The next to try follows from each client's share of the working memory, which is the chunk's gradients,
        optimizer states and activations; as much as the arguments is set aside for the cloud models, which do not
        shrink with the chunk. After a refusal it is half as many.

    >>> largest_chunk(lambda chunk: Need(held=10, working=20 + 10 * (chunk or 8)), chosen=lambda: 8, room=70)
    4
    """
    chunk = None
    while chunk != 1:
        needed = taken(chunk)
        if needed is not None and needed.held + needed.working <= room:
            break
        now = chunk or chosen()
        if now == 1:
            break
        chunk = now // 2 if needed is None else min(now - 1, (room - 2 * needed.held) * now // needed.working)
        chunk = max(1, chunk)
    return chunk


@contextlib.contextmanager
def explained(taken: Callable[[], Need | None] | None = None) -> Iterator[None]:
    """XLA's "out of memory" as a MemoryError that says what to do, with the estimate of `taken` if there is one.

    Raises:
        MemoryError: instead of a JaxRuntimeError of status RESOURCE_EXHAUSTED.
    """
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        estimate = ""
        if taken is not None:
            with contextlib.suppress(Exception):  # what was too large to run may be too large to compile
                needed = taken()
                estimate = f" A round takes {sum(needed) / 2**30:.3g} GiB by XLA's plan." if needed else ""
        raise MemoryError(
            f"This does not fit into the device's memory.{estimate} Train fewer clients side by side with "
            "Placement(chunk=...), --chunk in the experiments; or spread the clients over several devices with "
            "placement.OnMesh, --devices; or keep them in the host's memory with placement.InHostMemory, --offload. "
            "The state of this round is lost; with a checkpoint the next run continues from there. "
            f"({str(error).splitlines()[0]})"
        ) from error


def collectives(program: str) -> dict[str, list[int]]:
    """Bytes of one device's result of every collective in a compiled program's text (`compiled.as_text()`), by name."""
    found: dict[str, list[int]] = {}
    for results, name in re.findall(rf"= (.*?) ({_COLLECTIVES})(?:-done)?\(", program):
        found.setdefault(name, []).append(shape_bytes(results))
    return found


def shape_bytes(types: str) -> int:
    """Bytes of the arrays in a piece of a compiled program's text, such as `(f32[2,3]{1,0}, pred[4])`."""
    return sum(
        _width(dtype) * int(np.prod([int(n) for n in dims.split(",") if n])) // 8
        for dtype, dims in _SHAPE.findall(types)
    )


def _width(dtype: str) -> int:
    """Bits of one number of an XLA type; a `pred` takes a byte."""
    return 8 if dtype == "pred" else int(_BITS.findall(dtype)[0])


def held(tree: Any) -> int:
    """Bytes of a tree of abstract arrays on one device."""
    leaves = jax.tree.leaves(tree)
    shards = [a.shape if a.sharding is None else a.sharding.shard_shape(a.shape) for a in leaves]
    return sum(array_bytes(jax.ShapeDtypeStruct(shape, a.dtype)) for shape, a in zip(shards, leaves))


def readable(number: float) -> str:
    """Such as `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:.4g} GiB"
