"""Seconds and memory of a round of FedAMP by the number of clients: a round must cost what its samples cost.

python benchmarks/scaling.py
python benchmarks/scaling.py --model cnn --clients 10 30 100
python benchmarks/scaling.py --examples 200 --epochs 5

Rounds are as long as the papers', unless options say otherwise. Each row is a process of its own, for its peak memory.
`skewed`: half of the clients hold a tenth of the samples of the others. `expected` memory is state, data and working
memory of the compiled round (`fedamp_jax.estimate`) beside what the process holds before it makes them.
"""

import dataclasses
import json
import resource
import subprocess
import sys
from typing import Any, Literal

import bench
import jax
import numpy as np
import optax
import tyro

import fedamp_jax
from fedamp_jax.data import from_lists

FEATURES = {"mlp": (28, 28), "cnn": (28, 28)}


@dataclasses.dataclass
class Command(bench.Common):
    """What to measure."""

    clients: tuple[int, ...] = (10, 30, 100, 300, 1000)
    """Numbers of clients."""
    model: Literal["mlp", "cnn"] = "mlp"
    examples: int = 600
    """Of a large client."""
    epochs: int = 10
    """Local passes."""
    one: bool = False
    """Measure the first number of clients, first even, then skewed, in this process, and print JSON."""


def federation(m: int, command: Command, skewed: bool) -> fedamp_jax.Data:
    """Clients of equal size, or every second one of a tenth."""
    rng = np.random.default_rng(0)
    sizes = [command.examples // 10 if skewed and i % 2 else command.examples for i in range(m)]
    xs = [rng.integers(0, 256, (n, *FEATURES[command.model])).astype(np.uint8) for n in sizes]
    return from_lists(xs, [np.arange(n) % 10 for n in sizes], classes=10)


def peak() -> int:
    """The most bytes that this process, or the accelerator, has held."""
    stats = jax.devices()[0].memory_stats()
    return stats["peak_bytes_in_use"] if stats else 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def measure(m: int, command: Command, skewed: bool) -> dict[str, Any]:
    """Median seconds of a round after the first, and memory."""
    data = federation(m, command, skewed)
    task = getattr(fedamp_jax.models, command.model)(10, shape=FEATURES[command.model])
    solver = fedamp_jax.Solver(optax.adam(1e-3), command.epochs)
    algorithm = fedamp_jax.fedamp(task, solver, sigma=10.0, self_weight=0.1)
    key = jax.random.key(0)
    jax.block_until_ready(data)
    needs, before = fedamp_jax.estimate(algorithm, data), peak()
    state = algorithm.init(key, data)
    times = []
    for k in range(command.repeats + 1):
        held = {}

        def call(state=state, k=k, held=held):
            held["state"], _ = fedamp_jax.round(algorithm, state, data, jax.random.fold_in(key, k))
            return held["state"]

        times.append(bench.timed(call))
        state = held["state"]
    samples = int(np.asarray(data.size).sum()) * command.epochs
    seconds = float(np.median(times[1:]))
    return {
        "clients": m, "sizes": "skewed" if skewed else "even", "seconds": seconds,
        "us per sample": 1e6 * seconds / samples,
        "peak (MB)": (peak() - before) / 1e6, "expected (MB)": (needs.state + needs.working) / 1e6,
    }  # fmt: skip


def main() -> None:
    """The command line."""
    command = tyro.cli(Command, description=__doc__)
    if command.one:
        rows = [measure(command.clients[0], command, skewed=False)]
        rows.append(measure(command.clients[0], command, skewed=True))
        print(json.dumps(rows))
        return
    rows = []
    for m in command.clients:
        own = [sys.executable, __file__, "--one", "--clients", str(m), "--model", command.model]
        own += ["--examples", str(command.examples), "--epochs", str(command.epochs), "--repeats", str(command.repeats)]
        rows += json.loads(subprocess.run(own, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
    middle = float(np.median([row["us per sample"] for row in rows]))
    rows = [{**row, "to the median": row["us per sample"] / middle} for row in rows]
    bench.show(__doc__.splitlines()[0], rows)
    bench.write(command.out, rows)


if __name__ == "__main__":
    main()
