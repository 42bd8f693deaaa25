"""Winograd's minimal filtering for 3x3 convolutions of stride 1 (Lavin and Gray 2016), in value and both gradients.

A tile of m x m outputs needs (m + 2)^2 multiplications per pair of channels instead of 9 m^2: 2.25 times fewer for
m = 2, 4 times fewer for m = 4. With `X` a tile of (m + 2)^2 inputs and `W` a kernel, it is

    Y = A^T [(G W G^T) * (B^T X B)] A,

where the sum over input channels is taken before the outer transform, so that `*` becomes one matrix product for each
of the (m + 2)^2 entries. The gradient with respect to the kernel is the adjoint of this map, summed over tiles:

    dW = G^T [(A dY A^T) * (B^T X B)] G.

The gradient with respect to the input is a convolution of dY with the flipped kernel. Each is written out here, as
reverse-mode differentiation of the forward pass would scatter overlapping tiles.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import lax

from fedamp_jax.models.blocks import map_blocks
from fedamp_jax.types import Array

Grid = list[list[Array]]
Matrix = tuple[tuple[float, ...], ...]
Pads = Sequence[tuple[int, int]]

# Interpolation at 0, 1, -1 and infinity, and for m = 4 also at 2 and -2.
_BT: dict[int, Matrix] = {
    2: ((1, 0, -1, 0), (0, 1, 1, 0), (0, -1, 1, 0), (0, -1, 0, 1)),
    4: (
        (4, 0, -5, 0, 1, 0),
        (0, -4, -4, 1, 1, 0),
        (0, 4, -4, -1, 1, 0),
        (0, -2, -1, 2, 1, 0),
        (0, 2, -1, -2, 1, 0),
        (0, 4, 0, -5, 0, 1),
    ),
}
_G: dict[int, Matrix] = {
    2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    4: (
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    ),
}
_AT: dict[int, Matrix] = {
    2: ((1, 1, 1, 0), (0, 1, -1, 1)),
    4: ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1)),
}


def forward(x: Array, w: Array, pads: Pads, *, m: int = 2, precision=None) -> Array:
    """A 3x3 convolution of stride 1.

    Args:
        x: `[B, H, W, I]` images.
        w: `[3, 3, I, O]` kernel.
        pads: `((low, high), (low, high))`, zeros around the images; a negative number removes rows or columns.
        m: height and width of a tile of outputs, 2 or 4. With 4, the error in float32 is several times larger.
        precision: of the matrix products.

    Returns:
        `[B, H', W', O]`, of the images' dtype.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedamp_jax.models.winograd import forward
        >>> forward(jnp.ones((1, 3, 3, 1)), jnp.ones((3, 3, 1, 1)), ((1, 1), (1, 1)))[0, :, :, 0].tolist()
        [[4.0, 6.0, 4.0], [6.0, 9.0, 6.0], [4.0, 6.0, 4.0]]
    """
    height, width = (n + sum(pad) - 2 for n, pad in zip(x.shape[1:3], pads, strict=True))
    rows, columns = -(-height // m), -(-width // m)
    kernels = _both_axes(_G[m], [[w[i, j] for j in range(3)] for i in range(3)])

    def block(x: Array) -> Array:
        tiles = _input_tiles(x, pads, m, rows, columns)
        products = [
            [jnp.matmul(a, b, precision=precision) for a, b in zip(*pair, strict=True)]
            for pair in zip(tiles, kernels, strict=True)
        ]
        outputs = _both_axes(_AT[m], products)
        y = jnp.stack(
            [jnp.stack([part.reshape(-1, rows, columns, w.shape[3]) for part in row], 3) for row in outputs], 2
        )
        return y.reshape(-1, rows * m, columns * m, w.shape[3])

    y = map_blocks(block, height * width, x)
    return y.reshape(-1, *y.shape[2:])[: x.shape[0], :height, :width]


def to_input(dy: Array, w: Array, shape: Sequence[int], pads: Pads, *, m: int = 2, precision=None) -> Array:
    """The gradient with respect to the input.

    Args:
        dy: `[B, H', W', O]`, the gradient with respect to the output.
        w: `[3, 3, I, O]`, as for the following arguments see `forward`.
        shape: `[B, H, W, I]`, of the input.
        pads: see `forward`.
        m: see `forward`.
        precision: see `forward`.

    Returns:
        `[B, H, W, I]`.
    """
    around = [(2 - low, n + low - d) for (low, _), n, d in zip(pads, shape[1:3], dy.shape[1:3], strict=True)]
    return forward(dy, w[::-1, ::-1].transpose(0, 1, 3, 2), around, m=m, precision=precision)


def to_kernel(x: Array, dy: Array, pads: Pads, *, m: int = 4, precision=None) -> Array:
    """The gradient with respect to the kernel.

    Args:
        x: `[B, H, W, I]` images.
        dy: `[B, H', W', O]`, the gradient with respect to the output.
        pads: see `forward`.
        m: see `forward`.
        precision: see `forward`.

    Returns:
        `[3, 3, I, O]`.
    """
    rows, columns = (-(-n // m) for n in dy.shape[1:3])

    def block(x: Array, dy: Array) -> Array:
        # A tile of zeros gives zeros: what lies beyond the output does not count.
        tiles, gradients = _input_tiles(x, pads, m, rows, columns), _output_tiles(dy, m, rows, columns)
        products = [
            [jnp.matmul(a.T, b, precision=precision) for a, b in zip(*pair, strict=True)]
            for pair in zip(tiles, gradients, strict=True)
        ]
        # In every block, because there are fewer kernels' entries than products to keep.
        kernels = _both_axes(_transposed(_G[m]), products)
        return jnp.stack([jnp.stack(row) for row in kernels])

    return jnp.sum(map_blocks(block, dy.shape[1] * dy.shape[2], x, dy), 0)


def _input_tiles(x: Array, pads: Pads, m: int, rows: int, columns: int) -> Grid:
    """`B^T X B` of all tiles: a grid of (m + 2)^2 matrices `[tiles, I]`."""
    (top, _), (left, _) = pads
    height, width = rows * m + 2, columns * m + 2
    around = [(0, 0, 0), (top, height - x.shape[1] - top, 0), (left, width - x.shape[2] - left, 0), (0, 0, 0)]
    x = lax.pad(x, jnp.zeros((), x.dtype), around)
    # First along the height, on whole rows of pixels.
    parts = [x[:, i : height - 1 - m + i : m] for i in range(m + 2)]
    parts = [_combine(line, parts) for line in _BT[m]]
    grid = [[part[:, :, j : width - 1 - m + j : m] for j in range(m + 2)] for part in parts]
    return [[_combine(line, row).reshape(-1, x.shape[3]) for line in _BT[m]] for row in grid]


def _output_tiles(dy: Array, m: int, rows: int, columns: int) -> Grid:
    """`A dY A^T` of all tiles: a grid of (m + 2)^2 matrices `[tiles, O]`."""
    a = _transposed(_AT[m])
    dy = jnp.pad(dy, ((0, 0), (0, rows * m - dy.shape[1]), (0, columns * m - dy.shape[2]), (0, 0)))
    parts = [_combine(line, [dy[:, i::m] for i in range(m)]) for line in a]
    grid = [[part[:, :, j::m] for j in range(m)] for part in parts]
    return [[_combine(line, row).reshape(-1, dy.shape[3]) for line in a] for row in grid]


def _both_axes(matrix: Matrix, grid: Grid) -> Grid:
    """`matrix @ grid @ matrix^T`."""
    rows = [[_combine(line, [row[j] for row in grid]) for j in range(len(grid[0]))] for line in matrix]
    return [[_combine(line, row) for line in matrix] for row in rows]


def _combine(line: Sequence[float], parts: Sequence[Array]) -> Array:
    """The sum of the parts, weighted by a line of a matrix, without multiplications by 0 and 1."""
    terms = [part if factor == 1 else factor * part for factor, part in zip(line, parts, strict=True) if factor]
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _transposed(matrix: Matrix) -> Matrix:
    return tuple(zip(*matrix, strict=True))
