"""Winograd's convolutions compared with `lax`, in value and both gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from fedamp_jax.kernels import winograd
from fedamp_jax.kernels.blocks import map_blocks

# Image and padding: sizes that no tile divides, images smaller than a tile, asymmetric and no padding.
CASES = [
    ((8, 8), ((1, 1), (1, 1))),
    ((7, 9), ((1, 1), (1, 1))),
    ((3, 3), ((0, 0), (0, 0))),
    ((1, 2), ((1, 1), (1, 1))),
    ((5, 6), ((0, 0), (0, 0))),
    ((6, 5), ((2, 0), (0, 1))),
    ((4, 5), ((0, 4), (3, 1))),
]


def _all(convolution, x, w):
    y, transpose = jax.vjp(convolution, x, w)
    dy = jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape)
    return dy, (y, *transpose(dy))


def _compare(image, pads, r, batch, dtype, tolerance):
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(batch, *image, 3)), rng.normal(size=(r, r, 3, 5))
    with jax.enable_x64(True):

        def exact(x, w):
            return lax.conv_general_dilated(x, w, (1, 1), pads, dimension_numbers=("NHWC", "HWIO", "NHWC"))

        dy, expected = jax.jit(lambda x, w: _all(exact, x, w))(x, w)
        x, w, dy = (jnp.asarray(a, dtype) for a in (x, w, dy))

        @jax.jit
        def ours(x, w, dy):
            return (
                winograd.forward(x, w, pads),
                winograd.to_input(dy, w, x.shape, pads),
                winograd.to_kernel(x, dy, r, pads),
            )

        for name, mine, theirs in zip(("value", "to input", "to kernel"), ours(x, w, dy), expected, strict=True):
            assert mine.dtype == dtype and mine.shape == theirs.shape
            scale = float(jnp.sqrt(jnp.mean(theirs**2)))
            np.testing.assert_allclose(mine / scale, theirs / scale, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.slow_variants
def test_equals_lax_in_value_and_both_gradients(case):
    """Fails if a transform of 3 taps is wrong, the gradient does not flip the kernel, or a tile at the border counts
    outputs that do not exist.
    """
    _compare(*case, 3, 2, jnp.float64, 1e-12)


@pytest.mark.parametrize(("r", "pads"), [(1, (0, 0)), (2, (1, 0)), (4, (1, 2)), (5, (2, 2)), (5, (0, 0)), (5, (4, 1))])
@pytest.mark.slow_variants
def test_kernels_of_every_size(r, pads):
    """Fails if a point of interpolation, or how far tiles overlap, is right for 3 taps only."""
    _compare((9, 6), (pads, pads), r, 2, jnp.float64, 1e-12)


@pytest.mark.parametrize("r", [3, 5])
def test_blocks_of_images(r, monkeypatch):
    """Fails if the last, padded block is dropped or counted: 7 images in blocks of 3."""
    monkeypatch.setattr("fedamp_jax.kernels.blocks.POSITIONS", 3 * 64)
    _compare((8, 8), ((1, 1), (1, 1)), r, 7, jnp.float64, 1e-12)


def test_error_in_float32():
    """Fails if float32 loses more than Winograd's transforms must, as with products in bfloat16."""
    _compare((16, 16), ((1, 1), (1, 1)), 3, 8, jnp.float32, 1e-4)
    _compare((16, 16), ((2, 2), (2, 2)), 5, 8, jnp.float32, 1e-4)


def test_blocks_cover_every_image_once(monkeypatch):
    """Fails if blocks overlap, or if a block is larger than the cache is meant to hold."""
    monkeypatch.setattr("fedamp_jax.kernels.blocks.POSITIONS", 30)
    x = jnp.arange(1.0, 8.0)[:, None] * jnp.ones((7, 10))
    sums = map_blocks(lambda block: jnp.sum(block[:, 0])[None], 10, x)
    assert sums.shape == (3, 1) and float(jnp.sum(sums)) == 28
    assert map_blocks(lambda block: block, 10_000, x).shape == (7, 1, 10)


@pytest.mark.parametrize(("batch", "blocks"), [(100, (20, 5)), (64, (8, 8)), (98, (14, 7)), (97, (13, 8)), (6, (1, 6))])
def test_blocks_without_filling(batch, blocks, monkeypatch):
    """Up to 8 images, as many as divide the batch. Fails with blocks of 8 for 100 images, which copies all of them, and
    with blocks of one image for 97.
    """
    monkeypatch.setattr("fedamp_jax.kernels.blocks.POSITIONS", 2048)
    assert map_blocks(lambda block: block, 256, jnp.ones((batch, 1))).shape == (*blocks, 1)
