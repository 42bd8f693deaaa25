"""Operations on trees with a leading client axis: the server's side of every method.

A stacked tree holds one model per client: every leaf is `[M, ...]`. Nothing here copies the stack: each leaf is
contracted where it lies, so that `W [M, D]` never exists a second time as one flat matrix. On several devices what
sums over clients lays the parameters over the devices first (see `fedamp_jax.layout`).
"""

import jax
import jax.numpy as jnp
import numpy as np

from fedamp_jax import layout, offload
from fedamp_jax.types import Array, PyTree

# Parameters per step of the distance sum: the slice of all clients ([M, 1024] float32) stays in a CPU's second-level
# cache. Measured for 100 clients x 1,663,370 parameters on two cores: 1.3 s with 1024, 2.4 s with 256, 1.5 s with 4096.
_BLOCK = 1024

# Clients in a tile of the distance matrix. Of two tiles of clients only one of both orders is computed, and their rows
# (2 x 50 x 1024 float32) stay in the cache: 2.4 times as fast for 1,000 clients as all pairs at once, and as 2 for 100.
_TILE = 50

# Differences that an accelerator may make in one step, several tiles at once; XLA sums them up as it makes them, but
# not always: in the round of 1,000 ResNet18 on 64 devices it stored all that there were.
_DIFFERENCES = 1 << 26


def clients(tree: PyTree) -> int:
    """Number of clients `M` of a stacked tree."""
    return jax.tree.leaves(tree)[0].shape[0]


def broadcast(tree: PyTree, m: int) -> PyTree:
    """The same model for each of `m` clients: leaves `[...]` become `[m, ...]`."""
    return jax.tree.map(lambda a: jnp.broadcast_to(a[None], (m, *a.shape)), tree)


def per_client(mask: Array, leaf: Array) -> Array:
    """Reshape `mask [M]` so that it broadcasts against `leaf [M, ...]`."""
    return mask.reshape(mask.shape + (1,) * (leaf.ndim - mask.ndim))


def where(mask: Array, a: PyTree, b: PyTree) -> PyTree:
    """Rows of `a` where `mask [M]` holds, else rows of `b`. Selects, so a NaN on the other side goes nowhere."""
    return jax.tree.map(lambda x, y: jnp.where(per_client(mask, x), x, y), a, b)


def mix(weights: Array, tree: PyTree) -> PyTree:
    """`u_i = sum_j weights[i, j] w_j`: all cloud models in one contraction (Huang et al. 2021, Eq. 5).

    Args:
        weights: `[M, M]` float32, rows receive.
        tree: leaves `[M, ...]` float32.

    Returns:
        A tree of the same shapes. Always in full float32, whatever matmul precision training uses: an error here moves
        every client's model.

    >>> mix(jnp.array([[0.5, 0.5], [0.0, 1.0]]), {"w": jnp.array([[2.0], [4.0]])})["w"].tolist()
    [[3.0], [4.0]]
    """
    if offload.active() is not None:
        return offload.over_columns(_mixed, weights, tree)
    weights = layout.everywhere(weights)
    leaves, structure = jax.tree.flatten(tree)
    mixed = [_mixed(weights, flat) for flat in layout.by_parameters(leaves)]
    return jax.tree.unflatten(structure, layout.by_clients(mixed, leaves))


def _mixed(weights: Array, flat: Array) -> Array:
    """`[M, d]` mixtures of the parameters `flat [M, d]`."""
    return jnp.einsum("ij,jd->id", weights, flat, precision="highest")


def mean(weights: Array, tree: PyTree) -> PyTree:
    """`sum_i weights[i] w_i / sum_i weights[i]`: leaves `[M, ...]` become `[...]`.

    With all weights zero the result is zero, never NaN: the caller decides what "nobody came" means.
    """
    total = jnp.sum(weights)
    share = weights / jnp.where(total > 0, total, jnp.ones_like(total))
    return jax.tree.map(lambda a: jnp.einsum("i,i...->...", share, a, precision="highest"), tree)


def _pairwise(scale: Array, flat: Array) -> Array:
    """`[M, M]` sums over the parameters of one leaf `flat [M, d]` of `(scale_i w_i - scale_j w_j)^2`."""
    flat, (m, width) = flat.astype(jnp.float32), flat.shape
    tiles = -(-m // _TILE)
    tile = -(-m // tiles)
    lower = np.tril_indices(tiles)
    at_once = 1 if jax.default_backend() == "cpu" else max(1, _DIFFERENCES // (tile * tile * _BLOCK))

    def block(start: Array | int, size: int) -> Array:
        rows = jax.lax.dynamic_slice_in_dim(flat, start, size, axis=1) * scale[:, None]
        rows = jnp.pad(rows, ((0, tiles * tile - m), (0, 0))).reshape(tiles, tile, size)
        two = lambda pair: jnp.sum(jnp.square(rows[pair[0]][:, None] - rows[pair[1]][None]), axis=-1)  # noqa: E731
        return jax.lax.map(two, jnp.asarray(lower).T, batch_size=at_once)

    whole = width // _BLOCK
    total = jnp.zeros((len(lower[0]), tile, tile), jnp.float32)
    if whole:
        total = jax.lax.fori_loop(0, whole, lambda i, acc: acc + block(i * _BLOCK, _BLOCK), total)
    if width % _BLOCK:
        total += block(whole * _BLOCK, width - whole * _BLOCK)
    both = jnp.zeros((tiles, tiles, tile, tile), jnp.float32).at[lower].set(total)
    both = both.at[lower[::-1]].set(total.swapaxes(1, 2))
    return both.swapaxes(1, 2).reshape(tiles * tile, tiles * tile)[:m, :m]


def sq_dists(tree: PyTree, scale: Array | None = None) -> Array:
    """Squared Euclidean distances between all clients' models, `d2[i, j] = ||w_i - w_j||^2`.

    Differences are taken before squaring. The usual `|a|^2 + |b|^2 - 2ab` loses everything when clients nearly
    coincide, and that is just where `exp(-d2 / sigma)` decides who collaborates. Tile by tile through the cache this
    is no slower on a CPU than the Gram matrix.

    Args:
        tree: leaves `[M, ...]`.
        scale: `[M]` float32 factor of each client's model, or None for 1.

    Returns:
        `[M, M]` float32, symmetric, never negative, diagonal exactly 0.

    >>> sq_dists({"w": jnp.array([[0.0, 0.0], [3.0, 4.0]])}).tolist()
    [[0.0, 25.0], [25.0, 0.0]]
    """
    m = clients(tree)
    scale = jnp.ones((m,), jnp.float32) if scale is None else scale

    if offload.active() is not None:
        return offload.summed_over_columns(_pairwise, scale, tree)

    def distances(flats: list[Array], scale: Array) -> Array:
        return sum((_pairwise(scale, flat) for flat in flats), jnp.zeros((m, m), jnp.float32))

    return layout.summed(distances, layout.by_parameters(jax.tree.leaves(tree)), layout.everywhere(scale))


def cosines(tree: PyTree) -> Array:
    """Cosine similarity between all clients' models, `[M, M]` float32, diagonal 1 (Eq. 8).

    Computed as `1 - ||a/|a| - b/|b|||^2 / 2`: models of one federation have cosines within 0.99..1, and sigma up to 100
    multiplies what is left, so the difference from 1 must be exact, not the cosine. A model without a
    direction, zero everywhere or too large for its squared norm, has cosine 1/2 with one that has, and 1 with another.

    >>> round(float(cosines({"w": jnp.array([[1.0, 0.0], [1.0, 1.0]])})[0, 1]), 4)
    0.7071
    """
    norm2 = sum(
        jnp.sum(jnp.square(a.reshape(a.shape[0], -1).astype(jnp.float32)), axis=1) for a in jax.tree.leaves(tree)
    )
    inverse = jnp.where(norm2 > 0, jax.lax.rsqrt(jnp.where(norm2 > 0, norm2, jnp.ones_like(norm2))), 0.0)
    return 1.0 - sq_dists(tree, inverse) / 2.0


def all_finite(tree: PyTree) -> Array:
    """True if every number of ONE client's tree is finite; `[]` bool."""
    checks = [jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(tree) if jnp.issubdtype(a.dtype, jnp.floating)]
    return jnp.all(jnp.stack(checks)) if checks else jnp.asarray(True)
