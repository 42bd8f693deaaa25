"""Trees of parameters: with a client axis, and cut into what is trained and what is frozen.

A stacked tree holds one model per client: every leaf is `[M, ...]`.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from fedamp_jax.types import Array, PyTree, Task, Variables


def broadcast(tree: PyTree, m: int) -> PyTree:
    """The same model for each of `m` clients: leaves `[...]` become `[m, ...]`."""
    return jax.tree.map(lambda a: jnp.broadcast_to(a[None], (m, *a.shape)), tree)


def broadcast_like(tree: PyTree, like: PyTree) -> PyTree:
    """The same model for each client of `like`: leaves `[...]` become `[M, ...]`."""
    return jax.tree.map(lambda a, b: jnp.broadcast_to(a[None], b.shape), tree, like)


def take(tree: PyTree, rows: Array) -> PyTree:
    """Rows `rows [B]` of every leaf: `[N, ...]` becomes `[B, ...]`."""
    return jax.tree.map(lambda a: a[rows], tree)


def expand_dims_like(mask: Array, leaf: Array) -> Array:
    """`mask [M]` with further axes of length 1, so that it broadcasts against `leaf [M, ...]`: clients or examples."""
    return mask.reshape(mask.shape + (1,) * (leaf.ndim - mask.ndim))


def where(mask: Array, a: PyTree, b: PyTree) -> PyTree:
    """Rows of `a` where `mask [M]` holds, else rows of `b`; `mask []` selects whole trees.

    It selects, so a NaN on the other side does not spread.
    """
    return jax.tree.map(lambda x, y: jnp.where(expand_dims_like(mask, x), x, y), a, b)


def all_finite(tree: PyTree) -> Array:
    """True if every number of ONE client's tree is finite; `[]` bool."""
    finite = [jnp.all(jnp.isfinite(a)) for a in jax.tree.leaves(tree) if jnp.issubdtype(a.dtype, jnp.floating)]
    return jnp.all(jnp.stack(finite)) if finite else jnp.asarray(True)


def seeded(tree: PyTree, key: Array) -> PyTree:
    """A tree whose PRNG keys are replaced by ones that follow `key`, such as an optimizer's state with gradient noise.

    As `optimizer.init` makes them they are the same for all clients, and in every round if the state starts afresh.
    """

    def is_key(a: Any) -> bool:
        return isinstance(a, jax.Array) and jnp.issubdtype(a.dtype, jax.dtypes.prng_key)

    return jax.tree.map(lambda a: jax.random.fold_in(key, jax.random.bits(a)) if is_key(a) else a, tree)


def partition(params: PyTree, trainable: PyTree | None) -> tuple[PyTree, PyTree]:
    """Two trees, `(trained, frozen)`, each with None where the other one has the leaf.

    Args:
        params: a tree of arrays.
        trainable: a tree of Python bools like it, or None, which trains everything.

    >>> partition({"body": 1.0, "head": 2.0}, {"body": False, "head": True})
    ({'body': None, 'head': 2.0}, {'body': 1.0, 'head': None})
    """
    if trainable is None:
        return params, jax.tree.map(lambda _: None, params)
    trained = jax.tree.map(lambda p, t: p if t else None, params, trainable)
    return trained, jax.tree.map(lambda p, t: None if t else p, params, trainable)


def combine(trained: PyTree, frozen: PyTree) -> PyTree:
    """The inverse of `partition`."""
    return jax.tree.map(lambda a, b: b if a is None else a, trained, frozen, is_leaf=lambda a: a is None)


def head_mask(task: Task, params: PyTree) -> PyTree:
    """A tree of Python bools like the parameters, True where a leaf belongs to the personal head (`task.head`).

    Raises:
        ValueError: if `task.head` selects no parameter, or all of them.
    """
    mask = prefix_mask(task.head, params)
    if len(set(jax.tree.leaves(mask))) != 2:
        raise ValueError(
            f"head={task.head} must select some and not all of the parameters; there are: "
            f"{', '.join(path_names(params))}"
        )
    return mask


def prefix_mask(prefixes: Sequence[str], params: PyTree) -> PyTree:
    """A tree of Python bools like the parameters, True where a leaf's path begins with one of the prefixes.

    Names are compared as a whole.

    >>> prefix_mask(("head",), {"body": 1.0, "head": {"bias": 2.0}, "header": 3.0})
    {'body': False, 'head': {'bias': True}, 'header': False}
    """

    def chosen(path: tuple, _: Any) -> bool:
        name = path_name(path)
        return any(name == prefix or name.startswith(prefix + "/") for prefix in prefixes)

    return jax.tree_util.tree_map_with_path(chosen, params)


def normalization_mask(params: PyTree) -> PyTree:
    """A tree of Python bools like the parameters, True where a leaf belongs to a normalization layer.

    These are the layers that have a parameter `scale`, as all of Flax do, or `norm` in their name, as `BatchNorm_0`.

    >>> normalization_mask({"bn": {"scale": 1.0, "bias": 0.0}, "norm1": {"bias": 0.0}, "Dense_0": {"bias": 0.0}})
    {'Dense_0': {'bias': False}, 'bn': {'bias': True, 'scale': True}, 'norm1': {'bias': True}}
    """
    split = [name.rpartition("/") for name in path_names(params)]
    scaled = {layer for layer, _, leaf in split if leaf == "scale"}

    def normalizes(path: tuple, _: Array) -> bool:
        layer = path_name(path).rpartition("/")[0]
        return layer in scaled or "norm" in layer.rpartition("/")[2].lower()

    return jax.tree_util.tree_map_with_path(normalizes, params)


def inverse(mask: PyTree) -> PyTree:
    """A tree of Python bools, each the opposite."""
    return jax.tree.map(lambda chosen: not chosen, mask)


def path_names(tree: PyTree) -> list[str]:
    """The paths of all leaves, such as `body/kernel`, in the order of the leaves."""
    return [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def path_name(path: tuple) -> str:
    """A leaf's path as one string, such as `body/kernel`."""
    return jax.tree_util.keystr(path, simple=True, separator="/")


def check_float32(variables: Variables) -> None:
    """Checks that all parameters are float32.

    Args:
        variables: arrays, or `jax.ShapeDtypeStruct` objects.

    Raises:
        TypeError: if a parameter has another dtype; the message says which one.

    >>> from fedamp_jax import Variables
    >>> check_float32(Variables({"head": {"kernel": jnp.ones((2, 3), jnp.bfloat16)}}, ()))
    Traceback (most recent call last):
        ...
    TypeError: the task's parameters must be float32, got bfloat16 in head/kernel: to compute in bfloat16, cast them
        in `loss` and `predict`, as the models here do with compute_dtype
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(variables.params):
        dtype = getattr(leaf, "dtype", jnp.result_type(leaf))
        if dtype != jnp.float32:
            where = path_name(path)
            raise TypeError(
                f"the task's parameters must be float32, got {dtype} in {where}: to compute in {dtype}, cast them in "
                "`loss` and `predict`, as the models here do with compute_dtype"
            )
