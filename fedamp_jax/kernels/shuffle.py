"""The random order in which a client's examples are read: a keyed bijection of `0..n-1`, without a sort.

The swap-or-not shuffle (Hoang, Morris and Rogaway 2012) gives the image of any row by itself, so that a minibatch costs
what its own rows cost. A sort would take an array of the largest client's length for every client and pass.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fedamp_jax import platforms

_ROUNDS = 24
_STEP = np.uint32(0x9E3779B9)  # by which words that are to be mixed differ: 2^32 over the golden ratio


def _mixed(word: Array) -> Array:
    """A bijection of 32-bit words: each bit of the argument changes half of the result's (Wellons' lowbias32)."""
    word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
    word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
    return word ^ (word >> 16)


def seed_of(key: Array) -> Array:
    """The words of a key that was split or folded, `[2]` uint32: as random as what a generator would make of them."""
    words = jax.random.key_data(key).reshape(-1, 2)
    return words[0] if len(words) == 1 else words[0] ^ words[1]  # other generators than JAX's default have four


def shuffled(rows: Array, size: Array, seed: Array, platform: str, number: Array | int = 0) -> Array:
    """The images of rows under a random permutation of a client's examples, `[B]` int32.

    Args:
        rows: `[B]` int32; of those that are not in `0..size-1` the images are meaningless.
        size: `[]` int32, the number of examples; or `[B]`, one for each row.
        seed: `[2]` uint32, which determines the permutation; or `[B, 2]`.
        platform: for which the program is compiled; the permutation does not depend on it.
        number: `[]` int32, of the permutation: a seed has one for each pass over the data.

    >>> key = jax.random.key(0)
    >>> sorted(shuffled(jnp.arange(5), jnp.int32(5), seed_of(key), "cpu").tolist())
    [0, 1, 2, 3, 4]
    """
    n = jnp.maximum(size, 1).astype(jnp.uint32)
    unroll = platforms.unroll(platform, _ROUNDS)
    # What all rows share is computed once on a CPU. An accelerator would start a kernel for each such number: it
    # computes them with every row, by adding a zero of each that its compiler takes for a number.
    zero = jnp.uint32(0) if unroll == 1 else rows.astype(jnp.uint32) >> 31
    step = jnp.asarray(number, jnp.uint32) * _STEP
    first, second = _mixed(seed[..., 0] + step + zero), _mixed(seed[..., 1] + step + zero)

    def swap_or_not(r: Array, row: Array) -> Array:
        word = _mixed(first + r.astype(jnp.uint32) * _STEP)
        pivot = word % n
        partner = pivot + jnp.where(row > pivot, n, jnp.uint32(0)) - row
        # The two of a pair must agree on whether to swap: by a bit that follows the larger one.
        swap = _mixed(jnp.maximum(row, partner) ^ (word + second)) >> 31
        return jnp.where(swap == 1, partner, row)

    return jax.lax.fori_loop(0, _ROUNDS, swap_or_not, rows.astype(jnp.uint32), unroll=unroll).astype(jnp.int32)
