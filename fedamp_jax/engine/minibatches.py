"""Minibatches of ONE client's data: the loop below every method, and what whole passes over the data compute."""

from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from fedamp_jax.kernels.shuffle import seed_of, shuffled
from fedamp_jax.layout import rows_of
from fedamp_jax.programs.jaxpr import repeat
from fedamp_jax.trees import expand_dims_like, take
from fedamp_jax.types import Array, Batch, Data, PyTree, Static, Task, Variables


class Batching(Protocol):
    """What the loops here read of a `Solver`."""

    @property
    def max_epochs(self) -> int:
        """Largest number of passes."""
        ...

    def width(self, client: Data) -> int:
        """`B` for ONE client's data."""
        ...


def take_batch(client: Data, rows: Array, real: Array) -> Batch:
    """The examples `rows [B]` of ONE client as a `Batch`; where `real [B]` is False, a row is read and masked.

    >>> import fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> batch = take_batch(train.client(3), jnp.arange(2), jnp.array([True, False]))
    >>> batch.x.shape, batch.y.shape, batch.mask.tolist()
    ((2, 8, 8), (2,), [True, False])
    """
    rows = rows_of(client, jnp.where(real, rows, 0))
    # A client without examples may begin behind the last row, where JAX reads the last one.
    at = client.start + rows
    x, y = take(client.x, at), client.y[at]
    y = jnp.where(expand_dims_like(real, y), y, jnp.zeros((), y.dtype))
    return Batch(x, y, real, client.classes, jnp.where(real, rows, jnp.iinfo(jnp.int32).max))


def as_client(client: Data, x: PyTree, y: Array, size: Array) -> Data:
    """ONE client with other examples in place of those that it has: `x [N, ...]`, `y [N]`, of which `size` count."""
    start = jnp.zeros_like(client.start)
    return client._replace(x=x, y=y, start=start, size=size, longest=Static(y.shape[0]), views=())


def for_each_minibatch(
    solver: Batching,
    client: Data,
    step: Callable[[Any, Batch, Array], Any],
    carry: Any,
    key: Array,
    *,
    epochs: Array | int = 1,
    shuffle: bool = True,
) -> tuple[Any, Array]:
    """`carry = step(carry, batch, key)` for every minibatch of `epochs` passes over ONE client's data.

    The loop below every method here, for a step of your own.

    Args:
        solver: batch size, and with `shuffle` the largest number of epochs.
        client: ONE client's `Data`.
        step: `(carry, batch, key) -> carry`; the key is this step's.
        carry: a tree of arrays, whose shapes and dtypes stay the same.
        key: the client's key of this round, of which order and steps use keys of their own.
        epochs: `[]` int32, at most `solver.max_epochs` with `shuffle`; 0 returns `carry`.
        shuffle: read the examples in a new random order in each pass, or in the order in which they are stored.

    Returns:
        The last `carry`, and the number of steps, `[]` int32.

    >>> import jax, optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> client = train.client(0)
    >>> solver = fedamp_jax.Solver(optax.sgd(0.1), epochs=2, batch_size=32)
    >>> count = lambda total, batch, key: total + batch.mask.sum(dtype="int32")
    >>> seen, steps = for_each_minibatch(solver, client, count, jax.numpy.int32(0), jax.random.key(0), epochs=2)
    >>> int(seen) == 2 * int(client.size), int(steps)
    (True, 6)
    """
    width = solver.width(client)
    key_order, key_steps, _ = jax.random.split(key, 3)
    per_pass = (client.size + width - 1) // width
    seed = seed_of(key_order) if shuffle else None

    def one(t: Array, carry: Any) -> Any:
        rows = (t % per_pass) * width + jnp.arange(width, dtype=jnp.int32)
        real = rows < client.size
        if seed is not None:
            rows = shuffled(rows, client.size, seed, client.placement.platform, t // per_pass)
        return step(carry, take_batch(client, rows, real), jax.random.fold_in(key_steps, t))

    steps = epochs * per_pass
    most = (epochs if isinstance(epochs, int) else solver.max_epochs) * -(-client.longest // width)
    return repeat(steps, one, carry, at_most=most), steps


def sample_batch(solver: Batching, client: Data, key: Array) -> Batch:
    """A minibatch of ONE client's examples, drawn at random without replacement; all of them if there are fewer.

    >>> import jax, optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> solver = fedamp_jax.Solver(optax.sgd(0.1), batch_size=32)
    >>> batch = sample_batch(solver, train.client(0), jax.random.key(0))
    >>> len(set(batch.rows.tolist()))
    32
    """
    row, n = jnp.arange(solver.width(client), dtype=jnp.int32), client.size
    return take_batch(client, shuffled(row, n, seed_of(key), client.placement.platform), row < n)


def share_of(batch: Batch, client: Data) -> Array:
    """`[]` float32, the batch's share of ONE client's examples."""
    return jnp.sum(batch.mask, dtype=jnp.float32) / client.size.astype(jnp.float32)


def mean_loss(task: Task, solver: Batching, client: Data, variables: Variables) -> Array:
    """Mean loss of a model on ALL of one client's data, `[]` float32, a batch at a time.

    The loss is the one that training minimises: dropout is active, with the same key in every call, and BatchNorm
    normalises by the batch, so that the mean is exact only for models without it. Running statistics are left as they
    are.
    """

    def add(total: Array, batch: Batch, key: Array) -> Array:
        return total + share_of(batch, client) * task.loss(variables, batch, key)[0]

    total = jnp.zeros((), jnp.float32)
    return for_each_minibatch(solver, client, add, total, jax.random.key(0), shuffle=False)[0]


def full_gradient(
    task: Task, solver: Batching, client: Data, variables: Variables, key: Array
) -> tuple[PyTree, PyTree, Array]:
    """Gradient of the mean loss over ALL of one client's data: `(gradient, new stats, loss [])`.

    Summed over batches, so that it needs no more memory than a step; exact unless a batch's normalisation couples its
    examples.
    """

    def add(carry: tuple, batch: Batch, key: Array) -> tuple:
        grads, stats, total = carry
        share = share_of(batch, client)
        (value, stats), g = jax.value_and_grad(
            lambda p: task.loss(Variables(p, stats), batch, key), has_aux=True
        )(variables.params)  # fmt: skip
        return jax.tree.map(lambda a, b: a + share * b, grads, g), stats, total + share * value

    zero = jax.tree.map(jnp.zeros_like, variables.params)
    carry = (zero, variables.stats, jnp.zeros((), jnp.float32))
    return for_each_minibatch(solver, client, add, carry, key, shuffle=False)[0]
