"""Makes a `Task`, all that the algorithms need to know about a model, from a Flax Linen module."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
from flax.errors import InvalidRngError, ModifyScopeVariableError

from fedamp_jax.checks import check_type
from fedamp_jax.models.inputs import Inputs, keep_rows, to_float
from fedamp_jax.models.losses import cross_entropy
from fedamp_jax.models.metrics import metrics_of
from fedamp_jax.models.modes import NAMES, check_training, flag, keywords, warn_of_dropout
from fedamp_jax.types import Array, Batch, Metric, PyTree, Task, Variables


class Classifier(nn.Module):
    """A body that computes features, and a linear head, the part that several methods personalize.

    The parameters are `params["body"]` and `params["head"]`.

    Attributes:
        body: a module with `__call__(x [B, ...]) -> [B, F]`, which may also take the mode and `mask [B]`, as in
            `from_linen`.
        classes: number of classes C, the width of the head.
    """

    body: nn.Module
    classes: int

    def setup(self):
        self.head = nn.Dense(self.classes)

    def features(self, x: Array, train: bool, mask: Array) -> Array:
        """The input of the head, `[B, F]` float32."""
        taken = keywords(self.body, "__call__", train, mask, _fields(self.body))
        return self.body(x, **taken).astype(jnp.float32)

    def logits(self, features: Array) -> Array:
        """Applies the head to features `[B, F]`; returns logits `[B, C]` float32."""
        return self.head(features)

    def __call__(self, x: Array, train: bool, mask: Array) -> Array:
        """The logits, `[B, C]` float32."""
        return self.logits(self.features(x, train, mask))


class _Module:
    """A Linen module with fixed inputs; passes the mode and the mask only to methods and fields that take them."""

    def __init__(self, model: nn.Module, inputs: Inputs):
        self.inputs = inputs
        self.models = {train: in_mode(model, train, {}) for train in (True, False)}

    def keywords(self, method: str, train: bool, mask: Array) -> dict[str, Any]:
        model = self.models[train]
        return keywords(model, method, train, mask, _fields(model))

    def init(self, key: Array) -> dict[str, Any]:
        x = jax.tree.map(to_float, self.inputs.example())
        taken = self.keywords("__call__", False, jnp.ones(1, bool))
        return dict(self.models[False].init({"params": key, "dropout": key}, x, **taken))

    def predict(self, variables: Variables, x: PyTree, method: str = "__call__") -> Array:
        x = self.inputs.input(x)
        taken = self.keywords(method, False, jnp.ones(jax.tree.leaves(x)[0].shape[0], bool))
        try:
            outputs: Any = self.models[False].apply(_collections(variables), x, **taken, method=method)
        except (InvalidRngError, ModifyScopeVariableError) as error:
            did = "draws random numbers" if isinstance(error, InvalidRngError) else "changes its running statistics"
            raise ValueError(
                f"the model {did} in prediction, too: let it do so in training only, by an argument of __call__ or a "
                f"field with one of these names ({NAMES}). Flax says: {error}"
            ) from error
        return outputs.astype(jnp.float32)

    def forward(self, variables: Variables, x: PyTree, mask: Array, key: Array, method: str) -> tuple[Any, PyTree]:
        """Outputs and new statistics in training."""
        # Flax takes the generator `params` where it is asked for one that it does not have.
        rngs = {"dropout": key, "params": jax.random.fold_in(key, 1)}
        taken = self.keywords(method, True, mask)
        out, changed = self.models[True].apply(
            _collections(variables), x, **taken, rngs=rngs, mutable=["batch_stats"], method=method
        )
        return out, changed.get("batch_stats", ())

    def train(self, variables: Variables, batch: Batch, key: Array, method: str) -> tuple[Array, PyTree]:
        # Replace padding before the network: a backward pass would multiply its zero cotangents by NaN.
        x = jax.tree.map(lambda a: keep_rows(a, batch.mask), self.inputs.input(batch.x))
        some = jnp.any(batch.mask)
        # Statistics of no rows would be 0 / 0: a batch of only padding uses all rows, and its statistics are discarded.
        out, new = self.forward(variables, x, batch.mask | ~some, key, method)
        return out, jax.tree.map(lambda new, old: jnp.where(some, new, old), new, variables.stats)

    def check(self, model: Variables, where: int) -> None:
        """Warns if a traced training step ignores the mode or the mask."""
        off: list[str] = []

        def watch(call: Callable[..., Any], args: Any, given: Any, context: nn.module.InterceptorContext) -> Any:
            if context.method_name == "__call__" and _drops_nothing(context.module, args, given):
                off.append("/".join(context.module.path) or type(context.module).__name__)
            return call(*args, **given)

        def stats(variables: Variables, x: PyTree, mask: Array, key: Array) -> PyTree:
            with nn.intercept_methods(watch):
                return self.forward(variables, self.inputs.input(x), mask, key, "__call__")[1]

        check_training(stats, model, self.inputs, where + 1)
        if off:
            warn_of_dropout(off, where + 1)


def _drops_nothing(module: nn.Module, args: Any, given: Any) -> bool:
    """Whether a layer with a rate of dropout is called as in prediction."""
    rate = getattr(module, "rate", getattr(module, "dropout_rate", 0.0))
    if not isinstance(rate, (int, float)) or not rate:
        return False
    call = inspect.signature(type(module).__call__).bind_partial(module, *args, **given).arguments
    said = call.get("deterministic")
    return (getattr(module, "deterministic", None) if said is None else said) is True


def in_mode(module: nn.Module, train: bool, made: dict[int, nn.Module]) -> nn.Module:
    """The module with the mode in its fields that name it, and in those of the modules in its fields.

    Args:
        module: not bound.
        train: the mode.
        made: what became of modules that were met before, as one that is shared stays shared.

    >>> in_mode(nn.Sequential([nn.Dense(3), nn.Dropout(0.5)]), True, {}).layers[1].deterministic
    False
    """
    if id(module) not in made:
        fields = {
            f.name: getattr(module, f.name) for f in dataclasses.fields(module) if f.name not in ("parent", "name")
        }
        changed: dict[str, Any] = {name: flag(name, train) for name in _fields(module)}
        for name, value in fields.items():
            leaves = jax.tree.leaves(value)
            new = [in_mode(a, train, made) if isinstance(a, nn.Module) else a for a in leaves]
            if isinstance(module, nn.Sequential):  # it passes on no argument
                new = [_said(a, train) if isinstance(a, nn.Module) else a for a in new]
            if any(a is not b for a, b in zip(leaves, new, strict=True)):
                changed[name] = jax.tree.unflatten(jax.tree.structure(value), new)
        made[id(module)] = module.clone(**changed) if changed else module
    return made[id(module)]


def _said(layer: nn.Module, train: bool) -> nn.Module:
    """A layer with the mode in those fields that would else be arguments of its call."""
    unset: dict[str, Any] = {
        f.name: flag(f.name, train) for f in dataclasses.fields(layer) if getattr(layer, f.name, ()) is None
    }
    unset = {name: value for name, value in unset.items() if value is not None}
    return layer.clone(**unset) if unset else layer


def _fields(module: nn.Module) -> list[str]:
    """The fields that hold the mode."""
    names = [f.name for f in dataclasses.fields(module) if flag(f.name, True) is not None]
    return [name for name in names if isinstance(getattr(module, name, None), bool)]


def _collections(variables: Variables) -> dict[str, PyTree]:
    stats = {"batch_stats": variables.stats} if jax.tree.leaves(variables.stats) else {}
    return {"params": variables.params, **stats}


def find_head(paths: Sequence[str], head: Sequence[str] | str | None) -> tuple[str, ...]:
    """Returns the path prefixes of the head's parameters, after checking that each matches a parameter."""
    tops = list(dict.fromkeys(path.split("/")[0] for path in paths))
    if head is None:
        return ("head",) if "head" in tops else (tops[-1],)
    head = (head,) if isinstance(head, str) else tuple(head)
    if not head:
        raise ValueError(f"head is empty: give prefixes of some of the parameters' paths: {', '.join(paths)}")
    for prefix in head:
        if not any(path == prefix or path.startswith(prefix + "/") for path in paths):
            raise ValueError(f"head={prefix!r} is not a prefix of any parameter's path; paths are: {', '.join(paths)}")
    return head


def check_outputs(outputs: jax.ShapeDtypeStruct, inputs: Inputs, loss: Callable[..., Any]) -> None:
    """Checks the shape of what a model gives for one example.

    Raises:
        ValueError: if a classifier's are not `[B, C]`, or others have no axis of examples.
    """
    classifies = (loss.func if isinstance(loss, functools.partial) else loss) is cross_entropy
    if (outputs.ndim != 2) if classifies else (outputs.shape[:1] != (1,)):
        kind = "logits must be [B, C]" if classifies else "outputs must be [B, ...], a row for each example"
        shapes = jax.tree.map(lambda a: (1, *a.shape), inputs.sample)
        raise ValueError(f"{kind}; for x of shape {shapes} the model gives {outputs.shape}")


def checked_metrics(metrics: Sequence[Metric] | None, loss: Callable[..., Any]) -> tuple[Metric, ...]:
    """The metrics of a task as a tuple; None gives those that suit the loss.

    Raises:
        TypeError: if one is no `Metric`.
        ValueError: if there are none, or two of the same name.
    """
    if metrics is None:
        return metrics_of(loss)
    metrics = (metrics,) if isinstance(metrics, Metric) else tuple(metrics)
    for metric in metrics:
        check_type("each of metrics", metric, Metric, "fedamp_jax.Metric(name, function)")
    names = [metric.name for metric in metrics]
    if not names or len(set(names)) < len(names):
        raise ValueError(f"metrics must be at least one, with different names, got {names}")
    return metrics


def _inspect(module: _Module) -> tuple[list[str], Variables, jax.ShapeDtypeStruct]:
    """The parameter paths in order of creation, and the shapes of the variables and of the outputs."""
    paths: list[str] = []

    def shapes(key):
        variables = module.init(key)
        extra = sorted(set(variables) - {"params", "batch_stats"})
        if extra:
            raise ValueError(f"the model has variables {extra}, but only 'params' and 'batch_stats' are supported")
        if not jax.tree.leaves(variables.get("params", {})):
            raise ValueError("the model has no parameters")
        paths.extend(_paths(variables["params"]))
        model = Variables(variables["params"], variables.get("batch_stats", ()))
        return model, module.predict(model, module.inputs.example())

    return paths, *jax.eval_shape(shapes, jax.random.key(0))


def _paths(tree: Any, prefix: str = "") -> list[str]:
    if not hasattr(tree, "items"):
        return [prefix]
    return [path for name, child in tree.items() for path in _paths(child, f"{prefix}/{name}" if prefix else name)]


def from_linen(
    model: nn.Module,
    sample_shape: Any,
    *,
    head: Sequence[str] | str | None = None,
    dtype: Any = jnp.float32,
    loss: Callable[[Array, Batch], Array] = cross_entropy,
    metrics: Sequence[Metric] | None = None,
) -> Task:
    """Makes a `Task` from a Flax Linen module.

    Besides `x`, the module's `__call__` may take the mode and `mask` (`[B]` bool, True for real rows). Pass the mask on
    to `nn.BatchNorm` as `mask=mask_like(mask, x)`, so that a partial batch is normalized by its real rows only. uint8
    inputs are converted to float32 in 0..1, and in training padding rows are zeros. BatchNorm's statistics
    (`batch_stats`) become `Variables.stats`. In training, random generators of any name are available.

    The mode is an argument of `__call__`, or a bool in a field of the module or of a module in its fields, named
    `train`, `training` or `is_training`, which are True in training, or `deterministic`, `use_running_average`,
    `inference`, `eval` or `test`, which are False, among others. There is a warning if training leaves the
    running statistics unchanged, if they do not depend on the mask, or if dropout is inactive in training.

    Args:
        model: the module; a `Classifier` also gives the task `features`, `head_loss` and
            `predict_features`.
        sample_shape: shape of one example, without the batch axis. For several inputs, a dictionary or tuple of
            `jax.ShapeDtypeStruct(shape, dtype)`, like `Data.x`; the module gets the same dictionary or tuple.
        head: path prefixes of the parameters that form the personal head. Names are matched as a whole: `"Dense_1"` is
            not a prefix of `"Dense_10/kernel"`. None means `"head"` if the model has such a layer, else the top-level
            layer that it creates last.
        dtype: dtype of the model's input, if it is one array. For an integer dtype other than uint8, as for models that
            look up tokens, x is converted to it; for all others uint8 and floats become float32.
        loss: `(outputs [B, ...], batch) -> scalar`: `cross_entropy`, `squared_error`, `binary_cross_entropy`,
            `multi_label`, or one of your own. `functools.partial(cross_entropy, weights=...)` weighs classes.
        metrics: what is evaluated, see `Metric`. None means those that suit the loss: accuracy; `MSE` and `MAE`;
            `BINARY_ACCURACY`; `LABEL_ACCURACY` and `EXACT_MATCH`.

    Returns:
        A `Task`.

    Raises:
        TypeError: if the model is no Linen module, `sample_shape` no shape, or `__call__` needs other arguments.
        ValueError: if a prefix in `head` matches no parameter, a classifier's logits are not `[B, C]`, the model has
            collections other than `params` and `batch_stats`, the model is random in prediction, or a loss of your own
            comes without metrics; while tracing, if x does not have the sample shape.

    Example:
        >>> import flax.linen as nn, jax
        >>> from fedamp_jax.models import from_linen, squared_error
        >>> task = from_linen(nn.Sequential([nn.Dense(16), nn.relu, nn.Dense(3)]), (4,))
        >>> task.head
        ('layers_2',)
        >>> task.predict(task.init(jax.random.key(0)), jax.numpy.ones((5, 4))).shape
        (5, 3)
        >>> regression = from_linen(nn.Dense(1), (4,), head="kernel", loss=squared_error)
        >>> [metric.name for metric in regression.metrics]
        ['mse', 'mae']
    """
    if not isinstance(model, nn.Module):
        kind = type(model).__name__
        raise TypeError(
            f"model must be a Flax Linen module, got a {kind}: fedamp_jax.models.from_nnx is for nnx modules, and a "
            "fedamp_jax.Task of three functions for anything else"
        )
    inputs = Inputs(sample_shape, dtype)
    metrics, module = checked_metrics(metrics, loss), _Module(model, inputs)
    paths, shapes, outputs = _inspect(module)
    check_outputs(outputs, inputs, loss)
    module.check(shapes, where=3)

    def init(key: Array) -> Variables:
        variables = module.init(key)
        return Variables(variables["params"], variables.get("batch_stats", ()))

    def task_loss(variables: Variables, batch: Batch, key: Array) -> tuple[Array, PyTree]:
        outputs, stats = module.train(variables, batch, key, "__call__")
        return loss(outputs, batch), stats

    def features(variables: Variables, batch: Batch, key: Array) -> tuple[Array, PyTree]:
        return module.train(variables, batch, key, "features")

    def head_loss(variables: Variables, features: Array, batch: Batch) -> Array:
        rows = keep_rows(features, batch.mask)
        outputs: Any = model.apply(_collections(variables), rows, method="logits")
        return loss(outputs, batch)

    def predict_features(variables: Variables, x: PyTree) -> Array:
        return module.predict(variables, x, "features")

    head = find_head(paths, head)
    if not isinstance(model, Classifier):
        return Task(init, task_loss, module.predict, head, metrics=metrics)
    return Task(init, task_loss, module.predict, head, features, head_loss, metrics, predict_features=predict_features)
