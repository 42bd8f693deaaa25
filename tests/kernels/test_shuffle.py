"""The keyed bijection that orders a client's examples."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedamp_jax.kernels.shuffle import seed_of, shuffled


@jax.jit
def orders(rows, size, keys):
    """One permutation for each key, `[K, N]`."""
    return jax.vmap(lambda key: shuffled(rows, size, seed_of(key), "cpu"))(keys)


def reference(size, seed):
    """Swap-or-not as its authors print it, on Python's integers (Hoang, Morris and Rogaway 2012, Figure 1)."""
    mask = 0xFFFFFFFF

    def mixed(word):
        word = ((word ^ (word >> 16)) * 0x7FEB352D) & mask
        word = ((word ^ (word >> 15)) * 0x846CA68B) & mask
        return word ^ (word >> 16)

    first, second = mixed(int(seed[0])), mixed(int(seed[1]))
    image = list(range(size))
    for r in range(24):
        word = mixed((first + r * 0x9E3779B9) & mask)
        key = word % size
        for i, x in enumerate(image):
            partner = (key - x) % size
            bit = mixed(max(x, partner) ^ ((word + second) & mask)) >> 31
            image[i] = partner if bit else x
    return image


@pytest.mark.parametrize("size", [1, 2, 7, 100])
def test_it_is_swap_or_not(size):
    """A permutation, and the published one. Failed when the two of a pair did not agree on their swap."""
    seed = seed_of(jax.random.key(size))
    found = shuffled(jnp.arange(size), jnp.int32(size), seed, "cpu").tolist()
    assert sorted(found) == list(range(size)) and found == reference(size, seed)
    assert found == shuffled(jnp.arange(size), jnp.int32(size), seed, "tpu").tolist()  # unrolled


def test_it_depends_on_key_and_size_alone():
    """Not on how many rows are asked for, and in which order. Failed with a draw of the padded length."""
    seed, some = seed_of(jax.random.key(1)), jnp.array([5, 2, 11])
    whole = shuffled(jnp.arange(12), jnp.int32(12), seed, "cpu")
    assert shuffled(some, jnp.int32(12), seed, "cpu").tolist() == whole[some].tolist()
    each = shuffled(some, jnp.full(3, 12), jnp.broadcast_to(seed, (3, 2)), "cpu")
    assert each.tolist() == whole[some].tolist()


def test_all_permutations_are_equally_likely():
    """Chi-square of the 120 permutations of five, and of all pairs of rows of 60. Failed with one pivot for all rounds,
    and with four rounds in place of 24.
    """
    keys = jax.random.split(jax.random.key(0), 24_000)
    found = np.asarray(orders(jnp.arange(5), jnp.int32(5), keys))
    number = {p: i for i, p in enumerate(itertools.permutations(range(5)))}
    counts = np.bincount([number[tuple(p)] for p in found.tolist()], minlength=120)
    assert ((counts - 200) ** 2 / 200).sum() < 184  # 119 degrees of freedom: p = 0.0001
    found = np.asarray(orders(jnp.arange(2), jnp.int32(60), keys))
    counts = np.bincount(found[:, 0] * 60 + found[:, 1], minlength=3600)[~np.eye(60, dtype=bool).ravel()]
    expected = len(keys) / len(counts)
    assert abs(((counts - expected) ** 2 / expected).sum() - 3539) < 4 * np.sqrt(2 * 3539)


def test_passes_are_independent():
    """The rows that two passes begin with, over many keys. Failed with one permutation for all passes."""

    def first(key):
        one, size, seed = jnp.arange(1), jnp.int32(6), seed_of(key)
        return jnp.stack([shuffled(one, size, seed, "cpu", number)[0] for number in (0, 1)])

    found = np.asarray(jax.jit(jax.vmap(first))(jax.random.split(jax.random.key(2), 7_200)))
    counts = np.bincount(found[:, 0] * 6 + found[:, 1], minlength=36)
    assert ((counts - 200) ** 2 / 200).sum() < 77  # 35 degrees of freedom: p = 0.0001
