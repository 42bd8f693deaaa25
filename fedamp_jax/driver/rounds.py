"""One compiled round, and many of them as one jittable loop."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from fedamp_jax.driver.participation import Participation
from fedamp_jax.placement.placement import Placement
from fedamp_jax.programs import memory
from fedamp_jax.programs.jaxpr import most_together
from fedamp_jax.programs.jitted import Jitted
from fedamp_jax.programs.kept import kept
from fedamp_jax.types import Algorithm, Array, Data, Info


@functools.partial(Jitted, static=1, donate_argnums=(1,))
def compiled_round(one_round: Callable[..., Any], state: Any, data: Data, key: Array) -> tuple[Any, Info]:
    """An algorithm's `round`, whose results lie where those of every round do.

    By the function, not by the algorithm: one that wraps another, such as `fine_tuned`, shares its program.
    """
    state, info = data.placement.program(one_round)(key, state, _with_examples(data))
    return data.placement.settle(state, len(data.size)), data.placement.replicate(info)


def _with_examples(data: Data) -> Data:
    """The data, in which clients without examples are offline: their models would count as if they had trained."""
    return data._replace(online=data.online & (data.size > 0))


@kept
def _need(one_round: Callable[..., Any], placement: Placement, tree: Any, kinds: tuple) -> memory.Need | None:
    """What a round of arguments of these kinds takes; it is compiled for this, and not again when it is called."""
    return memory.need_if_compiled(_traced(one_round, placement, tree, kinds).lower())


@kept
def _chosen(one_round: Callable[..., Any], placement: Placement, tree: Any, kinds: tuple) -> int:
    """How many clients such a round trains side by side."""
    return most_together(_traced(one_round, placement, tree, kinds).jaxpr)


def _traced(one_round: Callable[..., Any], placement: Placement, tree: Any, kinds: tuple) -> jax.stages.Traced:
    shapes = [jax.ShapeDtypeStruct(*kind[:2], weak_type=kind[2], sharding=kind[3]) for kind in kinds]
    state, data, key = jax.tree.unflatten(tree, shapes)
    return compiled_round.trace(one_round, state, data._replace(placement=placement), key)


def _kinds(state: Any, data: Data, key: Array) -> tuple[Any, tuple]:
    """The tree of a round's arguments, and all that its program depends on of its leaves."""
    leaves, tree = jax.tree.flatten((state, data, key))
    kinds = [jax.typeof(a) for a in leaves]
    placed = [a.sharding if getattr(a, "committed", False) else None for a in leaves]
    return tree, tuple((k.shape, k.dtype, k.weak_type, p) for k, p in zip(kinds, placed, strict=True))


def need_of(algorithm: Algorithm, state: Any, data: Data, key: Array, placement: Placement) -> memory.Need | None:
    """What a round takes of each device, None if the compiler refuses it; compiled once for arguments of one kind."""
    return _need(algorithm.round, placement, *_kinds(state, data, key))


def fitted(algorithm: Algorithm, state: Any, data: Data, key: Array) -> Data:
    """The data, placed so that no device trains more clients side by side than its memory holds."""
    if any(isinstance(a, Tracer) for a in jax.tree.leaves((state, data, key))):
        return data
    kinds, place = _kinds(state, data, key), data.placement
    one_round = algorithm.round
    fitting = place.fitting(lambda tried: _need(one_round, tried, *kinds), lambda: _chosen(one_round, place, *kinds))
    return data._replace(placement=fitting)


def check_not_donated(state: Any) -> None:
    """Checks that no round has taken over the memory of a state.

    Raises:
        ValueError: if one has.
    """
    if any(isinstance(a, jax.Array) and not isinstance(a, Tracer) and a.is_deleted() for a in jax.tree.leaves(state)):
        raise ValueError("this state was donated to an earlier round: use the one that it returned, or make a new one")


def round(algorithm: Algorithm, state: Any, data: Data, key: Array) -> tuple[Any, Info]:
    """One communication round, compiled on the first call and then reused.

    Args:
        algorithm: static; keep one object, as every new one compiles anew.
        state: what `algorithm.init` or the last round returned. Its buffers are donated: use the new state, and copy
            models that `personalize` took from an old one and that you want to keep.
        data: the training data; `data.online` says who takes part, `data.placement` where the round runs.
        key: a PRNG key for this round, such as `jax.random.fold_in(key, k)`.

    Returns:
        The new state, and `Info`.

    Raises:
        ValueError: a state that an earlier round was given.
        RoundError: the algorithm refused the round; `error.state` replaces the donated state. `NegativeSelfWeightError`
            is FedAMP's.
        MemoryError: the device is too small; it says what to do.

    >>> import jax, optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> solver = fedamp_jax.Solver(optax.adam(1e-3), epochs=1)
    >>> algorithm = fedamp_jax.fedamp(task, solver, sigma=10.0, self_weight=1 / 4)
    >>> key = jax.random.key(0)
    >>> state = algorithm.init(key, train)
    >>> state, info = fedamp_jax.round(algorithm, state, train, jax.random.fold_in(key, 0))
    >>> info.xi.shape
    (20, 20)
    """
    check_not_donated(state)
    taken = functools.partial(need_of, algorithm, state, data, key, data.placement)
    with memory.explained(taken):
        placed = fitted(algorithm, state, data, key)
        state, info = placed.placement.call(compiled_round, (algorithm.round,), state, placed, key)
    # Reading the error waits for the round, so only algorithms that can fail have one.
    if info.error is not None and not isinstance(info.error, Tracer) and int(info.error):
        assert algorithm.explain is not None
        error = algorithm.explain(info, data)
        error.state = state
        raise error
    return state, info


@jax.jit
def round_keys(key: Array, k: Array | int) -> Array:
    """The keys of round `k` of a run: for who takes part, for the round, for `personalize` after it; `[3]`."""
    return jax.random.split(jax.random.fold_in(key, k), 3)


def scan_rounds(
    algorithm: Algorithm,
    state: Any,
    data: Data,
    rounds: int,
    key: Array,
    *,
    participation: Participation | None = None,
    each: Callable[[Array, Any, Info], Any] | None = None,
) -> tuple[Any, Any]:
    """Many rounds as one loop to be part of a compiled program, such as a sweep over a hyper-parameter.

    Args:
        algorithm: the method; its hyper-parameters may be tracers.
        state: before the first round.
        data: the training data.
        rounds: how many, static.
        key: of the run; round k uses the same keys as round k of `run` with it.
        participation: who takes part in a round; None: every client.
        each: `(key, state, info) -> tree`, collected after each round; the key is for `personalize`. None: the infos.

    Returns:
        The last state, and what was collected, leaves `[rounds, ...]`. An error of a round is not raised: collect
        `info.error` where the algorithm has one.

    >>> import optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> key = jax.random.key(0)
    >>> @jax.jit
    ... def loss(rate):
    ...     algorithm = fedamp_jax.fedavg(task, fedamp_jax.Solver(optax.sgd(rate), epochs=1))
    ...     state = algorithm.init(key, train)
    ...     return fedamp_jax.scan_rounds(algorithm, state, train, 2, key)[1].loss.mean(axis=1)
    >>> jax.vmap(loss)(jnp.array([0.01, 0.1, 1.0])).shape
    (3, 2)
    """

    def one(state: Any, k: Array) -> tuple[Any, Any]:
        key_online, key_round, key_use = round_keys(key, k)
        present = data if participation is None else data._replace(online=participation.online(key_online, data))
        state, info = algorithm.round(key_round, state, _with_examples(present))
        return state, info if each is None else each(key_use, state, info)

    return jax.lax.scan(one, state, jnp.arange(rounds, dtype=jnp.int32))
