"""A cut program, compiled stage by stage for the server and exchange by exchange for a client."""

import functools
import hashlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun

from fedamp_jax.placement.cut import Cut, Ends
from fedamp_jax.placement.operations import Operation, apply, apply_to_rows


class Divided(Cut):
    """A cut program that runs.

    Attributes:
        fingerprint: the same on two machines if they run the same program.
    """

    def __init__(self, program: ClosedJaxpr, clients: int, ends: Ends):
        super().__init__(program, clients, ends)
        self._client_programs: dict[tuple[int, int], Any] = {}

    def _needed(self, number: int) -> tuple[list[int], list[int]]:
        """The arrays that the server's stage reads, and those that it makes and something later reads."""
        stage = self.stages[number]
        made = {n for op in stage for n in op.outs}
        later: set[Any] = {o for o, where in zip(self.outs, self.kept) if where != "C"}
        later |= {v for some in self.stages[number + 1 :] for op in some for v in op.arrays}
        for exchange in self.exchanges[number:]:
            later |= {*exchange.rows, *exchange.whole}
            of_clients = [op for op in exchange.operations if op.of_clients]
            later |= {v for op in of_clients for v in (op.ins[0], *(self._told(v)[0] for v in op.group(0)))}
        keep = sorted(n for n in made if n in later)
        return sorted({v for op in self._live(stage, set(keep)) for v in op.arrays} - made), keep

    @staticmethod
    def _live(stage: list[Operation], wanted: set[int]) -> list[Operation]:
        found: list[Operation] = []
        for op in reversed(stage):
            if not wanted.isdisjoint(op.outs):
                wanted |= set(op.arrays)
                found.insert(0, op)
        return found

    @functools.cached_property
    def server_programs(self) -> list[Callable[[dict[int, Any]], dict[int, Any]]]:
        """The server's stages, each a compiled `{number: array} -> {number: array}`."""

        def made(number: int) -> Callable[[dict[int, Any]], dict[int, Any]]:
            reads, keep = self._needed(number)

            def stage(arrays: dict[int, Any]) -> dict[int, Any]:
                env = {**arrays}
                for op in self._live(self.stages[number], set(keep)):
                    env.update(
                        zip(
                            op.outs,
                            apply(op, [v.val if isinstance(v, Literal) else env[v] for v in op.ins]),
                            strict=True,
                        )
                    )
                return {n: env[n] for n in keep}

            compiled = jax.jit(stage)
            return lambda env: compiled({v: env[v] for v in reads}) if keep else {}

        return [made(number) for number in range(len(self.stages))]

    def client_program(self, number: int, first: int) -> Callable[..., tuple[dict[int, Any], dict[int, Any]]]:
        """What one client computes in an exchange.

        Args:
            number: of the exchange.
            first: as of `down`.

        Returns:
            A compiled `(index, rows, whole) -> (up, kept)`, of `{number: array}`: the client's row `[]` int32, rows
            `[1, ...]` that it has or has got so far in this call, and what it has got whole, with its own examples
            among them. `up` are the rows to return, and `kept` those that later exchanges or the next call need.
        """
        if (number, first) not in self._client_programs:
            self._client_programs[number, first] = self._client_program(number, first)
        return self._client_programs[number, first]

    def _client_program(self, number: int, first: int) -> Callable[..., Any]:
        exchange = self.exchanges[number - 1]
        later = {v for some in self.exchanges[number:] for op in some.operations for v in op.arrays} | self.stay
        operations = [op for some in self.exchanges[first - 1 : number] for op in some.operations]
        made = {n for op in operations for n in op.outs}
        delivered = {o for o in self.stay if o not in self.client} if number == len(self.exchanges) else set()

        @jax.jit
        def run(index: Any, rows: dict[int, Any], whole: dict[int, Any]) -> tuple[dict[int, Any], dict[int, Any]]:
            scope = _Rows(self, index[None], {**rows}, {**self.consts, **whole})
            for op in operations:
                scope.compute(op)
            return {v: scope.row(v) for v in exchange.up}, {v: scope.row(v) for v in (made & later) | delivered}

        return run

    def kept_row(self, v: Any, index: int, rows: dict[int, Any], whole: dict[int, Any]) -> Any:
        """A client's row `[1, ...]` of an array that it keeps if it does not train, from what it has and has got."""
        return _Rows(self, np.array([index]), {**rows}, {**self.consts, **whole}).known(v)

    def unanswered(self, v: int, clients: Sequence[int], env: dict[int, Any]) -> Any:
        """The rows of an array that the server would have got from clients that did not compute.

        They are what `for_each_client` keeps for such clients, or what follows from that; zeros if the server does not
        know it, as of state that stays with clients.

        Args:
            v: the array.
            clients: their rows.
            env: what the server has.
        """
        scope = _Rows(self, np.asarray(clients), {}, {**self.consts, **env})
        found = scope.known(v)
        return jnp.zeros((len(clients), *self.avals[v].shape[1:]), self.avals[v].dtype) if found is None else found

    @functools.cached_property
    def fingerprint(self) -> str:
        """The same on two machines if they run the same program."""
        digest = hashlib.sha256(f"{jax.__version__} {self.clients} {self.ends}".encode())
        for op in self.operations:
            params = re.sub(r" at 0x[0-9a-f]+|0x[0-9a-f]+", "", str(op.eqn.params))
            ins = [str(v) if isinstance(v, Literal) else v for v in op.ins]
            digest.update(f"{op.name} {ins} {op.outs} {params}\n".encode())
        for n, a in self.consts.items():
            digest.update(f"{n} {a.dtype} {a.shape}".encode())
            digest.update(np.ascontiguousarray(np.asarray(a)))  # pyright: ignore[reportArgumentType]
        return digest.hexdigest()[:16]

    def same_messages(self, other: Cut) -> bool:
        """Whether both exchange arrays of the same numbers, as they do if only numbers of examples differ."""

        def numbers(cut: Cut) -> Any:
            return [e[:3] for e in cut.exchanges], cut.held, cut.kept, [(op.name, op.outs) for op in cut.operations]

        return numbers(self) == numbers(other)


class _Rows:
    """The rows `[K, ...]` of some clients while they are computed, and what all clients have."""

    def __init__(self, cut: Divided, clients: Any, rows: dict[int, Any], whole: dict[int, Any]):
        self.cut, self.clients, self.rows, self.whole = cut, clients, rows, whole

    def row(self, v: Any) -> Any:
        """The clients' rows of an array."""
        if isinstance(v, Literal) or self.cut.avals[v].ndim == 0:
            return self.full(v)
        if v not in self.rows:
            if v in self.cut.same and v not in self.whole:
                op = self.cut.same[v]
                self.rows[v] = apply_to_rows(op, [self.full(op.ins[0])], len(self.clients))[0]
            else:
                self.rows[v] = self.full(v)[self.clients]
        return self.rows[v]

    def full(self, v: Any) -> Any:
        """An array that all clients have."""
        if isinstance(v, Literal):
            return v.val
        if v not in self.whole:
            op = self.cut.made_by[v]
            self.whole.update(zip(op.outs, apply(op, list(map(self.full, op.ins))), strict=True))
        return self.whole[v]

    def compute(self, op: Operation) -> None:
        """One operation of one client."""
        if op.of_clients:
            fixed = [self.full(v) for v in (*op.group(1), *op.group(2))]
            rows = [v.val if isinstance(v, Literal) else self.row(v)[0] for v in op.group(3)]
            found = [a[None] for a in jaxpr_as_fun(op.eqn.params["step"])(*fixed, *rows)]
        else:
            found = apply_to_rows(op, list(map(self.row, op.ins)), len(self.clients))
        self.rows.update(zip(op.outs, found, strict=True))

    def known(self, v: Any) -> Any:
        """The rows that clients would have if they kept what they had; None if that is not known here."""
        cut = self.cut
        if isinstance(v, Literal) or v in self.rows or v in self.whole or v in cut.both or v in cut.same:
            return self.row(v)
        op = cut.made_by.get(v)
        if op is None:
            return None
        if op.of_clients:
            return self.known(op.group(0)[op.outs.index(v)])
        given = [self.known(u) for u in op.ins]
        if v not in cut.client or any(a is None for a in given):
            return None
        self.rows.update(zip(op.outs, apply_to_rows(op, given, len(self.clients)), strict=True))
        return self.rows[v]
