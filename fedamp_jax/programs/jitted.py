"""A jitted function of `Data`, compiled with the effort that pays on the platform where they lie."""

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

_LEVEL = "xla_backend_optimization_level"


class Jitted:
    """`jax.jit(fn, **options)`, which a CPU's compiler optimizes at LLVM's first level in place of its third.

    There that takes two thirds less time for the random numbers of an initial model, and a third less for rounds and
    evaluation. Programs are as fast: loops are vectorized at the first level, too, and what takes long is in libraries
    (benchmarks/RESULTS.md). Only the transforms of Winograd's algorithm are not, so programs of models with
    convolutions keep the third level. A level in the environment's XLA_FLAGS is left alone.

    Args:
        fn: a function of which one argument is `Data`.
        **options: of `jax.jit`.
    """

    def __init__(self, fn: Callable[..., Any], **options: Any):
        self.__wrapped__, self.__doc__ = fn, fn.__doc__
        self._jitted: Any = jax.jit(fn, **options)
        self._for_cpu: Any = jax.jit(fn, **options, compiler_options={_LEVEL: 1})

    def _chosen(self, args: tuple) -> Any:
        # Within another program, where even zeros are traced, it is a part of that one, and jax takes no options.
        part = isinstance(jnp.zeros(()), Tracer)
        on_cpu = any(a.placement.platform == "cpu" for a in args if hasattr(a, "placement"))
        given = _LEVEL in os.environ.get("XLA_FLAGS", "")
        return self._for_cpu if on_cpu and not part and not given and not _convolves(args) else self._jitted

    def __call__(self, *args: Any) -> Any:
        return self._chosen(args)(*args)

    def lower(self, *args: Any) -> jax.stages.Lowered:
        """As of a jitted function; arguments may be abstract."""
        return self._chosen(args).lower(*args)

    def trace(self, *args: Any) -> jax.stages.Traced:
        """As of a jitted function; arguments may be abstract."""
        return self._chosen(args).trace(*args)

    def _cache_size(self) -> int:
        return self._jitted._cache_size() + self._for_cpu._cache_size()


def _convolves(args: tuple) -> bool:
    """Whether the model in a program's arguments has kernels of convolutions, leaves `[(M,) k, l, I, O]`."""
    models = [a for a in args if not hasattr(a, "placement")]
    return any(len(getattr(a, "shape", ())) >= 4 for a in jax.tree.leaves(models))
