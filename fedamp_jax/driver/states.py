"""Clients that join a federation after others have trained."""

from typing import Any

import jax
import jax.numpy as jnp

from fedamp_jax.checks import check_type
from fedamp_jax.trees import path_name
from fedamp_jax.types import Algorithm, Array, Data


def join(algorithm: Algorithm, state: Any, train: Data, newcomers: Data, key: Array) -> tuple[Any, Data]:
    """Add clients to a state and its data. The method defines how newcomers start.

    A newcomer starts with the global model where there is one, and with that of least training loss where there are
    several (IFCA, CFL); with the mean of the models of those that have trained where the server mixes them (FedAMP,
    HeurFedAMP, FedFomo, pFedGraph); beside the shared parameters with initial ones of its own (FedPer, FedRep, PFLEGO,
    LG-FedAvg, FedBN, FedRoD, FedPAC); with what the hypernetwork makes of an embedding of its own (pFedHN); and with an
    initial model where clients train alone (Separate, FedProto). BatchNorm's running statistics come from where the
    model comes from. What a method keeps of each client besides, such as an optimizer's state, is as in a first round;
    SCAFFOLD's newcomers take the server's control variate. The others keep what they have, and rounds count on.

    Args:
        algorithm: the method. One that was made with a number for each client is made again, for all of them.
        state: after any number of rounds; it stays usable.
        train: the clients of the state.
        newcomers: the training data of the further clients, not placed.
        key: the key that `algorithm.init` had; of a `run`, `jax.random.key(seed)`.

    Returns:
        The state of all clients, the newcomers last, and their `Data`, placed as `train` is. `run(state=...)` and
        `round` go on from there; `fine_tuned(task, solver, base=algorithm).personalize(key, state, clients)` gives
        newcomers a model of their own without another round.

    Raises:
        ValueError: if the state is not of these clients, or examples are of different kinds; or if the method has a
            number for each client in its state, as APFL with an alpha for each.

    >>> import optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> first, last = train.select(range(18)), train.select([18, 19])
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedavg(task, fedamp_jax.Solver(optax.adam(1e-3), epochs=1))
    >>> key = jax.random.key(0)
    >>> state = algorithm.init(key, first)
    >>> state, info = fedamp_jax.round(algorithm, state, first, jax.random.fold_in(key, 0))
    >>> state, clients = join(algorithm, state, first, last, key)
    >>> clients.clients, int(state.round)
    (20, 1)
    """
    from fedamp_jax.data import concatenate
    from fedamp_jax.placement.divided import rows_of_clients

    check_type("algorithm", algorithm, Algorithm, "such as fedamp_jax.fedamp(task, solver, ...)")
    check_state(algorithm, state, train, key)
    m, place = train.clients, train.placement
    together = concatenate(train, newcomers)
    grows = rows_of_clients(algorithm, key, together)
    old = jax.tree.map(lambda a, g: a[:m] if g else jnp.copy(a), state, grows)
    clients = place.place(together)
    fresh = place.init(algorithm, key, clients)
    given = fresh if algorithm.join is None else algorithm.join(old, fresh)

    def joined(grows: bool, old: Array, given: Array, fresh: Array) -> Array:
        a = jnp.concatenate([old, given[m:]]) if grows else old
        return jax.device_put(a, fresh.sharding) if fresh.committed else a

    return jax.tree.map(joined, grows, old, given, fresh), clients


def check_state(algorithm: Algorithm, state: Any, data: Data, key: Array) -> Any:
    """Checks that a state is of this algorithm and these clients, and returns its shapes as they are placed.

    Raises:
        TypeError: if it is of another kind.
        ValueError: if a leaf has another shape, or the state was donated to a round.
    """
    wanted = data.placement.state_shapes(algorithm, key, data.placement.shapes(data))
    if jax.tree.structure(state) != jax.tree.structure(wanted):
        raise TypeError(
            f"state is a {type(state).__name__} of {jax.tree.structure(state)}, but this algorithm has a "
            f"{type(wanted).__name__} of {jax.tree.structure(wanted)}: go on with the method, the model and the solver "
            "that made it"
        )
    for (path, a), b in zip(jax.tree_util.tree_leaves_with_path(state), jax.tree.leaves(wanted), strict=True):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            raise ValueError(
                f"state.{path_name(path)} is {a.dtype} {list(a.shape)}, but for this algorithm and these clients it "
                f"must be {b.dtype} {list(b.shape)}: go on with the same ones, or let fedamp_jax.join add clients"
            )
        if isinstance(a, jax.Array) and a.is_deleted():
            raise ValueError("this state was donated to a round: use the one that it returned")
    return wanted


def continued(algorithm: Algorithm, state: Any, data: Data, key: Array) -> tuple[Any, int]:
    """A copy of a state, placed with the data, as rounds donate it; and how many rounds it has seen.

    Raises:
        TypeError, ValueError: see `check_state`.
    """

    def placed(a: Array, like: Any) -> Array:
        sharding = getattr(like, "sharding", None)
        return jnp.copy(a) if sharding is None else jax.device_put(jnp.copy(a), sharding)

    made = jax.tree.map(placed, state, check_state(algorithm, state, data, key))
    return made, int(getattr(state, "round", 0))
