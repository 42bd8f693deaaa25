"""Convolutions by matrix products, which add up in float32 or wider.

XLA's CPU backend (jax 0.10.2 and 0.12) computes a convolution of bfloat16 in float32. Its matrix products use the
processor's bfloat16 instructions, but only those of `[rows, inner] @ [inner, columns]`: a transposed operand costs five
times as much and is therefore copied. In float32, the gradient of a kernel with few output channels is faster this way
than as a convolution.
"""

import functools
from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from fedamp_jax.kernels.blocks import map_blocks

Pads = Sequence[tuple[int, int]]


def convolve(x: Array, w: Array, strides: Sequence[int], pads: Pads) -> Array:
    """A convolution, as the sum of one matrix product for each row of the kernel.

    Args:
        x: `[B, H, W, I]` images.
        w: `[k, l, I, O]` kernel of the same dtype.
        strides: along H and W.
        pads: `((low, high), (low, high))`, zeros around the images; a negative number removes rows or columns.

    Returns:
        `[B, H', W', O]`, of the images' dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedamp_jax.kernels.products import convolve
        >>> x, w = jnp.ones((1, 3, 3, 1), jnp.bfloat16), jnp.ones((3, 3, 1, 1), jnp.bfloat16)
        >>> convolve(x, w, (1, 1), ((1, 1), (1, 1)))[0, :, :, 0].tolist()
        [[4.0, 6.0, 4.0], [6.0, 9.0, 6.0], [4.0, 6.0, 4.0]]
    """
    height, width = (
        (n + sum(pad) - k) // s + 1 for n, pad, k, s in zip(x.shape[1:3], pads, w.shape[:2], strides, strict=True)
    )

    dtype, x, w = x.dtype, _bits(x), _bits(w)

    def block(x: Array) -> Array:
        rows = _rows(x, w.shape[:2], strides, pads, height, width)
        parts = [_product(part, taps.reshape(part.shape[1], -1), dtype) for part, taps in zip(rows, w, strict=True)]
        return _bits(functools.reduce(jnp.add, parts).astype(dtype).reshape(-1, height, width, w.shape[3]))

    y = map_blocks(block, height * width, x)
    return _numbers(y.reshape(-1, *y.shape[2:])[: x.shape[0]], dtype)


def to_kernel(
    x: Array, dy: Array, kernel: Sequence[int], strides: Sequence[int], pads: Pads, *, precision=None
) -> Array:
    """The gradient with respect to the kernel.

    Args:
        x: `[B, H, W, I]` images.
        dy: `[B, H', W', O]`, the gradient with respect to the output.
        kernel: shape of the kernel, `[k, l, I, O]`.
        strides: see `convolve`.
        pads: see `convolve`.
        precision: of the matrix products.

    Returns:
        `[k, l, I, O]`, of the images' dtype; the sum over images is in float32 or wider.
    """

    dtype, x, dy = x.dtype, _bits(x), _bits(dy)

    def block(x: Array, dy: Array) -> Array:
        # As a flat array in between: else XLA keeps dy as it lies and multiplies in float32.
        turned = lax.optimization_barrier(dy.reshape(-1, kernel[3]).T.ravel()).reshape(kernel[3], -1)
        rows = _rows(x, kernel[:2], strides, pads, *dy.shape[1:3])
        return jnp.stack([_product(turned, part, dtype, precision) for part in rows])

    dw = jnp.sum(map_blocks(block, dy.shape[1] * dy.shape[2], x, dy), 0)  # [k, O, l * I]
    return dw.transpose(0, 2, 1).reshape(kernel).astype(dtype)


def _product(a: Array, b: Array, dtype, precision=None) -> Array:
    """`a @ b` of numbers given as bits, in float32 or wider."""
    # Without the barrier, XLA would move numbers instead of bits, and take a transposed operand as it lies.
    a, b = (_numbers(bits, dtype) for bits in lax.optimization_barrier((a, b)))
    wide = jnp.float32 if dtype.itemsize < 4 else dtype
    return jnp.matmul(a, b, precision=precision, preferred_element_type=wide)


def _bits(x: Array) -> Array:
    """bfloat16 as integers, because XLA converts bfloat16 to float32 and back even to move it; others as they are."""
    return lax.bitcast_convert_type(x, jnp.uint16) if x.dtype.itemsize == 2 else x


def _numbers(bits: Array, dtype) -> Array:
    return lax.bitcast_convert_type(bits, dtype)


def _rows(x: Array, size: Sequence[int], strides: Sequence[int], pads: Pads, height: int, width: int) -> list[Array]:
    """For each row of the kernel, the inputs of its taps: `[B * H' * W', l * I]`."""
    x = lax.pad(x, jnp.zeros((), x.dtype), [(0, 0, 0), *((low, high, 0) for low, high in pads), (0, 0, 0)])
    taps = [x[:, :, j : j + (width - 1) * strides[1] + 1 : strides[1]] for j in range(size[1])]
    x = jnp.concatenate(taps, -1)
    parts = [x[:, i : i + (height - 1) * strides[0] + 1 : strides[0]] for i in range(size[0])]
    return [part.reshape(-1, part.shape[3]) for part in parts]
