"""Checks at the front door: concrete numbers are refused before anything compiles; tracers and schedules pass.

A value that is swept (a tracer under `vmap` or `jit`) or a schedule of the round has no value to look at yet.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fedamp_jax.types import Array


def _concrete(value: Any) -> np.ndarray | None:
    """The numbers in `value`, or None if it is a tracer or a schedule."""
    return None if isinstance(value, Tracer) or callable(value) else np.asarray(value)


def number(name: str, value: Any, *, low: float, high: float = np.inf, strict: bool = True) -> None:
    """Refuse `value` unless it lies above `low` (at or above it if not `strict`) and at or below `high`.

    Args:
        name: what the argument is called, for the message.
        value: a number, an array of numbers, a schedule `round -> number`, or a tracer; the last two pass.

    Raises:
        TypeError: if `value` holds no numbers.
        ValueError: if a number lies outside, or is not finite.

    >>> number("sigma", -1.0, low=0)
    Traceback (most recent call last):
        ...
    ValueError: sigma must be greater than 0, got -1.0
    """
    numbers = _concrete(value)
    if numbers is None:
        return
    if not np.issubdtype(numbers.dtype, np.number):
        raise TypeError(f"{name} must be a number, an array of numbers or a schedule of the round, got {value!r}")
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


def at_round(value: Any, k: Array) -> Array:
    """`value` in round `k [] int32`: schedules are asked, numbers and tracers are taken as they are; float32."""
    if not callable(value):
        return jnp.asarray(value, jnp.float32)
    with jax.numpy_dtype_promotion("standard"):  # optax's schedules mix the integer round with floats
        return jnp.asarray(value(k), jnp.float32)
