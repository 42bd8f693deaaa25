"""What PFLEGO's tau local steps cost: about two passes through the body, however large tau is.

python benchmarks/pflego_cost.py

FedPer and PFLEGO with the same tau, the CNN of McMahan et al. and full batches (PFLEGO, Section 4: FedPer takes tau
steps through the whole network). FLOPs are those of the layers: FedPer tau forward and backward passes, PFLEGO one
forward pass for the features, tau - 1 steps of the head on them, and one joint gradient.
"""

import dataclasses
from typing import Any

import bench
import jax
import numpy as np
import optax
import tyro

import fedamp_jax
from fedamp_jax import Solver
from fedamp_jax.data import from_lists


@dataclasses.dataclass
class Command(bench.Common):
    """What to measure."""

    taus: tuple[int, ...] = (1, 5, 20, 50)
    """Numbers of local steps."""
    clients: int = 2
    examples: int = 100
    """Of each client; also the batch."""


def rounds_of(algorithm: fedamp_jax.Algorithm, data: fedamp_jax.Data) -> Any:
    """A call that does a round."""
    held = {"state": algorithm.init(jax.random.key(0), data)}

    def call() -> Any:
        held["state"], _ = fedamp_jax.round(algorithm, held["state"], data, jax.random.key(1))
        return held["state"]

    return call


def measure(tau: int, command: Command, data: fedamp_jax.Data) -> dict[str, Any]:
    """One row."""
    task = fedamp_jax.models.cnn(10)
    forward = bench.layers(fedamp_jax.models.cnn(10, conv="xla"), task.init(jax.random.key(0)), data.examples(0)[0])
    training, head = bench.training_flops(forward), 2 * forward[-1]  # features are given: no gradient towards them
    solver = Solver(optax.sgd(0.01), epochs=tau, batch_size=command.examples)
    calls = {
        "fedper": rounds_of(fedamp_jax.fedper(task, solver), data),
        "pflego": rounds_of(fedamp_jax.pflego(task, solver, beta=0.01, rho=0.01), data),
    }
    times = bench.side_by_side(calls, command.repeats)
    counted = {"fedper": tau * training, "pflego": sum(forward[:-1]) + (tau - 1) * head + training}
    return {
        "tau": tau, "FedPer (s)": times["fedper"], "PFLEGO (s)": times["pflego"],
        "FedPer / PFLEGO": times["fedper"] / times["pflego"],
        "by FLOPs": counted["fedper"] / counted["pflego"],
        "PFLEGO in passes": counted["pflego"] / training,
    }  # fmt: skip


def main() -> None:
    """The command line."""
    command = tyro.cli(Command, description=__doc__)
    rng = np.random.default_rng(0)
    xs = [rng.integers(0, 256, (command.examples, 28, 28)).astype(np.uint8) for _ in range(command.clients)]
    data = from_lists(xs, [np.arange(command.examples) % 10 for _ in xs], classes=10)
    rows = [measure(tau, command, data) for tau in command.taus]
    bench.show(__doc__.splitlines()[0], rows)
    bench.write(command.out, rows)


if __name__ == "__main__":
    main()
