"""Validation data: a division of each client's examples, and every client's loss under other clients' models."""

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from fedamp_jax.engine.clients import stream
from fedamp_jax.engine.minibatches import for_each_minibatch, mean_loss
from fedamp_jax.engine.solver import Solver
from fedamp_jax.kernels.shuffle import seed_of
from fedamp_jax.types import Array, Batch, Data, PyTree, Task, Variables, View


def split_client(client: Data, share: float, key: Array) -> tuple[Data, Data]:
    """Split ONE client's examples at random into training and validation data, inside a compiled round.

    `fedamp_jax.data.hold_out` splits the data of all clients before a run.

    Args:
        client: ONE client's `Data`.
        share: of the examples that are for validation, in (0, 1). Both sets get at least one example; those of a client
            with a single one are the same, and those of a client without any are empty.
        key: the same key gives the same split; a split that all rounds share needs a key that does not change.

    Returns:
        `(training, validation)`: two clients like `client`, of which no example is copied.

    >>> import jax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> training, validation = split_client(train.client(0), 0.2, jax.random.key(0))
    >>> int(training.size), int(validation.size)
    (56, 14)
    """
    seed = seed_of(stream("holdout", key))
    wanted = jnp.round(share * client.size.astype(jnp.float32)).astype(jnp.int32)
    least = jnp.minimum(client.size, 1)
    count = jnp.clip(wanted, least, jnp.maximum(client.size - 1, least))
    training = jnp.maximum(client.size - count, least)

    def some(first: Array, size: Array) -> Data:
        return client._replace(size=size, views=(*client.views, View(seed, first, client.size)))

    return some(client.size - training, training), some(jnp.zeros_like(count), count)


def cross_losses(
    task: Task, solver: Solver, data: Data, models: Variables, *, examples: Callable[[Data], Data] | None = None
) -> Array:
    """`losses[i, j]`: mean loss of client i's data under client j's model, `[M, M]` float32.

    On several devices the models travel around a ring, so that no device ever holds all of them.

    Args:
        task: the model.
        solver: for the batch size.
        data: all clients' data; rows of clients that are offline are 0 or what they would be.
        models: `Variables [M, ...]`.
        examples: `client -> client`, which of ONE client's data count, such as the second part of `split_client`; None:
            all.

    >>> import jax, optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> models = jax.vmap(task.init)(jax.random.split(jax.random.key(0), 20))
    >>> cross_losses(task, fedamp_jax.Solver(optax.sgd(0.1)), train, models).shape
    (20, 20)
    """

    def loss(client: Data) -> Callable[[Variables], Array]:
        some = examples(client) if examples else client
        return lambda variables: mean_loss(task, solver, some, variables)

    work = jnp.where(data.online, data.size, 0)
    return data.placement.for_each_pair(loss, data, models, work=work)


def loss_difference(task: Task, solver: Solver, client: Data, one: Variables, other: Variables) -> tuple[Array, Array]:
    """By how much the loss of ONE client's examples is larger under a model than under another.

    Args:
        task: the model.
        solver: for the batch size.
        client: ONE client's `Data`.
        one, other: the models.

    Returns:
        `(difference, error)`, `[]` float32: the mean over the examples of the difference of their losses, and its
        standard error, infinite for fewer than two examples. Losses are those of training: dropout is active, with the
        same key for both models. Where examples depend on each other, as BatchNorm makes them, those of eight are
        computed together, and the error is that of the mean over such groups.

    >>> import jax, optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> one, other = map(task.init, jax.random.split(jax.random.key(0)))
    >>> solver = fedamp_jax.Solver(optax.sgd(0.1))
    >>> difference, error = loss_difference(task, solver, train.client(0), one, other)
    >>> bool(abs(difference) < 1), bool(error > 0)
    (True, True)
    """
    coupled = bool(jax.tree.leaves(one.stats))
    solver = dataclasses.replace(solver, batch_size=min(solver.batch_size, 8)) if coupled else solver

    def add(sums: Array, batch: Batch, key: Array) -> Array:
        rows = batch.x, batch.y, batch.mask, batch.rows
        groups = jax.tree.map(lambda a: a[None] if coupled else a[:, None], rows)

        def difference(x: PyTree, y: Array, mask: Array, at: Array) -> Array:
            group = Batch(x, y, mask, batch.classes, at)
            return task.loss(one, group, key)[0] - task.loss(other, group, key)[0]

        count = jnp.sum(groups[2], axis=1, dtype=jnp.float32)
        d = jnp.where(count > 0, jax.vmap(difference)(*groups), 0.0)
        powers = count, count * d, count**2, count**2 * d, (count * d) ** 2, (count > 0).astype(jnp.float32)
        return sums + jnp.stack([jnp.sum(a) for a in powers])

    sums = for_each_minibatch(solver, client, add, jnp.zeros((6,), jnp.float32), jax.random.key(0), shuffle=False)[0]
    n, total, *squares, groups = sums
    mean = total / n
    variance = (squares[2] - 2.0 * mean * squares[1] + mean**2 * squares[0]) / n**2
    several = groups > 1
    error = jnp.sqrt(jnp.maximum(variance, 0.0) * groups / jnp.where(several, groups - 1.0, 1.0))
    return mean, jnp.where(several, error, jnp.inf)
