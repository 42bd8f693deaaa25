"""Low-rank changes of kernels (Hu et al. 2022, Eq. 3): h = W_0 x + s B A x, one output at a time in float64.

Rows are examples here, so that the equation reads y = x W + s (x A) B with A [inputs, r] and B [r, outputs].
"""

import itertools

import numpy as np


def changed(kernel, a, b, s):
    """W + s A B for a kernel [..., outputs...], with the axes that a and b leave as they are."""
    kernel, a, b = (np.asarray(v, np.float64) for v in (kernel, a, b))
    total = kernel.copy()
    for r in range(a.shape[-1]):
        total += s * np.multiply.outer(a[..., r], b[r])
    return total


def dense(x, kernel, bias=0.0):
    """x W + bias, over as many of the last axes of x as W has beside its outputs; W [inputs..., outputs]."""
    inputs = kernel.ndim - np.ndim(bias) if np.ndim(bias) else 1
    rows = np.asarray(x, np.float64).reshape(*x.shape[: x.ndim - inputs], -1)
    return (rows @ kernel.reshape(rows.shape[-1], -1)).reshape(*rows.shape[:-1], *kernel.shape[inputs:]) + bias


def convolution(x, kernel, bias, stride):
    """A convolution with SAME padding of images [B, H, W, I] by a kernel [k, l, I, O]."""
    k, l = kernel.shape[:2]
    sizes = [-(-n // stride) for n in x.shape[1:3]]
    pads = [max(0, (m - 1) * stride + w - n) for m, w, n in zip(sizes, (k, l), x.shape[1:3])]
    x = np.pad(np.asarray(x, np.float64), ((0, 0), *((p // 2, p - p // 2) for p in pads), (0, 0)))
    y = np.zeros((len(x), *sizes, kernel.shape[3]))
    for i, j in itertools.product(*map(range, sizes)):
        window = x[:, i * stride : i * stride + k, j * stride : j * stride + l]
        y[:, i, j] = np.einsum("bklc,klco->bo", window, kernel)
    return y + bias


def max_pool(x):
    """The largest of each 2x2 pixels."""
    b, h, w, c = x.shape
    return x[:, : h // 2 * 2, : w // 2 * 2].reshape(b, h // 2, 2, w // 2, 2, c).max((2, 4))
