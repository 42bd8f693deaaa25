"""Published figures of accelerators, for what is planned without having one."""

import dataclasses
from typing import Any

GIB = 1 << 30


@dataclasses.dataclass(frozen=True)
class Accelerator:
    """Published figures of a kind of device.

    Attributes:
        kind: as JAX names it in `device.device_kind`.
        memory: bytes that a program may use.
        clock: cycles per second of its compiler's estimates; None where the compiler makes none.
        flops: bfloat16 floating point operations per second.
        bandwidth: bytes per second to and from its memory.
    """

    kind: str
    memory: int
    clock: float | None
    flops: float
    bandwidth: float


# Memory: of a TPU what its compiler says is available when it refuses a program, of a GPU the three quarters that JAX
# takes for itself by default. A v2's and a v3's devices are cores, of which a chip has two.
ACCELERATORS = {
    "v2": Accelerator("TPU v2", int(7.48 * GIB), 0.7e9, 22.5e12, 350e9),
    "v3": Accelerator("TPU v3", int(15.48 * GIB), 0.94e9, 61.5e12, 450e9),
    "v4": Accelerator("TPU v4", int(30.75 * GIB), 1.05e9, 275e12, 1228e9),
    "v5e": Accelerator("TPU v5 lite", int(15.75 * GIB), 1.5e9, 197e12, 819e9),
    "v5p": Accelerator("TPU v5", int(95.74 * GIB), 1.75e9, 459e12, 2765e9),
    "v6e": Accelerator("TPU v6 lite", int(31.25 * GIB), 1.75e9, 918e12, 1640e9),
    "h100": Accelerator("NVIDIA H100 80GB HBM3", 84942979072 * 3 // 4, None, 989e12, 3352e9),
}


def accelerator(device: Any) -> Accelerator | None:
    """The published figures of a device; None if its kind is not listed, such as a CPU."""
    return next((known for known in ACCELERATORS.values() if known.kind == device.device_kind), None)
