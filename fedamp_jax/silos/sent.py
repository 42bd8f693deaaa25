"""What a method sends in a round, and what never leaves a client."""

from typing import Any, NamedTuple

import jax

from fedamp_jax.driver.rounds import compiled_round
from fedamp_jax.layout import without_examples
from fedamp_jax.placement.divided import ROUND, RemoteState, cut_of, shapes_of, where_of
from fedamp_jax.placement.messages import sent_bytes
from fedamp_jax.placement.operations import row_bytes
from fedamp_jax.placement.remote import Remote
from fedamp_jax.programs.memory import readable
from fedamp_jax.trees import path_names
from fedamp_jax.types import Algorithm, Data


class Traffic(NamedTuple):
    """What a round of a method sends for ONE client that takes part.

    Attributes:
        exchanges: messages to the client, each with an answer.
        down: bytes to the client.
        up: bytes from the client.
        model: bytes of one model's parameters, for comparison.
        stays: the leaves of the method's state that only the client has, beside its data.
        copied: those that client and server both have.
    """

    exchanges: int
    down: int
    up: int
    model: int
    stays: tuple[str, ...]
    copied: tuple[str, ...]

    def __str__(self) -> str:
        word = "exchange" if self.exchanges == 1 else "exchanges"
        down, up = self.down / self.model, self.up / self.model
        return (
            f"{self.exchanges} {word} a round; to a client {readable(self.down)} ({down:.2f} models), back "
            f"{readable(self.up)} ({up:.2f})"
        )


def traffic(algorithm: Algorithm, data: Data, *, dtype: str | None = None) -> Traffic:
    """What a round of a method sends for each client that takes part, if clients keep their data.

    It follows from the method's own program, which is cut between the server and its clients: a client computes what
    `for_each_client` runs, and what is computed row by row of what only it has.

    Args:
        algorithm: the method.
        data: of all clients, as for a simulation; no example is read.
        dtype: of models on their way, None for their own.

    Returns:
        Numbers for a client that has work in all of the round's steps; evaluation is not counted.

    Raises:
        ValueError: a method whose server reads examples, or that trains clients inside of a loop.

    >>> import optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedper(task, fedamp_jax.Solver(optax.adam(1e-3)))
    >>> print(traffic(algorithm, train))
    1 exchange a round; to a client 50.81 KiB (0.87 models), back 50.79 KiB (0.87)
    """
    own, examples = without_examples(data)
    data = own._replace(x=examples[0], y=examples[1], placement=Remote(dtype=dtype))
    (abstract,) = shapes_of(data)
    key = jax.eval_shape(lambda: jax.random.key(0))
    where = where_of(algorithm, abstract)
    state = jax.eval_shape(algorithm.init, key, abstract)
    number = jax.ShapeDtypeStruct((), "int32")
    whole = RemoteState(state, abstract.size, number, where)
    cut, _ = cut_of(compiled_round.__wrapped__, (algorithm.round,), (whole, abstract, key), ROUND)
    down = up = 0
    for k, exchange in enumerate(cut.exchanges):
        rows, all_of = cut.down(k + 1)
        down += sum(sent_bytes(_row(cut.avals[v]), dtype) for v in rows)
        down += sum(sent_bytes(cut.avals[v], dtype) for v in all_of)
        up += sum(sent_bytes(_row(cut.avals[v]), dtype) for v in exchange.up)
    models = jax.eval_shape(algorithm.personalize, key, state, abstract)
    model = sum(map(row_bytes, jax.tree.leaves(models.params)))
    names = path_names(state)
    stays, copied = (tuple(n for n, at in zip(names, where.of, strict=True) if at == wanted) for wanted in ("C", "CS"))
    return Traffic(len(cut.exchanges), down, up, model, stays, copied)


def _row(aval: Any) -> Any:
    return jax.ShapeDtypeStruct((1, *aval.shape[1:]), aval.dtype)
