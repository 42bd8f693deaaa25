"""A jitted function of `Data`, compiled with the effort that pays on the platform where they lie."""

import functools
import os
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from fedamp_jax.programs.kept import kept

_LEVEL = "xla_backend_optimization_level"
_LARGE = 1 << 20  # bytes


class Jitted:
    """`jax.jit(fn)`, which a CPU's compiler optimizes at LLVM's first level in place of its third.

    There that takes two thirds less time for the random numbers of an initial model, and a third less for rounds and
    evaluation. Programs are as fast: loops are vectorized at the first level, too, and what takes long is in libraries
    (benchmarks/RESULTS.md). Only the transforms of Winograd's algorithm are not, so programs of models with
    convolutions keep the third level. A level in the environment's XLA_FLAGS is left alone.

    A program is kept as long as the algorithm or task that it was made for (see `fedamp_jax.programs.kept`): what
    `jax.jit` gets as static arguments stays in its caches for ever.

    Args:
        fn: a function of which one argument is `Data`.
        static: how many of its first arguments are static, such as an algorithm's function.
        donate_argnums: as of `jax.jit`.
    """

    def __init__(self, fn: Callable[..., Any], static: int = 0, donate_argnums: tuple[int, ...] = ()):
        self.__wrapped__, self.__doc__ = fn, fn.__doc__
        self._static = static

        def made(level: int | None, *static_args: Any) -> _Program:
            program = functools.wraps(fn)(lambda *args: fn(*static_args, *args))
            options = {} if level is None else {_LEVEL: level}
            return _Program(program, tuple(i - static for i in donate_argnums), options)

        self._made: Any = kept(made)

    def _chosen(self, args: tuple) -> "tuple[_Program, tuple, bool]":
        # Within another program, where even zeros are traced, it is a part of that one, and jax takes no options.
        part = isinstance(jnp.zeros(()), Tracer)
        on_cpu = any(a.placement.platform == "cpu" for a in args if hasattr(a, "placement"))
        given = _LEVEL in os.environ.get("XLA_FLAGS", "")
        low = on_cpu and not part and not given and not _convolves(args)
        return self._made(1 if low else None, *args[: self._static]), args[self._static :], part

    def __call__(self, *args: Any) -> Any:
        program, rest, part = self._chosen(args)
        return program.jitted(*rest) if part else program(*rest)

    def lower(self, *args: Any) -> jax.stages.Lowered:
        """As of a jitted function; arguments may be abstract."""
        return self.trace(*args).lower()

    def trace(self, *args: Any) -> jax.stages.Traced:
        """As of a jitted function; arguments may be abstract."""
        program, rest, _ = self._chosen(args)
        return program.trace(*rest)

    def count(self, *static: Any) -> int:
        """How many programs were compiled for these static arguments."""
        return sum(self._made(level, *static).count for level in (1, None))


class _Program:
    """A jitted function. What it closes over and is large, such as a pretrained model, becomes an argument.

    In the text of a program an array takes twice its bytes, seconds to be compiled, and memory for each program. As an
    argument it is one array for all of them.

    Attributes:
        jitted: the function as it is.
    """

    def __init__(self, fn: Callable[..., Any], donated: tuple[int, ...], options: dict):
        self.jitted: Any = jax.jit(fn, donate_argnums=donated, compiler_options=options)
        self._with_arrays: dict[Any, tuple[Any, Any]] = {}
        self._held: list[Any] = []  # what `_placed` has made for it
        self._donated, self._options = donated, options

    def __call__(self, *args: Any) -> Any:
        program, arrays = self._chosen(args)
        if not arrays:
            return program(*args)
        return program([_placed(a, _sharding(args), self._held) for a in arrays], *args)

    @property
    def count(self) -> int:
        """How many programs it was compiled to."""
        return sum(program._cache_size() for program in {self.jitted, *(p for p, _ in self._with_arrays.values())})

    def trace(self, *args: Any) -> jax.stages.Traced:
        """The function traced for arguments that may be abstract."""
        program, arrays = self._chosen(args)
        if not arrays:
            return program.trace(*args)
        sharding = _sharding(args)
        return program.trace([jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=sharding) for a in arrays], *args)

    def _chosen(self, args: tuple) -> tuple[Any, Any]:
        """The jitted function of such arguments, and the arrays that are its first one; none if they are small."""
        leaves, tree = jax.tree.flatten(args)
        kinds = tree, tuple((a.shape, a.dtype, getattr(a, "weak_type", False)) for a in leaves)
        if kinds not in self._with_arrays:
            self._with_arrays[kinds] = self._traced(args)
        return self._with_arrays[kinds]

    def _traced(self, args: tuple) -> tuple[Any, Any]:
        traced: Any = self.jitted.trace(*args)
        arrays = traced.jaxpr.consts
        if sum(a.nbytes for a in arrays if hasattr(a, "nbytes")) < _LARGE:
            return self.jitted, ()
        out = traced.out_tree

        def with_arrays(arrays: Any, *args: Any) -> Any:
            program = jaxpr_as_fun(ClosedJaxpr(traced.jaxpr.jaxpr, arrays))
            return jax.tree.unflatten(out, program(*jax.tree.leaves(args)))

        donated = tuple(i + 1 for i in self._donated)
        named = functools.wraps(self.jitted)(with_arrays)
        jitted = jax.jit(named, donate_argnums=donated, compiler_options=self._options)
        return jitted, arrays


_PLACED: weakref.WeakValueDictionary[tuple[int, Any], Any] = weakref.WeakValueDictionary()
"""Large arrays where programs read them, by the array's identity and its sharding: one copy for all programs."""


def _placed(array: Any, sharding: Any, held: list[Any]) -> Any:
    """The array as JAX's own, with this sharding; kept as long as a program that has it in `held`.

    A program that holds the copy also holds the array, so that no other array gets its identity meanwhile.
    """
    if sharding is None and isinstance(array, jax.Array):
        return array
    placed = _PLACED.get((id(array), sharding))
    if placed is None:
        placed = _PLACED[id(array), sharding] = jax.device_put(array, sharding)
    if not any(placed is a for a in held):
        held.append(placed)
    return placed


def _sharding(args: tuple) -> Any:
    """How arrays lie that all clients share."""
    return next((a.placement.shared for a in args if hasattr(a, "placement")), None)


def _convolves(args: tuple) -> bool:
    """Whether the model in a program's arguments has kernels of convolutions, leaves `[(M,) k, l, I, O]`."""
    models = [a for a in args if not hasattr(a, "placement")]
    return any(len(getattr(a, "shape", ())) >= 4 for a in jax.tree.leaves(models))
