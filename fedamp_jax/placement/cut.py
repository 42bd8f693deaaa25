"""A traced program of all clients, cut in two: what the server computes, and what each client computes of its own rows.

A client computes what `Placement.for_each_client` says, and what is computed row by row of arrays that only clients
have. Everything else is the server's, and what it needs for this is sent to it. Both sides cut the same program and
number its arrays alike, so that a message is `{number: array}`, and no code is sent.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, Literal

from fedamp_jax.placement.operations import Flat, Operation, row_bytes
from fedamp_jax.programs.jaxpr import array_bytes


class Exchange(NamedTuple):
    """A message to the clients and the answer, all by numbers of arrays.

    Attributes:
        rows: of which each client gets its row.
        whole: which each client gets whole.
        up: of which each client returns its row.
        operations: what clients compute.
    """

    rows: list[int]
    whole: list[int]
    up: list[int]
    operations: list[Operation]


@dataclasses.dataclass(frozen=True)
class Ends:
    """What is known of a program's inputs and outputs before it is cut.

    Attributes:
        held: of each input, `"C"` if only clients have their rows of it, `"CS"` if the server has a copy, else `""`.
        private: the inputs that must not be sent, clients' examples.
        next: of each output, the input that it is in the next call; None for what the caller gets.
        delivered: whether the rows of all outputs go to the clients, and not to the caller.
    """

    held: tuple[str, ...]
    private: frozenset[int]
    next: tuple[int | None, ...]
    delivered: bool = False


class Cut(Flat):
    """A program, cut.

    Attributes:
        exchanges: in their order; the first one has number 1.
        stages: the server's operations before the first exchange, after the first, and so on.
        held: as in `Ends`, for what is state: where it is between calls.
        kept: likewise of each output.
        client: in which exchange clients have their rows of an array.
        server: after which exchange the server has an array.
        both: arrays that follow from the program alone.
        returned: the outputs that the caller gets.
    """

    def __init__(self, program: ClosedJaxpr, clients: int, ends: Ends):
        """Cut it.

        Args:
            program: all arrays of clients have their axis first.
            clients: how many.
            ends: of the program.

        Raises:
            ValueError: if the server would read clients' examples, or an operation of clients is inside of a loop.
        """
        super().__init__(program, clients)
        self.ends = ends
        self.examples = {self.ins[i] for i in ends.private}
        pairs = [(o, i) for o, i in zip(self.outs, ends.next, strict=True) if not isinstance(o, Literal)]
        self.returned = {o for o, i in pairs if i is None and not ends.delivered}
        self._next = {o: self.ins[i] for o, i in pairs if i is not None}
        self._state = set(self._next.values())
        held = {n for n, where in zip(self.ins, ends.held, strict=True) if where}
        self._copies = {n for n, where in zip(self.ins, ends.held, strict=True) if where == "CS"}
        self._settle(held)
        self.held = tuple(self._at(n) for n in self.ins)
        self.stages = [self._stage(number) for number in range(len(self.exchanges) + 1)]

    def _at(self, n: int | None) -> str:
        return "" if n not in self._here else "CS" if n in self._copies else "C"

    # --- who has what, and when ---------------------------------------------------------------------------------------

    def _settle(self, held: set[int]) -> None:
        """Find the arrays that stay with clients between calls, starting from those that may."""
        before = self._early = None
        while before != (held, self._copies, self._early):
            before = held, self._copies, self._early
            self._place(held)
            # What is sent anyway, the server has for all that follows.
            self._early = frozenset(self.up)
            # A state of which clients make no new rows is the server's from the start.
            held = held - {i for o, i in self._next.items() if o not in self.client}
        # So is one that clients could only complete with what the server answers, if that takes no more: a mean of
        # statistics would be sent after the round in which they come.
        best, copies = self._cost(held), self._copies
        late = [i for o, i in self._next.items() if i in held and self.client[o] == best[0] > 1]
        for i in late:
            without = self._cost(held - {i})
            if without[0] <= best[0] and without[1] <= best[1]:
                best, held, copies = without, held - {i}, self._copies
            self._copies = copies
        self._cost(held)

    def _cost(self, held: set[int]) -> tuple[int, int]:
        """Exchanges, and bytes that cross for one client, if these stay with clients."""
        self._place(held)
        self._schedule()
        number = len(self.exchanges)
        down = [self.down(k + 1) for k in range(number)]
        crossing = [v for rows, _ in down for v in rows] + [v for e in self.exchanges for v in e.up]
        return number, sum(row_bytes(self.avals[v]) for v in crossing) + sum(
            array_bytes(self.avals[v]) for _, whole in down for v in whole
        )

    def _place(self, held: set[int]) -> None:
        """After which exchange the server has an array (`server`), and in which exchange a client has its row."""
        self.client: dict[int, int] = dict.fromkeys(held, 0)
        copies = self._copies & held
        self.server = {n: 0 for n in (*self.ins, *self.consts) if n not in held or n in copies}
        self.both = set(self.consts)  # what follows from the program alone
        self.same = {}  # arrays whose rows are the same for all clients, and what they are made of
        self.up: dict[int, int] = {}
        self._here = held
        for op in self.operations:
            (self._place_clients if op.of_clients else self._place_one)(op)
        for o in self.returned:
            self._at_server(o)
        for o, i in self._next.items():
            if i not in held or i in self._copies:
                self._at_server(o)  # the next call's server starts with it

    def _place_clients(self, op: Operation) -> None:
        wait = [self._at_server(v) + 1 for v in (op.ins[0], *op.group(1)) if self._sent(v)]
        wait += [self._at_server(v) + 1 for v in op.group(2) if v not in self.examples and self._sent(v)]
        self._at_client(op, [*(v for v in op.group(2) if v in self.examples), *op.group(3)], wait)
        for n in op.outs:
            if n in self.returned or n in (self._early or ()):  # it is sent anyway
                self._at_server(n)

    def _place_one(self, op: Operation) -> None:
        only = [v for v in op.arrays if v not in self.server]
        by_row = self.computes_rows(op, self.client.__contains__)
        if only and not by_row:
            for v in only:
                self._at_server(v)
            only = []
        if not only:
            self.server.update(dict.fromkeys(op.outs, max((self.server[v] for v in op.arrays), default=0)))
            if all(v in self.both for v in op.arrays):
                self.both |= set(op.outs)
            elif self.repeats(op):
                self.same[op.outs[0]] = op
        if only or (by_row and any(v in self.client for v in op.arrays)):
            self._at_client(op, op.arrays, [])

    def _from_one(self, v: int) -> bool:
        """Whether an array follows from what the server has and one that is not larger, which is sent in its place."""
        op = self.made_by[v]
        mine = {u for u in op.arrays if u not in self.server}
        return not op.of_clients and len(mine) == 1 and all(
            u not in self.ins and self.avals[u].size <= self.avals[v].size for u in mine
        )  # fmt: skip

    def _sent(self, v: Any) -> bool:
        return not isinstance(v, Literal) and v not in self.both

    def _at_client(self, op: Operation, rows: Sequence[Any], wait: list[int]) -> None:
        known = [self.client[v] for v in rows if self._sent(v) and v in self.client]
        told = [self._at_server(v) + 1 for v in rows if self._sent(v) and v not in self.client]
        self.client.update(dict.fromkeys(op.outs, max(1, *wait, *known, *told)))

    def _at_server(self, v: int) -> int:
        """After which exchange the server has an array: it has it already, or can compute it, or it is sent up."""
        if v in self.server:
            return self.server[v]
        if v in self.examples:
            raise ValueError(
                f"the method's server reads clients' examples ({self.avals[v].str_short()}), which do not leave a "
                "silo: read them in the function of ONE client that for_each_client runs"
            )
        if v in self._state & self._here:
            self._copies = self._copies | {v}  # it came at the end of the last call
            self.server[v] = 0
        elif v not in self.ins and (self._follows(v) or self._from_one(v)):
            self.server[v] = max(map(self._at_server, self.made_by[v].arrays))
        else:
            self.up[v] = self.server[v] = max(1, self.client[v])
        return self.server[v]

    def _follows(self, v: int) -> bool:
        """Whether the server can compute a client's array of what it has, or of its copies of the state."""
        if v in self.server or v in self.ins:
            return v in self.server or v in self._state & self._here
        op = self.made_by[v]
        return not op.of_clients and all(map(self._follows, op.arrays))

    # --- exchanges ----------------------------------------------------------------------------------------------------

    def _schedule(self) -> None:
        """Which array crosses in which exchange."""
        self.kept = tuple(
            "C" if self.ends.delivered else "" if isinstance(o, Literal) else self._at(self._next.get(o))
            for o in self.outs
        )
        self.stay = {o for o, where in zip(self.outs, self.kept) if where and not isinstance(o, Literal)}
        need = {*self.up, *(o for o in self.stay if o in self.client)}
        down = {(self.server[o] + 1, *self._told(o)) for o in self.stay if o not in self.client and self._sent(o)}
        used: list[Operation] = []
        for op in reversed(self.operations):
            if not op.outs or op.outs[0] not in self.client or need.isdisjoint(op.outs):
                continue
            used.insert(0, op)
            number = self.client[op.outs[0]]
            if op.of_clients:
                down |= {(number, v, True) for v in op.group(1) if self._sent(v)}
                down |= {(number, v, True) for v in op.group(2) if self._sent(v) and v not in self.examples}
            for v in op.group(3) if op.of_clients else op.arrays:
                if v in self.client:
                    need.add(v)
                elif self._sent(v):
                    down.add((number, *self._told(v)))
        last = max([*(self.client[op.outs[0]] for op in used), *(e for e, *_ in down), *self.up.values()], default=0)
        last = max(last, int(self.ends.delivered))  # at least one message, which asks for the models
        self.exchanges: list[Exchange] = []
        for number in range(1, last + 1):
            now = {(v, full) for at, v, full in down if at == number}
            self.exchanges.append(Exchange(
                sorted(v for v, full in now if not full), sorted(v for v, full in now if full),
                sorted(v for v, at in self.up.items() if at == number),
                [op for op in used if self.client[op.outs[0]] == number],
            ))  # fmt: skip

    def _told(self, v: Any) -> tuple[Any, bool]:
        """What is sent where a client needs its row of an array: this array, and whether it is sent whole."""
        if v in self.same:
            v = self.same[v].ins[0]
            while (op := self.made_by.get(v)) and self.keeps_size(op):
                v = op.ins[0]
            return v, True
        return v, not isinstance(v, Literal) and self.avals[v].shape[:1] != (self.clients,)

    def _stage(self, number: int) -> list[Operation]:
        mine = (op for op in self.operations if not op.of_clients and op.outs)
        return [
            op for op in mine
            if all(n in self.server and n not in self.up for n in op.outs)
            and max((self.server[n] for n in op.outs), default=0) == number
        ]  # fmt: skip

    def down(self, number: int, first: int | None = None) -> tuple[list[int], list[int]]:
        """What is sent to a client in an exchange, its rows of arrays and whole ones, but for what it has got before.

        Args:
            number: of the exchange.
            first: the first exchange that the client has not taken part in, as it had no work in it; it then computes
                what belongs to it now. None: `number`.
        """
        first = number if first is None else first
        before, now = self.exchanges[: first - 1], self.exchanges[first - 1 : number]
        whole = {v for e in now for v in e.whole} - {v for e in before for v in e.whole}
        all_whole = {v for e in (*before, *now) for v in e.whole}
        rows = {v for e in now for v in e.rows} - {v for e in before for v in e.rows} - all_whole
        return sorted(rows), sorted(whole)
