"""Convolution layers of Linen modules, and the images that they take."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn

from fedamp_jax.checks import check_integer
from fedamp_jax.kernels.convolution import conv_general_dilated
from fedamp_jax.types import Array


@dataclasses.dataclass(frozen=True)
class Lowered:
    """`lax.conv_general_dilated` by a lowering of `kernels.convolution`, and max pooling of what it gives.

    Attributes:
        lowering: see `conv_general_dilated`.
        pool: None for no pooling; a convolution without is linear in its kernel.
    """

    lowering: str = "auto"
    pool: Callable[[Array], Array] | None = None

    def __call__(self, *args: Any, **settings: Any) -> Array:
        y = conv_general_dilated(*args, **settings, lowering=self.lowering)
        return y if self.pool is None else self.pool(y)


def conv(
    features: int,
    size: int,
    *,
    stride: int = 1,
    lowering: str = "auto",
    pool: Callable[[Array], Array] | None = None,
    **kwargs,
) -> nn.Conv:
    """An `nn.Conv` over `[B, H, W, C]` with a square kernel and SAME padding that uses `kernels.convolution`.

    Args:
        features: output channels.
        size: height and width of the kernel.
        stride: stride along both axes.
        lowering: see `conv_general_dilated`.
        pool: max pooling of what the kernel gives, before the bias is added. The largest of sums with one bias is the
            sum of the largest with it, bit for bit, and the bias and its gradient then take a quarter of the work.
        **kwargs: arguments of `nn.Conv`, such as `dtype` and `use_bias`.

    Returns:
        The module.
    """

    lowered = Lowered(lowering, pool)
    return nn.Conv(features, (size, size), (stride, stride), "SAME", conv_general_dilated=lowered, **kwargs)


def check_image(shape: Sequence[int], smallest: int) -> tuple[int, ...]:
    """Checks the shape of one image.

    Args:
        shape: `(height, width)` or `(height, width, channels)`.
        smallest: least height and width that the model's pooling layers need.

    Returns:
        The shape as a tuple.

    Raises:
        TypeError: if a size is not an integer.
        ValueError: if it is not the shape of an image, or the image is too small.
    """
    if not isinstance(shape, (tuple, list)) or len(shape) not in (2, 3):
        raise ValueError(f"shape must be (height, width) or (height, width, channels) of one image, got {shape}")
    for name, size in zip(("height", "width", "channels"), shape, strict=False):
        check_integer(f"the {name} in shape={shape}", size, low=1)
    shape = tuple(shape)
    if min(shape[:2]) < smallest:
        raise ValueError(
            f"images of shape {shape} are too small: this model's pooling layers need at least {smallest}x{smallest}; "
            f"enlarge the images or use a model without pooling, such as mlp(classes, shape={shape})"
        )
    return shape


def as_image(x: Array, dtype) -> Array:
    """Converts `[B, H, W]` or `[B, H, W, C]` to `[B, H, W, C]` of the given dtype."""
    return (x if x.ndim == 4 else x[..., None]).astype(dtype)
