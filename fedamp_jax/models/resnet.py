"""ResNet18 for small images: FedAMP's model for CIFAR-100."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from fedamp_jax import checks
from fedamp_jax.models.layers import LOWERINGS, as_image, check_image, conv
from fedamp_jax.models.task import Classifier, from_linen
from fedamp_jax.types import Array, Task

NORMS = ("batch", "group")


class Norm(nn.Module):
    """Batch normalisation over the real rows of a batch, or group normalisation, which needs no other row."""

    kind: str
    dtype: Any

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array) -> Array:
        x = x.astype(jnp.float32)  # moments in low precision would be worth little
        if self.kind == "group":
            x = nn.GroupNorm(math.gcd(32, x.shape[-1]))(x)
        else:
            norm = nn.BatchNorm(use_running_average=not train, momentum=0.9)
            x = norm(x, mask=mask[:, None, None, None])
        return x.astype(self.dtype)


class Block(nn.Module):
    """Two 3x3 convolutions and a way around them, through a 1x1 convolution where the shape changes."""

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
    """ResNet18 (He et al., 2016), FedAMP's model for CIFAR-100, with the stem that is usual for 32x32 images.

    Departs from the paper: a 3x3 convolution of step 1 and no pooling in front, instead of ImageNet's 7x7 and 3x3 of
    step 2 each, which would leave one pixel. Two blocks of two convolutions for each of `widths`; 11,173,962
    parameters for 10 classes.

    Args:
        classes: C.
        norm: `"batch"`, normalised in training by the real rows of the batch and in prediction by running statistics
            (`Variables.stats`); or `"group"`, 32 groups (else the greatest common divisor of 32 and the width), which
            has no statistics.
        shape: of one image, `(height, width)` or `(height, width, channels)`.
        widths: channels of the stages; every stage but the first halves the image.
        compute_dtype: of the arithmetic in the body, such as `jnp.bfloat16`; parameters, statistics and logits stay
            float32.
        conv: lowering of the convolutions, see `fedamp_jax.models.layers.conv_general_dilated`.

    Returns:
        The `Task`; the last layer is the head.

    Raises:
        ValueError, TypeError: unknown `norm` or `conv`; `classes` or a width is not a whole number of at least 1; no
            width at all; `shape` is not that of an image.

    Example:
        >>> import jax
        >>> from fedamp_jax.models import resnet18
        >>> task = resnet18(classes=5, shape=(8, 8), widths=(8, 16), norm="group")
        >>> task.predict(task.init(jax.random.key(0)), jax.numpy.zeros((2, 8, 8))).shape
        (2, 5)
    """
    checks.whole("classes", classes, low=1)
    checks.choice("norm", norm, NORMS)
    checks.choice("conv", conv, LOWERINGS)
    widths = tuple(widths)
    if not widths:
        raise ValueError("widths is empty; give the channels of at least one stage")
    for width in widths:
        checks.whole("each width in widths", width, low=1)
    body = _Body(widths, norm, conv, compute_dtype)
    return from_linen(Classifier(body, classes), check_image(shape, 1))
