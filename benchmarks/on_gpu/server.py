"""The server's part of a round: distances and cloud models of 100 clients, how fast and how exact."""

import functools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedamp_jax.kernels import distances
from fedamp_jax.types import Array
from on_gpu.peaks import median
from on_gpu.record import Job, Settings

SIZES = {"cnn": 1_663_370, "resnet18": 11_220_132}
"""Parameters of a model."""

BLOCK = 8192


def models(m: int, d: int) -> Array:
    """`[M, D]`: four groups of clients a little apart from each other, and clients of a group that nearly coincide."""

    @jax.jit
    def made(key):
        common, groups, own = jax.random.split(key, 3)
        base = 0.05 * jax.random.normal(common, (1, d)) + 1e-3 * jax.random.normal(groups, (4, d))
        return base[jnp.arange(m) % 4] + 1e-5 * jax.random.normal(own, (m, d))

    return made(jax.random.key(0))


def in_blocks(add: Callable[[Any, Array], Any], start: Any, w: Array) -> Any:
    """A carry to which the columns of `w [M, D]` are added, a block at a time."""
    whole, rest = divmod(w.shape[1], BLOCK)
    carry = lax.fori_loop(0, whole, lambda i, c: add(c, lax.dynamic_slice_in_dim(w, i * BLOCK, BLOCK, 1)), start)
    return add(carry, w[:, whole * BLOCK :]) if rest else carry


def from_gram(gram: Array) -> Array:
    """Squared distances from `[M, M]` products."""
    norms = jnp.diagonal(gram)
    d2 = jnp.maximum(norms[:, None] + norms[None] - 2 * gram, 0)
    return jnp.where(jnp.eye(len(gram), dtype=bool), jnp.zeros((), d2.dtype), d2).astype(jnp.float32)


def exact(w: Array) -> Array:
    """Differences in float64, the yardstick of the others."""
    with jax.enable_x64(True):

        def add(total: Array, block: Array) -> Array:
            wide = block.astype(jnp.float64)

            def one(row):
                return jnp.sum(jnp.square(row[None] - wide), axis=1)

            return total + lax.map(one, wide)

        return in_blocks(add, jnp.zeros((len(w),) * 2, jnp.float64), w)


def compensated(w: Array) -> Array:
    """A Gram matrix in float32 of what differs from the first client, blocks added up with their rounding errors."""

    def add(carry: tuple[Array, Array], block: Array) -> tuple[Array, Array]:
        total, lost = carry
        block = block - block[:1]
        part = jnp.matmul(block, block.T, precision="highest") + lost
        new = total + part
        return new, part - (new - total)

    zero = jnp.zeros((len(w),) * 2, jnp.float32)
    return from_gram(in_blocks(add, (zero, zero), w)[0])


def blocked(w: Array) -> Array:
    """The same, with the blocks' products in float32 added up in float64: few additions, whatever they cost."""
    with jax.enable_x64(True):

        def add(total: Array, block: Array) -> Array:
            block = block - block[:1]
            return total + jnp.matmul(block, block.T, precision="highest").astype(jnp.float64)

        return from_gram(in_blocks(add, jnp.zeros((len(w),) * 2, jnp.float64), w))


def wide_blocks(w: Array) -> Array:
    """`gram` in blocks of 64 MB in place of 2, which are for a CPU's cache: a sixteenth of the kernels or less."""
    with mock.patch.object(distances, "_BLOCK_NUMBERS", 1 << 23):
        return distances.by_gram(w, jnp.ones(len(w), jnp.float32))


def differences_by_row(w: Array) -> Array:
    """Differences in float32 without tiles: all pairs of a client in one kernel."""

    def add(total: Array, block: Array) -> Array:
        return total + jax.vmap(lambda row: jnp.sum(jnp.square(row[None] - block), axis=1))(block)

    return in_blocks(add, jnp.zeros((len(w),) * 2, jnp.float32), w)


def ways() -> dict[str, Callable[[Array], Array]]:
    """Functions from `[M, D]` to squared distances; the first two are those of `platforms.py`."""

    def one(w):
        return jnp.ones(len(w), jnp.float32)

    return {
        "gram": lambda w: distances.by_gram(w, one(w)),
        "differences": lambda w: distances.by_differences(w, one(w)),
        "gram, wide blocks": wide_blocks,
        "float32, sums in float64": blocked,
        "float32, compensated": compensated,
        "differences by row": differences_by_row,
    }


def distance(name: str, w: Array, yardstick: Callable[[], np.ndarray]) -> dict[str, Any]:
    """Seconds and errors; `error_of_nearest` is relative to the distance, what decides who collaborates with whom."""
    call = jax.jit(ways()[name])
    found, right = np.asarray(call(w), np.float64), yardstick()
    off = ~np.eye(len(right), dtype=bool)
    error = np.abs(found - right)[off]
    return {**median(lambda: call(w), 3), "error": error.max() / right.max(),
            "error_of_nearest": (error / right[off]).max()}  # fmt: skip


def mixing(precision: str, w: Array) -> dict[str, Any]:
    """Cloud models, `[M, M] @ [M, D]`, and their error against float64 over the first parameters."""
    xi = jax.nn.softmax(jax.random.normal(jax.random.key(1), (len(w), len(w))), axis=1)
    call = jax.jit(lambda xi, w: jnp.einsum("ij,jd->id", xi, w, precision=precision))
    some = slice(0, 20_000)
    right = np.asarray(xi, np.float64) @ np.asarray(w[:, some], np.float64)
    error = np.abs(np.asarray(call(xi, w)[:, some], np.float64) - right).max() / np.abs(right).max()
    found = median(lambda: call(xi, w), 3)
    return {**found, "error": float(error), "gbs": 2 * w.nbytes / found["seconds"] / 1e9}


def jobs(settings: Settings) -> Iterator[Job]:
    """The CNN's first, as its distances are a larger share of its round."""
    for model, d in SIZES.items():
        m, d = (6, 10_000) if settings.tiny else (100, d)
        w = functools.cache(functools.partial(models, m, d))
        yardstick = functools.cache(lambda w=w: np.asarray(jax.jit(exact)(w())))
        for name in ways():
            yield f"{model} {name}", lambda n=name, w=w, y=yardstick: distance(n, w(), y)
        for precision in ("highest", "high", "default"):
            yield f"{model} mixing {precision}", lambda p=precision, w=w: mixing(p, w())
