"""`--dry-run`: what a round takes on accelerators that need not be here, or on this machine, before anything is run."""

import os
from collections.abc import Mapping
from typing import Any, TypeVar

import jax
import numpy as np
from rich.table import Table

import fedamp_jax
from fedamp_jax import Algorithm, Data, Placement
from fedamp_jax.data import Federation, Omniglot, Source, load
from fedamp_jax.data.blank import blank
from fedamp_jax.experiments import devices, forecast, run_folder
from fedamp_jax.experiments.train import chosen
from fedamp_jax.placement import InHostMemory, OnMesh, memory, topology
from fedamp_jax.placement.cost import Estimate
from fedamp_jax.placement.host_memory import HostEstimate

Kind = TypeVar("Kind", bound=Source | Omniglot)


def source(options: Any, kind: type[Kind] = Source) -> Kind:
    """The data set. A dry run downloads nothing: without `--data-dir` it takes blank images of the published number."""
    unread = options.dry_run is not None and options.data_dir is None and options.dataset != "digits"
    found = blank(options.dataset) if unread else load(options.dataset, options.data_dir)
    assert isinstance(found, kind)  # `Omniglot` for omniglot, which has an experiment of its own
    return found


def place(options: Any) -> Placement:
    """Where the clients would live."""
    if options.dry_run == "here":
        return devices.placement_for(options)
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
    devices.configure(options.precision)
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
    run_folder.console.print(table)
    for note in notes:
        run_folder.console.print(note, highlight=False, soft_wrap=True)


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
        forecast.readable(options.rounds * seconds),
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
        speed = forecast.product_speed(there)
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
