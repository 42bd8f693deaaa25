"""Squared distances, by Gram matrix and by differences, against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedamp_jax.kernels import distances

WAYS = pytest.mark.parametrize("way", [distances.by_gram, distances.by_differences])


def exact(flat, scale=1.0):
    """In float64, from differences."""
    rows = np.asarray(flat, np.float64) * np.reshape(scale, (-1, 1))
    return np.stack([np.square(rows - row).sum(1) for row in rows])


def ones(m):
    return jnp.ones((m,), jnp.float32)


def rows(m, clusters, spread, d=5000):
    """`[m, d]` float32: centres with parameters of about 1, rows `spread` apart around them."""
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(clusters, d))
    return (centres[np.arange(m) % clusters] + spread * rng.normal(size=(m, d))).astype(np.float32)


@WAYS
@pytest.mark.parametrize("m", [1, 49, 50, 51, 103])
@pytest.mark.slow_variants
def test_several_panels_and_blocks(way, m, monkeypatch):
    """More rows than a panel or a tile has, a last one that is not full, and blocks of columns with a rest.

    Failed with the upper tiles not transposed, with a panel without what is left of it, and without the rest.
    """
    for name, value in {"_PANEL": 50, "_BLOCK_NUMBERS": 1, "_DIFFERENCES": 2 * 50 * 50 * 1024}.items():
        monkeypatch.setattr(distances, name, value)
    flat, scale = rows(m, 2, 1.0, d=1500), np.linspace(0.5, 2.0, m).astype(np.float32)
    got = np.asarray(way(jnp.asarray(flat), jnp.asarray(scale)))
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, exact(flat, scale.astype(np.float64)), rtol=1e-5)
    assert (np.diag(got) == 0).all() and np.array_equal(got, got.T)


@WAYS
@pytest.mark.parametrize("clusters", [1, 4])
@pytest.mark.parametrize("spread", [1.0, 1e-3, 1e-4, 1e-5, 1e-6])
def test_rows_that_nearly_coincide(way, clusters, spread):
    """All of them, and tight clusters. A float32 Gram matrix failed, centred or not: clusters of 1e-3 were off by 24 %.

    Differences have float32's relative error. The Gram matrix has a smaller one, and loses 1e-14 of both norms.
    """
    flat = rows(20, clusters, spread)
    got, expected = np.asarray(way(jnp.asarray(flat), ones(20)), np.float64), exact(flat)
    norms = np.square(flat.astype(np.float64)).sum(1)
    rtol, cancelled = (6e-8, 1e-14) if way is distances.by_gram else (5e-7, 0.0)
    assert (np.abs(got - expected) <= rtol * expected + cancelled * (norms[:, None] + norms)).all()
    assert (got >= 0).all() and (np.diag(got) == 0).all() and np.array_equal(got, got.T)


@WAYS
@pytest.mark.parametrize("row", [0, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_a_row_that_diverged_spoils_only_its_own_distances(way, row, value):
    """Failed with a Gram matrix around the mean, or around the first row: others' distances were NaN or 0."""
    flat = rows(6, 1, 1e-3, d=700)
    expected = exact(flat)
    flat[row, 3] = value
    got = np.asarray(way(jnp.asarray(flat), ones(6)))
    others = np.arange(6) != row
    np.testing.assert_allclose(got[others][:, others], expected[others][:, others], rtol=5e-7)
    assert not np.isfinite(got[row, others]).any() and not np.isfinite(got[others, row]).any()


@pytest.mark.parametrize(("platform", "has_float64"), [("cpu", True), ("cuda", True), ("tpu", False)])
def test_the_platform_that_is_compiled_for_decides(platform, has_float64):
    """Not the one that compiles, and the program holds one way alone. Failed with `jax.default_backend()`."""
    traced = jax.jit(distances.pairwise).trace(jnp.ones((8, 64)), ones(8))
    program = traced.lower(lowering_platforms=(platform,)).as_text()
    assert ("f64" in program) == has_float64
    assert ("dot_general" in program) == has_float64


def test_transformations():
    """`vmap` over models and scales, gradients, and both. Failed without rules of their own: float64 became float32."""
    stack = np.stack([rows(6, 2, 0.1, d=600), rows(6, 1, 1.0, d=600)])
    scales = np.stack([np.ones(6), np.linspace(0.5, 2, 6)]).astype(np.float32)
    got = jax.jit(jax.vmap(distances.pairwise))(jnp.asarray(stack), jnp.asarray(scales))
    for d2, flat, scale in zip(got, stack, scales, strict=True):
        np.testing.assert_allclose(d2, exact(flat, scale.astype(np.float64)), rtol=1e-6, atol=1e-9)

    def one_distance(flat):
        return distances.pairwise(flat, ones(6))[0, 1]

    slope = jax.jit(jax.vmap(jax.grad(one_distance)))(jnp.asarray(stack))
    expected = np.zeros_like(stack)
    expected[:, 0], expected[:, 1] = 2 * (stack[:, 0] - stack[:, 1]), 2 * (stack[:, 1] - stack[:, 0])
    np.testing.assert_allclose(slope, expected, rtol=1e-5, atol=1e-6)


def test_memory():
    """Blocks alone are in float64. Failed with all columns as one block: twice the models' memory."""
    shape = jax.ShapeDtypeStruct((32, 400_000), jnp.float32)
    program = jax.jit(distances.pairwise).lower(shape, ones(32)).compile()
    assert program.memory_analysis().temp_size_in_bytes < 4 * 32 * 400_000 / 4
