"""PFLEGO's network for Omniglot."""

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from fedamp_jax.models.cnn import build
from fedamp_jax.types import Task


def omniglot_cnn(
    classes: int,
    *,
    shape: Sequence[int] = (28, 28),
    filters: Sequence[int] = (64, 64, 64, 64),
    compute_dtype: Any = jnp.float32,
    conv: str = "auto",
) -> Task:
    """PFLEGO's CNN for Omniglot: four 3x3 convolutions of 64 filters, each with ReLU and 2x2 max pooling, and a head.

    The paper takes the architecture of MAML (Finn et al., 2017). Departs from it: no batch normalisation, which
    neither PFLEGO's text nor its figure mentions. A 28x28 image leaves 1x1x64 features.

    Args:
        classes: C; with PFLEGO the number of characters of the largest alphabet, 55.
        shape: of one image, `(height, width)` or `(height, width, channels)`.
        filters: output channels of the convolutions.
        compute_dtype: of the arithmetic in the body, such as `jnp.bfloat16`; parameters and logits stay float32.
        conv: lowering of the convolutions, see `fedamp_jax.models.layers.conv_general_dilated`.

    Returns:
        The `Task`; the last layer is the head.

    Raises:
        ValueError, TypeError: `classes` or a width is not a whole number of at least 1; the image is too small for
            the poolings; unknown `conv`.

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
