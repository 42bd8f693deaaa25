"""Argument validation: concrete values are checked before anything is compiled; tracers and schedules pass unchecked.

A value that is swept (a tracer under `vmap` or `jit`) or a schedule `round -> value` is not known yet.
"""

import difflib
from typing import Any

import numpy as np
from jax.core import Tracer


def _concrete(value: Any) -> np.ndarray | None:
    """`value` as an array, or None if it is a tracer or a schedule."""
    return None if isinstance(value, Tracer) or callable(value) else np.asarray(value)


def check_number(
    name: str,
    value: Any,
    *,
    low: float,
    high: float = np.inf,
    strict: bool = True,
    allow_array: bool = False,
    low_is: str = "",
) -> None:
    """Checks that `low < value <= high`, or `low <= value <= high` if not `strict`.

    Args:
        name: name of the argument, for the message.
        value: a number; with `allow_array` also an array `[M]`. Schedules `round -> number` and tracers pass.
        low: lower bound.
        high: upper bound, always allowed.
        strict: whether `low` itself is refused.
        allow_array: whether an array of one number per client is allowed.
        low_is: what `low` is, for the message, where the number alone does not explain itself.

    Raises:
        TypeError: if `value` is not numeric, or is an array where a single number is expected.
        ValueError: if a number is out of range or not finite.

    >>> check_number("sigma", -1.0, low=0)
    Traceback (most recent call last):
        ...
    ValueError: sigma must be greater than 0, got -1.0
    >>> tiny = np.finfo(np.float32).tiny
    >>> check_number("sigma", 1e-39, low=tiny, strict=False, low_is="float32's smallest normal number")
    Traceback (most recent call last):
        ...
    ValueError: sigma must be at least 1.18e-38 (float32's smallest normal number), got 1e-39
    """
    numbers = _concrete(value)
    if numbers is None:
        return
    if not np.issubdtype(numbers.dtype, np.number) or numbers.ndim > allow_array:
        allowed = "a number, one number per client" if allow_array else "a number"
        raise TypeError(f"{name} must be {allowed} or a schedule of the round, got {value!r}")
    if np.ma.is_masked(value):
        raise ValueError(f"{name} has values that are masked, at position {int(np.argmax(np.ma.getmaskarray(value)))}")
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name} must be finite, got {value!r}")
    inside = ((numbers > low) if strict else (numbers >= low)) & (numbers <= high)
    if not inside.all():
        bad = numbers if numbers.ndim == 0 else f"{numbers[~inside][0]} at position {int(np.argmin(inside))}"
        bounds = f"{'greater than' if strict else 'at least'} {low:.3g}" + (f" ({low_is})" if low_is else "")
        if high < np.inf:
            bounds += f" and at most {high:.3g}"
        raise ValueError(f"{name} must be {bounds}, got {bad}")


def check_integer(name: str, value: Any, *, low: int) -> None:
    """Checks that `value` is an integer of at least `low`.

    Raises:
        TypeError: if it is not an integer.
        ValueError: if it is too small.
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")


def check_integers(name: str, value: Any, *, low: int) -> tuple[int, ...]:
    """Checks that `value` is a sequence of integers of at least `low`, and returns it as a tuple.

    Raises:
        TypeError: if it is not a sequence of integers.
        ValueError: if one of them is too small.

    >>> check_integers("hidden", 200, low=1)
    Traceback (most recent call last):
        ...
    TypeError: hidden must be a sequence of whole numbers, such as (200,), got 200
    """
    if isinstance(value, (str, bytes, dict)) or not hasattr(value, "__iter__"):
        raise TypeError(f"{name} must be a sequence of whole numbers, such as ({value!r},), got {value!r}")
    value = tuple(value)
    for number in value:
        check_integer(f"each of {name}", number, low=low)
    return tuple(int(number) for number in value)


def check_type(name: str, value: Any, wanted: type, hint: str) -> None:
    """Checks that `value` is an instance of `wanted`; `hint` says where to get one.

    Raises:
        TypeError: if it is not.

    >>> from fedamp_jax import Data
    >>> check_type("data", 2, Data, "fedamp_jax.data makes one")
    Traceback (most recent call last):
        ...
    TypeError: data must be of type Data (fedamp_jax.data makes one), got 2
    """
    if not isinstance(value, wanted):
        given = value if isinstance(value, (int, float, str)) else f"a {type(value).__name__}"
        raise TypeError(f"{name} must be of type {wanted.__name__} ({hint}), got {given}")


def check_choice(name: str, value: Any, options: tuple[str, ...]) -> None:
    """Checks that `value` is one of `options`; the message suggests the closest one.

    Raises:
        ValueError: if it is not.

    >>> check_choice("start", "clod", ("cloud", "personal"))
    Traceback (most recent call last):
        ...
    ValueError: start must be one of 'cloud', 'personal', got 'clod'; did you mean 'cloud'?
    """
    if value not in options:
        near = difflib.get_close_matches(str(value), options, n=1, cutoff=0.4)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{name} must be one of {', '.join(map(repr, options))}, got {value!r}{hint}")
