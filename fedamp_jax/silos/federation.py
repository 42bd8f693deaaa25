"""The server of a federation whose clients are silos: its data without examples, and the delivery of models."""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedamp_jax.checks import check_integer
from fedamp_jax.driver.evaluation import compiled_personal_models
from fedamp_jax.driver.history import Run
from fedamp_jax.driver.rounds import round_keys
from fedamp_jax.placement.messages import Answer, Message
from fedamp_jax.placement.remote import Remote, Transport
from fedamp_jax.silos.silo import Kind, Place, Silo
from fedamp_jax.types import Algorithm, Data, Static


def connect(
    kinds: Sequence[Kind], transport: Transport, *, seed: int = 0, dtype: str | None = None
) -> tuple[Data, Data, list[Place]]:
    """What a server needs for `fedamp_jax.run`, and what it tells its clients.

    Args:
        kinds: what each client says of its data, in the order of the rows.
        transport: how they are reached.
        seed: of the run.
        dtype: of models on their way, None for their own; `"bfloat16"` halves what is sent.

    Returns:
        `(train, test, places)`: data without examples, for `run(..., seed=seed)`, and each client's place, for
        `Silo.admit`.

    Raises:
        ValueError: if clients have different kinds of examples.
    """
    check_integer("seed", seed, low=0)
    if not kinds:
        raise ValueError("a federation needs at least one client")
    for i, kind in enumerate(kinds):
        if (kind.x, kind.y) != (kinds[0].x, kinds[0].y):
            raise ValueError(
                f"an example of client {i} is {kind.x} with label {kind.y}, and one of client 0 {kinds[0].x} with "
                f"{kinds[0].y}: preprocess all the same way"
            )
    m, place = len(kinds), Remote(transport=transport, seed=seed, dtype=dtype)
    sizes = np.array([kind.sizes for kind in kinds], np.int32).reshape(m, 2)
    longest = int(sizes[:, 0].max(initial=1)), int(sizes[:, 1].max(initial=1))
    classes = jnp.array([kind.classes for kind in kinds], jnp.int32)

    def without(which: int) -> Data:
        x, y = _empty(kinds[0].x), _empty(kinds[0].y)
        size = jnp.asarray(sizes[:, which])
        start, rows = jnp.zeros((m,), jnp.int32), jnp.arange(m, dtype=jnp.int32)
        return Data(x, y, start, size, classes, rows, jnp.ones((m,), bool), Static(longest[which]), (), place)

    return without(0), without(1), [Place(i, m, seed, longest, dtype) for i in range(m)]


def _empty(kind: Any) -> Any:
    """Arrays without rows, of kinds `[dtype, shape]` in a tree of dictionaries and tuples."""
    if isinstance(kind, dict):
        return {name: _empty(one) for name, one in kind.items()}
    if isinstance(kind[0], str):
        return jnp.zeros((0, *kind[1]), kind[0])
    return tuple(map(_empty, kind))


def deliver(algorithm: Algorithm, result: Run, train: Data) -> None:
    """Tell clients to make their personal models, which the server does not get: `Silo.model`.

    Args:
        algorithm: the method of the run.
        result: the run.
        train: as `connect` has made it.
    """
    place = train.placement
    assert isinstance(place, Remote)
    key = round_keys(jax.random.key(place.seed), int(result.state.calls) - 1)[2]
    place.call(compiled_personal_models, (algorithm.personalize,), key, result.state, train)


class InProcess:
    """A transport to silos in this process, for tests and for trying a federation on one machine.

    Attributes:
        silos: by their rows.

    >>> import optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedavg(task, fedamp_jax.Solver(optax.adam(1e-3), epochs=1))
    >>> silos = [Silo(task, algorithm, train.select([i]), test.select([i])) for i in range(3)]
    >>> there = InProcess(silos)
    >>> result = fedamp_jax.run(task, algorithm, *there.connect(), rounds=2, progress=False)
    >>> result.accuracy.shape
    (2, 3)
    """

    def __init__(self, silos: Sequence[Silo]):
        self.silos = list(silos)

    def connect(self, *, seed: int = 0, dtype: str | None = None) -> tuple[Data, Data]:
        """Admit all silos; returns `(train, test)` for `run`, as `fedamp_jax.silos.connect`."""
        train, test, places = connect([silo.kind for silo in self.silos], self, seed=seed, dtype=dtype)
        for silo, place in zip(self.silos, places, strict=True):
            silo.admit(place)
        return train, test

    def __call__(self, messages: Mapping[int, Message]) -> dict[int, Answer | Exception]:
        found: dict[int, Answer | Exception] = {}
        for i, message in messages.items():
            try:
                found[i] = self.silos[i].answer(message)
            except Exception as error:  # what would reach the server as an answer that does not come
                found[i] = error
        return found
