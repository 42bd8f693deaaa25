"""Max pooling by XLA's window reduction, or by maxima of slices where the gradient of that is a slow scatter."""

import functools

import jax
import jax.numpy as jnp
from jax import Array, lax

from fedamp_jax.platforms import on_platform


@jax.custom_vjp
def _pool2(x: Array) -> Array:
    return _pool2_forward(x)[0]


def _corners(x: Array) -> list[Array]:
    b, h, w, c = x.shape
    x = x.reshape(b, h // 2, 2, w // 2, 2, c)
    return [x[:, :, i, :, j] for i in (0, 1) for j in (0, 1)]


def _pool2_forward(x: Array) -> tuple[Array, Array]:
    first, second, third, fourth = _corners(x)
    top = jnp.maximum(jnp.maximum(first, second), jnp.maximum(third, fourth))
    # The backward pass needs one byte per window and channel, instead of x.
    where = jnp.where(first == top, 0, jnp.where(second == top, 1, jnp.where(third == top, 2, 3)))
    return top, where.astype(jnp.uint8)


def _pool2_backward(where: Array, dy: Array) -> tuple[Array]:
    b, h, w, c = dy.shape
    corner = jnp.arange(4, dtype=jnp.uint8).reshape(1, 1, 2, 1, 2, 1)
    mine = where[:, :, None, :, None, :] == corner
    dx = jnp.where(mine, dy[:, :, None, :, None, :], jnp.zeros((), dy.dtype))
    return (dx.reshape(b, 2 * h, 2 * w, c),)


_pool2.defvjp(_pool2_forward, _pool2_backward)


def max_pool(x: Array, size: int = 2, stride: int = 2, padding: str = "VALID") -> Array:
    """Max pooling.

    If several elements of a window are largest, the first gets the gradient for 2x2 windows of stride 2. For all other
    windows they share it, except on a TPU, where the first gets it (`fedamp_jax/platforms.py`).

    Args:
        x: `[B, H, W, C]` floats.
        size: height and width of the window.
        stride: stride along both axes.
        padding: `"VALID"` or `"SAME"`.

    Returns:
        `[B, H', W', C]`.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedamp_jax.kernels.pooling import max_pool
        >>> max_pool(jnp.arange(16.0).reshape(1, 4, 4, 1))[0, :, :, 0].tolist()
        [[5.0, 7.0], [13.0, 15.0]]
    """
    pads = lax.padtype_to_pads(x.shape[1:3], (size, size), (stride, stride), padding)
    height, width = ((n + sum(p) - size) // stride + 1 for n, p in zip(x.shape[1:3], pads, strict=True))
    slices = functools.partial(_slices, size=size, stride=stride, pads=pads, shape=(height, width))
    window = functools.partial(_window, size=size, stride=stride, pads=pads)
    return on_platform("pooling", {"slices": slices, "window": window}, x)


def _window(x: Array, size: int, stride: int, pads) -> Array:
    """XLA's own pooling; the first of several largest elements gets the gradient."""
    return lax.reduce_window(
        x, -jnp.inf, lax.max, (1, size, size, 1), (1, stride, stride, 1), ((0, 0), *pads, (0, 0))
    )  # fmt: skip


def _slices(x: Array, size: int, stride: int, pads, shape: tuple[int, int]) -> Array:
    """Maxima of slices."""
    height, width = shape
    if any(map(any, pads)):
        x = jnp.pad(x, ((0, 0), *pads, (0, 0)), constant_values=-jnp.inf)
    if size == stride == 2:
        return _pool2(x[:, : 2 * height, : 2 * width])

    def every(i, length):
        return slice(i, i + (length - 1) * stride + 1, stride)

    # Along rows, then along columns: 2 * (size - 1) maxima instead of size * size - 1.
    x = functools.reduce(jnp.maximum, [x[:, every(i, height)] for i in range(size)])
    return functools.reduce(jnp.maximum, [x[:, :, every(j, width)] for j in range(size)])
