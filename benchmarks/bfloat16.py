"""Does computing in bfloat16 change what is learned? The same training in float32 and bfloat16, over several seeds.

python benchmarks/bfloat16.py --data-dir DIR
python benchmarks/bfloat16.py --rows resnet18 --data-dir DIR --seeds 0 1 2

`mnist-mlp` is ten rounds of FedAMP in the practical setting, and its test accuracy; `resnet18` twenty steps of local
training on CIFAR-100 for two clients, and their mean training loss. A seed has the same data, initial models and
batches in both. Parameters, optimizer, statistics and sums are float32 in both.
"""

import dataclasses
from typing import Any, Literal

import bench
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro

import fedamp_jax
from fedamp_jax.experiments import paper_values


@dataclasses.dataclass
class Command(bench.Common):
    """What to train."""

    rows: tuple[Literal["mnist-mlp", "resnet18"], ...] = ("mnist-mlp", "resnet18")
    data_dir: str | None = None
    """Folder with mnist.npz and cifar100.npz. Default: download."""
    seeds: tuple[int, ...] = (0, 1, 2)
    rounds: int = 10
    """Of mnist-mlp."""


def mnist(seed: int, dtype: Any, command: Command) -> float:
    """Mean test accuracy in percent after the last round."""
    clients = fedamp_jax.data.federation("mnist", "practical", data_dir=command.data_dir, seed=seed)
    task = fedamp_jax.models.mlp(10, compute_dtype=dtype)
    weights = paper_values.self_weights("practical", clients)
    sigma = paper_values.sigma("practical", "mnist", "FedAMP")
    algorithm = fedamp_jax.fedamp(task, fedamp_jax.Solver(optax.adam(1e-3)), sigma=sigma, self_weight=weights)
    result = fedamp_jax.run(
        task, algorithm, clients.train, clients.test, rounds=command.rounds, seed=seed, evaluate_every=command.rounds
    )
    return 100.0 * float(result.accuracy[-1].mean())


def resnet(seed: int, dtype: Any, command: Command) -> float:
    """Mean training loss of the second ten steps."""
    train = fedamp_jax.data.federation("cifar100", "practical", data_dir=command.data_dir, seed=seed).train
    some = train.select(np.arange(0, train.clients, 50))
    task = fedamp_jax.models.resnet18(100, compute_dtype=dtype)
    steps = fedamp_jax.Solver(optax.adam(1e-3), epochs=2, batch_size=int(np.ceil(some.longest / 5)))
    algorithm = fedamp_jax.separate(task, steps)
    key = jax.random.key(seed)
    state = algorithm.init(key, some)
    for k in range(2):
        state, info = fedamp_jax.round(algorithm, state, some, jax.random.fold_in(key, k))
    return float(info.loss.mean())


def main() -> None:
    """The command line."""
    command = tyro.cli(Command, description=__doc__)
    measures = {"mnist-mlp": ("accuracy, %", mnist), "resnet18": ("loss", resnet)}
    rows = []
    for name in command.rows:
        unit, measure = measures[name]
        found = {d: [measure(s, jnp.dtype(d), command) for s in command.seeds] for d in ("float32", "bfloat16")}
        gaps = np.subtract(found["bfloat16"], found["float32"])
        row: dict[str, Any] = {"training": name, "measured": unit}
        row |= {f"{d}, mean": float(np.mean(values)) for d, values in found.items()}
        row |= {"std over seeds": float(np.std(found["float32"], ddof=1)), "largest difference": float(abs(gaps).max())}
        rows.append({**row, "mean difference": float(gaps.mean())})
        bench.show(__doc__.splitlines()[0], rows)
    bench.write(command.out, rows, seeds=list(command.seeds))


if __name__ == "__main__":
    main()
