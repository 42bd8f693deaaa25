"""Distances and cosines between clients' adapters by what the model sees of them: the products A B.

Two clients may have the same product with different factors, `(A R) (R^-1 B)`. No product is formed: of
`P_i = A_i B_i`,

    <P_i, P_j> = trace(B_i^T A_i^T A_j B_j) = sum_rs (A_i^T A_j)_rs (B_i B_j^T)_rs

needs the Gram matrices of all columns of A and of all rows of B, `[M r, M r]`, in place of `[M, inputs, outputs]`. They
are summed in float64, as those of models are on platforms that have it (`fedamp_jax.kernels.distances`); a TPU emulates
it.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.custom_batching import sequential_vmap

from fedamp_jax.engine.server import Geometry
from fedamp_jax.placement.placement import ByParameters, Placement
from fedamp_jax.trees import path_name
from fedamp_jax.types import Array, PyTree

A, B = "lora_a", "lora_b"
"""The names of the leaves `[M, inputs..., r]` and `[M, r, outputs...]`, beside each other."""


def products(scale: float) -> Geometry:
    """The geometry of models with `W + scale A B` for kernels, and with the other leaves as they are.

    Every device gets all clients' adapters for it, and Gram matrices of `(M r)^2` float64 numbers for a layer.

    >>> a, b = jnp.array([[[1.0]], [[2.0]]]), jnp.array([[[2.0]], [[1.0]]])
    >>> products(1.0).sq_dists({"lora_a": a, "lora_b": b}).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    return Geometry(
        lambda models: _computed(_sq_dists, models, scale), lambda models: _computed(_cosines, models, scale)
    )


def _computed(of_inner: Callable[[Any], Any], models: PyTree | ByParameters, scale: float) -> Array:
    """`of_inner(inner products [M, M] float64) -> [M, M]`, as float32."""

    # Transformations would make float32 of what was traced in the scope of float64: `vmap` runs one after the other.
    @sequential_vmap
    def found(tree: PyTree) -> Array:
        with jax.enable_x64(True):
            return of_inner(_inner_products(tree, scale)).astype(jnp.float32)

    laid_out = models if isinstance(models, ByParameters) else Placement().by_parameters(models)
    return found(laid_out.placement.replicate(laid_out.tree))


def _inner_products(tree: PyTree, scale: float) -> Array:
    """Of all pairs of models, `[M, M]` float64."""
    leaves = {path_name(path): a.astype(jnp.float64) for path, a in jax.tree_util.tree_leaves_with_path(tree)}
    total: Any = 0.0
    for path, a in leaves.items():
        m, b = a.shape[0], leaves.get(f"{path.removesuffix(A)}{B}")
        if path.endswith(A) and b is not None:
            r = a.shape[-1]
            columns = a.reshape(m, -1, r).swapaxes(1, 2).reshape(m * r, -1)
            both = _gram(columns) * _gram(b.reshape(m * r, -1)) * scale**2
            total += both.reshape(m, r, m, r).sum((1, 3))
        elif not (path.endswith(B) and f"{path.removesuffix(B)}{A}" in leaves):
            total += _gram(a.reshape(m, -1))
    return total


def _gram(rows: Array) -> Array:
    return rows @ rows.T


def _sq_dists(inner: Array) -> Array:
    norms = jnp.diagonal(inner)
    d2 = jnp.maximum(norms[:, None] + norms[None] - (inner + inner.T), 0.0)
    return jnp.where(jnp.eye(len(inner), dtype=bool), 0.0, d2)


def _cosines(inner: Array) -> Array:
    """As `server.cosines`, of which a model without a direction has 1/2 with one that has."""
    norms = jnp.diagonal(inner)
    inverse = jnp.where(norms > 0, jax.lax.rsqrt(jnp.where(norms > 0, norms, 1.0)), 0.0)
    return 1.0 - _sq_dists(inner * inverse[:, None] * inverse[None]) / 2.0
