"""Features, what a model's body computes of an example: their means by class, and a loss that draws them there."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fedamp_jax.engine import server
from fedamp_jax.engine.minibatches import Batching, for_each_minibatch
from fedamp_jax.types import Array, Batch, Data, PyTree, Task, Variables


class Centroids(NamedTuple):
    """Mean features by class.

    Attributes:
        mean: `[C, F]` float32, features of several axes as one; zeros for a class without examples.
        counts: `[C]` float32, the examples of each class.
    """

    mean: Array
    counts: Array


def check_features(method: str, task: Task) -> None:
    """Checks that a task can compute features.

    Raises:
        ValueError: if it cannot.
    """
    lacks = [name for name in ("features", "head_loss", "predict_features") if getattr(task, name) is None]
    if lacks:
        raise ValueError(
            f"{method} compares features, but the task has no {', '.join(lacks)}: make it with "
            "fedamp_jax.models.from_linen of a fedamp_jax.models.Classifier, or give the task these functions"
        )


def flat_features(task: Task, variables: Variables, x: PyTree) -> Array:
    """The features of examples `x [B, ...]` as rows, `[B, F]` float32, in evaluation mode."""
    assert task.predict_features is not None
    features = task.predict_features(variables, x)
    return features.reshape(len(features), -1)


def init_centroids(method: str, task: Task, data: Data) -> Centroids:
    """Those of no examples, for the task's classes and features.

    Raises:
        TypeError: if y are no labels.
    """
    if not jnp.issubdtype(data.y.dtype, jnp.integer):
        raise TypeError(f"{method} needs labels, but y is {data.y.dtype}: use another method")

    def outputs(x: PyTree) -> tuple[Array, Array]:
        variables = task.init(jax.random.key(0))
        return task.predict(variables, x), flat_features(task, variables, x)

    one = jax.tree.map(lambda a: jax.ShapeDtypeStruct((1, *a.shape[1:]), a.dtype), data.x)
    logits, features = jax.eval_shape(outputs, one)
    classes = logits.shape[-1]
    return Centroids(jnp.zeros((classes, features.shape[1]), jnp.float32), jnp.zeros((classes,), jnp.float32))


def feature_statistics(
    task: Task, solver: Batching, client: Data, variables: Variables, like: Centroids
) -> tuple[Centroids, Array]:
    """Of ALL of one client's data in evaluation mode: mean features by class, and the mean of `||h(x)||^2`, `[]`.

    Args:
        task: the model.
        solver: for the batch size.
        client: ONE client's `Data`.
        variables: the client's model.
        like: centroids of the shapes that are wanted.
    """

    def add(carry: tuple[Centroids, Array], batch: Batch, key: Array) -> tuple[Centroids, Array]:
        sums, squares = carry
        h = jnp.where(batch.mask[:, None], flat_features(task, variables, batch.x), 0.0)
        of_class = batch.y[:, None] == jnp.arange(len(sums.counts), dtype=jnp.int32)[None]
        of_class = (of_class & batch.mask[:, None]).astype(jnp.float32)
        total = jnp.einsum("bc,bf->cf", of_class, h, precision="highest")
        sums = Centroids(sums.mean + total, sums.counts + jnp.sum(of_class, axis=0))
        return sums, squares + jnp.sum(jnp.square(h))

    zero = jax.tree.map(jnp.zeros_like, like), jnp.zeros((), jnp.float32)
    (sums, squares), _ = for_each_minibatch(solver, client, add, zero, jax.random.key(0), shuffle=False)
    mean = sums.mean / jnp.maximum(sums.counts, 1.0)[:, None]
    return sums._replace(mean=mean), squares / jnp.maximum(client.size, 1).astype(jnp.float32)


def class_means(task: Task, solver: Batching, client: Data, variables: Variables, like: Centroids) -> Centroids:
    """The mean features of each class over ALL of one client's data, in evaluation mode; `like` has the shapes.

    >>> import optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> task = fedamp_jax.models.mlp(classes=10, hidden=(32,), shape=(8, 8))
    >>> solver, like = fedamp_jax.Solver(optax.sgd(0.1)), init_centroids("mean", task, train)
    >>> found = class_means(task, solver, train.client(0), task.init(jax.random.key(0)), like)
    >>> found.mean.shape, int(found.counts.sum()) == int(train.size[0])
    ((10, 32), True)
    """
    return feature_statistics(task, solver, client, variables, like)[0]


def mean_centroids(clients: Centroids, present: Array, old: Centroids) -> Centroids:
    """The mean features of each class over the examples of all clients that are present.

    Args:
        clients: leaves `[M, ...]`.
        present: `[M]` bool, the clients that count.
        old: kept for a class that none of these clients has, its count, too.
    """
    weights = jnp.where(present[:, None], clients.counts, 0.0)
    mean = jax.vmap(server.weighted_mean, in_axes=(1, 1, 0))(weights, clients.mean, old.mean)
    total = jnp.sum(weights, axis=0)
    return Centroids(mean, jnp.where(total > 0, total, old.counts))


def aligned(task: Task, targets: Centroids, weight: Array) -> Task:
    """The task with the loss `loss + weight * mean over the examples of ||h(x) - target of class y||^2 / F`.

    F is the number of features. An example of a class with `targets.counts` 0 adds nothing to the second term.
    """
    compute, head_loss = task.features, task.head_loss
    assert compute is not None and head_loss is not None

    def loss(variables, batch, key):
        h, running = compute(variables, batch, key)
        value = head_loss(variables, h, batch)
        apart = jnp.mean(jnp.square(h.reshape(len(h), -1) - targets.mean[batch.y]), axis=1)
        apart = jnp.where(batch.mask & (targets.counts[batch.y] > 0), apart, 0.0)
        examples = jnp.maximum(jnp.sum(batch.mask, dtype=jnp.float32), 1.0)
        return value + weight * jnp.sum(apart) / examples, running

    return task._replace(loss=loss)
