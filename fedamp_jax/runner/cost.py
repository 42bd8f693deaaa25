"""`--dry-run`: what a round takes on accelerators that need not be here, or on this machine, before anything is run."""

import functools
import os
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.table import Table

import fedamp_jax
from fedamp_jax import Algorithm, Data, Placement, Task
from fedamp_jax.data import Federation
from fedamp_jax.placement import InHostMemory, OnMesh, topology
from fedamp_jax.placement.host_memory import HostEstimate
from fedamp_jax.programs import memory
from fedamp_jax.programs.cost import Estimate
from fedamp_jax.programs.jaxpr import flops
from fedamp_jax.runner import cost, machine, messages
from fedamp_jax.runner.messages import readable
from fedamp_jax.runner.options import chosen
from fedamp_jax.types import Batch


def place(options: Any) -> Placement:
    """Where the clients would live."""
    if options.dry_run == "here":
        return machine.placement_for(options)
    try:
        mesh = topology(options.dry_run)
    except RuntimeError as error:  # the compiler is not installed
        raise ValueError(f"--dry-run {options.dry_run}: {error}") from error
    if options.offload:
        return InHostMemory(device=mesh.devices.flat[0], chunk=options.chunk)
    return OnMesh(mesh=mesh, chunk=options.chunk)


def show(options: Any, federation: Federation, algorithms: Mapping[str, Algorithm]) -> None:
    """Print what a round takes: of FedAMP, which the ablation calls `base`, unless `--methods` names others.

    Args:
        options: of any experiment, with `dry_run`.
        federation: the clients, of which the shapes and sizes are read.
        algorithms: every method by name.
    """
    machine.configure(options.precision)
    there, names = place(options), chosen(options.methods, algorithms)
    if options.methods == ("all",):
        names = [name for name in names if name in ("FedAMP", "base")] or names
    train = federation.train
    table = Table(title=f"A round of {len(train.size)} clients on {options.dry_run}, {there.devices} device(s)")
    for column in ("method", "memory each", "fits", "exchanged", "seconds", f"{options.rounds} rounds"):
        table.add_column(column, justify="left" if column == "method" else "right")
    notes = dict.fromkeys([_sizes(train)])
    for name in names:
        cells, note = _row(algorithms[name], train, there, options)
        table.add_row(name, *cells)
        notes |= dict.fromkeys(note)
    messages.console.print(table)
    for note in notes:
        messages.console.print(note, highlight=False, soft_wrap=True)


def _row(algorithm: Algorithm, train: Data, there: Placement, options: Any) -> tuple[list[str], list[str]]:
    """A method's cells and the notes that explain them."""
    try:
        found = fedamp_jax.estimate(algorithm, train, there)
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        words = next((line for line in str(error).splitlines() if "Used" in line), str(error).splitlines()[0])
        return ["-", "no", "-", "-", "-"], [f"The compiler refuses it: {words.strip()}. Try a smaller --chunk."]
    room = memory.room(there.first_device) or _ram() // there.devices
    if isinstance(found, HostEstimate):
        sent, fits = f"{memory.readable(found.sent + found.returned)}", _fits(found.device, room)
        note = f"The host's memory holds {memory.readable(found.host)}, of {memory.readable(_ram())} here."
        return [memory.readable(found.device), fits, sent, "-", "-"], [note]
    sent = memory.readable(sum(map(sum, found.exchanged.values())))
    seconds, text, note = _seconds(found, train, there, getattr(options, "batch_size", train.y.shape[1]))
    return [
        memory.readable(found.memory),
        _fits(found.memory, room),
        sent,
        text,
        messages.readable(options.rounds * seconds),
    ], [note]


def _seconds(found: Estimate, train: Data, there: Placement, batch: int) -> tuple[float, str, str]:
    """Seconds of a round, as they are shown, and where they come from."""
    if found.seconds is not None:
        note = (
            "Seconds: the TPU compiler's own estimate of a round in which all clients take part and have as many "
            "examples as the largest, without exchanges and evaluation. Nothing was run."
        )
        return found.seconds, f"{found.seconds:.3g}", note
    steps, most = -(-np.asarray(train.size) // batch), -(-train.y.shape[1] // batch)
    share = steps.sum() / (most * there.rows(len(steps)))  # the counted operations are those of clients of one size
    if found.at_least is not None:
        seconds, at = found.at_least * share, "the device's published bfloat16 peak"
    else:
        speed = cost.product_speed(there)
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


def _ram() -> int:
    """Bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


_SIDE = 2048
_SHORT = 60.0
"""Seconds: nothing is said of a run that is not longer."""


def at_least(task: Task, train: Data, placement: Placement, options: Any, rounds_left: Mapping[str, int]) -> str | None:
    """What to tell a person before a long run; None if it is short, or if its local steps are not told by epochs.

    Args:
        task: the model.
        train: training data.
        placement: where the clients will live.
        options: with `batch_size`, `epochs` and `epochs_range`, as the FedAMP paper's experiments have them.
        rounds_left: how many rounds each method still has to be trained.
    """
    if not hasattr(options, "batch_size") or placement.platform != "cpu":
        return None
    steps = np.ceil(np.asarray(train.size) / options.batch_size).sum() * np.mean(options.epochs_range or options.epochs)
    counted = step_flops(task, train, options.batch_size, placement.platform) * steps
    counted *= options.participation * (1 - options.drop_rate)
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
    size = min(batch_size, train.y.shape[1])
    kinds = ((size, *train.x.shape[2:]), train.x.dtype), ((size,), jnp.int32), ((size,), bool), ((), jnp.int32)
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
