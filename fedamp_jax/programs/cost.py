"""What a round will take, before it takes it: memory, exchanges, operations, and a TPU's time.

A TPU's compiler writes its estimate of cycles beside most instructions of the optimised program. They are added up,
those of a loop's body as often as it runs. Ratios between two such estimates deserve more trust than the seconds.
"""

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from fedamp_jax.programs import memory
from fedamp_jax.programs.accelerators import Accelerator, accelerator
from fedamp_jax.programs.jaxpr import flops

_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
_LOOP = re.compile(r" while\(.*condition=%?([\w.\-]+), body=%?([\w.\-]+)")
_CALLED = re.compile(r"(?:to_apply|calls|\w+_computations?)=(\{[^}]*\}|%?[\w.\-]+)")
_CALLS = ("call", "conditional", "async-start")
_BOUND = re.compile(r'known_trip_count":\{"n":"(\d+)"|op_name="[^"]*at_most_(\d+)[()]*/while"')
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.\-]+ = (.*?) ([\w\-]+)\(")
# The compiler estimates nothing for these though they move as many bytes as their result has, there and back.
_UNESTIMATED = {"select-and-scatter", "sort", "gather", "scatter", "fusion", "reduce-window"}
_UNKNOWN = 1 << 60  # what it writes where it cannot tell


class Estimate(NamedTuple):
    """One device's share of a compiled round. All numbers are bytes unless they say otherwise.

    Attributes:
        devices: how many there are.
        clients: rows on each, padding clients included.
        state: the algorithm's state; it is overwritten by the new one.
        data: the training data.
        working: everything else at the worst moment: cloud models, gradients, optimizer states, activations.
        exchanged: `{collective: [bytes of each]}`, what a device receives in a round, its own part included.
        flops: floating point operations of matrix products and convolutions, if every client takes part.
        seconds: of computing, by the compiler's own estimate; None where it makes none, as for CPUs and GPUs.
        at_least: seconds that the operations take at the device's published speed; None where that is not known.
    """

    devices: int
    clients: int
    state: int
    data: int
    working: int
    exchanged: dict[str, list[int]]
    flops: float
    seconds: float | None
    at_least: float | None

    @property
    def memory(self) -> int:
        """What a device must hold at once."""
        return self.state + self.data + self.working

    def __str__(self) -> str:
        size = memory.readable
        parts = [f"{name} {size(sum(sizes))} in {len(sizes)}" for name, sizes in self.exchanged.items()]
        time = f"{self.flops / 1e9:.4g} GFLOP each"
        if self.seconds is not None:
            time += f", {self.seconds:.3g} s by the compiler's estimate"
        if self.at_least is not None:
            time += f", {self.at_least:.3g} s at the device's peak"
        return (
            f"{self.devices} device(s) of {self.clients} client(s): {size(self.memory)} each "
            f"(state {size(self.state)}, data {size(self.data)}, working memory {size(self.working)}); "
            f"{time}; a round exchanges {', '.join(parts) or 'nothing'}"
        )


def estimate(program: jax.stages.Traced, placement: Any, state: Any, data: Any, *_: Any) -> Estimate:
    """The `Estimate` of a traced round, which is compiled for it, from its abstract arguments."""
    compiled = program.lower().compile()
    text, device = compiled.as_text() or "", accelerator(placement.first_device)
    each = flops(program.jaxpr, placement.platform) / placement.devices
    return Estimate(
        placement.devices, len(data.size) // placement.devices, memory.held(state), memory.held(data),
        memory.need(compiled).working, memory.collectives(text), each,
        None if device is None else seconds(text, device), None if device is None else each / device.flops,
    )  # fmt: skip


def seconds(program: str, device: Accelerator) -> float | None:
    """Estimated seconds of a compiled program, without exchanges between devices.

    Args:
        program: `compiled.as_text()`.
        device: that it was compiled for.

    Returns:
        None if the compiler estimates nothing, as XLA's for CPUs and GPUs.

    Raises:
        ValueError: a loop whose number of repetitions cannot be found, see `fedamp_jax.programs.jaxpr.repeat`.
    """
    if device.clock is None or not _CYCLES.search(program):
        return None
    return _cycles(program, device) / device.clock


def _cycles(program: str, device: Accelerator) -> float:
    computations = dict(_computations(program))
    per_byte = (device.clock or 0.0) / device.bandwidth

    def of(name: str) -> float:
        total = 0.0
        for line in computations[name]:
            estimate, loop = _CYCLES.search(line), _LOOP.search(line)
            if estimate and int(estimate[1]) < _UNKNOWN:
                total += int(estimate[1])
            elif loop:
                total += _repetitions(line, computations[loop[1]]) * of(loop[2])
            elif (instruction := _INSTRUCTION.match(line)) and instruction[2] in _CALLS:
                total += max((of(called) for called in _called(line)), default=0.0)
            elif instruction and instruction[2] in _UNESTIMATED:
                total += 2 * memory.shape_bytes(instruction[1]) * per_byte
        return total

    return of("ENTRY")


def _computations(program: str) -> Iterator[tuple[str, list[str]]]:
    """Every computation's name, `"ENTRY"` for the main one, and its instructions."""
    for found in re.finditer(r"^(ENTRY )?%?([\w.\-]+) [^\n]*\{\n(.*?)^\}", program, re.MULTILINE | re.DOTALL):
        yield ("ENTRY" if found[1] else found[2]), found[3].splitlines()


def _called(instruction: str) -> list[str]:
    """The computations that a call, or one of several branches, may run."""
    return [name for names in _CALLED.findall(instruction) for name in re.findall(r"[\w.\-]+", names)]


def _repetitions(loop: str, condition: list[str]) -> int:
    """How often a loop's body runs at most: as XLA or `repeat` says, or until the one constant of its condition."""
    bound = _BOUND.search(loop)
    if bound:
        return int(bound[1] or bound[2])
    constants = set(re.findall(r"constant\((\d+)\)", "\n".join(condition)))
    if len(constants) == 1:
        return int(constants.pop())
    raise ValueError(f"the number of iterations of this loop is unknown: {loop[:200]}")
