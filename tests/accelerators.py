"""Compilers of accelerators, where they are installed, and what a tiled array takes there."""

import math

import jax
import pytest

from fedamp_jax.placement import topology

TOPOLOGIES = ("v5e:2x2", "h100:2")


def topology_or_skip(name):
    """A mesh of accelerators that need not be here; the test is skipped where their compiler is not installed."""
    try:
        return topology(name)
    except RuntimeError as error:
        pytest.skip(str(error))


def tiled(tree):
    """Bytes of a tree of abstract arrays on one device, at most: a TPU fills the last two axes up to 8 and 128."""

    def padded(a):
        shape = (1, 1, *(a.shape if a.sharding is None else a.sharding.shard_shape(a.shape)))
        return 4 * math.prod(shape[:-2]) * (-(-shape[-2] // 8) * 8) * (-(-shape[-1] // 128) * 128)

    return sum(map(padded, jax.tree.leaves(tree)))
