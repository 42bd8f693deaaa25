"""Makes a `Task` from a Flax nnx module."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from fedamp_jax.models.injection import inject
from fedamp_jax.models.inputs import Inputs, keep_rows
from fedamp_jax.models.losses import cross_entropy
from fedamp_jax.models.modes import check_training, flag, keywords, warn_of_dropout
from fedamp_jax.models.task import check_outputs, checked_metrics, find_head
from fedamp_jax.trees import path_name
from fedamp_jax.types import Array, Batch, Metric, PyTree, Task, Variables

_KINDS = (nnx.Param, nnx.BatchStat, nnx.RngState, ...)


class _Module:
    """The functional form of a module: its structure in training and in evaluation, and pure trees of numbers."""

    def __init__(self, make: Callable[[nnx.Rngs], Any], inputs: Inputs):
        self.make, self.inputs = make, inputs
        names: list[str] = []

        def module(train: bool) -> Any:
            made = make(nnx.Rngs(jax.random.key(0)))
            if not isinstance(made, nnx.Module):
                raise TypeError(
                    f"make must be a function nnx.Rngs -> nnx module, such as lambda rngs: Net(rngs=rngs), but gives a "
                    f"{type(made).__name__}"
                )
            names[:] = list(vars(made))
            _set_mode(made, train)
            return made

        self.training, self.params, self.stats, self.rngs, other = self.split(nnx.eval_shape(lambda: module(True)))
        self.evaluating = self.split(nnx.eval_shape(lambda: module(False)))[0]
        if jax.tree.leaves(other):
            kinds = sorted({type(a).__name__ for _, a in nnx.to_flat_state(other)})
            raise ValueError(f"the model has variables {kinds}, but only Param and BatchStat are supported")
        if not jax.tree.leaves(self.params):
            raise ValueError("the model has no parameters")
        paths = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(nnx.to_pure_dict(self.params))]
        # In the order in which the module's constructor sets its attributes, where nnx sorts them by name.
        self.paths = sorted(paths, key=lambda path: names.index(path.split("/")[0]))

    @staticmethod
    def split(module: Any) -> Any:
        return nnx.split(module, *_KINDS)

    def init(self, key: Array) -> Variables:
        made = self.make(nnx.Rngs(key))
        inject(made, {})
        _, params, stats, _, _ = self.split(made)
        return Variables(nnx.to_pure_dict(params), nnx.to_pure_dict(stats) if jax.tree.leaves(stats) else ())

    def merge(self, structure: Any, variables: Variables, key: Array) -> Any:
        def filled(like: Any, numbers: PyTree) -> Any:
            state = jax.tree.map(lambda a: a, like)  # a container of its own, which the next line changes
            nnx.replace_by_pure_dict(state, _known(numbers or {}, nnx.to_pure_dict(like)))
            return state

        leaves, tree = jax.tree.flatten(self.rngs)

        def is_key(a: Any) -> bool:
            return jnp.issubdtype(a.dtype, jax.dtypes.prng_key)

        streams = [
            jax.random.fold_in(key, i) if is_key(a) else jnp.zeros(a.shape, a.dtype) for i, a in enumerate(leaves)
        ]
        rngs = jax.tree.unflatten(tree, streams)
        made = nnx.merge(structure, filled(self.params, variables.params), filled(self.stats, variables.stats), rngs)
        inject(made, variables.params)
        return made

    def call(self, module: Any, x: PyTree, mask: Array, train: bool) -> Any:
        return module(x, **keywords(module, "__call__", train, mask))

    def predict(self, variables: Variables, x: PyTree) -> Array:
        x = self.inputs.input(x)
        module = self.merge(self.evaluating, variables, jax.random.key(0))
        mask = jnp.ones(jax.tree.leaves(x)[0].shape[0], bool)
        return self.call(module, x, mask, False).astype(jnp.float32)

    def train(self, variables: Variables, batch: Batch, key: Array) -> tuple[Array, PyTree]:
        x = jax.tree.map(lambda a: keep_rows(a, batch.mask), self.inputs.input(batch.x))
        some = jnp.any(batch.mask)
        module = self.merge(self.training, variables, key)
        # Statistics of no rows would be 0 / 0: a batch of only padding uses all rows, and its statistics are discarded.
        out = self.call(module, x, batch.mask | ~some, True)
        return out, jax.tree.map(lambda new, old: jnp.where(some, new, old), self.stats_of(module), variables.stats)

    def stats_of(self, module: Any) -> PyTree:
        return nnx.to_pure_dict(self.split(module)[2]) if jax.tree.leaves(self.stats) else ()

    def check(self, where: int) -> None:
        """Warns if a traced training step ignores the mode or the mask."""
        off: list[str] = []

        def stats(variables: Variables, x: PyTree, mask: Array, key: Array) -> PyTree:
            module = self.merge(self.training, variables, key)
            before = jax.tree.leaves(self.split(module)[3])
            self.call(module, self.inputs.input(x), mask, True)
            after = jax.tree.leaves(self.split(module)[3])
            if all(new is old for new, old in zip(after, before, strict=True)):  # no generator was asked
                off.extend(path_name(path) for path, layer in nnx.iter_modules(module) if _drops(layer))
            return self.stats_of(module)

        model = jax.eval_shape(self.init, jax.random.key(0))
        check_training(stats, model, self.inputs, where + 1)
        if off:
            warn_of_dropout(off, where + 1)


def _known(numbers: Any, like: Any) -> Any:
    """The part of nested dictionaries that `like` has, too: without what is injected into layers."""
    return {name: _known(numbers[name], inner) for name, inner in like.items()} if isinstance(like, dict) else numbers


def _set_mode(module: Any, train: bool) -> None:
    """As `module.train()` and `module.eval()`, and for attributes that name the mode in another way."""
    # An attribute `train` of a module's own hides the method of that name.
    method = getattr(module, "train" if train else "eval")
    method() if callable(method) else (nnx.Module.train if train else nnx.Module.eval)(module)
    for _, part in nnx.iter_modules(module):
        for name, value in list(vars(part).items()):
            if isinstance(value, bool) and flag(name, train) is not None:
                setattr(part, name, flag(name, train))


def _drops(layer: Any) -> bool:
    """Whether a layer has a rate of dropout."""
    rate = getattr(layer, "rate", getattr(layer, "dropout_rate", 0.0))
    return isinstance(rate, (int, float)) and rate > 0


def from_nnx(
    make: Callable[[nnx.Rngs], Any],
    sample_shape: Any,
    *,
    head: Sequence[str] | str | None = None,
    dtype: Any = jnp.float32,
    loss: Callable[[Array, Batch], Array] = cross_entropy,
    metrics: Sequence[Metric] | None = None,
) -> Task:
    """Makes a `Task` from a Flax nnx module.

    The module's `__call__` takes `x`, and may take `mask` (`[B]` bool, True for real rows), which is passed to
    `nnx.BatchNorm` as `mask=mask_like(mask, x)`. It trains as after `module.train()` and predicts as after
    `module.eval()`; arguments of `__call__` and bool attributes that name the mode are set, too, with the warnings of
    `from_linen`. `nnx.Param` is trained, `nnx.BatchStat` becomes `Variables.stats`, and generators, such as those
    of dropout, follow the key of each step.

    Args:
        make: `nnx.Rngs -> module`: the module's constructor, not a module, as every client may start with its own.
        sample_shape, dtype, loss, metrics: as in `from_linen`.
        head: as in `from_linen`; None means `"head"` if the module has such an attribute, else the last one with
            parameters that its constructor sets.

    Returns:
        A `Task`.

    Raises:
        TypeError: if `make` does not give an nnx module, `sample_shape` is no shape, or `__call__` needs other
            arguments.
        ValueError: if the module has variables other than `Param` and `BatchStat`, and as `from_linen`.

    Example:
        >>> import jax
        >>> from flax import nnx
        >>> from fedamp_jax.models import from_nnx
        >>> task = from_nnx(lambda rngs: nnx.Linear(4, 3, rngs=rngs), (4,), head="bias")
        >>> task.predict(task.init(jax.random.key(0)), jax.numpy.ones((5, 4))).shape
        (5, 3)
    """
    if not callable(make) or isinstance(make, nnx.Module):
        raise TypeError(
            f"make must be a function nnx.Rngs -> nnx module, such as lambda rngs: Net(rngs=rngs), got {make!r}"
        )
    inputs = Inputs(sample_shape, dtype)
    metrics, module = checked_metrics(metrics, loss), _Module(make, inputs)
    key = jax.random.key(0)
    check_outputs(jax.eval_shape(lambda: module.predict(module.init(key), inputs.example())), inputs, loss)
    module.check(where=3)

    def task_loss(variables: Variables, batch: Batch, key: Array) -> tuple[Array, PyTree]:
        outputs, stats = module.train(variables, batch, key)
        return loss(outputs, batch), stats

    return Task(module.init, task_loss, module.predict, find_head(module.paths, head), metrics=metrics)
