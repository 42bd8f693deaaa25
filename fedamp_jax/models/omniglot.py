"""PFLEGO's convolutional network for Omniglot."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from fedamp_jax.models.convolutional import build
from fedamp_jax.types import Task


def omniglot_cnn(
    classes: int,
    *,
    shape: Sequence[int] = (28, 28),
    filters: Sequence[int] = (64, 64, 64, 64),
    compute_dtype: Any = jnp.float32,
    conv: str = "auto",
) -> Task:
    """PFLEGO's CNN for Omniglot: four 3x3 convolutions with 64 filters, each with ReLU and 2x2 max pooling.

    The paper uses the architecture of MAML (Finn et al. 2017). Departs from MAML: no batch normalization, which neither
    PFLEGO's text nor its figure mentions. A 28x28 image gives 1x1x64 features.

    Args:
        classes: number of classes C; PFLEGO's largest alphabet has 55 characters.
        shape: shape of one image, `(height, width)` or `(height, width, channels)`.
        filters: output channels of the convolutions.
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
        >>> from fedamp_jax.models import omniglot_cnn
        >>> params = omniglot_cnn(classes=55).init(jax.random.key(0)).params
        >>> params["head"]["kernel"].shape
        (64, 55)
    """
    return build(
        classes, shape, 2 ** len(filters), compute_dtype, conv,
        filters=filters, kernel=3, window=2, padding="VALID", hidden=(),
    )  # fmt: skip
