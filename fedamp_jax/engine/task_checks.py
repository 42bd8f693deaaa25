"""Whether a task keeps the contract of `types.py`: found out by tracing its functions, before anything is compiled."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fedamp_jax.checks import check_type
from fedamp_jax.programs.jaxpr import unchanged
from fedamp_jax.programs.kept import kept
from fedamp_jax.trees import check_float32, path_name
from fedamp_jax.types import ACCURACY, Array, Batch, Data, Metric, Task, Variables

_ROWS = 2  # of the batch that is traced


def check_task(task: Any) -> Variables:
    """Checks a task as far as possible without data, and returns the shapes of its model.

    Raises:
        TypeError: if it is no `Task`, `init` does not return `Variables` of float32 parameters, or `metrics` is no
            tuple of `Metric`s.
        ValueError: if two metrics have one name.

    >>> import fedamp_jax
    >>> check_task(fedamp_jax.Task(lambda key: {"w": jnp.zeros(3)}, None, None))
    Traceback (most recent call last):
        ...
    TypeError: task.init must return fedamp_jax.Variables, got a dict: return fedamp_jax.Variables(params), or
        fedamp_jax.Variables(params, stats) if the model has running statistics
    """
    check_type("task", task, Task, "such as fedamp_jax.models.mlp(classes=10)")
    try:
        hash(task)
    except TypeError as error:
        message = f"a task must be hashable, as programs are compiled for it: make metrics and head tuples ({error})"
        raise TypeError(message) from None
    return _model(task)


@kept
def _model(task: Task) -> Variables:
    if not isinstance(task.metrics, tuple) or not task.metrics:
        raise TypeError(f"task.metrics must be a tuple of at least one fedamp_jax.Metric, got {task.metrics!r}")
    for metric in task.metrics:
        check_type("each of task.metrics", metric, Metric, "fedamp_jax.Metric(name, function)")
    names = [metric.name for metric in task.metrics]
    if len(set(names)) < len(names):
        raise ValueError(f"task.metrics must have different names, got {', '.join(names)}")
    model = jax.eval_shape(task.init, jax.random.key(0))
    if not isinstance(model, Variables):
        raise TypeError(
            f"task.init must return fedamp_jax.Variables, got a {type(model).__name__}: return "
            "fedamp_jax.Variables(params), or fedamp_jax.Variables(params, stats) if the model has running statistics"
        )
    check_float32(model)
    return model


def check_task_fits(task: Task, data: Data) -> None:
    """Checks that the task's predictions and metrics suit these data.

    The number of classes is not checked if the data are traced, or held in part by other processes.

    Raises:
        TypeError: as `check_task`; and if a metric is none for these data, such as accuracy where y are no labels.
        ValueError: if the model has fewer outputs than the data have classes: higher labels would add nothing to the
            loss; or if outputs or metrics are not one for each example.
    """
    check_task(task)
    outputs = _outputs(task, *_kinds(data))
    labels = jnp.issubdtype(data.y.dtype, jnp.integer)
    if not labels or isinstance(data.classes, Tracer) or not getattr(data.classes, "is_fully_addressable", True):
        return
    classes = int(np.asarray(data.classes).max())  # NumPy's max: JAX's would be traced under a trace
    one_logit = outputs in ((), (1,)) and ACCURACY not in task.metrics
    if one_logit and classes > 2:
        raise ValueError(f"a single logit tells 2 classes apart, but the data have {classes}: give the model {classes}")
    if not one_logit and classes > outputs[-1]:
        raise ValueError(
            f"the model has {outputs[-1]} outputs, but the data have {classes} classes: build the model with {classes}"
        )


@kept
def check_loss(task: Task, tree: Any, kinds: tuple) -> None:
    """`check_loss_fits` for data of one kind."""
    model = check_task(task)
    made: Any = jax.eval_shape(task.loss, model, _batch(tree, kinds), jax.eval_shape(lambda: jax.random.key(0)))
    if not isinstance(made, tuple) or len(made) != 2:
        raise TypeError(
            f"task.loss must return two values, (loss, stats), got {_described(made)}: end it with `return value, "
            "variables.stats`"
        )
    value, stats = made
    if getattr(value, "shape", None) != () or value.dtype != jnp.float32:
        raise TypeError(
            f"task.loss must return one float32 number and the new statistics, got {_described(value)} as the loss: "
            "take the mean over the rows where batch.mask is True"
        )
    old, new = (
        {path_name(path): (a.shape, a.dtype) for path, a in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (model.stats, stats)
    )
    if old != new or jax.tree.structure(model.stats) != jax.tree.structure(stats):
        raise TypeError(
            f"task.loss must return statistics like those of task.init, {_described(model.stats)}, got "
            f"{_described(stats)}: return variables.stats if it does not change them"
        )
    _warn_of_fixed_statistics(task, model, tree, kinds)


def _warn_of_fixed_statistics(task: Task, model: Variables, tree: Any, kinds: tuple) -> None:
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(model.stats)]
    if not names:
        return
    key = jax.eval_shape(lambda: jax.random.key(0))
    program = jax.make_jaxpr(task.loss)(model, _batch(tree, kinds), key).jaxpr
    same = unchanged(program, program.invars[len(jax.tree.leaves(model.params)) :], names)
    if same:
        warnings.warn(
            f"task.loss returns running statistics as it gets them ({', '.join(same[:3])}), so that predictions use "
            "those of task.init: compute in training mode and return the new ones. Numbers that are meant to stay can "
            "be an array that the task closes over",
            stacklevel=5,
        )


def check_loss_fits(task: Task, data: Data) -> None:
    """Checks that the task's loss takes a batch of these data, and returns what it should.

    Raises:
        TypeError: if it does not return `(scalar float32, stats)`, or refuses the data's targets.
        ValueError: if it refuses the data's shapes.

    Warns:
        UserWarning: if it returns running statistics as it gets them.
    """
    check_loss(task, *_kinds(data))


@kept
def _outputs(task: Task, tree: Any, kinds: tuple) -> tuple[int, ...]:
    """The shape of one example's outputs, after a check that metrics take them."""
    batch = _batch(tree, kinds)
    outputs: Any = jax.eval_shape(task.predict, check_task(task), batch.x)
    if getattr(outputs, "shape", ())[:1] != (_ROWS,):
        raise ValueError(
            f"task.predict must return an array with a row for each example, got {_described(outputs)} for {_ROWS} "
            "examples"
        )
    for metric in task.metrics:
        scores: Any = jax.eval_shape(metric.function, outputs, batch)
        if getattr(scores, "shape", None) != (_ROWS,):
            raise ValueError(
                f"the metric {metric.name!r} must return one number for each example, [B], got {_described(scores)} "
                f"for {_ROWS} examples: do not average over them"
            )
    return outputs.shape[1:]


def _kinds(data: Data) -> tuple[Any, tuple]:
    """Structure, shapes and dtypes of the examples of one client."""
    leaves, tree = jax.tree.flatten((data.x, data.y))
    return tree, tuple((a.shape[1:], a.dtype) for a in leaves)


def _batch(tree: Any, kinds: tuple) -> Batch:
    """An abstract batch of such examples."""

    def rows(shape: tuple[int, ...], dtype: Any) -> Any:
        return jax.ShapeDtypeStruct((_ROWS, *shape), dtype)

    x, y = jax.tree.unflatten(tree, [rows(*kind) for kind in kinds])
    number: Any = jax.ShapeDtypeStruct((), jnp.int32)
    return Batch(x, y, rows((), jnp.bool_), number, rows((), jnp.int32))


def _described(made: Array | Any) -> str:
    if hasattr(made, "shape"):
        return f"{made.dtype} {list(made.shape)}"
    return str(jax.tree.map(lambda a: f"{a.dtype} {list(a.shape)}", made))
