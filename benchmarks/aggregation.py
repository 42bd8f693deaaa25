"""The server's part of a round: distances, attention weights and cloud models, against what the machine can do.

python benchmarks/aggregation.py
python benchmarks/aggregation.py --clients 100 --parameters 1663370 --local-ms 45

`product` is one plain float32 matrix product `[M, M] @ [M, D]` at the same precision: the cloud models alone cannot be
had for less. `copies` is the time in GB moved: distances and product read `W [M, D]` each, and the product writes `U`.
`differences` is the slower way to the distances (see `fedamp_jax/kernels/distances.py`), which a TPU takes. The errors
are those against float64 on clients that nearly coincide: of d^2, relative to the largest d^2, and of U, relative to
the largest parameter.
"""

import dataclasses
from typing import Any

import bench
import jax
import jax.numpy as jnp
import numpy as np
import tyro

from fedamp_jax import attention
from fedamp_jax.engine import server
from fedamp_jax.kernels import distances

EPOCHS, STEPS = 10, 3  # of a round of the paper's practical MNIST: 10 passes over 300 examples on average


@dataclasses.dataclass
class Command(bench.Common):
    """What to measure."""

    clients: tuple[int, ...] = (10, 100, 1000)
    """Numbers of clients."""
    parameters: tuple[int, ...] = (100_000, 1_663_370, 10_000_000)
    """Parameters of a model."""
    local_ms: float | None = None
    """Milliseconds of a local step (see local_training.py): then the share of a whole round is shown."""
    memory: float = 10.0
    """GB: what would need more is left out."""


def errors(models: np.ndarray, xi: np.ndarray, sigma: float) -> tuple[float, float]:
    """Of the squared distances and of the cloud models, against float64, over the first parameters."""
    some = models[:, :20_000].astype(np.float64)
    exact = np.stack([((some - row) ** 2).sum(1) for row in some])
    ours = np.asarray(server.sq_dists({"w": jnp.asarray(some, jnp.float32)}), np.float64)
    clouds = np.asarray(server.mix(jnp.asarray(xi), {"w": jnp.asarray(some, jnp.float32)})["w"], np.float64)
    mixed = xi.astype(np.float64) @ some
    return float(np.abs(ours - exact).max() / exact.max()), float(np.abs(clouds - mixed).max() / np.abs(mixed).max())


def measure(m: int, d: int, command: Command) -> dict[str, Any]:
    """One row."""
    base = jax.random.normal(jax.random.key(0), (1, d))
    tree = {"w": base + 1e-3 * jax.random.normal(jax.random.key(1), (m, d))}  # training moves models little
    sigma, online = 2e-6 * d, jnp.ones((m,), bool)
    product_of = jax.jit(lambda xi, tree: jnp.matmul(xi, tree["w"], precision="highest"))

    @jax.jit
    def weigh(tree):
        numbers = {"sigma": jnp.float32(sigma), "alpha": jnp.float32(1e4), "self_weight": jnp.float32(0.1)}
        return attention.fedamp_weights(tree, attention.edges(online, online), **numbers)

    aggregate = jax.jit(lambda tree: server.mix(weigh(tree), tree))
    xi = weigh(tree)
    gram, differences = jax.jit(server.sq_dists), jax.jit(distances.by_differences)
    calls = {
        "aggregate": lambda: aggregate(tree),
        "distances": lambda: gram(tree),
        "differences": lambda: differences(tree["w"], jnp.ones((m,), jnp.float32)),
        "product": lambda: product_of(xi, tree),
    }
    times = bench.side_by_side(calls, command.repeats)
    d2_error, u_error = errors(np.asarray(tree["w"]), np.asarray(xi), sigma)
    row = {
        "clients": m, "parameters": d, "seconds": times["aggregate"], "of which distances": times["distances"],
        "differences": times["differences"], "product": times["product"],
        "times product": times["aggregate"] / times["product"],
        "copies (GB/s)": 3 * 4 * m * d / times["aggregate"] / 1e9, "error of d2": d2_error, "error of U": u_error,
    }  # fmt: skip
    if command.local_ms is not None:
        training = m * EPOCHS * STEPS * command.local_ms / 1e3
        row["of a round (%)"] = 100 * times["aggregate"] / (times["aggregate"] + training)
    return row


def main() -> None:
    """The command line."""
    command = tyro.cli(Command, description=__doc__)
    rows = []
    for d in command.parameters:
        for m in command.clients:
            if 3.5 * 4 * m * d < command.memory * 1e9:
                rows.append(measure(m, d, command))
    bench.show(__doc__.splitlines()[0], rows)
    bench.write(command.out, rows)


if __name__ == "__main__":
    main()
