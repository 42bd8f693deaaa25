"""What the card can do: copies, products by precision, and what a kernel inside a loop costs."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import bench
import jax
import jax.numpy as jnp

from on_gpu.launches import launched
from on_gpu.record import Job, Settings
from on_gpu.rounds import machine


def jobs(settings: Settings) -> Iterator[Job]:
    """In the order of their use."""
    yield "machine", machine
    yield "copy", lambda: copy(1 << (16 if settings.tiny else 28))
    yield "launches", lambda: launches(10 if settings.tiny else 2000)
    n = 64 if settings.tiny else 8192
    for name, dtype, precision in (
        ("tf32", jnp.float32, "default"), ("bfloat16", jnp.bfloat16, "default"), ("float32", jnp.float32, "highest"),
        ("three tf32", jnp.float32, "high"),
    ):  # fmt: skip
        yield f"product {name}", lambda d=dtype, p=precision: product(n, d, p)
    yield "product float64", lambda: product(n // 2, jnp.float64, "default")


def median(call: Callable[[], Any], repeats: int = 7) -> dict[str, float]:
    """Seconds, the median and the extremes, of a call that is warm."""
    bench.timed(call)
    times = sorted(bench.timed(call) for _ in range(repeats))
    return {"seconds": times[repeats // 2], "least": times[0], "most": times[-1]}


def copy(length: int) -> dict[str, Any]:
    """Bytes read and written by a kernel that does next to nothing else."""
    a = jnp.ones((length,), jnp.float32)
    scaled = jax.jit(lambda a: a * 2.0)
    found = median(lambda: scaled(a))
    return {**found, "gbs": 2 * a.nbytes / found["seconds"] / 1e9}


def product(n: int, dtype: Any, precision: str) -> dict[str, Any]:
    """A square matrix product."""
    with jax.enable_x64(dtype == jnp.float64), jax.default_matmul_precision(precision):
        call, flops = bench.matmul(dtype, n)
        found = median(call)
    return {**found, "tflops": flops / found["seconds"] / 1e12}


def launches(steps: int) -> dict[str, Any]:
    """Microseconds of a small kernel within a compiled loop, where no arithmetic is to be waited for."""

    def body(_: Any, a: jax.Array) -> jax.Array:
        for _ in range(8):  # products are not fused with each other
            a = a @ a
        return a

    a = jnp.eye(16, dtype=jnp.float32)
    began = time.perf_counter()
    program = jax.jit(lambda a: jax.lax.fori_loop(0, steps, body, a)).lower(a).compile()
    compiling = time.perf_counter() - began
    found = median(lambda: program(a))
    kernels = launched(program.as_text() or "").kernels
    each = 1e6 * found["seconds"] / max(kernels, 1)
    return {**found, "kernels": kernels, "us_per_kernel": each, "compiling": compiling}
