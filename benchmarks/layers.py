"""Where a step's time goes: every layer of the CNN on its own, forward and backward, one client on one device.

python benchmarks/layers.py

Each row is jitted alone, so that what XLA fuses into a neighbour is counted with the layer. GFLOP/s beside those of a
matrix product in the same process.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import bench
import jax
import jax.numpy as jnp
import optax
import tyro

from fedamp_jax.models.layers import conv_general_dilated
from fedamp_jax.models.pooling import max_pool

BATCH = 100


@dataclasses.dataclass
class Command(bench.Common):
    """What to measure."""

    steps: int = 10
    """Repetitions within one timing, in a loop as in training."""


def random(*shape: int) -> jax.Array:
    """Normal numbers."""
    return jax.random.normal(jax.random.key(len(shape)), shape)


def convolve(x: jax.Array, w: jax.Array) -> jax.Array:
    """A layer's convolution."""
    return conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def parts() -> dict[str, tuple[Callable[..., Any], tuple, float]]:
    """By name: a function, its arguments, and its floating point operations (0: none worth counting)."""
    x1, w1, x2, w2 = random(BATCH, 28, 28, 1), random(5, 5, 1, 32), random(BATCH, 14, 14, 32), random(5, 5, 32, 64)
    y1, y2, flat, hidden = random(BATCH, 28, 28, 32), random(BATCH, 14, 14, 64), random(BATCH, 3136), random(BATCH, 512)
    dense = random(3136, 512)
    ops1, ops2, ops3 = (2.0 * BATCH * n for n in (28 * 28 * 25 * 32, 14 * 14 * 25 * 32 * 64, 3136 * 512))
    cnn = [random(5, 5, 1, 32), random(5, 5, 32, 64), dense, random(512, 10)]
    adam = optax.adam(1e-3)

    def back(fn: Callable, which: int) -> Callable:
        """The gradient with respect to one of two arguments, given the result's."""
        return lambda a, b, g: jax.vjp(lambda v: fn(v, b) if which == 0 else fn(a, v), a if which == 0 else b)[1](g)[0]

    pool = lambda x: max_pool(jax.nn.relu(x), 2, 2, "VALID")  # noqa: E731
    return {
        "first convolution": (convolve, (x1, w1), ops1),
        "first convolution, to its kernel": (back(convolve, 1), (x1, w1, y1), ops1),
        "second convolution": (convolve, (x2, w2), ops2),
        "second convolution, to its input": (back(convolve, 0), (x2, w2, y2), ops2),
        "second convolution, to its kernel": (back(convolve, 1), (x2, w2, y2), ops2),
        "ReLU and pooling, first": (pool, (y1,), 0.0),
        "ReLU and pooling, first, backward": (lambda x, g: jax.vjp(pool, x)[1](g)[0], (y1, x2), 0.0),
        "dense": (jnp.matmul, (flat, dense), ops3),
        "dense, to its input": (lambda g, w: g @ w.T, (hidden, dense), ops3),
        "dense, to its kernel": (lambda x, g: x.T @ g, (flat, hidden), ops3),
        "Adam": (lambda g, s: adam.update(g, s), (cnn, adam.init(cnn)), 0.0),
    }


def repeated(fn: Callable[..., Any], args: tuple, steps: int) -> Callable[[], Any]:
    """A call that runs `fn` so many times within a compiled loop, each on what the last one left."""

    @jax.jit
    def loop(args):
        def body(_, carry):
            args, total = carry
            out = fn(*args)
            total += sum(jnp.sum(leaf.ravel()[:1]).astype(jnp.float32) for leaf in jax.tree.leaves(out))
            moved = jax.tree.map(lambda a: a + (0 * total).astype(a.dtype), args)  # or XLA would do it once
            return moved, total

        return jax.lax.fori_loop(0, steps, body, (args, jnp.float32(0)))[1]

    return lambda: loop(args)


def main() -> None:
    """The command line."""
    command = tyro.cli(Command, description=__doc__)
    made = parts()
    calls = {name: repeated(fn, args, command.steps) for name, (fn, args, _) in made.items()}
    product, flops = bench.matmul()
    times = bench.side_by_side({**calls, "peak": product}, command.repeats)
    peak = flops / times["peak"] / 1e9
    total = sum(times[name] for name in calls) / command.steps
    rows = []
    for name, (_, _, ops) in made.items():
        seconds = times[name] / command.steps
        speed = ops / seconds / 1e9 if ops else None
        rows.append({"part": name, "ms": 1e3 * seconds, "of all (%)": 100 * seconds / total, "GFLOP/s": speed,
                     "of peak (%)": None if speed is None else 100 * speed / peak})  # fmt: skip
    rows.append({"part": "all", "ms": 1e3 * total, "of all (%)": 100.0, "GFLOP/s": None, "of peak (%)": None})
    bench.show(__doc__.splitlines()[0], rows, [f"matrix product: {peak:.0f} GFLOP/s"])
    bench.write(command.out, rows, peak_gflops=peak)


if __name__ == "__main__":
    main()
