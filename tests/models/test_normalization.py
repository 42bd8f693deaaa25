"""Normalization layers compared with Flax's, in float64."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedamp_jax.models.normalization import BatchNorm, GroupNorm

F64 = {"dtype": jnp.float64, "param_dtype": jnp.float64, "force_float32_reductions": False}


def _values(apply, variables, x, dy):
    """Output, new statistics, and the gradients with respect to variables and input."""
    (y, stats), transpose = jax.vjp(lambda v, x: apply(v, x, mutable=["batch_stats"]), variables, x)
    return y, stats, transpose((dy, jax.tree.map(jnp.zeros_like, stats)))


def _assert_equal(ours, theirs, ours_args, theirs_kwargs, x):
    rng = np.random.default_rng(1)
    variables = theirs.init(jax.random.key(0), x, **theirs_kwargs)
    own = ours.init(jax.random.key(0), x, *ours_args)
    assert jax.tree.structure(own) == jax.tree.structure(variables)  # saved models fit either
    # Not the initial ones, 0 and 1, which hide what they are used for.
    variables = jax.tree.map(lambda a: jnp.asarray(rng.uniform(0.5, 2.0, a.shape)), variables)
    dy = jnp.asarray(rng.normal(size=x.shape))
    mine = _values(lambda v, x, **kw: ours.apply(v, x, *ours_args, **kw), variables, x, dy)
    reference = _values(lambda v, x, **kw: theirs.apply(v, x, **theirs_kwargs, **kw), variables, x, dy)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10), mine, reference)


@pytest.mark.parametrize("train", [True, False])
def test_batch_norm(train):
    """Fails if rows that do not count enter the statistics, if the momentum is the other one, or if the shift leaves
    out the mean.
    """
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(0).normal(2.0, 3.0, (5, 3, 4, 6)))
        mask = jnp.arange(5) < 3
        theirs = nn.BatchNorm(use_running_average=not train, momentum=0.9, **F64)
        _assert_equal(BatchNorm(), theirs, (train, mask), {"mask": mask[:, None, None, None]}, x)


@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.slow_variants
def test_group_norm(groups):
    """Fails if channels are grouped in another order, or images together."""
    with jax.enable_x64(True):
        x = jnp.asarray(np.random.default_rng(0).normal(2.0, 3.0, (3, 3, 4, 6)))
        _assert_equal(GroupNorm(groups), nn.GroupNorm(groups, **F64), (), {}, x)


def test_padding_that_is_not_finite():
    """Fails if rows that do not count are multiplied by zero, which leaves NaN, in place of being left out."""
    x = jnp.ones((3, 2, 2, 4)) * jnp.array([1.0, 2.0, jnp.nan])[:, None, None, None]
    y, _ = BatchNorm().init_with_output(jax.random.key(0), x, True, jnp.array([True, True, False]))
    assert jnp.all(jnp.isfinite(y[:2]))


def test_constant_images():
    """Fails if rounding makes a variance negative, whose root is NaN."""
    x = jnp.full((2, 7, 7, 4), 1e3 / 3, jnp.float32)
    for layer, args in ((BatchNorm(), (True, jnp.ones(2, bool))), (GroupNorm(2), ())):
        y, _ = layer.init_with_output(jax.random.key(0), x, *args)
        assert jnp.all(jnp.isfinite(y)), type(layer).__name__
