"""What a compiled round takes of a device's memory, and how many clients train side by side so that it fits."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax


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
    """Compiles the program; None if it is too large for the device already for the compiler."""
    try:
        return need(program.compile())
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        return None


def room() -> int | None:
    """Bytes of a device that JAX may use; None where it does not say, as on a CPU.

    >>> room() is None or room() > 0
    True
    """
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")


def side_by_side(taken: Callable[[int | None], Need | None], clients: int, room: int) -> int | None:
    """How many clients of a device to train side by side.

    Args:
        taken: what a round takes with so many of them side by side, None for all; it returns None where the compiler
            refuses a program that is too large for the device, as a TPU's does.
        clients: how many a device has.
        room: bytes that it has for the round.

    Returns:
        None if the round fits as it is; else the first number that fits, or 1. The next to try is as many as fit by
        the share of each in the working memory, which is the chunk's gradients, optimizer states and activations; as
        much as the arguments is left for the cloud models, which do not shrink with the chunk. After a refusal it is
        the half.

    >>> side_by_side(lambda chunk: Need(held=10, working=20 + 10 * (chunk or 8)), clients=8, room=70)
    4
    """
    chunk = None
    while chunk != 1:
        needed, now = taken(chunk), chunk or clients
        if needed is None:
            chunk = max(1, now // 2)
        elif needed.held + needed.working > room:
            chunk = max(1, min(now - 1, (room - 2 * needed.held) * now // needed.working))
        else:
            break
    return chunk


@contextlib.contextmanager
def explained(taken: Callable[[], Need | None] | None = None) -> Iterator[None]:
    """XLA's "out of memory" as a MemoryError that says what to do, with the estimate of `taken` if it can be had.

    Raises:
        MemoryError: in place of a JaxRuntimeError of status RESOURCE_EXHAUSTED.
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
            "Solver(chunk=), --chunk in the experiments; or spread the clients over several devices with run(mesh=), "
            "--devices; or keep them in the host's memory with run(offload_to=), --offload. The state of this round is "
            f"lost; with a checkpoint_dir the next run goes on from the last checkpoint. ({str(error).splitlines()[0]})"
        ) from error
