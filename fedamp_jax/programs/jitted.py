"""A jitted function of `Data`, compiled with the effort that pays on the platform where they lie."""

import functools
import os
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fedamp_jax.programs.kept import kept

_LEVEL = "xla_backend_optimization_level"


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
        self._compiled: weakref.WeakSet[Any] = weakref.WeakSet()

        def made(level: int | None, *static_args: Any) -> Any:
            program = functools.wraps(fn)(lambda *args: fn(*static_args, *args))
            donated = tuple(i - static for i in donate_argnums)
            options = {} if level is None else {_LEVEL: level}
            jitted = jax.jit(program, donate_argnums=donated, compiler_options=options)
            self._compiled.add(jitted)
            return jitted

        self._made: Any = kept(made)

    def _chosen(self, args: tuple) -> tuple[Any, tuple]:
        # Within another program, where even zeros are traced, it is a part of that one, and jax takes no options.
        part = isinstance(jnp.zeros(()), Tracer)
        on_cpu = any(a.placement.platform == "cpu" for a in args if hasattr(a, "placement"))
        given = _LEVEL in os.environ.get("XLA_FLAGS", "")
        low = on_cpu and not part and not given and not _convolves(args)
        return self._made(1 if low else None, *args[: self._static]), args[self._static :]

    def __call__(self, *args: Any) -> Any:
        program, rest = self._chosen(args)
        return program(*rest)

    def lower(self, *args: Any) -> jax.stages.Lowered:
        """As of a jitted function; arguments may be abstract."""
        program, rest = self._chosen(args)
        return program.lower(*rest)

    def trace(self, *args: Any) -> jax.stages.Traced:
        """As of a jitted function; arguments may be abstract."""
        program, rest = self._chosen(args)
        return program.trace(*rest)

    def _cache_size(self) -> int:
        return sum(program._cache_size() for program in self._compiled)


def _convolves(args: tuple) -> bool:
    """Whether the model in a program's arguments has kernels of convolutions, leaves `[(M,) k, l, I, O]`."""
    models = [a for a in args if not hasattr(a, "placement")]
    return any(len(getattr(a, "shape", ())) >= 4 for a in jax.tree.leaves(models))
