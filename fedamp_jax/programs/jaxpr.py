"""What a traced program consists of, before any compiler has seen it."""

import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, Var
from jax.interpreters.partial_eval import dce_jaxpr

_AT_MOST = re.compile(r"at_most_(\d+)[()]*$")
_TOGETHER = re.compile(r"together_(\d+)")


def repeat(steps: Any, body: Callable[[Any, Any], Any], carry: Any, *, at_most: int) -> Any:
    """`lax.fori_loop(0, steps, body, carry)` with a bound on `steps`, by which the cost of the loop is estimated."""
    with jax.named_scope(f"at_most_{at_most}"):
        return lax.fori_loop(0, steps, body, carry)


def together(step: Callable[..., Any], clients: int) -> Callable[..., Any]:
    """`step`, in whose program it can be read how many clients run it side by side, see `most_together`."""
    return jax.named_call(step, name=f"together_{clients}")


def most_together(program: ClosedJaxpr) -> int:
    """The most clients that run side by side in a jaxpr, 1 if none do.

    >>> most_together(jax.make_jaxpr(jax.vmap(together(jnp.sin, clients=5)))(jnp.ones(5)))
    5
    """
    names = (_TOGETHER.search(str(eqn.source_info.name_stack)) for eqn in equations(program))
    return max((int(found[1]) for found in names if found), default=1)


def equations(program: Any) -> Iterator[Any]:
    """All equations of a jaxpr, those of its loops, branches and functions among them."""
    for eqn in getattr(program, "jaxpr", program).eqns:
        yield eqn
        for inner in inside(eqn):
            yield from equations(inner)


def unchanged(program: Any, given: Sequence[Any], names: Sequence[str]) -> list[str]:
    """The names of the last outputs of a jaxpr that are the very inputs `given`, one by one.

    >>> program = jax.make_jaxpr(lambda a, b: (a + b, b, 2 * a))(1.0, 2.0).jaxpr
    >>> unchanged(program, [program.invars[1], program.invars[0]], ["b", "a"])
    ['b']
    """
    made = program.outvars[len(program.outvars) - len(names) :]
    return [name for name, old, new in zip(names, given, made, strict=False) if new is old]


def inside(eqn: Any) -> list[Any]:
    """The jaxprs of an equation's loops, branches and functions."""
    return [a for a in jax.tree.leaves(list(eqn.params.values())) if isinstance(a, (Jaxpr, ClosedJaxpr))]


class OneClient:
    """Properties of a function of ONE client, found by tracing it when the first of them is read.

    >>> import jax.numpy as jnp
    >>> client = OneClient(lambda x, w: x @ w, jnp.ones((5, 100)), jnp.ones((5, 100)))
    >>> client.convolves, client.held, client.peak
    (False, 4000, 804)
    """

    def __init__(self, step: Callable[..., Any], *args: Any, shared: Any = None):
        """Args:
        step: the function.
        *args: leaves `[M, ...]`, of which it takes one row.
        shared: its first argument if there is one, which all clients read.
        """
        self._step, self._args, self._shared = step, args, shared

    @functools.cached_property
    def _program(self) -> Any:
        rows = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), self._args)
        whole = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), self._shared)
        return jax.make_jaxpr(self._step)(*(() if self._shared is None else (whole,)), *rows)

    @property
    def convolves(self) -> bool:
        """Whether it convolves."""
        return any(eqn.primitive.name == "conv_general_dilated" for eqn in equations(self._program))

    @property
    def held(self) -> int:
        """Bytes of the arguments, of all clients; an array that is given twice is counted once."""
        return sum(array_bytes(a) for a in {id(a): a for a in jax.tree.leaves((self._shared, self._args))}.values())

    @property
    def peak(self) -> int:
        """Bytes of the client's own arguments, its results and all between at the worst moment, if nothing is fused."""
        return peak(self._program.jaxpr) - sum(map(array_bytes, jax.tree.leaves(self._shared)))


def peak(jaxpr: Any, each: Callable[[Any], None] = lambda eqn: None) -> int:
    """Bytes at the worst moment of a jaxpr that runs equation by equation, releasing each array after its last use.

    Args:
        jaxpr: the program; its arguments are kept to the end.
        each: called with every equation.
    """
    last = {v: i for i, eqn in enumerate(jaxpr.eqns) for v in eqn.invars if isinstance(v, Var)}
    kept = {*jaxpr.invars, *jaxpr.constvars, *(v for v in jaxpr.outvars if isinstance(v, Var))}
    held = most = sum(array_bytes(v.aval) for v in (*jaxpr.invars, *jaxpr.constvars))
    for i, eqn in enumerate(jaxpr.eqns):
        each(eqn)
        given = sum(array_bytes(v.aval) for v in eqn.invars)
        inner = max((peak(getattr(a, "jaxpr", a)) - given for a in inside(eqn)), default=0)
        new = sum(array_bytes(v.aval) for v in eqn.outvars)
        most = max(most, held + max(new, inner))
        over = {v for v in (*eqn.invars, *eqn.outvars) if isinstance(v, Var) and last.get(v, i) == i} - kept
        held += new - sum(array_bytes(v.aval) for v in over)
    return most


def array_bytes(a: Any) -> int:
    """Bytes of an array or abstract array; a key of a random generator takes eight."""
    width = 8 if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else np.dtype(a.dtype).itemsize
    return math.prod(a.shape) * width


def flops(program: ClosedJaxpr | Jaxpr, platform: str | None = None) -> float:
    """Floating point operations of the matrix products and convolutions of a jaxpr, with all repetitions.

    Of branches the longest counts, of a loop its bound (see `repeat`). What no result depends on, such as the gradient
    with respect to the data, does not count.

    Args:
        program: the jaxpr.
        platform: whose implementation counts where there are several, such as `"cpu"`; None: the general one, even if
            another needs fewer operations.

    >>> import jax.numpy as jnp
    >>> flops(jax.make_jaxpr(lambda a: lax.fori_loop(0, 3, lambda i, a: a @ a, a))(jnp.ones((10, 10))))
    6000.0
    """
    total = 0.0
    jaxpr: Any = getattr(program, "jaxpr", program)
    used: Any = dce_jaxpr(jaxpr, [True] * len(jaxpr.outvars))[0]
    for eqn in used.eqns:
        name, parts = eqn.primitive.name, [flops(inner, platform) for inner in inside(eqn)]
        if name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            inner = np.prod([eqn.invars[0].aval.shape[axis] for axis in contracted])
            total += 2.0 * np.prod(eqn.outvars[0].aval.shape) * inner
        elif name == "conv_general_dilated":
            kernel, features = eqn.invars[1].aval.shape, eqn.params["dimension_numbers"].rhs_spec[0]
            zeros = np.prod(eqn.params["lhs_dilation"])  # of which the products are none
            total += 2.0 * np.prod(eqn.outvars[0].aval.shape) * np.prod(kernel) / kernel[features] / zeros
        elif name == "cond":
            named = eqn.params.get("branches_platforms") or ()  # None at the last: the platforms that no other names
            total += next((n for n, of in zip(parts, named) if of is None or platform in of), max(parts))
        elif name == "shard_map":
            total += sum(parts) * eqn.params["mesh"].size
        elif name == "while":
            bound = _AT_MOST.search(str(eqn.source_info.name_stack))
            total += sum(parts) * (int(bound[1]) if bound else 1)
        else:
            total += sum(parts) * eqn.params.get("length", 1)
    return float(total)
