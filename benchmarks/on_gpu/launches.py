"""Kernels that a compiled GPU program launches, and the bytes that they read and write, from its text."""

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fedamp_jax.programs import memory
from fedamp_jax.programs.cost import _BOUND, _CALLS, _LOOP, _called, _computations, _repetitions

_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (.*?) ([\w\-]+)\((.*?)\)(?=, |$)")
_NAMES = re.compile(r"%([\w.\-]+)")
_FUSED = re.compile(r"calls=%?([\w.\-]+)")
_NOTHING = {
    "parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "opt-barrier", "partition-id",
    "replica-id", "async-done", "async-update", "copy-done", "while", *_CALLS,
}  # fmt: skip


class Launched(NamedTuple):
    """What a program does at most. A custom call, such as one of cuDNN, counts as one kernel, and may launch more.

    Attributes:
        kernels: how many.
        bytes: read and written by them, if nothing stays in a cache.
    """

    kernels: float
    bytes: float


def launched(program: str, repetitions: Mapping[int, int] | None = None) -> Launched:
    """Counts a program's kernels, those of a loop's body as often as it runs.

    Args:
        program: `compiled.as_text()`.
        repetitions: `{m: n}`: loops bounded by `m` (`fedamp_jax.programs.jaxpr.repeat`) are counted `n` times, to tell
            from a program of few steps what one of many would launch.
    """
    computations = dict(_computations(program))

    def of(name: str) -> tuple[float, float]:
        kernels = moved = 0.0
        types = _types(computations[name])
        for line in computations[name]:
            found, loop = _INSTRUCTION.match(line), _LOOP.search(line)
            if loop:
                times = _times(line, computations[loop[1]], repetitions or {})
                inner = of(loop[2])
                kernels, moved = kernels + times * inner[0], moved + times * inner[1]
            elif found and found[4] in _CALLS:
                inner = max((of(called) for called in _called(line)), default=(0.0, 0.0))
                kernels, moved = kernels + inner[0], moved + inner[1]
            elif found and found[4] not in _NOTHING:
                kernels, moved = kernels + 1, moved + _moved(line, types, computations.get)
        return kernels, moved

    return Launched(*of("ENTRY"))


def _times(line: str, condition: list[str], repetitions: Mapping[int, int]) -> int:
    bound, times = _BOUND.search(line), _repetitions(line, condition)
    return repetitions.get(times, times) if bound and bound[2] else times


def _types(lines: list[str]) -> dict[str, str]:
    """The type of every instruction of a computation."""
    found = (_INSTRUCTION.match(line) for line in lines)
    return {f[2]: f[3] for f in found if f}


def _moved(line: str, types: dict[str, str], lines_of: Callable[[str], list[str] | None]) -> float:
    """Bytes of a kernel: its operands and its result, but of what is only sliced or updated in place, the slice."""
    found, fused = _INSTRUCTION.match(line), _FUSED.search(line)
    assert found is not None
    operands, size = _NAMES.findall(found[5]), memory.shape_bytes
    inner = lines_of(fused[1]) if fused else None
    if not inner:
        if found[4] == "dynamic-slice":
            return 2 * size(found[3])
        if found[4] == "dynamic-update-slice":
            return 2 * size(types.get(operands[1], ""))
        return size(found[3]) + sum(size(types.get(name, "")) for name in operands)
    inner_types, read = _types(inner), 0.0
    parsed = [f for f in map(_INSTRUCTION.match, inner) if f]
    for f in parsed:
        if f[4] == "parameter":
            read += _read(f[2], f[3], parsed, inner_types)
    written = next((f for f in parsed if f[1]), None)
    if written is not None and written[4] == "dynamic-update-slice":
        return read + size(inner_types.get(_NAMES.findall(written[5])[1], ""))
    return read + size(found[3])


def _read(name: str, kind: str, parsed: list, types: dict[str, str]) -> float:
    """Bytes that a fusion reads of a parameter."""
    total = 0.0
    for f in parsed:
        names = _NAMES.findall(f[5])
        if name not in names:
            continue
        if f[4] in ("dynamic-slice", "gather") and names[0] == name:
            total += memory.shape_bytes(f[3])
        elif f[4] == "dynamic-update-slice" and names[0] == name:
            continue  # it is overwritten in place
        else:
            return memory.shape_bytes(kind)
    return min(total, memory.shape_bytes(kind))
