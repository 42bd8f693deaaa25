"""All clients: one function of ONE client, run for all of them, and their streams of random numbers."""

import dataclasses
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from fedamp_jax.engine.hyperparameters import broadcast_to_clients
from fedamp_jax.engine.solver import Local, Solver
from fedamp_jax.layout import with_examples, without_examples
from fedamp_jax.trees import all_finite, broadcast, check_float32, partition
from fedamp_jax.types import Array, Data, Info, PyTree, Task, Variables


def stream(name: str, key: Array) -> Array:
    """A key for the random numbers called `name`, independent of those of other names and of `fold_in` of counters.

    >>> bool(stream("support", jax.random.key(0)) == stream("epochs", jax.random.key(0)))
    False
    """
    return jax.random.fold_in(key, zlib.crc32(name.encode()))


def draw_epochs(solver: Solver, data: Data, keys: Array) -> Array:
    """Local epochs of this round, `[M]` int32, from each client's own key; 0 for a client that is offline.

    Raises:
        ValueError: if the solver has a number of epochs for each client, and there are others.
    """
    own = solver.epochs_of_clients
    if own is not None:
        each = broadcast_to_clients("epochs", jnp.asarray(own, jnp.int32), data)
        return jnp.where(data.online, each, 0)
    return _drawn(solver, data.online, keys)


def _drawn(solver: Solver, online: Array, keys: Array) -> Array:
    low, high = solver.epochs_range
    if low == high:  # a generator of random numbers is what takes XLA longest to compile here
        return jnp.where(online, jnp.int32(low), 0)
    draw = jax.vmap(lambda k: jax.random.randint(k, (), low, high + 1, jnp.int32))(keys)
    return jnp.where(online, draw, 0)


def resample_epochs(solver: Solver, epochs: Array, key: Array) -> Array:
    """Epochs of a second training in a round, `[]` int32, for ONE client that trains `epochs` in the first one.

    Raises:
        ValueError: if the solver has a number of epochs for each client: only the method's own may.
    """
    if solver.epochs_of_clients is not None:
        raise ValueError("epochs of each client are for the method's solver, not for a second one beside it")
    return _drawn(solver, epochs[None] > 0, stream("epochs", key)[None])[0]


def at_home(data: Data) -> Data:
    """The data for training that stays with the clients, as before use: all that have examples, nothing is sent."""
    return data._replace(online=data.size > 0, placement=dataclasses.replace(data.placement, transmit=None))


def for_each_client(
    solver: Solver, data: Data, local: Callable[..., tuple[Any, Array]], keep: Any, *args: Any, key: Array
) -> tuple[Any, Info]:
    """Run `local` for every client that is online, as many side by side as `data.placement` says.

    Args:
        solver: for the number of epochs.
        data: all clients' data.
        local: `(key, client, epochs, keep_i, *args_i) -> (new keep_i, loss)` for ONE client. It may close over what
            all clients share, such as a global model.
        keep: a tree with leaves `[M, ...]`, which `local` replaces. A client that is offline, or whose result is not
            finite, keeps its row: a NaN is selected away here and spreads to no other client.
        *args: further trees with leaves `[M, ...]` of which `local` gets its client's rows.
        key: the round's key; a client's is derived from it and the client's id, so nothing depends on the order of the
            clients, on the chunk or on which others take part.

    Returns:
        The new `keep`, and `Info` without `xi` and `error`.

    >>> import jax, optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> solver = fedamp_jax.Solver(optax.sgd(0.1), epochs=(1, 3))
    >>> count = lambda key, client, epochs, seen: (seen + epochs * client.size, jax.numpy.float32(0))
    >>> seen, info = for_each_client(solver, train, count, jax.numpy.zeros(20, "int32"), key=jax.random.key(0))
    >>> bool((seen == info.epochs * train.size).all())
    True
    """
    keys = jax.vmap(lambda i: jax.random.split(jax.random.fold_in(key, i)))(data.id)
    epochs = draw_epochs(solver, data, keys[:, 0])
    transmit = data.placement.transmit

    def one(client: Data, out: tuple, key: Array, epochs: Array, *args_i: Any) -> tuple[Any, Array, Array]:
        keep_i, _, _ = out
        new, loss = local(key, client, epochs, keep_i, *args_i)
        if transmit is not None:
            new = transmit(stream("transmit", key), client, new)
        fine = all_finite(new)
        took_part = epochs > 0
        chosen = jax.tree.map(lambda a, b: jnp.where(fine & took_part, a, b), new, keep_i)
        return chosen, jnp.where(took_part, loss, 0.0), took_part & ~fine

    work = epochs * data.size
    # A client that has work and whose result never comes, as only one that is elsewhere may, counts as rejected.
    out = (keep, jnp.zeros((len(data.size),), jnp.float32), work > 0)
    kept, loss, rejected = data.placement.for_each_client(one, data, out, keys[:, 1], epochs, *args, work=work)
    return kept, Info(loss, epochs, rejected)


def init_model(task: Task, key: Array) -> Variables:
    """`task.init(key)`, validated, in arrays of its own: rounds donate the state, and not what the task may hold.

    Raises:
        TypeError: if parameters are not float32.
    """
    variables = task.init(key)
    check_float32(variables)
    return jax.tree.map(jnp.copy, variables)


def init_optimizer(solver: Solver, data: Data, params: PyTree, trainable: PyTree | None = None) -> PyTree:
    """Optimizer states `[M, ...]` before the first round if the solver keeps them, else `()`; `params [M, ...]`."""
    if not solver.keep_optimizer:
        return ()
    own, examples = without_examples(data)

    def init(own: Data, params: PyTree) -> PyTree:
        optimizer = solver.at_round(jnp.zeros((), jnp.int32), with_examples(own, examples))
        return optimizer.init(partition(params, trainable)[0])

    return jax.vmap(init)(own, params)


def init_clients(task: Task, solver: Solver, data: Data, key: Array, *, common: bool = True) -> Local:
    """`Local [M]` before the first round: one initial model for all clients, or one of each client's own."""
    shared = init_model(task, key)
    variables = broadcast(shared, len(data.size))
    if not common:
        variables = jax.vmap(lambda i: task.init(jax.random.fold_in(key, i)))(data.id)
    return Local(variables, init_optimizer(solver, data, variables.params))
