"""Adapters of a sentence encoder beside whole copies of it, and beside PyTorch with peft.

python benchmarks/adapters.py
python benchmarks/adapters.py --batch 64 --length 64 --clients 2 --torch /path/to/python
python benchmarks/adapters.py --memory --clients 100 --steps 1 --torch /path/to/python

The encoder has the sizes of all-MiniLM-L6-v2 but for its vocabulary, and random weights. Clients train for one epoch
with a fresh Adam; adapters of rank 8 are in the attention layers. `side by side` is how many clients run at once on a
device. `ms per step`: of the median round, over the steps of all clients; all contestants take turns. `held` and
`working` are what the compiler plans for a round: its arguments, which are the base, all clients' models and their
data, and all else. `--torch` names a Python that has torch, transformers and peft (see `torch_adapters.py`); it runs in
a process of its own.

`--memory` measures resident memory of one process for each contestant in place of time: when it is over, and at its
peak, each less what the process had after its imports.
"""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import bench
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro
from resident import resident

import fedamp_jax
from fedamp_jax import Placement, Solver, Task, Variables
from fedamp_jax.driver.rounds import need_of
from fedamp_jax.models import adapted, from_nnx
from fedamp_jax.placement import OnMesh, client_mesh, split_cpu

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "text"))
import encoder

CLASSES, VOCABULARY = 6, 1_000
TORCH = ("peft", "swapped", "swapped, client per core")


@dataclasses.dataclass
class Command(bench.Common):
    """What to measure."""

    clients: int = 8
    """How many."""
    steps: int = 2
    """Of a client in a round."""
    batch: int = 8
    """Texts of a step."""
    length: int = 32
    """Tokens of a text."""
    layers: int = 6
    """Of the encoder."""
    devices: int = 1
    """Cut the CPU into so many devices."""
    torch: str | None = None
    """A Python with torch, transformers and peft."""
    only: str | None = None
    """One of `whole model`, `adapters` and `head`."""
    memory: bool = False
    """Measure resident memory in place of time, each contestant in a process of its own."""


def config_of(command: Command) -> encoder.Config:
    """The encoder's sizes."""
    return encoder.Config(VOCABULARY, 384, command.layers, 12, 1536, 512, 2, 1e-12)


def tasks(command: Command) -> dict[str, Task]:
    """The whole model, its adapters, and its head."""
    config = config_of(command)
    whole = from_nnx(lambda rngs: encoder.Classifier(config, CLASSES, rngs), (command.length,), dtype=jnp.int32)
    base = Variables({"body": whole.init(jax.random.key(0)).params["body"]})
    made = {
        "whole model": adapted(whole, base, rank=0, train="*"),
        "adapters": adapted(whole, base, rank=8, where="attention"),
        "head": adapted(whole, base, rank=0),
    }
    return {name: task for name, task in made.items() if command.only in (None, name)}


def clients(command: Command) -> fedamp_jax.Data:
    """Random texts."""
    rng, n = np.random.default_rng(0), command.batch * command.steps
    xs = [rng.integers(1, VOCABULARY, (n, command.length)) for _ in range(command.clients)]
    return fedamp_jax.data.from_lists(xs, [np.arange(n) % CLASSES for _ in xs], classes=CLASSES, keep_integers=True)


def torch_calls(command: Command, names: tuple[str, ...] = TORCH) -> dict[str, Callable[[], Any]]:
    """Rounds of the contestants in PyTorch, which return `{"memory": row}`."""
    if command.torch is None:
        return {}
    process = subprocess.Popen(
        [command.torch, "-W", "ignore", str(Path(__file__).with_name("torch_adapters.py"))],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    given, found = process.stdin, process.stdout
    assert given is not None and found is not None

    def call(name: str) -> Any:
        texts = command.batch * command.steps
        question = {"name": name, "sizes": config_of(command)._asdict(), "clients": command.clients, "texts": texts}
        given.write(json.dumps({**question, "length": command.length, "batch": command.batch}) + "\n")
        given.flush()
        return json.loads(found.readline())

    return {f"PyTorch, {name}": lambda name=name: call(name) for name in names}


def contestants(command: Command) -> tuple[list[dict[str, Any]], dict[Any, Callable[[], Any]]]:
    """Rows without times, and a call for each, by what it trains and how many stand side by side."""
    rows, calls, key = [], {}, jax.random.key(0)
    for name, task in tasks(command).items():
        algorithm = fedamp_jax.separate(task, Solver(optax.adam(1e-3), epochs=1, batch_size=command.batch))
        for chunk in sorted({1, command.clients // command.devices}):
            place = Placement(chunk=chunk)
            if command.devices > 1:
                place = OnMesh(mesh=client_mesh(command.devices), chunk=chunk)
            data = place.place(clients(command))
            held = {"state": place.init(algorithm, key, data)}
            need = need_of(algorithm, held["state"], data, key, data.placement)

            def call(algorithm: Any = algorithm, data: Any = data, held: Any = held) -> Any:
                held["state"], _ = fedamp_jax.round(algorithm, held["state"], data, key)
                return held["state"]

            calls[name, chunk] = call
            memory = {} if need is None else {"held (MB)": need.held / 1e6, "working (MB)": need.working / 1e6}
            rows.append({"a client trains": name, "side by side": chunk, **memory})
    for name, call in torch_calls(command).items():
        calls[name, None] = call
        rows.append({"a client trains": name, "side by side": None, "held (MB)": None, "working (MB)": None})
    return rows, calls


def measure_memory(command: Command) -> list[dict[str, Any]]:
    """Rows of one process each, of one round. With `only`: of this process, without those of PyTorch."""
    if command.only is None:
        rows = []
        for only in ("adapters", "whole model"):
            words = ["--memory", "--only", only, "--clients", str(command.clients), "--steps", str(command.steps)]
            words += ["--batch", str(command.batch), "--length", str(command.length), "--layers", str(command.layers)]
            done = subprocess.run([sys.executable, __file__, *words], capture_output=True, text=True, check=True)
            rows.append(json.loads(done.stdout.splitlines()[-1]))
        for name in TORCH:
            for full, call in torch_calls(command, (name,)).items():
                rows.append({"a client trains": full, **call()["memory"]})
        return rows
    jax.block_until_ready(jnp.zeros(()) + 1)
    before = resident()[0]
    task, key = tasks(command)[command.only], jax.random.key(0)
    algorithm = fedamp_jax.separate(task, Solver(optax.adam(1e-3), epochs=1, batch_size=command.batch))
    data = Placement(chunk=1).place(clients(command))
    state = fedamp_jax.round(algorithm, algorithm.init(key, data), data, key)[0]
    jax.block_until_ready(state)
    now, peak = resident()
    row = {"after a round (MB)": now - before, "peak (MB)": peak - before}
    return [{"a client trains": command.only, **row}]


def main() -> None:
    """The command line."""
    command = tyro.cli(Command, description=__doc__)
    if command.devices > 1:
        split_cpu(command.devices)
    if command.memory:
        rows = measure_memory(command)
        if command.only is not None:
            print(json.dumps(rows[0]))
            return
    else:
        rows, calls = contestants(command)
        product, flops = bench.matmul()
        seconds = bench.side_by_side({**calls, "peak": product}, command.repeats)
        for row, call in zip(rows, calls, strict=True):
            row["ms per step"] = 1e3 * seconds[call] / (command.clients * command.steps)
        print(f"a matrix product: {flops / seconds['peak'] / 1e9:.0f} GFLOP/s")
    bench.show(__doc__.splitlines()[0], rows)
    bench.write(command.out, rows)


if __name__ == "__main__":
    main()
