"""The programs that a server and its clients both trace: where a method's state is, and what is sent."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedamp_jax.layout import with_examples, without_examples
from fedamp_jax.placement.cut import Ends
from fedamp_jax.placement.host_memory import traced
from fedamp_jax.placement.stages import Divided
from fedamp_jax.programs.kept import kept

ROUND = "compiled_round"
"""The name of the program whose first result is the next state."""

MODELS = "compiled_personal_models"
"""The name of the program whose results each client keeps."""


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True)
class Where:
    """Where each leaf of a state is: `"C"` if only clients have it, `"CS"` if the server has a copy, else `""`."""

    of: tuple[str, ...]


class RemoteState(NamedTuple):
    """What a server keeps of a method's state.

    Attributes:
        state: the method's; leaves that only clients have are `[0, ...]`, and take no memory.
        base: `[M]` int32, the last call whose result of a client the server has; 0 is the client's initial state.
        calls: `[]` int32, rounds that were run.
        where: where each leaf is.
    """

    state: Any
    base: Any
    calls: Any
    where: Where

    def __getattr__(self, name: str) -> Any:
        return getattr(self.state, name)  # such as `round`


def shapes_of(*args: Any, examples: int | None = None) -> tuple:
    """Arguments of a program as both sides trace it: abstract, with all clients' states in full.

    Args:
        *args: a state, data, a key.
        examples: rows of the data's examples, which differ from client to client; None: as many as the largest has.
    """

    def of(a: Any) -> Any:
        if isinstance(a, RemoteState):
            leaves, tree = jax.tree.flatten(a.state)
            full = [
                jax.ShapeDtypeStruct((len(a.base), *x.shape[1:]) if at == "C" else x.shape, x.dtype)
                for x, at in zip(leaves, a.where.of, strict=True)
            ]
            return RemoteState(jax.tree.unflatten(tree, full), a.base, a.calls, a.where)
        if not hasattr(a, "placement"):
            return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), a)
        own, pool = without_examples(a)
        own = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), own)
        count = int(a.longest) if examples is None else examples
        pool = jax.tree.map(lambda x: jax.ShapeDtypeStruct((count, *x.shape[1:]), x.dtype), pool)
        return with_examples(own._replace(placement=dataclasses.replace(a.placement, transport=None, seed=0)), pool)

    return tuple(map(of, args))


def cut_of(fn: Callable[..., Any], static: tuple, args: Sequence[Any], name: str) -> tuple[Divided, Any]:
    """The cut of `fn(*static, *args)`, and the structure of its result.

    Args:
        fn: a function of arrays.
        static: functions of a method or a task.
        args: as of `shapes_of`.
        name: of the program: `ROUND`, `MODELS` or another one.
    """
    held: list[str] = []
    private: list[int] = []
    plain = []
    for a in args:
        first = len(held)
        if isinstance(a, RemoteState):
            held += a.where.of
            a = a.state
        elif hasattr(a, "placement"):
            own, pool = without_examples(a)
            # Of the leaves of `Data`, its examples come first.
            private += range(first, first + len(jax.tree.leaves(pool)))
            held += ["C"] * len(jax.tree.leaves(pool)) + [""] * len(jax.tree.leaves(own))
        else:
            held += [""] * len(jax.tree.leaves(a))
        plain.append(a)
    leaves, tree = jax.tree.flatten(tuple(plain))
    kinds = tuple((a.shape, a.dtype) for a in leaves)
    clients = next(len(a.size) for a in args if hasattr(a, "placement"))
    return _cut(fn, static, tree, kinds, tuple(held), frozenset(private), clients, name)


@kept
def _cut(
    fn: Callable[..., Any], static: tuple, tree: Any, kinds: tuple, held: tuple[str, ...], private: frozenset[int],
    clients: int, name: str,
) -> tuple[Divided, Any]:  # fmt: skip
    program, out = traced(fn, static, tree, tuple((*kind, False) for kind in kinds))
    following: list[int | None] = [None] * out.num_leaves
    if name == ROUND:  # its first result is the next state, its first argument the last one
        states = tree.children()[0].num_leaves
        following[:states] = range(states)
    ends = Ends(held, private, tuple(following), delivered=name == MODELS)
    return Divided(program, clients, ends), out


def where_of(algorithm: Any, data: Any) -> Where:
    """Where the leaves of a method's state are between rounds.

    Args:
        algorithm: the method.
        data: abstract, as of `shapes_of`.

    Raises:
        ValueError: if the state has a number for each client that the method was made with.
    """
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = jax.eval_shape(algorithm.init, key, data)
    grows = jax.tree.leaves(rows_of_clients(algorithm, key, data))
    held = Where(tuple("C" if g else "" for g in grows))
    first = RemoteState(state, data.size, jax.ShapeDtypeStruct((), jnp.int32), held)

    cut, _ = cut_of(_one_round, (algorithm.round,), (first, data, key), ROUND)
    return Where(cut.held[: len(grows)])


def _one_round(one_round: Callable[..., Any], state: Any, data: Any, key: Any) -> Any:
    return one_round(key, state, data)


def rows_of_clients(algorithm: Any, key: Any, data: Any) -> Any:
    """Of each leaf of a method's state, whether it has a row for each client: a tree of Python bools.

    It has if it grows with them: a layer may be as wide as there are clients.

    Raises:
        ValueError: if the state has a number for each client that the method was made with.
    """
    own, pool = without_examples(data)
    more = jax.tree.map(lambda a: jax.ShapeDtypeStruct((a.shape[0] + 1, *a.shape[1:]), a.dtype), own)
    try:
        after = jax.eval_shape(algorithm.init, key, with_examples(more, pool))
    except ValueError as error:
        raise ValueError(
            f"{error}. A method that has a number for each client in its state, as APFL with an alpha for each, can "
            "neither have newcomers nor clients that are elsewhere: give it one number for all"
        ) from None
    before = jax.eval_shape(algorithm.init, key, data)
    return jax.tree.map(lambda a, b: a.shape != b.shape, before, after)
