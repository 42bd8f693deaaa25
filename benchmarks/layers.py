"""Where a step's time goes: every layer on its own, forward and backward, one client on one device.

python benchmarks/layers.py
python benchmarks/layers.py --model resnet18

Each row is jitted alone, so that what XLA fuses into a neighbour is counted with the layer. GFLOP/s beside those of a
matrix product in the same process.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import bench
import jax
import jax.numpy as jnp
import optax
import tyro

from fedamp_jax.kernels.convolution import conv_general_dilated
from fedamp_jax.kernels.pooling import max_pool
from fedamp_jax.models.resnet import Norm

BATCH = 100


@dataclasses.dataclass
class Command(bench.Common):
    """What to measure."""

    model: Literal["cnn", "resnet18"] = "cnn"
    """Whose layers."""
    steps: int = 10
    """Repetitions within one timing, in a loop as in training."""


def random(*shape: int) -> jax.Array:
    """Normal numbers."""
    return jax.random.normal(jax.random.key(len(shape)), shape)


def convolve(x: jax.Array, w: jax.Array, stride: int = 1) -> jax.Array:
    """A layer's convolution."""
    return conv_general_dilated(x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


def back(fn: Callable, which: int) -> Callable:
    """The gradient with respect to one of two arguments, given the result's."""
    return lambda a, b, g: jax.vjp(lambda v: fn(v, b) if which == 0 else fn(a, v), a if which == 0 else b)[1](g)[0]


Part = tuple[Callable[..., Any], tuple, float, int]
"""A function, its arguments, its floating point operations (0: none worth counting), and how often a step has it."""


def convolution(name: str, size: int, kernel: int, width: int, out: int, stride: int, times: int) -> dict[str, Part]:
    """A convolution of images `size` wide with `width` channels to `out` channels, forward and both gradients."""
    x, w = random(BATCH, size, size, width), random(kernel, kernel, width, out)
    y = random(BATCH, size // stride, size // stride, out)
    ops = 2.0 * y.size * kernel * kernel * width
    fn = functools.partial(convolve, stride=stride)
    made = {name: (fn, (x, w), ops, times), f"{name}, to its kernel": (back(fn, 1), (x, w, y), ops, times)}
    if width > 3:  # the first layer needs no gradient towards its images
        made[f"{name}, to its input"] = (back(fn, 0), (x, w, y), ops, times)
    return made


def cnn() -> dict[str, Part]:
    """The CNN of FedAMP's experiments."""
    y1, x2, flat, hidden = random(BATCH, 28, 28, 32), random(BATCH, 14, 14, 32), random(BATCH, 3136), random(BATCH, 512)
    dense = random(3136, 512)
    ops = 2.0 * BATCH * 3136 * 512
    weights = [random(5, 5, 1, 32), random(5, 5, 32, 64), dense, random(512, 10)]
    adam = optax.adam(1e-3)

    def pool(x):
        return max_pool(jax.nn.relu(x), 2, 2, "VALID")

    return {
        **convolution("first convolution", 28, 5, 1, 32, 1, 1),
        **convolution("second convolution", 14, 5, 32, 64, 1, 1),
        "ReLU and pooling, first": (pool, (y1,), 0.0, 1),
        "ReLU and pooling, first, backward": (lambda x, g: jax.vjp(pool, x)[1](g)[0], (y1, x2), 0.0, 1),
        "dense": (jnp.matmul, (flat, dense), ops, 1),
        "dense, to its input": (lambda g, w: g @ w.T, (hidden, dense), ops, 1),
        "dense, to its kernel": (lambda x, g: x.T @ g, (flat, hidden), ops, 1),
        "Adam": (lambda g, s: adam.update(g, s), (weights, adam.init(weights)), 0.0, 1),
    }


def resnet18() -> dict[str, Part]:
    """ResNet18 on 32x32 images; normalisation as one part for every size of image, with the ReLU behind it."""
    made = convolution("stem, 3 to 64 at 32x32", 32, 3, 3, 64, 1, 1)
    norms, module, mask = {}, Norm("batch", jnp.float32), jnp.ones(BATCH, bool)

    def norm(x: jax.Array, own: Any) -> jax.Array:
        return jax.nn.relu(module.apply(own, x, True, mask, mutable=["batch_stats"])[0])

    for stage, width in enumerate((64, 128, 256, 512)):
        size, last = 32 >> stage, width // 2
        if stage:
            made |= convolution(f"3x3, {last} to {width}, step 2", 2 * size, 3, last, width, 2, 1)
            made |= convolution(f"1x1, {last} to {width}, step 2", 2 * size, 1, last, width, 2, 1)
        made |= convolution(f"3x3, {width} to {width} at {size}x{size}", size, 3, width, width, 1, 3 if stage else 4)
        x, own = (
            random(BATCH, size, size, width),
            module.init(jax.random.key(0), random(1, 1, 1, width), True, mask[:1]),
        )
        name = f"BatchNorm and ReLU at {size}x{size}"
        norms[name] = (norm, (x, own), 0.0, 5)
        norms[f"{name}, backward"] = (back(norm, 0), (x, own, x), 0.0, 5)
    adam, weights = optax.adam(1e-3), [random(11_220_132)]
    return {**made, **norms, "Adam": (lambda g, s: adam.update(g, s), (weights, adam.init(weights)), 0.0, 1)}


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
    made = {"cnn": cnn, "resnet18": resnet18}[command.model]()
    calls = {name: repeated(fn, args, command.steps) for name, (fn, args, _, _) in made.items()}
    product, flops = bench.matmul()
    measured = bench.side_by_side({**calls, "peak": product}, command.repeats)
    peak = flops / measured["peak"] / 1e9
    seconds = {name: measured[name] / command.steps * times for name, (_, _, _, times) in made.items()}
    total = sum(seconds.values())
    rows = []
    for name, (_, _, ops, times) in made.items():
        speed = ops * times / seconds[name] / 1e9 if ops else None
        rows.append({"part": name, "times": times, "ms": 1e3 * seconds[name], "of all (%)": 100 * seconds[name] / total,
                     "GFLOP/s": speed, "of peak (%)": None if speed is None else 100 * speed / peak})  # fmt: skip
    speed = sum(ops * times for _, _, ops, times in made.values()) / total / 1e9
    rows.append({"part": "all", "times": None, "ms": 1e3 * total, "of all (%)": 100.0, "GFLOP/s": speed,
                 "of peak (%)": 100 * speed / peak})  # fmt: skip
    bench.show(__doc__.splitlines()[0], rows, [f"matrix product: {peak:.0f} GFLOP/s"])
    bench.write(command.out, rows, peak_gflops=peak)


if __name__ == "__main__":
    main()
