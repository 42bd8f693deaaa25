"""What a round of FedAMP takes on an accelerator, by the accelerator's own compiler: compiled here, run nowhere.

python benchmarks/accelerators.py --topology v5e:1x1 v5e:2x4 v6e:1x1
python benchmarks/accelerators.py --topology v5e:1x1 --models mnist-cnn --conv patches xla --chunk 10
python benchmarks/accelerators.py --topology h100 h100:2
python benchmarks/accelerators.py --topology v5e:4x4 --models cifar100-resnet18 --clients 1000

Every combination of the options is a row. A TPU's compiler estimates the cycles of most instructions; these are added
up (`fedamp_jax/programs/cost.py`), and the same estimates of a matrix product and of a stream are reported beside the
rows, by which they can be judged. A GPU's compiler estimates nothing; `at least` is the time of the operations at the
published peak. Nothing is measured: ratios of two rows deserve more trust than seconds. TPUs need
`pip install -e '.[aot]'`, GPUs `pip install -e '.[cuda]'`; neither needs a device.
"""

import dataclasses
import itertools
import re
import time
from typing import Any, Literal

import bench
import jax
import jax.numpy as jnp
import optax
import tyro
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import fedamp_jax
from fedamp_jax.placement import OnMesh, topology
from fedamp_jax.programs import cost
from fedamp_jax.programs.accelerators import Accelerator, accelerator

Model = Literal["digits-mlp", "mnist-mlp", "mnist-cnn", "cifar100-resnet18"]

# Model, clients, examples of each, shape of one, classes.
ROUNDS: dict[Model, tuple[str, int, int, tuple[int, ...], int]] = {
    "digits-mlp": ("mlp", 20, 90, (8, 8), 10),
    "mnist-mlp": ("mlp", 100, 600, (28, 28), 10),
    "mnist-cnn": ("cnn", 100, 600, (28, 28), 10),
    "cifar100-resnet18": ("resnet18", 100, 500, (32, 32, 3), 100),
}


@dataclasses.dataclass
class Command:
    """What to compile. Each combination is a row."""

    topology: tuple[str, ...] = ("v5e:1x1",)
    """Accelerators, such as v5e:2x4 (eight TPU v5e), h100, h100:2."""
    models: tuple[Model, ...] = tuple(ROUNDS)
    """The paper's data sets and models: clients with equally many examples."""
    conv: tuple[Literal["auto", "loop", "patches", "xla"], ...] = ("auto",)
    """Lowering of the convolutions."""
    chunk: tuple[int, ...] = (0,)
    """Clients that a device trains side by side; 0: as the platform's defaults have it."""
    dtype: tuple[Literal["float32", "bfloat16"], ...] = ("float32",)
    """Of the computations; parameters are float32."""
    precision: tuple[Literal["default", "high", "highest"], ...] = ("default",)
    """Of the matrix products."""
    clients: int | None = None
    """Number of clients. Default: the paper's."""
    epochs: int = 10
    """Local passes."""
    batch: int = 100
    """Examples of a step."""
    out: str | None = None
    """Also write the rows there, as JSON."""


Row = dict[str, Any]


def calibration(mesh: Mesh) -> dict[str, Any] | None:
    """A large matrix product and a stream by the same estimate, and the published peaks; None without an estimate."""
    known, whole = accelerator(mesh.devices.flat[0]), NamedSharding(mesh, P())
    assert known is not None  # topologies are of known kinds
    if known.clock is None:
        return None
    n, length = 8192, 1 << 28
    square = jax.ShapeDtypeStruct((n, n), jnp.bfloat16, sharding=whole)
    line = jax.ShapeDtypeStruct((length,), jnp.float32, sharding=whole)
    product = estimated(lambda a, b: a @ b, known, square, square)
    stream = estimated(lambda a, b: 2.0 * a + b, known, line, line)
    return {
        "product_tflops": 2 * n**3 / product / 1e12, "peak_tflops": known.flops / 1e12,
        "stream_gbs": 3 * 4 * length / stream / 1e9, "peak_gbs": known.bandwidth / 1e9,
    }  # fmt: skip


def estimated(fn: Any, known: Accelerator, *shapes: Any) -> float:
    """Seconds of `fn` by its compiler's estimate."""
    found = cost.seconds(jax.jit(fn).lower(*shapes).compile().as_text() or "", known)
    assert found is not None
    return found


def federated_round(model: Model, command: Command, conv: str, dtype: str) -> tuple[Any, fedamp_jax.Data]:
    """FedAMP and the shapes of its data."""
    kind, clients, n, shape, classes = ROUNDS[model]
    m, settings = command.clients or clients, {"compute_dtype": jnp.dtype(dtype)}
    if kind != "mlp":
        settings["conv"] = conv
    task = getattr(fedamp_jax.models, kind)(classes, shape=shape, **settings)
    solver = fedamp_jax.Solver(optax.adam(1e-3), epochs=command.epochs, batch_size=command.batch)
    return fedamp_jax.fedamp(task, solver, sigma=100.0, self_weight=0.05), bench.shapes_of_clients(m, n, shape)


def row(mesh: Mesh, product: float | None, command: Command, model: Model, conv: str, chunk: int, dtype: str) -> Row:
    """What one round takes; `refused` has the compiler's words if there is no program.

    Args:
        mesh: what it is compiled for.
        product: FLOP/s of a large matrix product there.
        command: the remaining options.
        model: key of `ROUNDS`.
        conv: lowering of convolutions.
        chunk: clients side by side, 0 for the default.
        dtype: of computations.
    """
    algorithm, data = federated_round(model, command, conv, dtype)
    began, found, refused = time.perf_counter(), None, None
    try:
        found = fedamp_jax.estimate(algorithm, data, OnMesh(mesh=mesh, chunk=chunk or None))
    except jax.errors.JaxRuntimeError as error:
        refused = words(str(error))
    taken: Row = {"seconds": None, "at_least": None, "tflop": None, "of_peak": None, "of_product": None, "gib": None}
    if found is not None:
        speed = found.seconds and found.flops / found.seconds
        taken = {
            "seconds": found.seconds, "at_least": found.at_least, "tflop": found.flops / 1e12,
            "of_peak": found.seconds and (found.at_least or 0) / found.seconds,
            "of_product": speed and product and speed / product, "gib": found.memory / 2**30,
            "working_gib": found.working / 2**30,
            "exchanged": {name: [len(sizes), sum(sizes)] for name, sizes in found.exchanged.items()},
        }  # fmt: skip
    settings = {"model": model, "clients": len(data.size), "conv": conv, "chunk": chunk or "auto", "dtype": dtype}
    return {**settings, **taken, "refused": refused, "compiled_in": time.perf_counter() - began}


def words(error: str) -> str:
    """The sentence of a compiler's refusal that says by how much."""
    said = re.search(r"Used .*? hbm\. Exceeded hbm capacity by [\d.]+\w", error)
    return said[0] if said else error.splitlines()[0][:200]


def shown(row: Row) -> Row:
    """A row of the printed table."""

    def percent(share):
        return share and f"{100 * share:.1f}"

    sent = sum(total for _, total in row.get("exchanged", {}).values())
    return {
        "topology": row["topology"], "model": row["model"], "clients": row["clients"], "conv": row["conv"],
        "chunk": row["chunk"], "type, precision": f"{row['dtype']}, {row['precision']}", "GiB": row["gib"],
        "s": row["seconds"], "at least s": row["at_least"], "% of peak": percent(row["of_peak"]),
        "% of product": percent(row["of_product"]), "MiB sent": sent / 2**20,
    }  # fmt: skip


def main() -> None:
    """The command line."""
    command = tyro.cli(Command, description=__doc__)
    jax.config.update("jax_platforms", "cpu")  # nothing runs: leave an accelerator that is here to others
    rows, calibrated = [], {}
    for name in command.topology:
        mesh = topology(name)
        calibrated[name] = calibration(mesh)
        product = calibrated[name] and 1e12 * calibrated[name]["product_tflops"]
        choices = itertools.product(command.precision, command.models, command.conv, command.chunk, command.dtype)
        for precision, *choice in choices:
            with jax.default_matmul_precision(precision):
                made = row(mesh, product, command, *choice)
            rows.append({"topology": name, "precision": precision, **made})
            print(rows[-1], flush=True)
    notes = [
        f"{name}: by the same estimate a bfloat16 product of 8192 reaches {c['product_tflops']:.1f} TFLOP/s (published "
        f"peak {c['peak_tflops']:.0f}), a stream {c['stream_gbs']:.0f} GB/s ({c['peak_gbs']:.0f})"
        for name, c in calibrated.items()
        if c
    ]
    notes += [f"{r['topology']} {r['model']} {r['conv']} {r['chunk']}: {r['refused']}" for r in rows if r["refused"]]
    notes.append("Seconds and memory are the compiler's estimates. Nothing was run.")
    bench.show("A round of FedAMP", [shown(row) for row in rows], notes)
    bench.write(command.out, rows, calibration=calibrated)


if __name__ == "__main__":
    main()
