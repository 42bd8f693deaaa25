"""Adapters of a sentence encoder beside whole copies of it: what a client's step takes, and the memory of a round.

python benchmarks/adapters.py
python benchmarks/adapters.py --clients 16 --out adapters.json

The encoder has the sizes of all-MiniLM-L6-v2 but for its vocabulary, and random weights. Clients train for one epoch
in batches of 8 texts with Adam; adapters of rank 8 are in the attention layers. `side by side` is how many clients run
at once. `ms per step`: of the median round, over the steps of all clients; all contestants take turns. `held` and
`working` are what the compiler plans for a round: its arguments, which are the base, all clients' models and their
data, and all else.
"""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import bench
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro

import fedamp_jax
from fedamp_jax import Placement, Solver, Task, Variables
from fedamp_jax.driver.rounds import need_of
from fedamp_jax.models import adapted, from_nnx

sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "text"))
import encoder

BATCH, CLASSES, VOCABULARY = 8, 6, 1_000


@dataclasses.dataclass
class Command(bench.Common):
    """What to measure."""

    clients: int = 8
    """How many."""
    steps: int = 2
    """Of a client in a round."""
    length: int = 32
    """Tokens of a text."""
    layers: int = 6
    """Of the encoder."""


def tasks(command: Command) -> dict[str, Task]:
    """The whole model, its adapters, and its head."""
    config = encoder.Config(VOCABULARY, 384, command.layers, 12, 1536, 512, 2, 1e-12)
    whole = from_nnx(lambda rngs: encoder.Classifier(config, CLASSES, rngs), (command.length,), dtype=jnp.int32)
    base = Variables({"body": whole.init(jax.random.key(0)).params["body"]})
    return {
        "whole model": adapted(whole, base, rank=0, train="*"),
        "adapters": adapted(whole, base, rank=8, where="attention"),
        "head": adapted(whole, base, rank=0),
    }


def clients(command: Command) -> fedamp_jax.Data:
    """Random texts."""
    rng, n = np.random.default_rng(0), BATCH * command.steps
    xs = [rng.integers(1, VOCABULARY, (n, command.length)) for _ in range(command.clients)]
    return fedamp_jax.data.from_lists(xs, [np.arange(n) % CLASSES for _ in xs], classes=CLASSES, keep_integers=True)


def main() -> None:
    """The command line."""
    command = tyro.cli(Command, description=__doc__)
    rows, calls, key = [], {}, jax.random.key(0)
    for name, task in tasks(command).items():
        algorithm = fedamp_jax.separate(task, Solver(optax.adam(1e-3), epochs=1, batch_size=BATCH))
        for chunk in (1, command.clients):
            data = Placement(chunk=chunk).place(clients(command))
            held = {"state": algorithm.init(key, data)}
            need = need_of(algorithm, held["state"], data, key, data.placement)

            def call(algorithm: Any = algorithm, data: Any = data, held: Any = held) -> Any:
                held["state"], _ = fedamp_jax.round(algorithm, held["state"], data, key)
                return held["state"]

            calls[name, chunk] = call
            memory = {} if need is None else {"held (MB)": need.held / 1e6, "working (MB)": need.working / 1e6}
            rows.append({"a client trains": name, "side by side": chunk, **memory})
    seconds = bench.side_by_side(calls, command.repeats)  # pyright: ignore[reportArgumentType]
    for row in rows:
        of = seconds[row["a client trains"], row["side by side"]]  # pyright: ignore[reportArgumentType]
        row["ms per step"] = 1e3 * of / (command.clients * command.steps)
    bench.show(__doc__.splitlines()[0], rows)
    bench.write(command.out, rows)


if __name__ == "__main__":
    main()
