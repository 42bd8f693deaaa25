"""Convolutions that stay fast when every client has its own kernel.

`vmap` turns a convolution with one kernel per client into a grouped convolution, which XLA's CPU backend (jax 0.10.2)
runs at a quarter of the speed of a plain one. The gradient with respect to the kernel becomes a convolution with a
window as large as the image, which runs at a fiftieth of that speed. Plain convolutions are as fast as matrix products.
What is best differs by platform: `fedamp_jax/platforms.py` says what is used where.
"""

import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.custom_batching import custom_vmap

from fedamp_jax.checks import check_choice
from fedamp_jax.kernels import products, winograd
from fedamp_jax.kernels.blocks import map_blocks
from fedamp_jax.platforms import on_platform

LOWERINGS = ("auto", "loop", "patches", "xla")


_NHWC = ("NHWC", "HWIO", "NHWC")


def conv_general_dilated(
    lhs: Array,
    rhs: Array,
    window_strides: Sequence[int],
    padding: str | Sequence[tuple[int, int]],
    lhs_dilation: Sequence[int] | None = None,
    rhs_dilation: Sequence[int] | None = None,
    dimension_numbers=None,
    feature_group_count: int = 1,
    batch_group_count: int = 1,
    precision=None,
    preferred_element_type=None,
    *,
    lowering: str = "auto",
) -> Array:
    """`lax.conv_general_dilated`, lowered so that `vmap` over kernels stays fast.

    The lowerings apply to convolutions with two spatial axes, NHWC images, HWIO kernels of the images' dtype and
    non-negative padding, without dilation or groups. All other convolutions use `lax.conv_general_dilated`.

    - `"loop"` computes the value and both gradients for one client of a `vmap` at a time, as chosen by `choose` (by a
      matrix product if the kernel is 1x1). It can be differentiated once, in reverse mode.
    - `"patches"` concatenates the k * l shifted images along the channels and multiplies them by the kernel, so that a
      `vmap` becomes a batched matrix product.
    - `"xla"` is `lax.conv_general_dilated`.
    - `"auto"` is one of these, by the platform that the program is compiled for (`fedamp_jax/platforms.py`). It can be
      differentiated once, in reverse mode.

    Args:
        lhs: `[B, H, W, I]` images.
        rhs: `[k, l, I, O]` kernel.
        window_strides: strides along H and W.
        padding: `"SAME"`, `"VALID"` or `((low, high), (low, high))`.
        lhs_dilation: see `lax.conv_general_dilated`, as for the following arguments.
        rhs_dilation: see above.
        dimension_numbers: see above.
        feature_group_count: see above.
        batch_group_count: see above.
        precision: see above.
        preferred_element_type: see above.
        lowering: one of `LOWERINGS`.

    Returns:
        `[B, H', W', O]`, of the same dtype as the result of `lax.conv_general_dilated`.

    Raises:
        ValueError: if the lowering is unknown.

    Example:
        >>> import flax.linen as nn, functools, jax, jax.numpy as jnp
        >>> from fedamp_jax.models.layers import conv_general_dilated
        >>> layer = nn.Conv(8, (3, 3), conv_general_dilated=functools.partial(conv_general_dilated, lowering="patches"))
        >>> layer.init_with_output(jax.random.key(0), jnp.ones((2, 5, 5, 1)))[0].shape
        (2, 5, 5, 8)
    """
    check_choice("lowering", lowering, LOWERINGS)
    strides, given, pads = tuple(window_strides), (lhs_dilation, rhs_dilation), ()
    special = (
        lhs.ndim == 4
        and lax.conv_dimension_numbers(lhs.shape, rhs.shape, dimension_numbers)
        == lax.conv_dimension_numbers(lhs.shape, rhs.shape, _NHWC)
        and all(dilation is None or set(dilation) == {1} for dilation in given)
        and feature_group_count == batch_group_count == 1
        and preferred_element_type in (None, lhs.dtype)
        and lhs.dtype == rhs.dtype
    )
    if special:
        named = isinstance(padding, str)
        pads = lax.padtype_to_pads(lhs.shape[1:3], rhs.shape[:2], strides, padding) if named else padding
        pads = tuple((int(low), int(high)) for low, high in pads)
        special = min(min(pad) for pad in pads) >= 0
    if not special or lowering == "xla":
        return lax.conv_general_dilated(
            lhs, rhs, strides, padding, *given, dimension_numbers, feature_group_count, batch_group_count, precision,
            preferred_element_type,
        )  # fmt: skip
    loop = _patches if rhs.shape[:2] == (1, 1) else _loop
    lowerings = {
        name: functools.partial(function, strides=strides, pads=pads, precision=precision)
        for name, function in (("loop", loop), ("patches", _patches), ("xla", _plain))
    }
    return _by_platform(lowerings)(lhs, rhs) if lowering == "auto" else lowerings[lowering](lhs, rhs)


def _by_platform(lowerings: dict[str, Callable[[Array, Array], Array]]) -> Callable[[Array, Array], Array]:
    """The platform's lowering. The backward pass keeps x and w only: nothing that another lowering would keep."""

    @jax.custom_vjp
    def convolve(x, w):
        return on_platform("convolution", lowerings, x, w)

    def backward(saved, dy):
        gradients = {name: lambda dy, *xw, f=f: jax.vjp(f, *xw)[1](dy) for name, f in lowerings.items()}
        return on_platform("convolution", gradients, dy, *saved)

    convolve.defvjp(lambda x, w: (convolve(x, w), (x, w)), backward)
    return convolve


def _plain(x: Array, w: Array, strides, pads, precision) -> Array:
    return lax.conv_general_dilated(x, w, strides, pads, dimension_numbers=_NHWC, precision=precision)


def _patches(x: Array, w: Array, strides, pads, precision) -> Array:
    """Concatenates the k * l shifted images along the channels and multiplies them by the kernel as a matrix."""
    (k, l, _, features), x = w.shape, jnp.pad(x, ((0, 0), *pads, (0, 0)))
    height, width = ((n - m) // s + 1 for n, m, s in zip(x.shape[1:3], (k, l), strides, strict=True))
    shifted = [
        x[:, i : i + (height - 1) * strides[0] + 1 : strides[0], j : j + (width - 1) * strides[1] + 1 : strides[1]]
        for i in range(k)
        for j in range(l)
    ]
    # Two axes instead of four, so that the gradient contracts a single axis, as in a matrix product.
    rows = jnp.concatenate(shifted, -1).reshape(x.shape[0] * height * width, -1)
    return jnp.matmul(rows, w.reshape(-1, features), precision=precision).reshape(-1, height, width, features)


def _each_client(function: Callable[..., Array]) -> Callable[..., Array]:
    """Makes `vmap` of the function a loop over clients."""
    function = custom_vmap(function)

    @function.def_vmap
    def loop(size, batched, *args):
        if size == 1:  # a loop of one step would copy its inputs and outputs
            return function(*(a[0] if b else a for a, b in zip(args, batched, strict=True)))[None], True
        mapped = tuple(a for a, b in zip(args, batched, strict=True) if b)

        def one(some):
            some = iter(some)
            return function(*(next(some) if b else a for a, b in zip(args, batched, strict=True)))

        return lax.map(one, mapped), True

    return function


def _loop(x: Array, w: Array, strides, pads, precision) -> Array:
    """Computes value and gradients by what is fastest for one client of this shape, one client at a time."""
    forward, to_input, to_kernel = map(_each_client, choose(x.shape, w.shape, x.dtype, strides, pads, precision))

    @jax.custom_vjp
    def convolve(x, w):
        return forward(x, w)

    @jax.custom_vjp
    def gradients(x, w, dy):
        return to_input(dy, w), to_kernel(x, dy)

    # Second derivatives, as in products with a Hessian, are the plain convolution's: `custom_vmap` has no transpose.
    def plain(x, w, dy):
        return jax.vjp(functools.partial(_plain, strides=strides, pads=pads, precision=precision), x, w)[1](dy)

    gradients.defvjp(lambda *args: (gradients(*args), args), lambda args, further: jax.vjp(plain, *args)[1](further))
    convolve.defvjp(lambda x, w: (convolve(x, w), (x, w)), lambda saved, dy: gradients(*saved, dy))
    return convolve(x, w)


def choose(shape, kernel, dtype, strides, pads, precision) -> tuple[Callable[..., Array], ...]:
    """Chooses how a CPU computes a convolution of one client, by its shape.

    Args:
        shape: `[B, H, W, I]` of the images.
        kernel: `[k, l, I, O]` of the kernel.
        dtype: of both.
        strides: along H and W.
        pads: `((low, high), (low, high))`, not negative.
        precision: of products.

    Returns:
        Three functions: the value of `(x, w)`, the gradient with respect to the input of `(dy, w)`, and the gradient
        with respect to the kernel of `(x, dy)`.
    """
    # Milliseconds for 100 images in a loop on one core of an EPYC (Zen 4), while the other core ran the same: forward /
    # gradient of the kernel, jax 0.10.2 (0.12 in brackets).
    #
    # channels, image        plain, float32            Winograd, float32         products, bfloat16
    # 64, 32x32              84 / 151 (88 / 148)       44 / 92 (42 / 80)         50 / 110 (53 / 105)
    # 128, 16x16             76 / 82 (76 / 98)         28 / 34 (29 / 37)         39 / 56 (44 / 59)
    # 256, 8x8               78 / 83 (75 / 95)         26 / 36 (26 / 35)         41 / 53 (43 / 60)
    # 512, 4x4               88 / 94 (79 / 84)         42 / 36 (42 / 48)         52 / 47 (54 / 42)
    # 32 to 64, 14x14, 5x5   21 / 20 (22 / 23)         9.3 / 12 (10 / 12)        13 / 19 (14 / 19)
    # 32, 16x16              4.9 / 17 (6.3 / 8.8)      4.1 / 5.8 (4.5 / 5.7)     4.5 / 5.9 (5.1 / 6.5)
    # 32, 8x8                1.3 / 2.2 (1.7 / 2.9)     0.9 / 1.2 (1.0 / 1.2)     1.0 / 1.4 (1.2 / 1.6)
    # 16 to 32, 14x14, 5x5   5.7 / 5.5 (6.4 / 6.5)     5.5 / 6.9 (5.7 / 6.3)     3.9 / 5.4 (4.6 / 6.6)
    #
    # On a core with AMX, the products in bfloat16 took half of that or less: 17 / 19 with 512 channels at 4x4.
    #
    # Of up to 16 output channels, the gradient of the kernel:
    #
    # channels, image        plain        Winograd     product
    # 16, 32x32              42 (41)      12 (12)      12 (13)
    # 3 to 16, 32x32         9.2 (8.3)    6.3 (6.1)    5.0 (5.9)
    # 64 to 16, 32x32        229 (173)    31 (29)      39 (41)
    # 16, 28x28, 5x5         108 (94)     20 (18)      17 (18)
    # 16, 16x16              7.0 (5.4)    3.1 (3.6)    2.7 (3.3)
    #
    # Winograd's transforms grow with the channels, and what they save with the square of the channels, so narrow layers
    # keep the plain convolution. In bfloat16, 1 to 5x5x32 channels took 44 ms by products and 3 ms by a convolution.
    square, wide = kernel[0] == kernel[1] and strides == (1, 1), min(kernel[2:]) >= 32 and dtype.itemsize >= 4
    size = [n + sum(pad) - k + 1 for n, pad, k in zip(shape[1:3], pads, kernel, strict=False)]
    if square and wide and max(map(max, pads)) < kernel[0] and winograd.saves(size, kernel[0]):
        return (
            functools.partial(winograd.forward, pads=pads, precision=precision),
            functools.partial(winograd.to_input, shape=shape, pads=pads, precision=precision),
            functools.partial(winograd.to_kernel, r=kernel[0], pads=pads, precision=precision),
        )
    if dtype == jnp.bfloat16 and min(kernel[2:]) >= 16:
        return (
            lambda x, w: products.convolve(x, w, strides, pads),
            lambda dy, w: _input_gradient(products.convolve, dy, w, shape, strides, pads),
            lambda x, dy: products.to_kernel(x, dy, kernel, strides, pads),
        )
    plain = functools.partial(lax.conv_general_dilated, dimension_numbers=_NHWC, precision=precision)
    if kernel[3] <= 16 and dtype.itemsize >= 4:
        to_kernel = functools.partial(
            products.to_kernel, kernel=kernel, strides=strides, pads=pads, precision=precision
        )
    else:
        to_kernel = functools.partial(_kernel_gradient, plain, shape=kernel, strides=strides, pads=pads)
    return (
        functools.partial(_plain, strides=strides, pads=pads, precision=precision),
        lambda dy, w: _input_gradient(plain, dy, w, shape, strides, pads),
        to_kernel,
    )


def _input_gradient(plain, dy: Array, w: Array, shape, strides, pads) -> Array:
    """Gradient with respect to the input, by one dense convolution of dy for each residue of a position modulo s.

    With stride s, input `s u + a` contributes to output `u + (a + low) // s - t` through tap `s t + (a + low) % s`, for
    every t: inputs of the same residue a use the same taps. One convolution of a dilated dy would do `s * s` times the
    work.
    """
    w = w.transpose(0, 1, 3, 2)
    rows = []
    for a in range(strides[0]):
        row = []
        for b in range(strides[1]):
            taps, windows, sizes = w, [], []
            for axis, residue in enumerate((a, b)):
                s, low, n = strides[axis], pads[axis][0], shape[1 + axis]
                taps = lax.rev(lax.slice_in_dim(taps, (residue + low) % s, None, s, axis), (axis,))
                ahead, size = (residue + low) // s, -(-n // s)
                windows.append((taps.shape[axis] - 1 - ahead, size - 1 + ahead - (dy.shape[1 + axis] - 1)))
                sizes.append(size)
            none = jnp.zeros((shape[0], *sizes, shape[3]), dy.dtype)
            row.append(plain(dy, taps, (1, 1), windows) if 0 not in taps.shape else none)
        rows.append(jnp.stack(row, 3) if len(row) > 1 else row[0])
    dx = jnp.stack(rows, 2) if len(rows) > 1 else rows[0]
    # If the stride does not divide the size, the last rows and columns are superfluous.
    full = (shape[0], *(-(-n // s) * s for n, s in zip(shape[1:3], strides, strict=True)), shape[3])
    return dx.reshape(full)[:, : shape[1], : shape[2]]


def _kernel_gradient(plain, x: Array, dy: Array, shape, strides, pads) -> Array:
    """Gradient with respect to the kernel: a convolution of x with dy as its kernel and the images as channels.

    It is computed in blocks of images that fit into the cache.
    """
    (height, width), images = dy.shape[1:3], x.shape[1] * x.shape[2]
    wide = jnp.float32 if dy.dtype.itemsize < 4 else dy.dtype  # do not sum over images in bfloat16
    # The high padding leaves exactly one output per tap; it is negative if the stride leaves input unread.
    windows = [
        (low, k + (m - 1) * s - n - low)
        for (low, _), k, m, s, n in zip(pads, shape[:2], dy.shape[1:3], strides, x.shape[1:3], strict=True)
    ]

    def part(x, dy):
        return plain(
            x.transpose(3, 1, 2, 0), dy.transpose(1, 2, 0, 3), (1, 1), windows, rhs_dilation=strides,
            preferred_element_type=wide,
        )  # fmt: skip

    # A sum instead of a scan, whose zero initial value would not vary over devices under `shard_map`.
    area = max(height * width, images // 2)  # with a stride, x is larger than dy
    return jnp.sum(map_blocks(part, area, x, dy), 0).transpose(1, 2, 0, 3).astype(dy.dtype)
