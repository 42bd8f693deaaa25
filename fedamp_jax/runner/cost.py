"""What a run will take, before it starts: a round on any machine (`--dry-run`), and the least time of a long run."""

import functools
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

import fedamp_jax
from fedamp_jax import Algorithm, Data, Placement, Task
from fedamp_jax.placement import InHostMemory, OnMesh, topology
from fedamp_jax.placement.host_memory import HostEstimate
from fedamp_jax.programs import memory
from fedamp_jax.programs.cost import Estimate
from fedamp_jax.programs.jaxpr import flops
from fedamp_jax.runner import machine
from fedamp_jax.runner.experiment import Prepared
from fedamp_jax.runner.messages import console, readable, say
from fedamp_jax.runner.options import Machine, Options
from fedamp_jax.types import Batch


def place(options: Machine, target: str) -> Placement:
    """Where the clients would live."""
    if target == "here":
        return machine.placement_for(options)
    try:
        mesh = topology(target)
    except RuntimeError as error:  # the compiler is not installed
        raise ValueError(f"--dry-run {target}: {error}") from error
    if options.offload:
        return InHostMemory(device=mesh.devices.flat[0], chunk=options.chunk)
    return OnMesh(mesh=mesh, chunk=options.chunk)


def show(options: Options, prepared: Prepared, there: Placement) -> None:
    """Print what a round of each prepared method takes on the machine that `--dry-run` names.

    Args:
        options: of the run.
        prepared: clients, of which the shapes and sizes are read, and methods.
        there: where the clients would live.
    """
    machine.configure(options.machine.precision)
    train = prepared.federation.train
    table = Table(title=f"A round of {len(train.size)} clients on {options.machine.dry_run}, {there.devices} device(s)")
    for column in ("method", "memory each", "fits", "exchanged", "seconds", f"{options.schedule.rounds} rounds"):
        table.add_column(column, justify="left" if column == "method" else "right")
    notes = dict.fromkeys([_sizes(train)])
    for name, algorithm in prepared.algorithms.items():
        cells, note = _row(algorithm, train, there, options)
        table.add_row(name, *cells)
        notes |= dict.fromkeys(note)
    console.print(table)
    for note in notes:
        say(note)


def _row(algorithm: Algorithm, train: Data, there: Placement, options: Options) -> tuple[list[str], list[str]]:
    """A method's cells and the notes that explain them."""
    try:
        found = fedamp_jax.estimate(algorithm, train, there)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        words = next((line for line in str(error).splitlines() if "Used" in line), str(error).splitlines()[0])
        return ["-", "no", "-", "-", "-"], [f"The compiler refuses it: {words.strip()}. Try a smaller --chunk."]
    room = memory.room(there.first_device) or memory.of_machine().total // there.devices
    if isinstance(found, HostEstimate):
        sent, fits = f"{memory.readable(found.sent + found.returned)}", _fits(found.device, room)
        here = memory.readable(memory.of_machine().total)
        note = f"The host's memory holds {memory.readable(found.host)}, of {here} here."
        return [memory.readable(found.device), fits, sent, "-", "-"], [note]
    sent = memory.readable(sum(map(sum, found.exchanged.values())))
    seconds, text, note = _seconds(found, train, there, min(options.training.batch_size, train.longest))
    return [
        memory.readable(found.memory),
        _fits(found.memory, room),
        sent,
        text,
        readable(options.schedule.number_of_rounds * seconds),
    ], [note]


def _seconds(found: Estimate, train: Data, there: Placement, batch: int) -> tuple[float, str, str]:
    """Seconds of a round, as they are shown, and where they come from."""
    if found.seconds is not None:
        note = (
            "Seconds: the TPU compiler's own estimate of a round in which all clients take part and have as many "
            "examples as the largest, without exchanges and evaluation. Nothing was run."
        )
        return found.seconds, f"{found.seconds:.3g}", note
    steps, most = -(-np.asarray(train.size) // batch), -(-train.longest // batch)
    share = steps.sum() / (most * there.rows(len(steps)))  # the counted operations are those of clients of one size
    if found.at_least is not None:
        seconds, at = found.at_least * share, "the device's published bfloat16 peak"
    else:
        speed = product_speed(there)
        seconds = found.flops * share / speed
        at = f"{speed / 1e9:.3g} GFLOP/s, the speed of a float32 matrix product measured here"
    note = f"Seconds: a lower bound, the counted operations at {at}; there is no estimate by a compiler."
    return seconds, f"> {seconds:.3g}", note


def _sizes(train: Data) -> str:
    """How many examples the clients have."""
    size = np.asarray(train.size)
    return f"Clients have {size.min()} to {size.max()} examples, {size.mean():.0f} on average."


def _fits(needed: int, room: int) -> str:
    return f"{'yes' if needed <= room else 'no'}, of {memory.readable(room)}"


_SIDE = 2048
_SHORT = 60.0
"""Seconds: nothing is said of a run that is not longer."""


def at_least(
    task: Task, train: Data, placement: Placement, options: Options, rounds_left: Mapping[str, int]
) -> str | None:
    """What to say before a long run on a CPU; None if it is short.

    Args:
        task: the model.
        train: training data.
        placement: where the clients will live.
        options: of the run.
        rounds_left: how many rounds each method still has to be trained.
    """
    if placement.platform != "cpu" or not rounds_left:
        return None
    batch = min(options.training.batch_size, train.longest)
    steps = np.ceil(np.asarray(train.size) / batch).sum() * options.training.passes
    counted = step_flops(task, train, batch, placement.platform) * steps
    counted *= options.schedule.participation * (1 - options.schedule.drop_rate)
    total = sum(rounds_left.values())
    if counted * total / 2e12 < _SHORT:  # faster than any CPU
        return None
    speed = product_speed(placement) * placement.devices
    if counted * total / speed < _SHORT:
        return None
    each = {name: readable(counted * rounds / speed) for name, rounds in rounds_left.items()}
    alike = len(set(each.values())) == 1 < len(each)
    many = f"{len(each)} methods, {min(each.values())} each" if alike else ", ".join(map(" ".join, each.items()))
    rounds = "-".join(str(n) for n in sorted({min(rounds_left.values()), max(rounds_left.values())}))
    return (
        f"This will take at least {readable(counted * total / speed)}: {many}; {rounds} rounds of "
        f"{len(train.size)} clients, {counted / 1e12:.3g} TFLOP a round, at the {speed / 1e9:.3g} GFLOP/s of a matrix "
        f"product measured here. Quicker: fewer --methods or --rounds, --model mlp, or an accelerator "
        f"(--dry-run v5e:1x1 tells what it takes there). After an interruption, --resume continues."
    )


def step_flops(task: Task, train: Data, batch_size: int, platform: str) -> float:
    """Floating point operations of a platform's matrix products and convolutions in one local step; traces it only."""
    size = min(batch_size, train.longest)
    kinds = ((size, *train.x.shape[1:]), train.x.dtype), ((size,), jnp.int32), ((size,), bool), ((), jnp.int32)
    shapes: list[Any] = [jax.ShapeDtypeStruct(*kind) for kind in kinds]
    key = jax.random.key(0)
    model = jax.eval_shape(task.init, key)
    step = jax.make_jaxpr(jax.grad(lambda p, s, b: task.loss(model._replace(params=p, stats=s), b, key), has_aux=True))
    return flops(step(model.params, model.stats, Batch(*shapes)), platform)


@functools.cache
def product_speed(placement: Placement) -> float:
    """FLOP/s of each device in a float32 matrix product on all of them, measured once, for about a second."""
    each = jnp.ones((placement.devices, _SIDE, _SIDE), jnp.float32)
    if isinstance(placement, OnMesh):
        each = jax.device_put(each, jax.NamedSharding(placement.mesh, jax.P("clients")))
    product = jax.jit(lambda a: a @ a)
    jax.block_until_ready(product(each))
    times = []
    while sum(times) < 1.0:
        began = time.perf_counter()
        jax.block_until_ready(product(each))
        times.append(time.perf_counter() - began)
    return 2.0 * _SIDE**3 / min(times)
