"""Winograd's minimal filtering for convolutions of stride 1 (Lavin and Gray 2016), in value and both gradients.

With a kernel of r x r, a tile of m x m outputs needs n^2 multiplications per pair of channels, n = m + r - 1, instead
of r^2 m^2: 4 times fewer for r = 3, 6.25 times fewer for r = 5, at m = 4. With `X` a tile of n x n inputs and `W` a
kernel, it is

    Y = A^T [(G W G^T) * (B^T X B)] A,

where the sum over input channels is taken before the outer transform, so that `*` becomes one matrix product for each
of the n^2 entries. The gradient with respect to the kernel is the adjoint of this map, summed over tiles:

    dW = G^T [(A dY A^T) * (B^T X B)] G.

The gradient with respect to the input is a convolution of dY with the flipped kernel. Each is written out here, as
reverse-mode differentiation of the forward pass would scatter overlapping tiles.

The transforms along the height are computed for all tiles, those along the width and the products in a loop over the n
lines of a tile. The loop is what keeps XLA's CPU backend from computing the first transform anew inside each of the
second (ten times slower for r = 5). The n products of a line are one batched product, which XLA computes about twice as
fast as n separate ones of so few columns.
"""

import functools
import math
from collections.abc import Sequence
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from fedamp_jax.kernels.blocks import map_blocks

Matrix = tuple[tuple[float, ...], ...]
Pads = Sequence[tuple[int, int]]

# Height and width of a tile of outputs.
TILE = 4
# Points of interpolation besides infinity, as small and with as few bits as possible, for kernels of up to 5 x 5.
_POINTS = tuple(map(Fraction, ("0", "1", "-1", "2", "-2", "1/2", "-1/2")))


@functools.cache
def transforms(r: int) -> tuple[Matrix, Matrix, Matrix]:
    """The matrices of Winograd's filtering of m = `TILE` outputs by r taps, by interpolation at n - 1 points.

    Args:
        r: taps of the kernel along one axis, 1 to 5.

    Returns:
        `B^T` `[n, n]`, `G` `[n, r]` and `A^T` `[m, n]`. For a point p, the line of `B^T` has the coefficients of the
        product of `x - q` over all other points q, the line of `G` the powers of p divided by the product of `p - q`,
        and the column of `A^T` the powers of p. Infinity comes last.

    Example:
        >>> from fedamp_jax.kernels.winograd import transforms
        >>> transforms(3)[0][0]
        (4.0, 0.0, -5.0, 0.0, 1.0, 0.0)
    """
    points = _POINTS[: TILE + r - 2]
    bt, g = [], []
    for p in points:
        others = [q for q in points if q != p]
        bt.append([*_coefficients(others), 0])
        g.append([p**k / math.prod(p - q for q in others) for k in range(r)])
    bt.append(_coefficients(points))
    g.append([int(k == r - 1) for k in range(r)])
    at = [[*(p**k for p in points), int(k == TILE - 1)] for k in range(TILE)]
    bt, g, at = (tuple(tuple(map(float, line)) for line in matrix) for matrix in (bt, g, at))
    return bt, g, at


def _coefficients(roots: Sequence[Fraction]) -> list[Fraction]:
    """Of the product of `x - root`, the constant first."""
    line = [Fraction(1)]
    for root in roots:
        line = [a - root * b for a, b in zip([Fraction(0), *line], [*line, Fraction(0)], strict=True)]
    return line


def saves(size: Sequence[int], r: int) -> bool:
    """Whether outputs of this height and width, in whole tiles, take less than half of a convolution's products.

    Args:
        size: height and width of the outputs.
        r: height and width of the kernel.

    Returns:
        False for kernels that `transforms` does not know.

    Example:
        >>> from fedamp_jax.kernels.winograd import saves
        >>> saves((4, 4), 3), saves((5, 5), 3)
        (True, False)
    """
    tiles = math.prod(-(-s // TILE) for s in size)
    return r <= len(_POINTS) + 2 - TILE and 2 * tiles * (TILE + r - 1) ** 2 < math.prod(size) * r**2


def forward(x: Array, w: Array, pads: Pads, *, precision=None) -> Array:
    """A convolution of stride 1.

    Args:
        x: `[B, H, W, I]` images.
        w: `[r, r, I, O]` kernel, r from 1 to 5.
        pads: `((low, high), (low, high))`, zeros around the images; a negative number removes rows or columns.
        precision: of the matrix products.

    Returns:
        `[B, H', W', O]`, of the images' dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedamp_jax.kernels.winograd import forward
        >>> forward(jnp.ones((1, 3, 3, 1)), jnp.ones((3, 3, 1, 1)), ((1, 1), (1, 1)))[0, :, :, 0].round().tolist()
        [[4.0, 6.0, 4.0], [6.0, 9.0, 6.0], [4.0, 6.0, 4.0]]
    """
    r, features = w.shape[0], w.shape[3]
    height, width = (n + sum(pad) - r + 1 for n, pad in zip(x.shape[1:3], pads, strict=True))
    rows, columns = -(-height // TILE), -(-width // TILE)
    bt, g, at = transforms(r)
    # All n^2 in one product: of many kernels, a sum of parts would read them many times.
    both = np.kron(np.asarray(g), np.asarray(g)).astype(w.dtype)
    kernels = jnp.matmul(both, w.reshape(r * r, -1), precision=precision)
    kernels = kernels.reshape(len(bt), len(bt), *w.shape[2:])

    def line(part_and_kernels: tuple[Array, Array]) -> Array:
        part, kernels = part_and_kernels
        tiles = _rows(_transform(bt, _positions(part, 2, columns, len(bt))))
        return jnp.stack(_transform(at, jnp.matmul(tiles, kernels, precision=precision)))

    def block(x: Array) -> Array:
        lines = lax.map(line, (_input_lines(x, pads, bt, rows, columns), kernels))
        y = jnp.stack(_transform(at, lines)).reshape(TILE, TILE, -1, rows, columns, features)
        return y.transpose(2, 3, 0, 4, 1, 5).reshape(-1, rows * TILE, columns * TILE, features)

    y = map_blocks(block, height * width, x)
    return y.reshape(-1, *y.shape[2:])[: x.shape[0], :height, :width]


def to_input(dy: Array, w: Array, shape: Sequence[int], pads: Pads, *, precision=None) -> Array:
    """The gradient with respect to the input.

    Args:
        dy: `[B, H', W', O]`, the gradient with respect to the output.
        w: `[r, r, I, O]`, as for the following arguments see `forward`.
        shape: `[B, H, W, I]`, of the input.
        pads: see `forward`.
        precision: see `forward`.

    Returns:
        `[B, H, W, I]`.
    """
    last = w.shape[0] - 1
    around = [(last - low, n + low - d) for (low, _), n, d in zip(pads, shape[1:3], dy.shape[1:3], strict=True)]
    return forward(dy, w[::-1, ::-1].transpose(0, 1, 3, 2), around, precision=precision)


def to_kernel(x: Array, dy: Array, r: int, pads: Pads, *, precision=None) -> Array:
    """The gradient with respect to the kernel.

    Args:
        x: `[B, H, W, I]` images.
        dy: `[B, H', W', O]`, the gradient with respect to the output.
        r: height and width of the kernel.
        pads: see `forward`.
        precision: see `forward`.

    Returns:
        `[r, r, I, O]`.
    """
    rows, columns = (-(-n // TILE) for n in dy.shape[1:3])
    bt, g, at = transforms(r)
    gt, a = (tuple(zip(*matrix, strict=True)) for matrix in (g, at))

    def line(parts: tuple[Array, Array]) -> Array:
        tiles = _rows(_transform(bt, _positions(parts[0], 2, columns, len(bt))))
        gradients = _rows(_transform(a, _positions(parts[1], 2, columns, TILE)))
        return jnp.stack(_transform(gt, jnp.matmul(tiles.mT, gradients, precision=precision)))

    def block(x: Array, dy: Array) -> Array:
        # A tile of zeros gives zeros: what lies beyond the output does not count.
        beyond = ((0, 0), (0, rows * TILE - dy.shape[1]), (0, columns * TILE - dy.shape[2]), (0, 0))
        gradients = jnp.stack(_transform(a, _positions(jnp.pad(dy, beyond), 1, rows, TILE)))
        lines = lax.map(line, (_input_lines(x, pads, bt, rows, columns), gradients))
        # In every block, because there are fewer kernels' entries than products to keep.
        return jnp.stack(_transform(gt, lines))

    return jnp.sum(map_blocks(block, dy.shape[1] * dy.shape[2], x, dy), 0)


def _input_lines(x: Array, pads: Pads, bt: Matrix, rows: int, columns: int) -> Array:
    """The tiles' transform along the height, for whole rows of pixels: `[n, B, rows, W, I]`."""
    n, (top, _), (left, _) = len(bt), *pads
    height, width = (rows - 1) * TILE + n, (columns - 1) * TILE + n
    around = [(0, 0, 0), (top, height - x.shape[1] - top, 0), (left, width - x.shape[2] - left, 0), (0, 0, 0)]
    x = lax.pad(x, jnp.zeros((), x.dtype), around)
    return jnp.stack(_transform(bt, _positions(x, 1, rows, n)))


def _positions(x: Array, axis: int, tiles: int, n: int) -> list[Array]:
    """For each of a tile's n positions along an axis, what all tiles have there."""
    return [lax.slice_in_dim(x, i, i + (tiles - 1) * TILE + 1, TILE, axis) for i in range(n)]


def _rows(parts: Sequence[Array]) -> Array:
    """`[n, rows, channels]`: the tiles of each part below one another."""
    return jnp.stack([part.reshape(-1, part.shape[-1]) for part in parts])


def _transform(matrix: Matrix, parts: Sequence[Array] | Array) -> list[Array]:
    """`matrix @ parts`, without multiplications by 0 and 1."""
    lines = []
    for line in matrix:
        pairs = zip(line, parts, strict=True)
        terms = [part if factor == 1 else factor * part for factor, part in pairs if factor]
        lines.append(functools.reduce(jnp.add, terms))
    return lines
