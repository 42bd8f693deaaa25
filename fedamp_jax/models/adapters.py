"""Adapters of a pretrained model: few parameters for each client, over weights that all of them share."""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedamp_jax.checks import check_integer, check_number, check_type
from fedamp_jax.engine.low_rank import A, B
from fedamp_jax.engine.task_checks import check_task
from fedamp_jax.models.injection import Layer, Product, injected
from fedamp_jax.models.layers import Lowered
from fedamp_jax.models.selection import layers_named, leaves_named
from fedamp_jax.trees import path_name, path_names
from fedamp_jax.types import Array, Base, Batch, PyTree, Task, Variables


def adapted(
    task: Task,
    base: Variables,
    *,
    rank: int = 8,
    scale: float = 1.0,
    where: Sequence[str] | str = "all",
    train: Sequence[str] | str = ("head",),
) -> Task:
    """The task of adapting a pretrained model by low-rank changes of its kernels (LoRA, Hu et al. 2022, Eq. 3).

    A layer computes `x W + scale (x A) B` in place of `x W`. W is the base's and stays as it is: all clients share one
    copy, in its own dtype. The parameters are A and B, and the leaves that `train` names.

    The change is never added to W. So the products with W are those of all clients side by side at once, and no
    client needs memory of the size of W.

    Args:
        task: the whole model, made from a Flax module: of `from_linen`, `from_nnx` or `fedamp_jax.models`. With
            `rank=0` any task.
        base: its trained variables, such as the parameters of a FedAvg state or what was read from a file. What `train`
            names may be missing, and then starts as `task.init` makes it, such as the head of a model that was
            trained for other classes.
        rank: r. `A [inputs, r]` is normal with variance `1 / inputs`, and `B [r, outputs]` is 0, so training starts
            from the base. In a convolution A is a convolution to r channels with the layer's kernel size and stride,
            and B is 1x1. A layer with fewer inputs or outputs than r has the rank of these. 0 for no adapters.
        scale: factor of `A B`, Hu et al.'s `alpha / r`.
        where: which layers have adapters: `"all"`, `"dense"`, `"conv"`, `"attention"`, which are the dense layers below
            one with `attention` or `attn` in its name, or paths such as `"encoder/*/query"`, where `*` stands for
            any characters; or several of these. Layers that are trained themselves are left out, and so are those with
            groups.
        train: which parameters are trained themselves, and may be empty: `"head"` for those of `task.head`, `"norm"`
            for those of normalization layers, or paths such as `"*/bias"`; or several of these.

    Returns:
        A `Task` with the head, metrics and running statistics of the given one. Parameters have the paths of the whole
        model, A and B beside their kernel as `lora_a` and `lora_b`. `task.base.merge` makes variables of the whole
        model from ONE client's parameters, and `save_models` remembers which base they belong to.

    Raises:
        TypeError: if an argument is of the wrong kind.
        ValueError: if `base` has not the parameters of the task, a word of `where` or `train` matches nothing, nothing
            is left to train, or a layer holds the kernels of several, as in `nn.scan`.

    The paper leaves open the variance of A.

    Example:
        >>> import jax, fedamp_jax
        >>> whole = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
        >>> task = fedamp_jax.models.adapted(whole, whole.init(jax.random.key(0)), rank=2)
        >>> params = task.init(jax.random.key(1)).params
        >>> {name: a.shape for name, a in params["body"]["Dense_0"].items()}, params["head"]["kernel"].shape
        ({'lora_a': (64, 2), 'lora_b': (2, 200)}, (200, 10))
    """
    shapes = check_task(task)
    check_type("base", base, Variables, "trained variables of the task: fedamp_jax.Variables(params, stats)")
    check_integer("rank", rank, low=0)
    check_number("scale", scale, low=0)
    trained = leaves_named(task, shapes.params, (train,) if isinstance(train, str) else tuple(train))
    layers = layers_named(task, shapes.params, trained, (where,) if isinstance(where, str) else where) if rank else {}
    if not trained and not layers:
        raise ValueError("nothing would be trained: give adapters a rank, or name parameters in train")
    given = _checked(base, shapes, trained)
    stats = jax.tree.map(lambda a, like: jnp.asarray(a, like.dtype), base.stats, shapes.stats)
    return _Adapted(task, shapes, given, trained, layers, rank, float(scale), stats).task()


def _checked(base: Variables, shapes: Variables, trained: Sequence[str]) -> dict[str, Array]:
    """The leaves of the base by their paths, statistics as `stats`, after a comparison with those of the task."""
    given = {path_name(path): a for path, a in jax.tree_util.tree_leaves_with_path(base.params)}
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes.params):
        name = path_name(path)
        if name not in given and name not in trained:
            raise ValueError(f"base has no parameter {name}, which is not trained; it has: {', '.join(given)}")
        if name in given and given[name].shape != leaf.shape:
            advice = "leave it out of base to train it from new" if name in trained else "build the task as it was"
            raise ValueError(f"{name} has shape {given[name].shape} in base and {leaf.shape} in the task: {advice}")
    if jax.tree.map(jnp.shape, base.stats) != jax.tree.map(jnp.shape, shapes.stats):
        raise ValueError(
            f"base has not the running statistics of the task, {path_names(shapes.stats)}: give it "
            "fedamp_jax.Variables(params, stats) with those of its training"
        )
    return {name: jnp.asarray(given[name]) for name in path_names(shapes.params) if name in given}


@dataclasses.dataclass(frozen=True, eq=False)
class _Adapted:
    """The functions of an adapted task.

    Attributes:
        whole: the task of the whole model.
        shapes: of its variables.
        given: the base's leaves, by their paths.
        trained: the paths of those that are trained themselves.
        layers: those with adapters, by their paths, with the shapes of their kernels.
        rank, scale: as in `adapted`.
        stats: the base's running statistics.
    """

    whole: Task
    shapes: Variables
    given: Mapping[str, Array]
    trained: Sequence[str]
    layers: Mapping[str, tuple[Layer, tuple[int, ...]]]
    rank: int
    scale: float
    stats: PyTree

    def task(self) -> Task:
        """The `Task`."""
        whole = self.whole
        body, rest, evaluated = whole.features, whole.head_loss, whole.predict_features
        fingerprint = functools.cache(self.fingerprint)

        def init(key: Array) -> Variables:
            return self.init(key)

        def loss(variables: Variables, batch: Batch, key: Array) -> tuple[Array, PyTree]:
            with injected(_with_adapter):
                return whole.loss(self.with_adapters(variables), batch, key)

        def predict(variables: Variables, x: PyTree) -> Array:
            with injected(_with_adapter):
                return whole.predict(self.with_adapters(variables), x)

        def features(variables: Variables, batch: Batch, key: Array) -> tuple[Array, PyTree]:
            assert body is not None
            with injected(_with_adapter):
                return body(self.with_adapters(variables), batch, key)

        def head_loss(variables: Variables, features: Array, batch: Batch) -> Array:
            assert rest is not None
            with injected(_with_adapter):
                return rest(self.with_adapters(variables), features, batch)

        def predict_features(variables: Variables, x: PyTree) -> Array:
            assert evaluated is not None
            with injected(_with_adapter):
                return evaluated(self.with_adapters(variables), x)

        return whole._replace(
            init=init,
            loss=loss,
            predict=predict,
            features=None if body is None else features,
            head_loss=None if rest is None else head_loss,
            predict_features=None if evaluated is None else predict_features,
            base=Base(self.merge, fingerprint, self.scale if self.layers else None),
        )

    def init(self, key: Array) -> Variables:
        """The base's trained leaves, or new ones where it has none, and adapters that change nothing."""
        leaves: dict[str, Array] = {
            name: self.given[name].astype(jnp.float32) for name in self.trained if name in self.given
        }
        if len(leaves) < len(self.trained):
            fresh = _by_path(self.whole.init(key).params)
            leaves |= {name: fresh[name] for name in self.trained if name not in leaves}
        keys = jax.random.split(jax.random.fold_in(key, 1), max(1, len(self.layers)))
        for key, (path, (layer, shape)) in zip(keys, self.layers.items(), strict=False):
            before, after = shape[: layer.inputs], shape[layer.inputs :]
            inputs, outputs = math.prod(before), math.prod(after)
            r = min(self.rank, inputs, outputs)
            leaves[f"{path}/{A}"] = jax.random.normal(key, (*before, r), jnp.float32) / jnp.float32(math.sqrt(inputs))
            leaves[f"{path}/{B}"] = jnp.zeros((r, *after), jnp.float32)
        return Variables(_nested(leaves), self.stats)

    def with_adapters(self, variables: Variables) -> Variables:
        """The whole model's variables with A and `scale B` beside the kernels, which `_with_adapter` looks for."""
        leaves = _by_path(variables.params)

        def inserted(tree: Any, path: str) -> Any:
            if not hasattr(tree, "items"):
                return tree
            own = {name: inserted(inner, f"{path}/{name}" if path else str(name)) for name, inner in tree.items()}
            return (
                {**own, A: leaves[f"{path}/{A}"], B: self.scale * leaves[f"{path}/{B}"]} if path in self.layers else own
            )

        model = self.model(leaves, variables.stats)
        return model._replace(params=inserted(model.params, "")) if self.layers else model

    def model(self, leaves: Mapping[str, Array], stats: PyTree) -> Variables:
        """The base with those of `leaves` in place of its own that it has, in the base's dtypes."""

        def leaf(path: tuple, shape: jax.ShapeDtypeStruct) -> Array:
            name = path_name(path)
            return leaves[name].astype(self.dtype(name, shape)) if name in leaves else self.given[name]

        return Variables(jax.tree_util.tree_map_with_path(leaf, self.shapes.params), stats)

    def merge(self, variables: Variables) -> Variables:
        """`Base.merge`: `W + scale A B` in place of W, added in float32 and rounded to the dtype of W."""
        leaves = _by_path(variables.params)
        for path in self.layers:
            kernel = self.given[f"{path}/kernel"]
            change = jnp.tensordot(leaves[f"{path}/{A}"], leaves[f"{path}/{B}"], 1, precision="highest")
            leaves[f"{path}/kernel"] = kernel.astype(jnp.float32) + self.scale * change
        return self.model(leaves, variables.stats)

    def fingerprint(self) -> str:
        """`Base.fingerprint`: SHA-256 of the leaves that are not trained, and of the scale of the adapters."""
        found = hashlib.sha256(repr(self.scale if self.layers else None).encode())
        for name in sorted(set(path_names(self.shapes.params)) - set(self.trained)):
            a = np.asarray(self.given[name])
            found.update(f"{name} {a.dtype} {a.shape}".encode())
            found.update(np.ascontiguousarray(a).view(np.uint8).data)
        return found.hexdigest()

    def dtype(self, name: str, shape: jax.ShapeDtypeStruct) -> Any:
        """The dtype of a leaf in the whole model."""
        return self.given[name].dtype if name in self.given else shape.dtype


def _with_adapter(path: str, layer: Layer, params: Mapping[str, Any]) -> Product | None:
    """`(x, W) -> x W + (x A) B` for a layer whose parameters have A and B, with the pooling of its product, if any."""
    if A not in params:
        return None
    a, b, product = params[A], params[B], layer.product
    pool = product.pool if isinstance(product, Lowered) else None
    linear = dataclasses.replace(product, pool=None) if isinstance(product, Lowered) else product

    def adapted_product(x: Array, kernel: Array, *args: Any, **settings: Any) -> Array:
        rows, axes = x, args
        # With one axis for all rows, gradients of A and B are plain matrix products: with several, XLA's CPU backend
        # copies x and y for them.
        if layer.kind == "dense" and args == ((((x.ndim - 1,), (0,)), ((), ())),):
            rows, axes = x.reshape(-1, x.shape[-1]), ((((1,), (0,)), ((), ())),)
        low = linear(rows, a.astype(kernel.dtype), *axes, **settings)
        up = jnp.tensordot(low, b.astype(low.dtype), 1, precision=settings.get("precision"))
        y = linear(x, kernel, *args, **settings)
        y = y + up.reshape(y.shape)
        return y if pool is None else pool(y)

    return adapted_product


def _by_path(params: PyTree) -> dict[str, Array]:
    return {path_name(path): a for path, a in jax.tree_util.tree_leaves_with_path(params)}


def _nested(leaves: Mapping[str, Array]) -> dict[str, Any]:
    """Dictionaries of dictionaries from leaves by their paths."""
    made: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *folders, name = path.split("/")
        inner = made
        for folder in folders:
            inner = inner.setdefault(folder, {})
        inner[name] = leaf
    return made
