"""Clients that come when others have trained already."""

from typing import Any

import jax
import jax.numpy as jnp

from fedamp_jax.checks import check_type
from fedamp_jax.driver.continued import check_state
from fedamp_jax.types import Algorithm, Array, Data


def join(algorithm: Algorithm, key: Array, state: Any, train: Data, newcomers: Data) -> tuple[Any, Data]:
    """The state and the data with further clients, who start as the method has it.

    A newcomer starts with the global model where there is one; with the mean of the others' models where the server
    mixes them (FedAMP, HeurFedAMP, FedFomo, pFedGraph); under the shared body with an initial head (FedPer, FedRep,
    PFLEGO); and with an initial model where clients train alone. What a method keeps of each client besides, such as an
    optimizer's state, is as in a first round; SCAFFOLD's newcomers take the server's control variate. The others
    keep what they have, and rounds count on.

    Args:
        algorithm: the method. One that was made with a number for each client is made again, for all of them.
        key: the key that `algorithm.init` had; of a `run`, `jax.random.key(seed)`.
        state: after any number of rounds; it stays usable.
        train: the clients of the state.
        newcomers: the training data of the further clients, not placed.

    Returns:
        The state of all clients, the newcomers last, and their `Data`, placed as `train` is. `run(state=...)` and
        `round` go on from there; `fine_tuned(task, solver, base=algorithm).personalize(key, state, everybody)` gives
        newcomers a model of their own without another round.

    Raises:
        ValueError: if the state is not of these clients, or examples are of different kinds; or if the method has a
            number for each client in its state, as APFL with an alpha for each.

    >>> import optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> first, last = (jax.tree.map(lambda a: a[rows], train) for rows in (slice(0, 18), slice(18, 20)))
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedavg(task, fedamp_jax.Solver(optax.adam(1e-3), epochs=1))
    >>> key = jax.random.key(0)
    >>> state = algorithm.init(key, first)
    >>> state, info = fedamp_jax.round(algorithm, state, first, jax.random.fold_in(key, 0))
    >>> state, everybody = join(algorithm, key, state, first, last)
    >>> everybody.clients, int(state.round)
    (20, 1)
    """
    from fedamp_jax.data import concatenate

    check_type("algorithm", algorithm, Algorithm, "such as fedamp_jax.fedamp(task, solver, ...)")
    check_state(algorithm, state, key, train)
    m, place = train.clients, train.placement
    together = concatenate(train, newcomers)
    before, after = (
        _shapes(algorithm, key, jax.tree.map(lambda a, n=n: a[:n], together)) for n in (m, together.y.shape[0])
    )
    # A leaf has a row for each client just if it grows with them: a layer may be as wide as there are clients.
    grows = jax.tree.map(lambda a, b: a.shape != b.shape, before, after)
    old = jax.tree.map(lambda a, g: a[:m] if g else jnp.copy(a), state, grows)
    everybody = place.place(together)
    fresh = place.init(algorithm, key, everybody)
    given = fresh if algorithm.join is None else algorithm.join(old, fresh)

    def joined(grows: bool, old: Array, given: Array, fresh: Array) -> Array:
        a = jnp.concatenate([old, given[m:]]) if grows else old
        return jax.device_put(a, fresh.sharding) if fresh.committed else a

    return jax.tree.map(joined, grows, old, given, fresh), everybody


def _shapes(algorithm: Algorithm, key: Array, data: Data) -> Any:
    """The abstract state of these clients."""
    try:
        return jax.eval_shape(algorithm.init, key, data)
    except ValueError as error:
        raise ValueError(
            f"{error}. A method that has a number for each client in its state, as APFL with an alpha for each, has no "
            "way to join newcomers: give it one number for all"
        ) from None
