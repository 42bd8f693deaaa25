"""pFedGraph (Ye et al., ICML 2023): a collaboration graph inferred from how the models moved."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from optax.projections import projection_simplex

from fedamp_jax.algorithms.fedamp import attentive
from fedamp_jax.attention import Memory
from fedamp_jax.checks import check_number
from fedamp_jax.engine import Solver, of_clients, server
from fedamp_jax.types import Algorithm, Array, PyTree, Task

_FAR = -1e9  # a score that the projection never gives any weight


def pfedgraph(
    task: Task, solver: Solver, *, lam: Any = 0.8, mu: Any = 0.01, released: bool = False, stats: str = "local"
) -> Algorithm:
    """pFedGraph: row i of the graph is the projection of `p - d_i / (2 lam)` onto the simplex.

    `d_ij = -cos(w_i - g, w_j - g)` for the initial model g, and p_j is client j's share of the examples of the clients
    that are online; i itself is a part of its row. Client i then minimises `F_i(w) - mu cos(w, u_i)` from
    `u_i = sum_j xi_ij w_j`; in the first round without the second term.

    Args:
        task: the model.
        solver: local training.
        lam: how strongly rows are drawn to p, greater than 0 (the authors' program calls it alpha); a number, one per
            client `[M]`, each of its own row, a schedule of the round or a tracer.
        mu: weight of the alignment with u_i, at least 0 (the authors' program calls it lambda); as lam a number, one
            per client, a schedule or a tracer.
        released: reproduce the authors' program (`pfedgraph_approx.py --difference_measure all`), which adds the
            similarity to the loss instead of subtracting it, and takes cosines above 0.9 as 1.
        stats: as in `attentive`.

    Returns:
        The `Algorithm`; `info.xi` holds the graph.

    Raises:
        ValueError, TypeError: if a hyper-parameter is out of range or of the wrong kind.

    Departs from the authors' program: models are mixed at the beginning of a round, among the clients that are online
    then, in place of its end; with every client online in every round the two are the same. By default, that program
    compares only the layers with "fc" in their names. The authors' other program, `pfedgraph_cosine.py`, aligns w with
    every other model on its own, weighted by xi, in place of their mixture u_i.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.pfedgraph(task, fedamp_jax.Solver(optax.adam(1e-3)))
    """
    check_number("lam", lam, low=0, allow_array=True)
    check_number("mu", mu, low=0, strict=False, allow_array=True)

    def graph(models, edges, k, data, initial):
        moved = data.placement.by_parameters(jax.tree.map(lambda w, g: w - g[None], models.tree, initial))
        cosine, known = server.cosines(moved), server.sq_norms(moved) > 0
        cosine = jnp.where(known[:, None] & known[None], cosine, 0.0)  # of a model that never moved
        if released:
            cosine = jnp.where(cosine > 0.9, 1.0, cosine)
        online, own = data.online, jnp.eye(len(edges), dtype=bool)
        size = jnp.where(online, data.size, 0).astype(jnp.float32)
        score = size[None] / jnp.maximum(jnp.sum(size), 1.0) + cosine / (2.0 * of_clients("lam", lam, k, data)[:, None])
        # optax divides floats by integer counts, which are of 64 bits where these are allowed.
        with jax.numpy_dtype_promotion("standard"), jax.enable_x64(False):
            rows = jax.vmap(projection_simplex)(jnp.where(edges | own, score, _FAR))
        return jnp.where(online[:, None], rows, own.astype(jnp.float32)), initial

    def penalty(cloud, k, mu_i):
        weight = jnp.where(k > 0, mu_i, 0.0)
        return Alignment(cloud, -weight if released else weight)

    memory = Memory(lambda start: jax.tree.map(lambda a: a[0], start.params))
    return attentive(task, solver, graph, memory=memory, penalty=penalty, stats=stats,
                     numbers=lambda k, data: (of_clients("mu", mu, k, data),))  # fmt: skip


def _dot(a: PyTree, b: PyTree) -> Any:
    """The scalar product of two models."""
    return sum(jax.tree.leaves(jax.tree.map(lambda x, y: jnp.sum(x * y), a, b)))


class Alignment(NamedTuple):
    """The penalty `-weight * cos(w, center)`, whose gradient is zero where one of them is zero.

    Attributes:
        center: a tree like the parameters.
        weight: `[]` float32.
    """

    center: PyTree
    weight: Array

    def gradient(self, params: PyTree) -> PyTree:
        """`-weight * (u / (|w| |u|) - cos(w, u) w / |w|^2)`."""
        ww, uu, wu = _dot(params, params), _dot(self.center, self.center), _dot(params, self.center)
        defined = ww * uu > 0
        inverse = jnp.where(defined, jax.lax.rsqrt(jnp.where(defined, ww * uu, 1.0)), 0.0)
        along = wu * inverse / jnp.where(defined, ww, 1.0)
        return jax.tree.map(lambda w, u: -self.weight * (inverse * u - along * w), params, self.center)

    def value(self, params: PyTree) -> Array:
        """`-weight * cos(w, u)`, 0 where one of them is zero."""
        product = _dot(params, params) * _dot(self.center, self.center)
        inverse = jnp.where(product > 0, jax.lax.rsqrt(jnp.where(product > 0, product, 1.0)), 0.0)
        return -self.weight * _dot(params, self.center) * inverse
