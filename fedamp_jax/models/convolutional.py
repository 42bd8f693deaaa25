"""The papers' convolutional networks for MNIST, Fashion-MNIST, EMNIST and CIFAR-10."""

import functools
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax.numpy as jnp

from fedamp_jax.checks import check_choice, check_integer, check_integers
from fedamp_jax.kernels.convolution import LOWERINGS
from fedamp_jax.kernels.pooling import max_pool
from fedamp_jax.models.layers import as_image, check_image, conv
from fedamp_jax.models.task import Classifier, from_linen
from fedamp_jax.types import Array, Task


class _Body(nn.Module):
    filters: tuple[int, ...]
    kernel: int
    window: int  # of the pooling layers, whose stride is 2
    padding: str  # of the pooling layers
    hidden: tuple[int, ...]
    lowering: str
    dtype: Any

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array) -> Array:
        x = as_image(x, self.dtype)
        pool = functools.partial(max_pool, size=self.window, stride=2, padding=self.padding)
        for width in self.filters:
            # ReLU after pooling is the same function, of a quarter of the numbers.
            x = nn.relu(conv(width, self.kernel, pool=pool, lowering=self.lowering, dtype=self.dtype)(x))
        x = x.reshape(x.shape[0], -1)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width, dtype=self.dtype)(x))
        return x


def build(classes: int, shape: Sequence[int], smallest: int, compute_dtype: Any, conv: str, **settings) -> Task:
    """Makes the `Task` of a network of convolutions with ReLU and max pooling, followed by dense layers.

    Args:
        classes: number of classes C.
        shape: shape of one image, `(height, width)` or `(height, width, channels)`.
        smallest: least height and width that the pooling layers need.
        compute_dtype: dtype of the computations in the body.
        conv: lowering of the convolutions.
        **settings: the architecture: `filters`, `kernel`, `window`, `padding` and `hidden`.

    Returns:
        A `Task` whose head is the last layer.

    Raises:
        TypeError, ValueError: see `cnn`.
    """
    check_integer("classes", classes, low=1)
    check_choice("conv", conv, LOWERINGS)
    for name in ("filters", "hidden"):
        settings[name] = check_integers(name, settings[name], low=1)
    body = _Body(**settings, lowering=conv, dtype=compute_dtype)
    return from_linen(Classifier(body, classes), check_image(shape, smallest))


def cnn(
    classes: int,
    *,
    shape: Sequence[int] = (28, 28),
    filters: Sequence[int] = (32, 64),
    hidden: Sequence[int] = (512,),
    compute_dtype: Any = jnp.float32,
    conv: str = "auto",
) -> Task:
    """The CNN of McMahan et al. (2017), which the FedAMP paper uses for MNIST, Fashion-MNIST and EMNIST.

    For each entry of `filters`, a 5x5 convolution with SAME padding, ReLU and 2x2 max pooling; then dense layers with
    ReLU and a linear head. With 28x28 images and 10 classes it has 1,663,370 parameters.

    Args:
        classes: number of classes C.
        shape: shape of one image, `(height, width)` or `(height, width, channels)`.
        filters: output channels of the convolutions.
        hidden: widths of the dense layers before the head.
        compute_dtype: dtype of the computations in the body, such as `jnp.bfloat16`; parameters and logits are float32.
        conv: lowering of the convolutions, see `fedamp_jax.models.layers.conv_general_dilated`.

    Returns:
        A `Task` whose head is the last layer.

    Raises:
        TypeError: if `classes` or a width is not an integer.
        ValueError: if `classes` or a width is less than 1, the image is too small for the pooling layers, or `conv` is
            unknown.

    Example:
        >>> import jax
        >>> from fedamp_jax.models import cnn
        >>> params = cnn(classes=10).init(jax.random.key(0)).params
        >>> sum(leaf.size for leaf in jax.tree.leaves(params))
        1663370
    """
    return build(
        classes, shape, 2 ** len(filters), compute_dtype, conv,
        filters=filters, kernel=5, window=2, padding="VALID", hidden=hidden,
    )  # fmt: skip


def cifar_cnn(
    classes: int,
    *,
    shape: Sequence[int] = (32, 32, 3),
    compute_dtype: Any = jnp.float32,
    conv: str = "auto",
) -> Task:
    """PFLEGO's CNN for CIFAR-10.

    Two 5x5 convolutions with 64 filters, ReLU and 3x3 max pooling of stride 2; then dense layers of 384 and 192 units
    with ReLU and a linear head.

    The paper leaves open: the padding. Here it is SAME everywhere, so that a 32x32 image gives 8x8x64 features and the
    network for 10 classes has 1,756,426 parameters.

    Args:
        classes: number of classes C.
        shape: shape of one image, `(height, width)` or `(height, width, channels)`.
        compute_dtype: dtype of the computations in the body, such as `jnp.bfloat16`; parameters and logits are float32.
        conv: lowering of the convolutions, see `fedamp_jax.models.layers.conv_general_dilated`.

    Returns:
        A `Task` whose head is the last layer.

    Raises:
        TypeError, ValueError: as `cnn`.

    Example:
        >>> import jax
        >>> from fedamp_jax.models import cifar_cnn
        >>> task = cifar_cnn(classes=10)
        >>> task.predict(task.init(jax.random.key(0)), jax.numpy.zeros((2, 32, 32, 3), "uint8")).shape
        (2, 10)
    """
    return build(
        classes, shape, 1, compute_dtype, conv,
        filters=(64, 64), kernel=5, window=3, padding="SAME", hidden=(384, 192),
    )  # fmt: skip
