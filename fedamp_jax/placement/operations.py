"""A traced program as a list of numbered arrays and the operations between them, with the calls in it inlined."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, Primitive, Var, jaxpr_as_fun
from jax.interpreters import mlir

from fedamp_jax.programs.jaxpr import array_bytes, equations, inside

clients_p = Primitive("at_clients")
"""`(work, *kept, *consts, *examples, *rows) -> rows`: a function of ONE client, whose rows of `kept` it replaces."""
clients_p.multiple_results = True
clients_p.def_abstract_eval(lambda work, *arrays, step, lengths: list(arrays[: lengths[0]]))


def refuse_compilation(*_: Any, **__: Any) -> Any:
    """Raise TypeError: messages are sent while a round runs."""
    raise TypeError(
        "a round of clients that are elsewhere cannot be part of a compiled program: call fedamp_jax.round or "
        "fedamp_jax.run outside of jax.jit"
    )


mlir.register_lowering(clients_p, refuse_compilation)

_CALLS = {"pjit": "jaxpr", "jit": "jaxpr", "closed_call": "call_jaxpr", "core_call": "call_jaxpr",
          "custom_jvp_call": "call_jaxpr", "custom_vjp_call": "call_jaxpr", "checkpoint": "jaxpr"}  # fmt: skip
_ELEMENTWISE = """abs add and atan2 cbrt ceil clamp convert_element_type copy copy_p cos div eq erf exp exp2 expm1 floor
ge gt integer_pow is_finite le log log1p logistic lt max min mul ne neg nextafter not or pow reduce_precision rem round
rsqrt select_n sign sin sqrt square stop_gradient sub tan tanh xor""".split()  # noqa: SIM905


class Operation(NamedTuple):
    """One equation of the program.

    Attributes:
        eqn: the equation.
        compute: it as a function of arrays, one for each different array among its inputs.
        ins: numbers of arrays, or literals.
        outs: numbers of arrays.
    """

    eqn: Any
    compute: Callable[..., Any]
    ins: tuple[Any, ...]
    outs: tuple[int, ...]

    @property
    def name(self) -> str:
        return self.eqn.primitive.name

    @property
    def of_clients(self) -> bool:
        return self.eqn.primitive is clients_p

    @property
    def arrays(self) -> list[int]:
        return [v for v in self.ins if not isinstance(v, Literal)]

    def group(self, which: int) -> list[Any]:
        """Of an operation of clients, the inputs that are kept (0), constants (1), examples (2) or rows (3)."""
        ends = np.cumsum([1, *self.eqn.params["lengths"]])
        return list(self.ins[ends[which] : ends[which + 1]])


class Flat:
    """A program as operations between numbered arrays, those of its calls in place of the calls.

    Attributes:
        clients: how many there are; arrays of clients have their axis first.
        avals: of each array, by number.
        operations: in their order.
        consts: the arrays that the program brings along.
        ins: numbers of its inputs.
        outs: numbers of its outputs, or literals.
        made_by: the operation that makes an array.
    """

    def __init__(self, program: ClosedJaxpr, clients: int):
        """Number a program's arrays.

        Raises:
            ValueError: an operation of clients is inside of a loop.
        """
        self.clients = clients
        self.avals: list[Any] = []
        self.operations: list[Operation] = []
        self.consts: dict[int, Any] = {}
        self.ins = [self._number(v.aval) for v in program.jaxpr.invars]
        self.outs = self._flat(program, self.ins)
        self.made_by = {n: op for op in self.operations for n in op.outs}

    def _number(self, aval: Any) -> int:
        self.avals.append(aval)
        return len(self.avals) - 1

    def _flat(self, program: ClosedJaxpr, ins: Sequence[Any]) -> list[Any]:
        """Add a jaxpr's equations, those of its calls in place of the calls; returns its outputs."""
        env: dict[Any, Any] = dict(zip(program.jaxpr.invars, ins, strict=True))
        for var, value in zip(program.jaxpr.constvars, program.consts, strict=True):
            env[var] = self._number(var.aval)
            self.consts[env[var]] = value

        def read(v: Any) -> Any:
            return v if isinstance(v, Literal) else env[v]

        for eqn in program.jaxpr.eqns:
            given = [read(v) for v in eqn.invars]
            inner = eqn.params.get(_CALLS.get(eqn.primitive.name, ""))
            if inner is not None:
                inner = inner if isinstance(inner, ClosedJaxpr) else ClosedJaxpr(inner, ())
                outs = self._flat(inner, given)
            else:
                if eqn.primitive is not clients_p and any(
                    e.primitive is clients_p for some in inside(eqn) for e in equations(some)
                ):
                    raise ValueError(
                        f"clients' training inside of {eqn.primitive.name} cannot be cut into messages: call "
                        "for_each_client outside of lax.cond, lax.scan and the like"
                    )
                outs = [self._number(v.aval) for v in eqn.outvars]
                compute = None if eqn.primitive is clients_p else _alone(program.jaxpr, eqn)
                self.operations.append(Operation(eqn, compute, tuple(given), tuple(outs)))  # pyright: ignore[reportArgumentType]
            env.update(zip(eqn.outvars, outs, strict=True))
        return [read(v) for v in program.jaxpr.outvars]

    def computes_rows(self, op: Operation, of: Callable[[int], bool]) -> bool:
        """Whether a row of an operation's result follows from the same rows of those inputs for which `of` holds."""
        m, p = self.clients, op.eqn.params
        mine = [v for v in op.arrays if of(v)]
        if not mine or any(self.avals[v].shape[:1] != (m,) for v in (*mine, *op.outs)):
            return False
        if op.name in _ELEMENTWISE:
            return all(self.avals[v].ndim in (0, self.avals[op.outs[0]].ndim) for v in op.arrays)
        if len(op.arrays) > 1:
            return False
        match op.name:
            case "broadcast_in_dim":
                return p["broadcast_dimensions"][:1] == (0,)
            case "reshape":
                return p["dimensions"] is None
            case "squeeze":
                return 0 not in p["dimensions"]
            case "transpose":
                return p["permutation"][0] == 0
            case "slice":
                return p["start_indices"][0] == 0 and not p["strides"]
        return op.name.startswith(("reduce_", "arg")) and 0 not in p.get("axes", (0,))

    def repeats(self, op: Operation) -> bool:
        """Whether all rows of an operation's result are the same."""
        if op.name != "broadcast_in_dim" or not op.arrays or op.eqn.params["shape"][:1] != (self.clients,):
            return False
        kept = op.eqn.params["broadcast_dimensions"]
        return 0 not in kept or (kept[0] == 0 and self.avals[op.ins[0]].shape[0] == 1 != self.clients)

    def keeps_size(self, op: Operation) -> bool:
        """Whether an operation gives an array another shape and nothing else."""
        reshapes = op.name in ("broadcast_in_dim", "reshape") and bool(op.arrays)
        return reshapes and self.avals[op.ins[0]].size == self.avals[op.outs[0]].size


def apply(op: Operation, values: Sequence[Any]) -> Sequence[Any]:
    """One operation of whole arrays."""
    return op.compute(*(value for v, value in zip(op.eqn.invars, values) if isinstance(v, Var)))


def _alone(jaxpr: Any, eqn: Any) -> Callable[..., Any]:
    """An equation as a function of its inputs, literals left out."""
    places = [v for v in eqn.invars if isinstance(v, Var)]
    different = list(dict.fromkeys(places))
    outs = [v for v in eqn.outvars if type(v) is Var]
    alone = jaxpr.replace(constvars=[], invars=different, outvars=outs, eqns=[eqn], effects=eqn.effects)

    def compute(*values: Any) -> list[Any]:
        given = dict(zip(places, values, strict=True))
        found = dict(zip(outs, jaxpr_as_fun(ClosedJaxpr(alone, ()))(*(given[v] for v in different)), strict=True))
        return [found.get(v) for v in eqn.outvars]

    return compute


def apply_to_rows(op: Operation, values: list[Any], count: int) -> list[Any]:
    """One row-by-row operation of `count` rows."""
    params = dict(op.eqn.params)
    for name in ("shape", "new_sizes", "limit_indices"):
        if op.name in ("broadcast_in_dim", "reshape", "slice") and name in params:
            params[name] = (count, *params[name][1:])
    found = op.eqn.primitive.bind(*values, **params)
    return found if op.eqn.primitive.multiple_results else [found]


def row_bytes(aval: Any) -> int:
    """Bytes of one client's row."""
    return array_bytes(aval) // aval.shape[0]
