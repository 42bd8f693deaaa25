"""ResNet18 for small images, the FedAMP paper's model for CIFAR-100."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from fedamp_jax.checks import check_choice, check_integer
from fedamp_jax.kernels.convolution import LOWERINGS
from fedamp_jax.models.layers import as_image, check_image, conv
from fedamp_jax.models.normalization import BatchNorm, GroupNorm
from fedamp_jax.models.task import Classifier, from_linen
from fedamp_jax.types import Array, Task

NORMS = ("batch", "group")


class Norm(nn.Module):
    """Batch normalization over the real rows of a batch, or group normalization."""

    kind: str
    dtype: Any

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array) -> Array:
        x = x.astype(jnp.float32)  # mean and variance need float32's precision
        if self.kind == "group":
            # With a single channel in each group, a layer could not say how strong one channel is beside another.
            channels = x.shape[-1]
            x = GroupNorm(min(math.gcd(32, channels), max(1, channels // 2)))(x)
        else:
            x = BatchNorm()(x, train, mask)
        return x.astype(self.dtype)


class Block(nn.Module):
    """Two 3x3 convolutions and a skip connection, with a 1x1 convolution if the shape changes."""

    width: int
    stride: int
    norm: str
    lowering: str
    dtype: Any

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array) -> Array:
        def layer(x: Array, size: int, stride: int) -> Array:
            x = _conv(self.width, size, stride, self.lowering, self.dtype)(x)
            return Norm(self.norm, self.dtype)(x, train, mask)

        y = layer(nn.relu(layer(x, 3, self.stride)), 3, 1)
        if x.shape != y.shape:
            x = layer(x, 1, self.stride)
        return nn.relu(x + y)


def _conv(width: int, size: int, stride: int, lowering: str, dtype: Any) -> Callable[[Array], Array]:
    init = nn.initializers.he_normal()
    return conv(width, size, stride=stride, lowering=lowering, dtype=dtype, use_bias=False, kernel_init=init)


class _Body(nn.Module):
    widths: tuple[int, ...]
    norm: str
    lowering: str
    dtype: Any

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array) -> Array:
        x = _conv(self.widths[0], 3, 1, self.lowering, self.dtype)(as_image(x, self.dtype))
        x = nn.relu(Norm(self.norm, self.dtype)(x, train, mask))
        for stage, width in enumerate(self.widths):
            for block in range(2):
                stride = 2 if stage > 0 and block == 0 else 1
                x = Block(width, stride, self.norm, self.lowering, self.dtype)(x, train, mask)
        return jnp.mean(x, (1, 2), dtype=jnp.float32)


def resnet18(
    classes: int,
    *,
    norm: str = "batch",
    shape: Sequence[int] = (32, 32, 3),
    widths: Sequence[int] = (64, 128, 256, 512),
    compute_dtype: Any = jnp.float32,
    conv: str = "auto",
) -> Task:
    """ResNet18 (He et al. 2016), the FedAMP paper's model for CIFAR-100, with the stem commonly used for 32x32 images.

    Departs from He et al.: the stem is a 3x3 convolution of stride 1 without pooling, instead of ImageNet's 7x7
    convolution and 3x3 max pooling of stride 2 each, which would reduce a 32x32 image to one pixel. Each entry of
    `widths` is a stage of two blocks of two convolutions. With 10 classes it has 11,173,962 parameters.

    Args:
        classes: number of classes C.
        norm: `"batch"`, which normalizes by the real rows of the batch in training and by running statistics
            (`Variables.stats`) in prediction; or `"group"`, which has no statistics and uses 32 groups, or as many
            as divide both 32 and the number of channels and have at least two channels each.
        shape: shape of one image, `(height, width)` or `(height, width, channels)`.
        widths: channels of the stages; every stage but the first halves height and width.
        compute_dtype: dtype of the computations in the body, such as `jnp.bfloat16`; parameters, statistics and logits
            are float32.
        conv: lowering of the convolutions, see `fedamp_jax.models.layers.conv_general_dilated`.

    Returns:
        A `Task` whose head is the last layer.

    Raises:
        TypeError: if `classes` or a width is not an integer.
        ValueError: if `classes` or a width is less than 1, `widths` is empty, `shape` is not the shape of an image, or
            `norm` or `conv` is unknown.

    Example:
        >>> import jax
        >>> from fedamp_jax.models import resnet18
        >>> task = resnet18(classes=5, shape=(8, 8), widths=(8, 16), norm="group")
        >>> task.predict(task.init(jax.random.key(0)), jax.numpy.zeros((2, 8, 8))).shape
        (2, 5)
    """
    check_integer("classes", classes, low=1)
    check_choice("norm", norm, NORMS)
    check_choice("conv", conv, LOWERINGS)
    widths = tuple(widths)
    if not widths:
        raise ValueError("widths is empty: at least one stage is needed")
    for width in widths:
        check_integer("each width in widths", width, low=1)
    body = _Body(widths, norm, conv, compute_dtype)
    return from_linen(Classifier(body, classes), check_image(shape, 1))
