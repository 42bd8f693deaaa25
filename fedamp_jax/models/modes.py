"""Training or evaluation mode: the names of a module's flag for it, and checks that a training step uses it."""

import inspect
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.interpreters.partial_eval import dce_jaxpr

from fedamp_jax.models.inputs import Inputs
from fedamp_jax.programs.jaxpr import unchanged
from fedamp_jax.trees import path_name
from fedamp_jax.types import Array, PyTree, Variables

TRAINING = ("train", "training", "is_training", "is_train", "train_mode", "training_mode")
EVALUATION = (
    "deterministic", "use_running_average", "inference", "is_inference", "eval", "is_eval", "eval_mode", "evaluate",
    "evaluation", "test", "testing", "is_test", "is_testing",
)  # fmt: skip
NAMES = f"True in training: {', '.join(TRAINING)}; False in training: {', '.join(EVALUATION)}"

# More than any axis of a layer is likely to have: a mask that lies along another axis then fits no shape.
_ROWS = 7919


def flag(name: str, train: bool) -> bool | None:
    """The value of an argument or a field of this name; None if it does not name the mode.

    >>> flag("training", True), flag("deterministic", True), flag("width", True)
    (True, False, None)
    """
    return train if name in TRAINING else not train if name in EVALUATION else None


def keywords(owner: Any, method: str, train: bool, mask: Array | None, leave: Sequence[str] = ()) -> dict[str, Any]:
    """What a module's method takes besides `x`: the mode, by any of its names, and the mask.

    Args:
        owner: the module.
        method: the name of its method, whose first argument is x.
        train: the mode.
        mask: `[B]` bool; None does without values, where only names are checked.
        leave: names that have a default and get no value.

    Raises:
        TypeError: if it takes something else that has no default.

    >>> class Net:
    ...     def __call__(self, x, deterministic=True, width=3): ...
    >>> keywords(Net(), "__call__", True, None)
    {'deterministic': False}
    """
    parameters = list(inspect.signature(getattr(type(owner), method)).parameters.values())
    chosen = {}
    for parameter in parameters[2:]:  # after self and x
        name, default = parameter.name, parameter.default
        needed = default is parameter.empty
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or (name in leave and not needed):
            continue
        value = flag(name, train) if needed or default is None or isinstance(default, bool) else None
        value = mask if name == "mask" else value
        if value is not None:
            chosen[name] = value
        elif needed:
            raise TypeError(
                f"{type(owner).__name__}.{method} takes {name!r}, which has no default and is none of the arguments "
                f"that a model gets: x, mask [B], and the mode by one of these names ({NAMES}). Rename it, or give it "
                "a default; several inputs come as one dictionary or tuple x"
            )
    return chosen


def check_training(
    step: Callable[[Variables, PyTree, Array, Array], Any], model: Variables, inputs: Inputs, where: int
) -> None:
    """Warns of a model whose running statistics do not change in training, or change by padding.

    Args:
        step: `(variables, x, mask, key) -> new stats`, a forward pass in training.
        model: shapes of the variables.
        inputs: the model's.
        where: stacklevel of the warnings.

    Raises:
        TypeError, ValueError: what the model raises, with a note on masks.
    """
    x = jax.tree.map(lambda a: jax.ShapeDtypeStruct((_ROWS, *a.shape), a.dtype), inputs.sample)
    mask = jax.ShapeDtypeStruct((_ROWS,), bool)
    key = jax.eval_shape(lambda: jax.random.key(0))
    before = len(jax.tree.leaves((model, x)))
    try:
        program = jax.make_jaxpr(step)(model, x, mask, key).jaxpr
    except (TypeError, ValueError) as error:
        error.add_note(
            f"This came up in training, on {_ROWS} examples with a mask [{_ROWS}]. If a layer was given the mask, it "
            "has to have as many axes as the layer's input: fedamp_jax.models.mask_like(mask, x) is of that shape."
        )
        raise
    names = [path_name(path) for path, _ in jax.tree_util.tree_leaves_with_path(model.stats)]
    same = unchanged(program, program.invars[before - len(jax.tree.leaves((model.stats, x))) :], names)
    if same:
        advice = (
            "let __call__ take the mode, and pass it on, as in `def __call__(self, x, train, mask)` and "
            f"`use_running_average=not train`. It is given by any of these names ({NAMES})"
        )
        warn_of_statistics(same, advice, where + 1)
    elif names and not dce_jaxpr(program, [True] * len(names))[1][before]:
        warnings.warn(
            f"padding enters the model's running statistics ({', '.join(names[:3])}), as they do not depend on the "
            "mask: let __call__ take `mask`, and call BatchNorm with mask=fedamp_jax.models.mask_like(mask, x)",
            stacklevel=where,
        )


def warn_of_statistics(names: Sequence[str], advice: str, where: int) -> None:
    """Warns that statistics stay as they were initialized; `names`: at least one."""
    some = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
    warnings.warn(
        f"a training step returns running statistics as it got them ({some}), so that predictions use those of the "
        f"initialization: {advice}",
        stacklevel=where + 1,
    )


def warn_of_dropout(names: Sequence[str], where: int) -> None:
    """Warns of layers that drop nothing in training; `names`: at least one."""
    warnings.warn(
        f"dropout is off in training ({', '.join(sorted(set(names)))}): let __call__ take the mode, and pass it on, as "
        f"in `deterministic=not train`. It is given by any of these names ({NAMES})",
        stacklevel=where + 1,
    )
