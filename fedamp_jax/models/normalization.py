"""Batch and group normalization as one product and one sum, `x * factor + shift`.

The layers of Flax subtract the mean before they multiply. XLA's CPU backend then computes the difference anew in every
sum of the backward pass, which takes up to four times as long as the sums of this form, `sum(dy)` and `sum(dy * x)`.
Parameters, statistics and their names are those of Flax's layers.
"""

import flax.linen as nn
import jax.numpy as jnp
from jax import lax

from fedamp_jax.types import Array

MOMENTUM = 0.9


class BatchNorm(nn.Module):
    """Batch normalization by the rows of a batch that are real, or by running statistics (Ioffe and Szegedy 2015).

    >>> import jax, jax.numpy as jnp
    >>> from fedamp_jax.models.normalization import BatchNorm
    >>> x = jnp.arange(3.0).reshape(3, 1, 1, 1)
    >>> y, _ = BatchNorm().init_with_output(jax.random.key(0), x, True, jnp.array([True, True, False]))
    >>> y[:, 0, 0, 0].round(2).tolist()
    [-1.0, 1.0, 3.0]
    """

    @nn.compact
    def __call__(self, x: Array, train: bool, mask: Array) -> Array:
        """Normalizes each channel.

        Args:
            x: `[B, H, W, C]` float32.
            train: whether to normalize by the batch and update the running statistics, or to normalize by these.
            mask: `[B]` bool, the rows that count; at least one of them.

        Returns:
            `[B, H, W, C]` float32.
        """
        channels = x.shape[3:]
        running_mean = self.variable("batch_stats", "mean", jnp.zeros, channels, x.dtype)
        running_var = self.variable("batch_stats", "var", jnp.ones, channels, x.dtype)
        mean, var = running_mean.value, running_var.value
        if train:
            rows = mask[:, None, None, None]
            count = jnp.sum(mask, dtype=x.dtype) * (x.shape[1] * x.shape[2])
            mean, square = (jnp.sum(v, (0, 1, 2), where=rows) / count for v in (x, x * x))
            var = _variance(mean, square)
            if not self.is_initializing():
                running_mean.value = MOMENTUM * running_mean.value + (1 - MOMENTUM) * mean
                running_var.value = MOMENTUM * running_var.value + (1 - MOMENTUM) * var
        return _normalize(self, x, mean[None, None, None], var[None, None, None], 1e-5)


class GroupNorm(nn.Module):
    """Group normalization (Wu and He 2018), which has no running statistics.

    Attributes:
        groups: a divisor of the number of channels.

    >>> import jax, jax.numpy as jnp
    >>> from fedamp_jax.models.normalization import GroupNorm
    >>> x = jnp.arange(4.0).reshape(1, 1, 1, 4)
    >>> GroupNorm(2).init_with_output(jax.random.key(0), x)[0].round(2).ravel().tolist()
    [-1.0, 1.0, -1.0, 1.0]
    """

    groups: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        """Normalizes each image and group of channels: `[B, H, W, C]` float32, as x."""
        batch, _, _, channels = x.shape
        # Over the image first, so that the sums run along whole rows of channels.
        of_image = jnp.stack([jnp.mean(v, (1, 2)) for v in (x, x * x)])
        of_group = jnp.mean(of_image.reshape(2, batch, self.groups, -1), 3)
        mean, square = jnp.repeat(of_group, channels // self.groups, 2)[:, :, None, None]
        return _normalize(self, x, mean, _variance(mean, square), 1e-6)


def _variance(mean: Array, square: Array) -> Array:
    """The variance from the means of x and of `x * x`, which rounding could make negative."""
    return jnp.maximum(square - mean * mean, 0)


def _normalize(module: nn.Module, x: Array, mean: Array, var: Array, epsilon: float) -> Array:
    """`(x - mean) / sqrt(var + epsilon) * scale + bias`, with parameters of the module.

    Args:
        module: gets the parameters `scale` and `bias`, `[C]`.
        x: `[B, H, W, C]`.
        mean: `[1, 1, 1, C]` or `[B, 1, 1, C]`.
        var: of the mean's shape.
        epsilon: against a variance of 0.
    """
    scale, bias = (
        module.param(name, init, x.shape[3:], x.dtype)[None, None, None]
        for name, init in (("scale", nn.initializers.ones), ("bias", nn.initializers.zeros))
    )
    factor = scale * lax.rsqrt(var + epsilon)
    return x * factor + (bias - mean * factor)
