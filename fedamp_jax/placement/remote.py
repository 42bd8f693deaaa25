"""Clients that are elsewhere, each with its own data: the server's side.

A round is traced for all clients, cut (`fedamp_jax.placement.cut`), and run stage by stage. Between the stages,
messages go to the clients and answers come back. How they travel is the business of a transport.
"""

import dataclasses
import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from fedamp_jax.layout import with_examples, without_examples
from fedamp_jax.placement.divided import ROUND, RemoteState, Where, cut_of, shapes_of, where_of
from fedamp_jax.placement.messages import Answer, Away, Message, Refused, read, refuse_unlike, written
from fedamp_jax.placement.operations import clients_p, refuse_compilation
from fedamp_jax.placement.placement import Placement
from fedamp_jax.placement.stages import Divided

Transport = Callable[[dict[int, Message]], Mapping[int, Answer | Exception]]
"""Sends a message to each of some clients, by their rows, and returns what came back.

A client whose answer did not come in time is missing, or has the exception that says why. An exception that the
transport itself raises ends the run."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, kw_only=True)
class Remote(Placement):
    """Clients that are reached by messages, and whose examples never come here. See `fedamp_jax.silos`.

    Attributes:
        transport: how; None for a program that is only traced.
        seed: of the run, from which clients make their initial state.
        dtype: of floating-point arrays on their way, None for their own; `"bfloat16"` halves what is sent.
        chunk: not used: each client trains where it is.
        transmit: as in `Placement`; clients need to have the same.
    """

    transport: Transport | None = None
    seed: int = 0
    dtype: str | None = None

    @property
    def platform(self) -> str:
        """The same on all machines, so that they trace the same program."""
        return "cpu"

    @property
    def holds_examples(self) -> bool:
        return False

    def side_by_side(self, clients: int, client: Any = None, at_most: int | None = None) -> int:
        return 1

    def place(self, data: Any) -> Any:
        if len(data.y):
            raise ValueError(
                "the data hold clients' examples, which a server must not have: fedamp_jax.silos.connect makes data "
                "without any"
            )
        return jax.tree.map(jnp.asarray, data)._replace(placement=self)

    def init(self, algorithm: Any, key: Array, data: Any) -> RemoteState:
        if not np.array_equal(jax.random.key_data(key), jax.random.key_data(jax.random.key(self.seed))):
            raise ValueError(f"clients have made their initial state with seed {self.seed}: run with the same seed")
        where = where_of(algorithm, *shapes_of(data))
        leaves = functools.partial(_server_leaves, algorithm, where, data)
        shapes = jax.tree.flatten(jax.eval_shape(algorithm.init, key, data))
        known = iter(jax.jit(leaves)(key))
        state = [_nothing(a) if at == "C" else next(known) for a, at in zip(shapes[0], where.of, strict=True)]
        state = jax.tree.unflatten(shapes[1], state)
        return RemoteState(state, jnp.zeros((len(data.size),), jnp.int32), jnp.zeros((), jnp.int32), where)

    def state_shapes(self, algorithm: Any, key: Any, data: Any) -> RemoteState:
        where = where_of(algorithm, *shapes_of(data))
        leaves, tree = jax.tree.flatten(jax.eval_shape(algorithm.init, key, data))
        state = [
            jax.ShapeDtypeStruct((0, *a.shape[1:]) if at == "C" else a.shape, a.dtype)
            for a, at in zip(leaves, where.of, strict=True)
        ]
        integers = jax.ShapeDtypeStruct((len(data.size),), jnp.int32), jax.ShapeDtypeStruct((), jnp.int32)
        return RemoteState(jax.tree.unflatten(tree, state), *integers, where)

    def compile(self, compiled: Any, static: tuple, *shapes: Any) -> None:
        """Nothing: each stage is compiled when it is first run, here and at the clients."""

    def fitting(self, need: Any, chosen: Any) -> "Remote":
        return self

    def for_each_client(self, step, data, out, *args, work, at_most=None):
        own, examples = without_examples(data)
        rows, tree = jax.tree.flatten((out, own, args))
        pool, structure = jax.tree.flatten(examples)

        def one(pool: list, rows: list) -> list:
            out_i, own_i, args_i = jax.tree.unflatten(tree, rows)
            client = with_examples(own_i, jax.tree.unflatten(structure, pool))
            return jax.tree.leaves(step(client, out_i, *args_i))

        shapes = (
            [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in pool],
            [jax.ShapeDtypeStruct(a.shape[1:], a.dtype) for a in rows],
        )
        closed = jax.make_jaxpr(one)(*shapes)
        consts = list(closed.consts)
        step_p, used = _without_unused(closed, consts, shapes)
        arrays = [a for a, use in zip((*consts, *pool, *rows), used, strict=True) if use]
        ends = np.cumsum([len(consts), len(pool), len(rows)])
        counts = [sum(used[a:b]) for a, b in zip((0, *ends), ends)]
        kept_rows = jax.tree.leaves(out)
        new = clients_p.bind(work, *kept_rows, *arrays, step=step_p, lengths=(len(kept_rows), *counts))
        return jax.tree.unflatten(jax.tree.structure(out), new)

    def when(self, needed, compute, otherwise):
        """Both are computed; but clients without work get no message, so nothing is sent where it is not needed."""
        return jax.tree.map(lambda a, b: jnp.where(needed, a, b), compute(), otherwise)

    def call(self, compiled: Any, static: tuple, *args: Any) -> Any:
        if any(isinstance(a, Tracer) for a in jax.tree.leaves(args)):
            refuse_compilation()
        state = next((a for a in args if isinstance(a, RemoteState)), None)
        if state is None and not any(hasattr(a, "placement") for a in args):
            return super().call(compiled, static, *args)  # of what the server has, such as distances of models
        if state is None:
            raise ValueError(
                "clients that are elsewhere evaluate their own models: fedamp_jax.run reports each client's accuracy, "
                "and each silo has its model after fedamp_jax.silos.deliver"
            )
        name = compiled.__wrapped__.__name__
        cut, tree = cut_of(compiled.__wrapped__, static, shapes_of(*args), name)
        call = _Call(self, name, cut, state, rounds=name == ROUND)
        leaves = jax.tree.leaves([a.state if isinstance(a, RemoteState) else a for a in args])
        made = jax.tree.unflatten(tree, call.run(leaves))
        if name != ROUND:
            return made
        new, info = made
        base = jnp.where(jnp.asarray(call.complete()), state.calls + 1, state.base)
        return RemoteState(new, base, state.calls + 1, state.where), info


class _Call:
    """One run of a program."""

    def __init__(self, place: Remote, name: str, cut: Divided, state: RemoteState, rounds: bool):
        self.place, self.name, self.cut, self.rounds = place, name, cut, rounds
        self.base, self.number = np.asarray(state.base), int(state.calls) + rounds
        self.written: dict[int, np.ndarray] = {}
        self.answered: set[int] = set()
        self.lost: set[int] = set()
        self.done = 0

    def run(self, leaves: Sequence[Any]) -> list[Any]:
        """The outputs, from the inputs; `[0, ...]` for what stays with clients."""
        cut = self.cut
        env = {**cut.consts, **{n: a for n, a, at in zip(cut.ins, leaves, cut.held, strict=True) if at != "C"}}
        for number, stage in enumerate(cut.server_programs):
            if number:
                self._exchange(number, env)
            env.update(stage(env))
        return [
            _nothing(cut.avals[o]) if at == "C" else _literal_or(o, env)
            for o, at in zip(cut.outs, cut.kept, strict=True)
        ]

    def complete(self) -> np.ndarray:
        """`[M]` bool, the clients that answered all messages of the call, or would have had nothing to do."""
        came = np.zeros(self.cut.clients, bool)
        came[list(self.answered - self.lost)] = True
        return came

    def _exchange(self, number: int, env: dict[int, Any]) -> None:
        cut, exchange = self.cut, self.cut.exchanges[number - 1]
        work = [np.asarray(env[op.ins[0]]) for op in exchange.operations if op.of_clients]
        asked = {int(i) for a in work for i in np.flatnonzero(a > 0)} | self.answered
        asked |= set(range(cut.clients)) if cut.ends.delivered else set()
        asked -= self.lost
        sent = {i: self._message(number, i, env) for i in sorted(asked)}
        answers = self._answers(sent)
        self.answered |= set(answers)
        self.lost |= asked - set(answers)
        self.done = number
        rest = [i for i in range(cut.clients) if i not in answers]
        for v in exchange.up:
            new = np.zeros(cut.avals[v].shape, cut.avals[v].dtype)
            if rest:
                new[rest] = np.asarray(cut.unanswered(v, rest, env))
            for i, arrays in answers.items():
                new[i] = arrays[v][0]
            env[v] = jnp.asarray(new)

    def _message(self, number: int, i: int, env: dict[int, Any]) -> Message:
        first = number if i in self.answered else 1
        rows, whole = self.cut.down(number, first)
        for v in (*rows, *whole):
            if v not in self.written:  # once for all clients
                self.written[v] = written(env[v], self.place.dtype)
        return Message(
            self.name, number, first, self.cut.fingerprint, int(self.base[i]), self.number if self.rounds else 0,
            {v: self.written[v][i : i + 1] for v in rows}, {v: self.written[v] for v in whole},
        )  # fmt: skip

    def _answers(self, sent: dict[int, Message]) -> dict[int, dict[int, np.ndarray]]:
        """The answers that came and are as the program says."""
        if self.place.transport is None:
            raise ValueError("this placement has no transport: fedamp_jax.silos.connect makes one that reaches clients")
        up = {v: self.cut.avals[v] for v in self.cut.exchanges[self.done].up}
        dtype = self.place.dtype if self.rounds else None  # accuracies are no models
        found: dict[int, dict[int, np.ndarray]] = {}
        why: dict[int, str | None] = dict.fromkeys(sent, "its answer did not come")
        for i, answer in (self.place.transport(sent) if sent else {}).items():
            if isinstance(answer, Refused):
                raise RuntimeError(f"client {i} refuses: {answer}") from answer
            try:
                if isinstance(answer, Exception):
                    raise answer
                refuse_unlike(answer.rows, up, dtype, finite=self.rounds)
                found[i] = {v: read(answer.rows[v], aval, dtype) for v, aval in up.items()}
            except Exception as error:
                why[i] = None if isinstance(error, Away) else f"{type(error).__name__}: {error}"
        lost = [i for i in sent if i not in found and why[i] is not None]
        if sent and not found:
            said = f"client {lost[0]}: {why[lost[0]]}" if lost else "all are away"
            raise RuntimeError(f"no client answers in round {self.number}; {said}")
        without = f"does not count in round {self.number}" if self.rounds else f"is left out after round {self.number}"
        for i in lost:
            warnings.warn(f"client {i} {without}: {why[i]}", RuntimeWarning, stacklevel=2)
        return found


def _literal_or(o: Any, env: dict[int, Any]) -> Any:
    return env[o] if isinstance(o, int) else jnp.asarray(o.val, o.aval.dtype)


def _nothing(a: Any) -> Array:
    return jnp.zeros((0, *a.shape[1:]), a.dtype)


def _server_leaves(algorithm: Any, where: Where, data: Any, key: Array) -> list[Any]:
    leaves = jax.tree.leaves(algorithm.init(key, data))
    return [a for a, at in zip(leaves, where.of, strict=True) if at != "C"]


def _without_unused(closed: Any, consts: list, shapes: tuple) -> tuple[Any, list[bool]]:
    """A jaxpr of one client without constants and without the inputs that it does not read, and which those are."""

    def one(consts: list, pool: list, rows: list) -> list:
        return jaxpr_as_fun(ClosedJaxpr(closed.jaxpr, consts))(*pool, *rows)

    kinds = [jax.ShapeDtypeStruct(jnp.shape(a), jax.dtypes.canonicalize_dtype(a.dtype)) for a in consts]
    whole = jax.make_jaxpr(one)(kinds, *shapes)
    jaxpr, used = dce_jaxpr(whole.jaxpr, [True] * len(whole.jaxpr.outvars))  # pyright: ignore[reportGeneralTypeIssues]
    return ClosedJaxpr(jaxpr, whole.consts), list(used)
