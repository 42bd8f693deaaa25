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


def room() -> int | None:
    """Bytes of a device that JAX may use; None where it does not say, as on a CPU.

    >>> room() is None or room() > 0
    True
    """
    return (jax.local_devices()[0].memory_stats() or {}).get("bytes_limit")


def side_by_side(taken: Need, clients: int, room: int) -> int | None:
    """How many clients of a device to train side by side.

    Args:
        taken: by the round with all of them side by side.
        clients: how many a device has.
        room: bytes that it has for the round.

    Returns:
        None if the round fits as it is. Else as many as fit by the share of each in the working memory, which is the
        chunk's gradients, optimizer states and activations; as much as the arguments is left for the cloud models,
        which do not shrink with the chunk. At least 1.

    >>> side_by_side(Need(held=10, working=100), clients=8, room=70)
    4
    """
    if taken.held + taken.working <= room:
        return None
    return max(1, (room - 2 * taken.held) * clients // taken.working)


@contextlib.contextmanager
def explained(taken: Callable[[], Need] | None = None) -> Iterator[None]:
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
                held, working = taken()
                estimate = f" A round takes {(held + working) / 2**30:.3g} GiB by XLA's plan."
        raise MemoryError(
            f"This does not fit into the device's memory.{estimate} Train fewer clients side by side with "
            "Solver(chunk=), --chunk in the experiments; or spread the clients over several devices with run(mesh=), "
            "--devices; or keep them in the host's memory with run(offload_to=), --offload. The state of this round is "
            f"lost; with a checkpoint_dir the next run goes on from the last checkpoint. ({str(error).splitlines()[0]})"
        ) from error
