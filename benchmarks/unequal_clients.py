"""What a federation of clients of unequal sizes costs: a client should cost what its own examples cost.

python benchmarks/unequal_clients.py
python benchmarks/unequal_clients.py --before ../an-earlier-checkout --out unequal.json
python benchmarks/unequal_clients.py --topology v5e:1x1 --hidden 200

Each row is a process of its own, with the package of this checkout and of the one that `--before` names.

`data / raw`: bytes of `Data` beside those of the examples. `round / raw`: what the compiler plans for a round, its
arguments and all between, beside the raw examples, the models and as much again for the new ones. `seconds`: the median
round of FedAvg, by default of a linear model, for 10 epochs in batches of 20 (images: one epoch in batches of 100).
`/ parts`: over the sum of the rounds of the parts of the federation that are named in its row, each alone.
`evaluate (s)`: all clients' accuracies.

With `--topology` a round is compiled for a TPU, and run nowhere: seconds are its compiler's estimate.
"""

import dataclasses
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench
import jax
import numpy as np
import optax
import tyro

import fedamp_jax
from fedamp_jax.data import from_lists

ROOT = Path(__file__).parents[1]


@dataclasses.dataclass
class Command(bench.Common):
    """What to measure."""

    before: str | None = None
    """A checkout of an earlier version, to be measured beside this one."""
    only: tuple[str, ...] = ()
    """Federations by name; all if none is named."""
    at_most: float = 6.0
    """GiB: a federation that an earlier version would pad to more is not made."""
    placement: str = "device"
    """Where clients live: device, mesh or host. A mesh has two devices."""
    hidden: tuple[int, ...] = ()
    """Widths of the hidden layers."""
    topology: str | None = None
    """Such as v5e:1x1, which takes the pip extra [aot]."""
    one: bool = False
    """Measure the one federation in this process, and print JSON."""


def lognormal(rng: np.random.Generator) -> np.ndarray:
    """3,500 clients, log-normal with median 30 and sigma 1.2 of the logarithm, cut to 1..2,000."""
    return np.clip(np.exp(rng.normal(np.log(30), 1.2, 3_500)), 1, 2_000).astype(int)


FEDERATIONS: dict[str, tuple[Callable[[np.random.Generator], Any], tuple[int, ...], type, int, int]] = {
    "2,000 of 20 images, one of 20,000": (lambda rng: [20] * 2_000 + [20_000], (28, 28), np.uint8, 1, 100),
    "200 of 20, one of 5,000": (lambda rng: [20] * 200 + [5_000], (100,), np.float32, 10, 20),
    "3,500 log-normal, 1 to 2,000": (lognormal, (100,), np.float32, 10, 20),
    "10,000 of 1 to 50": (lambda rng: rng.integers(1, 51, 10_000), (100,), np.float32, 10, 20),
    "20 of 70 to 30": (lambda rng: np.repeat([70, 60, 50, 40, 30], 4), (64,), np.float32, 10, 20),
}
"""By name: sizes, shape and dtype of an example, epochs and batch size."""
PARTS = {"2,000 of 20 images, one of 20,000": 20_000, "200 of 20, one of 5,000": 5_000}
"""Federations whose one large client is timed by itself, too: its size."""


def federation(name: str, sizes: list[int]) -> tuple[fedamp_jax.Data, int]:
    """The clients, and the bytes of their examples."""
    _, shape, dtype, *_ = FEDERATIONS[name]
    rng = np.random.default_rng(0)
    xs = [(rng.integers(0, 256, (n, *shape)) / (1 if dtype is np.uint8 else 255)).astype(dtype) for n in sizes]
    ys = [np.arange(n) % 10 for n in sizes]
    return from_lists(xs, ys, classes=10), sum(x.nbytes + 4 * len(x) for x in xs)


def placed(data: fedamp_jax.Data, where: str) -> fedamp_jax.Data:
    """The data where the command says."""
    places = fedamp_jax.placement
    if where == "mesh":
        return places.OnMesh(mesh=places.client_mesh(2)).place(data)
    return places.InHostMemory(device=jax.devices()[0]).place(data) if where == "host" else data


def model(name: str, command: Command) -> fedamp_jax.Task:
    """What is trained."""
    return fedamp_jax.models.mlp(10, hidden=command.hidden, shape=FEDERATIONS[name][1])


def method(name: str, command: Command) -> fedamp_jax.Algorithm:
    """FedAvg."""
    *_, epochs, batch = FEDERATIONS[name]
    return fedamp_jax.fedavg(model(name, command), fedamp_jax.Solver(optax.sgd(0.01), epochs, batch))


def rounds_of(algorithm: fedamp_jax.Algorithm, data: fedamp_jax.Data) -> Callable[[], Any]:
    """A function that trains for a round and returns the state."""
    held = {"state": data.placement.init(algorithm, jax.random.key(0), data)}

    def call() -> Any:
        held["state"], _ = fedamp_jax.round(algorithm, held["state"], data, jax.random.key(1))
        return held["state"]

    return call


def measure(name: str, command: Command) -> dict[str, Any]:
    """One row."""
    sizes = np.asarray(FEDERATIONS[name][0](np.random.default_rng(1))).tolist()
    _, shape, dtype, *_ = FEDERATIONS[name]
    row: dict[str, Any] = {"federation": name}
    if not hasattr(fedamp_jax.Data, "examples"):  # a version that pads
        padded = len(sizes) * max(sizes) * (np.prod(shape) * np.dtype(dtype).itemsize + 4) / 2**30
        if padded > command.at_most:
            return row | {"data / raw": f"not made: {padded:.3g} GiB"}
    data, raw = federation(name, sizes)
    held, algorithm = sum(a.nbytes for a in jax.tree.leaves(data)), method(name, command)
    if command.topology is not None:
        mesh = fedamp_jax.placement.topology(command.topology)
        found = fedamp_jax.estimate(algorithm, data, fedamp_jax.placement.OnMesh(mesh=mesh))
        return row | {"seconds": found.seconds, "memory (MB)": found.memory / 1e6, "GFLOP": found.flops / 1e9}
    data = placed(data, command.placement)
    together = rounds_of(algorithm, data)
    calls = {"together": together}
    if name in PARTS:
        parts = [[n for n in sizes if n < PARTS[name]], [PARTS[name]] * (2 if command.placement == "mesh" else 1)]
        for i, part in enumerate(parts):
            calls[f"part {i}"] = rounds_of(algorithm, placed(federation(name, part)[0], command.placement))
    seconds = bench.side_by_side(calls, command.repeats)
    row |= {"raw (MB)": raw / 1e6, "data / raw": held / raw, "seconds": seconds["together"]}
    if command.placement == "device":
        found = fedamp_jax.estimate(algorithm, data)
        personal = algorithm.personalize(jax.random.key(0), together(), data)
        models = 2 * sum(a.nbytes for a in jax.tree.leaves(personal.params))  # of all clients, before and after
        row["round / raw"] = found.memory / (raw + models)
        scores = {"evaluate": functools.partial(fedamp_jax.evaluate, model(name, command), personal, data)}
        row["evaluate (s)"] = bench.side_by_side(scores, command.repeats)["evaluate"]
    if name in PARTS:
        row["/ parts"] = seconds["together"] / (seconds["part 0"] + seconds["part 1"])
    return row


def main() -> None:
    """The command line."""
    command = tyro.cli(Command, description=__doc__)
    if command.one:
        if command.placement == "mesh":
            fedamp_jax.placement.split_cpu(2)
        print(json.dumps(measure(command.only[0], command)))
        return
    rows = []
    for name in command.only or FEDERATIONS:
        for version, root in (("before", command.before), ("now", ROOT)):
            if root is None:
                continue
            own = [sys.executable, __file__, "--one", "--only", name, "--repeats", str(command.repeats)]
            own += ["--placement", command.placement, "--at-most", str(command.at_most)]
            own += ["--hidden", *map(str, command.hidden)] if command.hidden else []
            own += [] if command.topology is None else ["--topology", command.topology]
            env = {**os.environ, "PYTHONPATH": str(Path(root).resolve())}
            done = subprocess.run(own, check=True, stdout=subprocess.PIPE, text=True, env=env)
            rows.append({"version": version, **json.loads(done.stdout.splitlines()[-1])})
    bench.show(__doc__.splitlines()[0], rows)
    bench.write(command.out, rows)


if __name__ == "__main__":
    main()
