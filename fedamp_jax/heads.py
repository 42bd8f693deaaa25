"""A model taken apart: what is trained and what is frozen, the personal head and the shared body."""

from typing import Any

import jax

from fedamp_jax.types import PyTree, Task


def split(params: PyTree, trainable: PyTree | None) -> tuple[PyTree, PyTree]:
    """Two trees, `(trained, frozen)`, each with None where the other one has the leaf; a mask of None trains all."""
    if trainable is None:
        return params, jax.tree.map(lambda _: None, params)
    trained = jax.tree.map(lambda p, t: p if t else None, params, trainable)
    return trained, jax.tree.map(lambda p, t: None if t else p, params, trainable)


def join(trained: PyTree, frozen: PyTree) -> PyTree:
    """The tree that `split` took apart."""
    return jax.tree.map(lambda a, b: b if a is None else a, trained, frozen, is_leaf=lambda a: a is None)


def head_mask(task: Task, params: PyTree) -> PyTree:
    """A tree of Python bools like the parameters, True where a leaf belongs to the personal head (`task.head`).

    Raises:
        ValueError: if `task.head` selects no parameter, or all of them.
    """

    def of_head(path: tuple, _: Any) -> bool:
        name = jax.tree_util.keystr(path, simple=True, separator="/")
        return any(name == prefix or name.startswith(prefix + "/") for prefix in task.head)

    mask = jax.tree_util.tree_map_with_path(of_head, params)
    if len(set(jax.tree.leaves(mask))) != 2:
        names = [
            jax.tree_util.keystr(p, simple=True, separator="/") for p, _ in jax.tree_util.tree_leaves_with_path(params)
        ]
        raise ValueError(
            f"head={task.head} must select some and not all of the parameters; there are: {', '.join(names)}"
        )
    return mask
