"""Terms of a client's objective beside its loss, given by their gradients."""

from typing import NamedTuple, Protocol

import jax
import jax.numpy as jnp

from fedamp_jax.types import Array, PyTree


class Penalty(Protocol):
    """A term of the local objective beside the loss. `Prox` is one."""

    def gradient(self, params: PyTree) -> PyTree:
        """Its gradient, a tree like `params`."""
        ...


class Prox(NamedTuple):
    """The penalty `weight / 2 * ||w - center||^2` on the trained parameters.

    Attributes:
        center: a tree like the parameters.
        weight: `[]` float32; FedAMP's is `lam / alpha_k` (Eq. 6), FedProx's is `mu`.
    """

    center: PyTree
    weight: Array

    def gradient(self, params: PyTree) -> PyTree:
        """`weight * (w - center)`."""
        weight = self.weight  # read once: a tracer of its own for each leaf costs compile time
        return jax.tree.map(lambda w, c: weight * (w - c), params, self.center)


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
        dot = lambda a, b: sum(jax.tree.leaves(jax.tree.map(lambda x, y: jnp.sum(x * y), a, b)))  # noqa: E731
        ww, uu, wu = dot(params, params), dot(self.center, self.center), dot(params, self.center)
        defined = ww * uu > 0
        inverse = jnp.where(defined, jax.lax.rsqrt(jnp.where(defined, ww * uu, 1.0)), 0.0)
        along = wu * inverse / jnp.where(defined, ww, 1.0)
        return jax.tree.map(lambda w, u: -self.weight * (inverse * u - along * w), params, self.center)
