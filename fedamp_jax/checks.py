"""Checks at the front door: concrete numbers are refused before anything compiles; tracers and schedules pass.

A value that is swept (a tracer under `vmap` or `jit`) or a schedule of the round has no value to look at yet.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fedamp_jax.types import Array, Data, Task


def _concrete(value: Any) -> np.ndarray | None:
    """The numbers in `value`, or None if it is a tracer or a schedule."""
    return None if isinstance(value, Tracer) or callable(value) else np.asarray(value)


def number(
    name: str, value: Any, *, low: float, high: float = np.inf, strict: bool = True, per_client: bool = False
) -> None:
    """Refuse `value` unless it lies above `low` (at or above it if not `strict`) and at or below `high`.

    Args:
        name: what the argument is called, for the message.
        value: a number, with `per_client` also an array of them, a schedule `round -> number`, or a tracer; the last
            two pass.

    Raises:
        TypeError: if `value` holds no numbers, or several where there is to be one.
        ValueError: if a number lies outside, or is not finite.

    >>> number("sigma", -1.0, low=0)
    Traceback (most recent call last):
        ...
    ValueError: sigma must be greater than 0, got -1.0
    """
    numbers = _concrete(value)
    if numbers is None:
        return
    if not np.issubdtype(numbers.dtype, np.number) or numbers.ndim > per_client:
        kinds = "a number, one for each client" if per_client else "a number"
        raise TypeError(f"{name} must be {kinds} or a schedule of the round, got {value!r}")
    inside = np.isfinite(numbers) & ((numbers > low) if strict else (numbers >= low)) & (numbers <= high)
    if not inside.all():
        bad = numbers if numbers.ndim == 0 else f"{numbers[~inside][0]} at position {int(np.argmin(inside))}"
        bounds = f"{'greater than' if strict else 'at least'} {low:g}" + (
            f" and at most {high:g}" if high < np.inf else ""
        )
        raise ValueError(f"{name} must be {bounds}, got {bad}")


def whole(name: str, value: Any, *, low: int) -> None:
    """Refuse `value` unless it is a whole number at or above `low`.

    Raises:
        TypeError: if it is not a whole number.
        ValueError: if it is too small.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")


def wholes(name: str, value: Any, *, low: int) -> tuple[int, ...]:
    """`value` as a tuple, if it is a sequence of whole numbers at or above `low`.

    Raises:
        TypeError: if it is no sequence of whole numbers.
        ValueError: if one of them is too small.

    >>> wholes("hidden", 200, low=1)
    Traceback (most recent call last):
        ...
    TypeError: hidden must be a sequence of whole numbers, such as (200,), got 200
    """
    if isinstance(value, (str, bytes, dict)) or not hasattr(value, "__iter__"):
        raise TypeError(f"{name} must be a sequence of whole numbers, such as ({value!r},), got {value!r}")
    for number in value:
        whole(f"each of {name}", number, low=low)
    return tuple(int(number) for number in value)


def kind(name: str, value: Any, wanted: type, hint: str) -> None:
    """Refuse `value` unless it is a `wanted`; `hint` says where to get one.

    Raises:
        TypeError: if it is not.

    >>> kind("mesh", 2, jax.sharding.Mesh, "from fedamp_jax.sharding.client_mesh(2)")
    Traceback (most recent call last):
        ...
    TypeError: mesh must be of type Mesh (from fedamp_jax.sharding.client_mesh(2)), got 2
    """
    if not isinstance(value, wanted):
        given = value if isinstance(value, (int, float, str)) else f"a {type(value).__name__}"
        raise TypeError(f"{name} must be of type {wanted.__name__} ({hint}), got {given}")


def choice(name: str, value: Any, options: tuple[str, ...]) -> None:
    """Refuse `value` unless it is one of `options`; the message names the nearest.

    Raises:
        ValueError: if it is not.

    >>> choice("start", "clod", ("cloud", "personal"))
    Traceback (most recent call last):
        ...
    ValueError: start must be one of 'cloud', 'personal', got 'clod'; did you mean 'cloud'?
    """
    import difflib

    if value not in options:
        near = difflib.get_close_matches(str(value), options, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}, got {value!r}{hint}")


def shares(participation: Any, drop_rate: Any) -> None:
    """Refuse shares of clients other than participation in (0, 1] and drop rate in [0, 1).

    Raises:
        TypeError: if one is not a number.
        ValueError: if one is out of range.
    """
    for name, share in (("participation", participation), ("drop_rate", drop_rate)):
        if isinstance(share, bool) or not isinstance(share, (int, float, np.number)):
            raise TypeError(f"{name} must be a number, got {share!r}")
    number("participation", participation, low=0, high=1)
    if not 0 <= drop_rate < 1:
        raise ValueError(f"drop_rate must be in [0, 1), got {drop_rate}")


@functools.lru_cache(maxsize=64)
def _outputs(task: Task, shape: tuple[int, ...], dtype: Any) -> int:
    """Logits of one example; nothing is computed."""
    model = jax.eval_shape(task.init, jax.random.key(0))
    for a in jax.tree.leaves(model.params):
        if a.dtype != jnp.float32:
            raise TypeError(
                f"the task's parameters must be float32, got {a.dtype}: to compute in {a.dtype}, cast them in `loss` "
                "and `predict`, as the models here do with compute_dtype"
            )
    return jax.eval_shape(task.predict, model, jax.ShapeDtypeStruct((1, *shape), dtype)).shape[-1]


def fits(task: Task, data: Data) -> None:
    """Refuse a task that cannot learn these data; data that are traced or of other processes have no labels to see.

    Raises:
        TypeError: if its parameters are not float32.
        ValueError: if it has fewer outputs than the data have classes: labels beyond would count as nothing.
    """
    outputs = _outputs(task, data.x.shape[2:], data.x.dtype)
    if isinstance(data.classes, Tracer) or not getattr(data.classes, "is_fully_addressable", True):
        return
    classes = int(np.asarray(data.classes).max())  # NumPy's: under a trace JAX's would be traced too
    if classes > outputs:
        raise ValueError(
            f"the model has {outputs} outputs, but the data have {classes} classes: make it with {classes}"
        )


def at_round(value: Any, k: Array) -> Array:
    """`value` in round `k [] int32`: schedules are asked, numbers and tracers are taken as they are; float32."""
    if not callable(value):
        return jnp.asarray(value, jnp.float32)
    with jax.numpy_dtype_promotion("standard"):  # optax's schedules mix the integer round with floats
        return jnp.asarray(value(k), jnp.float32)
