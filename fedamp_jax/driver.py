"""The loop: one compiled round, evaluation, and `run`, which repeats them and keeps the books."""

import contextlib
import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fedamp_jax import attention, books, checks, layout, memory, offload, sharding
from fedamp_jax.books import Run
from fedamp_jax.checkpoint import describe, opened
from fedamp_jax.interrupt import StopOnSignal, Stopped
from fedamp_jax.local import chunk_size, fitting
from fedamp_jax.participation import online
from fedamp_jax.types import Algorithm, Array, Data, Device, Info, Task, Variables

# Evaluated at once, of one client and of all: bounds the memory of activations, for ResNet18 to 3 GiB.
_EXAMPLES, _TOGETHER = 256, 512


class NegativeSelfWeightError(ValueError):
    """Eq. 5 with this alpha gives a client a negative weight on its own model, or its weights are not finite.

    Attributes:
        state: the algorithm's state; the models in it are unchanged by the round that was refused.
    """

    state: Any = None


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _round(algorithm: Algorithm, state: Any, data: Data, key: Array) -> tuple[Any, Info]:
    state, info = layout.placeless(algorithm.round)(key, state, data)
    return layout.settle(state, data.y.shape[0]), layout.everywhere(info)


_own_weights = jax.jit(attention.given_to_self)  # one pass over [M, M], which nothing of that size is made for


@functools.lru_cache(maxsize=64)
def _need(algorithm: Algorithm, chunk: int | None, tree: Any, kinds: tuple) -> memory.Need | None:
    """What a round of arguments of these kinds takes; it is compiled for this, and not again when it is called."""
    shapes = [jax.ShapeDtypeStruct(*kind[:2], weak_type=kind[2], sharding=kind[3]) for kind in kinds]
    with fitting(chunk):
        return memory.need_if_compiled(_round.lower(algorithm, *jax.tree.unflatten(tree, shapes)))


def _need_of(algorithm: Algorithm, args: tuple, chunk: int | None = None) -> memory.Need | None:
    leaves, tree = jax.tree.flatten(args)
    kinds = [jax.typeof(a) for a in leaves]
    placed = [a.sharding if getattr(a, "committed", False) else None for a in leaves]
    kinds = tuple((k.shape, k.dtype, k.weak_type, p) for k, p in zip(kinds, placed, strict=True))
    return _need(algorithm, chunk, tree, kinds)


def _fitted(algorithm: Algorithm, state: Any, data: Data, key: Array) -> contextlib.AbstractContextManager:
    """The context of a round of which no device trains more clients side by side than its memory holds."""
    room = memory.room()
    if room is None or any(isinstance(a, Tracer) for a in jax.tree.leaves((state, data, key))):
        return contextlib.nullcontext()
    mesh = layout.active()
    clients = data.y.shape[0] // (mesh.size if mesh else 1)
    taken = functools.partial(_need_of, algorithm, (state, data, key))
    return fitting(memory.side_by_side(taken, clients, room))


def round(algorithm: Algorithm, state: Any, data: Data, key: Array) -> tuple[Any, Info]:
    """One communication round, compiled on the first call and then reused.

    Args:
        algorithm: static; keep one object, as every new one compiles anew.
        state: what `algorithm.init` or the last round returned. Its buffers are given away: use the new state, and
            copy models that `personalize` took from an old one and that you want to keep.
        data: the training data; `data.online` says who takes part.
        key: a PRNG key for this round, such as `jax.random.fold_in(key, k)`.

    Returns:
        The new state, and `Info`.

    Raises:
        ValueError: a state that an earlier round was given.
        NegativeSelfWeightError: FedAMP without `self_weight` and with too large an alpha, or with a schedule that is
            not finite. The error's `state` replaces the one given away.
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
    if any(isinstance(a, jax.Array) and not isinstance(a, Tracer) and a.is_deleted() for a in jax.tree.leaves(state)):
        raise ValueError(
            "this state was given away to an earlier round: use the one that it returned, or make a new one"
        )
    if offload.active() is not None:
        state, info = offload.call(algorithm.round, key, state, data)
    else:
        taken = functools.partial(_need_of, algorithm, (state, data, key))
        with sharding.over(data), memory.explained(taken), _fitted(algorithm, state, data, key):
            state, info = _round(algorithm, state, data, key)
    if info.xi is not None and not isinstance(info.xi, Tracer):
        own = np.asarray(_own_weights(info.xi))
        if not (own >= 0).all():
            worst = int(np.argmin(own))  # a NaN comes before all numbers
            if np.isnan(own[worst]):
                says = (
                    "weights are not finite: in this round sigma or alpha is 0, or one of them or self_weight is no "
                    "finite number. Of self_weight there must be one number, or one for each client."
                )
            else:
                says = (
                    f"self weight xi_ii = 1 - sum_j xi_ij is {own[worst]:.4g}, so its cloud model would be no convex "
                    f"combination. Either make alpha at least {1 - own[worst]:.4g} times smaller, or give self_weight "
                    "(Appendix C: 1 / (N_i + 1)), which normalises the other weights to 1 - xi_ii."
                )
            error = NegativeSelfWeightError(f"client {int(data.id[worst])}'s {says}")
            error.state = state
            raise error
    return state, info


def evaluate(task: Task, variables: Variables, data: Data) -> Array:
    """Each client's accuracy on its own data.

    Args:
        task: the model.
        variables: `[M, ...]`, such as `algorithm.personalize(key, state, train)` gives.
        data: examples of the same M clients. Who is offline is evaluated too.

    Returns:
        `[M]` float32 in 0..1.

    Raises:
        ValueError: if the data have more classes than the model has outputs, or there are not M models.

    >>> import jax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> models = jax.vmap(task.init)(jax.random.split(jax.random.key(0), 20))
    >>> fedamp_jax.evaluate(task, models, test).shape
    (20,)
    """
    if not isinstance(variables, Variables):
        kind = type(variables).__name__
        raise TypeError(f"variables must be what algorithm.personalize(key, state, data) gives, got a {kind}")
    m, rows = data.y.shape[0], {a.shape[:1] for a in jax.tree.leaves(variables)}
    if rows != {(m,)}:
        raise ValueError(f"variables must hold one model for each of {m} clients, leaves [{m}, ...]; got axes {rows}")
    checks.fits(task, data)
    if offload.active() is not None:
        return offload.call(_accuracies, variables, data, static=(task,))
    with sharding.over(data):
        return _evaluate(task, variables, data)


def _accuracies(task: Task, variables: Variables, data: Data) -> Array:
    n = data.y.shape[1]
    block = min(n, _EXAMPLES)
    blocks = -(-n // block)

    def one(row: tuple[Variables, Data]) -> Array:
        variables, client = row

        def count(b: Array, correct: Array) -> Array:
            rows = b * block + jnp.arange(block)
            logits = task.predict(variables, client.x.at[rows].get(mode="clip"))
            own = jnp.arange(logits.shape[-1])[None] < client.classes
            hit = jnp.argmax(jnp.where(own, logits, -jnp.inf), axis=-1) == client.y.at[rows].get(mode="clip")
            return correct + jnp.sum(hit & (rows < client.size), dtype=jnp.int32)

        correct = jax.lax.fori_loop(0, blocks, count, jnp.zeros((), jnp.int32))
        return correct.astype(jnp.float32) / jnp.maximum(client.size, 1).astype(jnp.float32)

    def on_device(variables: Variables, data: Data) -> Array:
        m = data.y.shape[0]
        parameters = sum(a.size for a in jax.tree.leaves(variables.params)) // m
        chunk = min(chunk_size(offload.most(parameters), m, parameters), max(1, _TOGETHER // block))
        if offload.active() is None:
            return jax.lax.map(one, (variables, data), batch_size=chunk)
        some = lambda out, *rows: jax.vmap(one)(rows)  # noqa: E731
        return offload.over_rows(some, chunk, data.size, jnp.zeros((m,), jnp.float32), variables, data)

    return layout.everywhere(layout.per_device(on_device)(variables, data))


_evaluate = jax.jit(_accuracies, static_argnums=0)


def _personal_accuracy(task: Task, algorithm: Algorithm, key: Array, state: Any, train: Data, test: Data) -> Array:
    if offload.active() is not None:
        return evaluate(task, offload.call(algorithm.personalize, key, state, train), test)
    with sharding.over(train), _fitted(algorithm, state, train, key):
        return _compiled_personal_accuracy(task, algorithm, key, state, train, test)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _compiled_personal_accuracy(
    task: Task, algorithm: Algorithm, key: Array, state: Any, train: Data, test: Data
) -> Array:
    return evaluate(task, layout.placeless(algorithm.personalize)(key, state, train), test)


def _placed(
    train: Data, test: Data, mesh: jax.sharding.Mesh | None, offload_to: Device | None
) -> tuple[int, Data, Data]:
    """The number of clients, and their checked data: on the mesh, or in the host's memory, if `run` is to work so."""
    from fedamp_jax.data import check_pair

    for name, data in (("train", train), ("test", test)):
        checks.kind(name, data, Data, "fedamp_jax.data makes one")
    if mesh is not None:
        checks.kind("mesh", mesh, jax.sharding.Mesh, "from fedamp_jax.sharding.client_mesh(devices)")
    if offload_to is not None:
        checks.kind("offload_to", offload_to, jax.Device, "such as jax.devices()[0]")
    if all(getattr(a, "is_fully_addressable", True) for a in (train.size, test.size)):
        check_pair(train, test)
    m = sharding.count(train)
    if mesh is not None:
        train, test = sharding.shard(train, mesh), sharding.shard(test, mesh)
    if offload_to is not None:
        if sharding.mesh_of(train) is not None:
            raise ValueError("offload_to is for one device: leave it out, or the mesh")
        train, test = jax.device_put((train, test), offload.host())
    if mesh is None and offload_to is None:
        train, test = jax.tree.map(jnp.asarray, (train, test))  # of NumPy's each round would send them anew
    return m, train, test


def run(
    task: Task,
    algorithm: Algorithm,
    train: Data,
    test: Data,
    *,
    rounds: int,
    seed: int = 0,
    participation: float = 1.0,
    drop_rate: float = 0.0,
    evaluate_every: int = 1,
    observe: Callable[[Info], dict[str, float]] | None = None,
    progress: bool = True,
    label: str = "rounds",
    checkpoint_dir: str | Path | None = None,
    checkpoint_every: int = 10,
    fingerprint: dict[str, Any] | None = None,
    mesh: jax.sharding.Mesh | None = None,
    offload_to: Device | None = None,
) -> Run:
    """Train for `rounds` rounds and evaluate the personal models.

    Args:
        task: the model.
        algorithm: the method.
        train: training data.
        test: test data of the same clients.
        rounds: communication rounds, at least 1.
        seed: of everything random: initial model, shuffles, who takes part.
        participation: share of the clients invited each round, in (0, 1].
        drop_rate: share of the invited that drop out, in [0, 1).
        evaluate_every: evaluate after every that many rounds, and after the last.
        observe: `Info -> {name: number}`, called at each evaluation; collected in `Run.observed`.
        progress: draw a progress bar.
        label: its label.
        checkpoint_dir: save state and history there, and go on from the newest checkpoint found there: on the same
            device and versions the result is, bit for bit, that of a run never interrupted. `rounds` may have grown; a
            checkpoint of as many rounds or more is returned as it is, without a fingerprint with a warning.
            SIGINT and SIGTERM then finish the round and save it; a second one stops at once.
        checkpoint_every: rounds between checkpoints.
        fingerprint: settings of `algorithm` that a checkpoint must have been made with, JSON-like: another's is
            refused, as is one of other data, another `seed`, or another of the numbers here that change results. Give
            it wherever settings may change: a function tells nobody its sigma or learning rate.
        mesh: from `sharding.client_mesh`: the devices, of this process or of several, to spread the clients over. With
            several processes all of them call `run` alike, with the data of all clients or with what
            `sharding.from_owned` made of each one's own. None: the mesh that the data lie on, or one device.
            The devices wait for the one with most work, see `data.dealt`.
        offload_to: a device, such as `jax.devices()[0]`, that cannot hold all clients: state and data stay in the
            host's memory, and as many clients as `Solver.chunk` says visit the device at a time (see
            `fedamp_jax.offload`). None: the device holds everything. Not together with a mesh.

    Returns:
        A `Run`. On a mesh, `state` has the rows that `sharding.shard` adds; nothing else has.

    Raises:
        ValueError: bad arguments, both `offload_to` and a mesh, data that do not match, a checkpoint that is damaged or
            of other settings.
        MemoryError: see `round`.
        Stopped: a signal came while there was a `checkpoint_dir`; a kind of KeyboardInterrupt.
        NegativeSelfWeightError: see `round`.

    The same seed on the same device gives the same bits; on a GPU only within a process, as its compiler chooses
    kernels by timing them. Another `Solver.chunk`, another order of clients or another
    number of devices adds up the same numbers in another order: parameters then agree to about 1e-5, relative, after a
    few rounds, and drift apart as rounding differences do in any training; accuracies are alike but for a few examples.

    >>> import optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.separate(task, fedamp_jax.Solver(optax.adam(1e-3), epochs=1))
    >>> result = fedamp_jax.run(task, algorithm, train, test, rounds=2, progress=False)
    >>> result.accuracy.shape
    (2, 20)
    """
    checks.whole("rounds", rounds, low=1)
    checks.whole("evaluate_every", evaluate_every, low=1)
    checks.whole("checkpoint_every", checkpoint_every, low=1)
    checks.shares(participation, drop_rate)
    checks.kind("task", task, Task, "fedamp_jax.models makes one")
    checks.kind("algorithm", algorithm, Algorithm, "such as fedamp_jax.fedamp(task, solver, ...)")
    m, train, test = _placed(train, test, mesh, offload_to)
    checks.fits(task, train)
    key = jax.random.key(seed)

    with offload.use(offload_to):
        state = sharding.init(algorithm, key, train)
    result = Run(state, accuracy=np.zeros((0, m), np.float32), rejected=np.zeros(m, int))
    own = {"seed": seed, "participation": participation, "drop_rate": drop_rate, "evaluate_every": evaluate_every}
    if checkpoint_dir is not None:
        own |= {"train": describe(train, m), "test": describe(test, m), **(fingerprint or {})}
    first = jax.process_index() == 0

    with (
        memory.explained(),
        offload.use(offload_to),
        opened(checkpoint_dir, own) as saved,
        # Several processes would have to agree on the round; each of them falls back on its last checkpoint instead.
        StopOnSignal(saved is not None and jax.process_count() == 1) as asked,
        books.bar(progress and first) as bar,
    ):
        done = saved.restore(result) if saved else 0
        if done >= rounds and not fingerprint:
            books.warn_of_nothing(checkpoint_dir, done)
        line = bar.add_task(label, total=rounds, completed=done, note="")
        for k in range(done, rounds):
            began = time.perf_counter()
            key_online, key_round, key_use = jax.random.split(jax.random.fold_in(key, k), 3)
            taking_part = train._replace(online=online(m, participation, drop_rate, key_online, train))
            result.state, info = round(algorithm, result.state, taking_part, key_round)
            info = sharding.trim(info, m)
            books.warn_if_lost(info)
            result.rejected += np.asarray(info.rejected)
            note: dict[str, Any] = {}
            if (k + 1) % evaluate_every == 0 or k + 1 == rounds:
                accuracy = np.asarray(_personal_accuracy(task, algorithm, key_use, result.state, train, test))[:m]
                books.record(result, k + 1, accuracy, info, observe)
                note = {"note": f"{100 * accuracy.mean():.2f} %"}
            took = time.perf_counter() - began
            result.seconds += took
            result.first_seconds = result.first_seconds or took
            bar.update(line, advance=1, **note)
            if saved and (asked.signal or (k + 1) % checkpoint_every == 0 or k + 1 == rounds):
                saved.save(k + 1, result)
            if asked.signal:
                raise Stopped(asked.signal, k + 1, rounds)
    return result
