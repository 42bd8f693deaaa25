"""Results that are kept for as long as the functions that they were made of, and no longer."""

import collections
import functools
import types
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import jax

F = TypeVar("F", bound=Callable[..., Any])
_PLACE = "_kept_by_fedamp_jax"
_AT_MOST = 64


def kept(fn: F) -> F:
    """`functools.cache` for functions of algorithms and tasks, whose results die with these.

    A compiled program refers to the functions that it was made of, and so would a cache of it: each method of a sweep
    would stay for ever, with its programs. Here a result is an attribute of one of the functions among the arguments,
    so that both are collected together. Where there is none, the last few results are kept.

    Args:
        fn: of hashable arguments.

    >>> calls = []
    >>> @kept
    ... def noted(function, number):
    ...     calls.append(number)
    ...     return function(number)
    >>> double = lambda number: 2 * number
    >>> noted(double, 3), noted(double, 3), noted(double, 4), calls
    (6, 6, 8, [3, 4])
    """
    others: collections.OrderedDict[Hashable, Any] = collections.OrderedDict()

    @functools.wraps(fn)
    def cached(*args: Any) -> Any:
        owner = _owner(args)
        results = others if owner is None else owner.__dict__.setdefault(_PLACE, {})
        key = args if owner is None else (cached, args)
        if key not in results:
            made = fn(*args)
            # Methods are compiled in several threads: all get what the first of them has made.
            made = results.setdefault(key, made)
            while len(others) > _AT_MOST:
                others.popitem(last=False)
            return made
        return results[key]

    return cached  # pyright: ignore[reportReturnType]


def _owner(args: Any) -> Any:
    """The last function among the arguments that closes over something: one that was made for this method or task.

    A function of a module is never collected, and a task may serve many methods: the method's own come last.
    """
    functions = [a for a in jax.tree.leaves(args) if isinstance(a, types.FunctionType)]
    return next((f for f in reversed(functions) if f.__closure__), None)
