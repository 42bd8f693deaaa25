"""What a column of `platforms.py` might say: its lines varied, and lowerings that the package does not have (yet)."""

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from fedamp_jax import platforms
from fedamp_jax.kernels import convolution
from fedamp_jax.types import Array

L2 = 32 << 20
"""Bytes of patches at a time: an H100's second-level cache has 50 MB."""

PACKAGE = ("xla", "patches", "loop")
"""Lowerings that `platforms.py` can choose."""


class Candidate(NamedTuple):
    """One way to run a round.

    Attributes:
        lowering: of convolutions; `"-"` where there are none.
        together: clients side by side.
        pooling: of `platforms.py`; `"-"` where there is none.
        precision: `"tf32"`, XLA's default for float32 there; `"float32"`; `"bfloat16"` for computing in it.
    """

    lowering: str
    together: int
    pooling: str = "slices"
    precision: str = "tf32"

    @property
    def name(self) -> str:
        """Such as `xla 1 slices tf32`."""
        return " ".join(map(str, self))

    @property
    def dtype(self) -> str:
        """Of the computations."""
        return "bfloat16" if self.precision == "bfloat16" else "float32"

    @contextlib.contextmanager
    def chosen(self) -> Iterator[None]:
        """Within it, programs that are traced for this platform are made this way."""
        own = {"blocks": blocks(self.together), "unrolled": unrolled}.get(self.lowering)
        base = {
            "convolution": "xla" if self.lowering not in PACKAGE else self.lowering,
            "pooling": "window" if self.pooling == "window" else "slices",
        }
        columns = {name: column._replace(**base) for name, column in platforms.CHOICES.items()}
        precision = {"tf32": "default", "float32": "highest", "bfloat16": "default"}[self.precision]
        with contextlib.ExitStack() as stack:
            stack.enter_context(mock.patch.dict(platforms.CHOICES, columns))
            if own is not None:  # in place of XLA's convolutions, so that models need not know of it
                stack.enter_context(mock.patch.object(convolution, "_plain", own))
            stack.enter_context(jax.default_matmul_precision(precision))
            yield


def unrolled(x: Array, w: Array, strides, pads, precision) -> Array:
    """XLA's plain convolutions of all clients one by one in ONE loop body, all else of the clients side by side.

    So the step's loop interleaves the clients: a client's kernels that are small can run beside another's where kernels
    are launched as a graph, and everything but convolutions is one kernel for all.
    """

    def plain(x, w):
        return lax.conv_general_dilated(
            x, w, strides, pads, dimension_numbers=("NHWC", "HWIO", "NHWC"), precision=precision
        )

    forward = _one_by_one(plain)
    backward = _one_by_one(lambda x, w, dy: jax.vjp(plain, x, w)[1](dy))
    convolve = jax.custom_vjp(forward)
    convolve.defvjp(lambda x, w: (forward(x, w), (x, w)), lambda saved, dy: backward(*saved, dy))
    return convolve(x, w)


def _one_by_one(function: Callable) -> Callable:
    """Makes `vmap` of the function one call for each client, one after the other in the program."""
    function = custom_vmap(function)

    @function.def_vmap
    def rule(size, batched, *args):
        rows = [[a[i] if b else a for a, b in zip(args, batched, strict=True)] for i in range(size)]
        out = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[function(*row) for row in rows])
        return out, jax.tree.map(lambda _: True, out)

    return function


def blocks(together: int) -> Callable[..., Array]:
    """Patches of some images at a time, such that those of all clients side by side fit into the cache.

    `patches` in place of it writes those of a whole batch, a tensor k * l times as large as the images, to memory and
    reads it again.
    """

    def convolve(x: Array, w: Array, strides, pads, precision) -> Array:
        def some(x: Array) -> Array:
            return convolution._patches(x, w, strides, pads, precision)

        area = x.shape[1] * x.shape[2] // (strides[0] * strides[1])
        patches = together * area * w.shape[0] * w.shape[1] * w.shape[2] * x.dtype.itemsize
        fitting = max(1, L2 // patches)
        images = max(n for n in range(1, x.shape[0] + 1) if x.shape[0] % n == 0 and n <= fitting)
        if images == x.shape[0]:
            return some(x)
        parts = x.reshape(-1, images, *x.shape[1:])
        y = lax.map(jax.checkpoint(some), parts)  # the gradient makes the patches again, in place of reading them
        return y.reshape(-1, *y.shape[2:])

    return convolve


def grid(convolves: bool, pools: bool, clients: int) -> list[Candidate]:
    """Everything that might be tried of a model, what is most worth knowing first.

    Args:
        convolves: whether the model does.
        pools: whether it has max pooling.
        clients: of the round, the largest number side by side.
    """
    numbers = [n for n in (1, 4, 16) if n < clients] + [clients]
    lowerings = ("xla", "unrolled", "patches", "blocks", "loop") if convolves else ("-",)
    all_of = [
        Candidate(lowering, together, pooling, precision)
        for precision, pooling in itertools.product(
            ("tf32", "bfloat16", "float32"), ("slices", "window") if pools else ("-",)
        )
        for lowering, together in itertools.product(lowerings, numbers)
        if (lowering, together) not in {("unrolled", 1), ("unrolled", 100)}  # as plain ones; too long to compile
    ]
    # By what an H100's compiler says (benchmarks/results/gpu-h100-compiled.json): fewest kernels for as many bytes come
    # first; blocks late, as they are many kernels; all of a ResNet18's patches do not fit.
    first = [("xla", 1), ("unrolled", 4), ("xla", 4), ("unrolled", 16), ("patches", 16), ("patches", clients),
             ("xla", 16), ("blocks", clients), ("-", clients), ("-", 1)]  # fmt: skip
    rank = {pair: i for i, pair in enumerate(first)}
    return sorted(all_of, key=lambda c: (c.precision != "tf32" or c.pooling == "window", rank.get(c[:2], 99)))


def default(convolves: bool, pools: bool, clients: int) -> Candidate:
    """The `gpu` column as it stands."""
    now = platforms.CHOICES["gpu"]
    together = 1 if convolves or not now.together else clients
    return Candidate(now.convolution if convolves else "-", together, now.pooling if pools else "-")
