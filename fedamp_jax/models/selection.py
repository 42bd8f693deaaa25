"""Which parameters and layers of a model words name, for `adapted`."""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import jax

from fedamp_jax.models.injection import Layer, injected
from fedamp_jax.trees import normalization_mask, path_name, path_names, prefix_mask
from fedamp_jax.types import PyTree, Task


def leaves_named(task: Task, params: PyTree, words: tuple[str, ...]) -> list[str]:
    """The paths of the leaves that `train` names, in their order."""
    names, found = path_names(params), set()
    for word in words:
        if word in ("head", "norm"):
            mask = prefix_mask(task.head, params) if word == "head" else normalization_mask(params)
            matches = [name for name, chosen in zip(names, jax.tree.leaves(mask)) if chosen]
        else:
            matches = [name for name in names if _matches(name, word)]
        if not matches:
            raise ValueError(f"train={word!r} matches no parameter; there are: {', '.join(names)}")
        found.update(matches)
    return [name for name in names if name in found]


def layers_named(
    task: Task, params: PyTree, trained: Sequence[str], words: Sequence[str]
) -> dict[str, tuple[Layer, tuple[int, ...]]]:
    """By their paths, the layers that `where` names, and the shapes of their kernels."""
    found: dict[str, Layer] = {}

    def note(path: str, layer: Layer, params: Mapping[str, Any]) -> None:
        found[path] = layer

    with injected(note):
        jax.eval_shape(lambda key: task.init(key), jax.random.key(0))
    sizes = {path_name(path): a.shape for path, a in jax.tree_util.tree_leaves_with_path(params)}
    free = {path: layer for path, layer in found.items() if f"{path}/kernel" in {*sizes} - {*trained}}
    chosen: set[str] = set()
    for word in words:
        matches = [path for path, layer in free.items() if _is_at(path, layer, word)]
        if not matches:
            there = ", ".join(free) or "none: only tasks made from Flax modules have layers that can be found"
            raise ValueError(f"where={word!r} matches no layer that is not trained itself; there are: {there}")
        chosen.update(matches)
    for path in chosen:
        if len(sizes[f"{path}/kernel"]) != free[path].axes:
            raise ValueError(
                f"{path} holds the kernels of several layers, as in nn.scan or nn.vmap, which no adapter fits: leave "
                f"it out of where, or build the model without; there are: {', '.join(free)}"
            )
    return {path: (layer, sizes[f"{path}/kernel"]) for path, layer in free.items() if path in chosen}


def _is_at(path: str, layer: Layer, word: str) -> bool:
    """Whether a word of `where` names the layer."""
    if word == "attention":
        return layer.kind == "dense" and any(part in path.lower() for part in ("attention", "attn"))
    return word in ("all", layer.kind) or _matches(path, word)


def _matches(path: str, pattern: str) -> bool:
    return fnmatchcase(path, pattern) or path.startswith(pattern + "/")
