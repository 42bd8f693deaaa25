"""Squared distances between the rows of one matrix, without losing rows that nearly coincide to cancellation.

Platforms with float64 sum the Gram matrix, `|a|^2 + |b|^2 - 2ab`, in float64: matrix products, three times as fast as
differences on a CPU, and rounded to float32 only once. Cancellation costs 1e-14 of `|a|^2 + |b|^2`, a few times what
storing a and b as float32 has cost already, however near they are and wherever other rows lie. In float32, centred or
not, it would leave nothing but noise of rows in a tight cluster. A TPU only emulates float64, and takes differences.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.custom_batching import sequential_vmap

from fedamp_jax.platforms import on_platform

# Numbers of a block of columns that is held in float64 (2 MB), and the least columns, so that products outweigh the
# additions of their results.
_BLOCK_NUMBERS, _BLOCK_COLUMNS = 1 << 18, 512

# Rows of a panel of the Gram matrix, of which only the panels' parts up to the diagonal are computed: five eighths of
# the products for 1,000 rows.
_PANEL = 250

# The same for differences: columns of a block, rows of a tile, and how many numbers may be made in one step. XLA
# usually sums them as it makes them, but not always: in the round of 1,000 ResNet18 on 64 devices it stored all.
_BLOCK, _TILE, _DIFFERENCES = 1024, 50, 1 << 26


@jax.custom_jvp
@sequential_vmap
def pairwise(flat: Array, scale: Array) -> Array:
    """`d2[i, j] = ||scale_i w_i - scale_j w_j||^2`.

    The platform that the program is compiled for decides how; the derivative is that of the differences.

    Args:
        flat: `[M, d]`, row i is `w_i`.
        scale: `[M]` float32.

    Returns:
        `[M, M]` float32, symmetric, never negative, diagonal 0. A row that is not finite makes NaN of its own distances
        alone, or infinity.

    >>> pairwise(jnp.array([[0.0, 0.0], [3.0, 4.0]]), jnp.ones(2)).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    return on_platform("distances", {"gram": by_gram, "differences": by_differences}, flat, scale)


# Transformations act on what was traced, outside of the scope in which JAX knows float64, and make float32 of it. So
# they are kept out: a derivative goes by the differences, and `vmap` runs one matrix after the other.
@pairwise.defjvp
def _derivative(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return pairwise(*primals), jax.jvp(by_differences, primals, tangents)[1]


def by_gram(flat: Array, scale: Array) -> Array:
    """`pairwise` from a Gram matrix that is summed in float64, a block of columns at a time."""
    m, width = flat.shape
    panels = [slice(start, min(start + _PANEL, m)) for start in range(0, m, _PANEL)]
    columns = max(_BLOCK_COLUMNS, _BLOCK_NUMBERS // m)

    with jax.enable_x64(True):

        def add(start: Array | int, size: int, grams: list[Array]) -> list[Array]:
            block = lax.dynamic_slice_in_dim(flat, start, size, axis=1)
            rows = block.astype(jnp.float64) * scale.astype(jnp.float64)[:, None]
            return [gram + rows[p] @ rows[: p.stop].T for gram, p in zip(grams, panels, strict=True)]

        grams, whole = [jnp.zeros((p.stop - p.start, p.stop), jnp.float64) for p in panels], width // columns
        if whole:
            grams = lax.fori_loop(0, whole, lambda i, grams: add(i * columns, columns, grams), grams)
        if width % columns:
            grams = add(whole * columns, width % columns, grams)

        norms = jnp.concatenate([jnp.diagonal(gram[:, p.start :]) for gram, p in zip(grams, panels, strict=True)])
        lower = jnp.zeros((m, m), jnp.float32)
        for gram, p in zip(grams, panels, strict=True):
            d2 = norms[p, None] + norms[None, : p.stop] - (gram + gram)
            lower = lower.at[p, : p.stop].set(jnp.maximum(d2, jnp.zeros_like(d2)).astype(jnp.float32))
    lower = jnp.tril(lower)  # the diagonal, n + n - 2n, is 0 already
    return lower + lower.T


def by_differences(flat: Array, scale: Array) -> Array:
    """`pairwise` in float32: differences of all pairs in tiles, of which only one order is computed."""
    flat, (m, width) = flat.astype(jnp.float32), flat.shape
    tiles = -(-m // _TILE)
    tile = -(-m // tiles)
    lower = np.tril_indices(tiles)
    at_once = max(1, _DIFFERENCES // (tile * tile * _BLOCK))

    def block(start: Array | int, size: int) -> Array:
        rows = lax.dynamic_slice_in_dim(flat, start, size, axis=1) * scale[:, None]
        rows = jnp.pad(rows, ((0, tiles * tile - m), (0, 0))).reshape(tiles, tile, size)

        def two(pair):
            return jnp.sum(jnp.square(rows[pair[0]][:, None] - rows[pair[1]][None]), axis=-1)

        return lax.map(two, jnp.asarray(lower).T, batch_size=at_once)

    whole = width // _BLOCK
    total = jnp.zeros((len(lower[0]), tile, tile), jnp.float32)
    if whole:
        total = lax.fori_loop(0, whole, lambda i, acc: acc + block(i * _BLOCK, _BLOCK), total)
    if width % _BLOCK:
        total += block(whole * _BLOCK, width - whole * _BLOCK)
    both = jnp.zeros((tiles, tiles, tile, tile), jnp.float32).at[lower].set(total)
    both = both.at[lower[::-1]].set(total.swapaxes(1, 2))
    return both.swapaxes(1, 2).reshape(tiles * tile, tiles * tile)[:m, :m]
