"""kNN-Per (Marfoq et al., ICML 2022): FedAvg's model, and the client's examples that are nearest in its features."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedamp_jax.algorithms.fedavg import averaging
from fedamp_jax.checks import check_integer, check_number
from fedamp_jax.engine import (
    Solver,
    at_home,
    check_features,
    check_parts,
    flat_features,
    for_each_client,
    for_each_minibatch,
    init_centroids,
    of_clients,
    split_client,
    stream,
)
from fedamp_jax.kernels.shuffle import seed_of
from fedamp_jax.programs.kept import kept
from fedamp_jax.trees import broadcast
from fedamp_jax.types import Algorithm, Array, Batch, Data, PyTree, Task, Variables, View

_STEPS = 10  # lam is chosen among 0, 1/10, ..., 1
_LEAST, _FAR = 1e-30, -1e30  # a probability whose logarithm is finite, and a score that has no weight


class Memory(NamedTuple):
    """What ONE client remembers beside the global model.

    Attributes:
        features: `[N, F]` float32, those of its training examples; zeros in rows that have none.
        labels: `[N]` int32, -1 in rows that have no example.
        lam: `[]` float32, the weight of the neighbours.
        scale: `[]` float32, that of the kernel.
        classes: `[]` int32, the client's number of classes.
    """

    features: Array
    labels: Array
    lam: Array
    scale: Array
    classes: Array


def no_memory(rows: int, width: int) -> Memory:
    """That of a client without examples, which has the global model."""
    zero = jnp.zeros((), jnp.float32)
    labels = jnp.full((rows,), -1, jnp.int32)
    return Memory(jnp.zeros((rows, width), jnp.float32), labels, zero, zero + 1, jnp.zeros((), jnp.int32))


def neighbours(memory: Memory, h: Array, k: int, classes: int) -> Array:
    """`p_kNN [B, classes]`: the shares of the classes among the k examples that are nearest to the features `h [B, F]`.

    An example at distance d counts as `exp(-d^2 / (F scale))`.
    """
    squares = jnp.sum(jnp.square(memory.features), axis=1)[None] + jnp.sum(jnp.square(h), axis=1)[:, None]
    d2 = squares - 2.0 * jnp.einsum("bf,nf->bn", h, memory.features, precision="highest")
    score = jnp.where(memory.labels[None] >= 0, -jnp.maximum(d2, 0.0) / (h.shape[1] * memory.scale), _FAR)
    nearest, which = jax.lax.top_k(score, min(k, score.shape[1]))
    weights = jax.nn.softmax(nearest)  # as a ratio, which does not vanish where all are far
    of_class = memory.labels[which][..., None] == jnp.arange(classes, dtype=jnp.int32)[None, None]
    return jnp.sum(jnp.where(of_class, weights[..., None], 0.0), axis=1)


def both(task: Task, model: Variables, memory: Memory, x: PyTree, k: int) -> tuple[Array, Array]:
    """`(p_kNN, softmax)` of examples `x [B, ...]`, `[B, C]` each, over the client's own classes."""
    logits = task.predict(model, x)
    own = jnp.arange(logits.shape[1], dtype=jnp.int32)[None] < memory.classes
    logits = jnp.where(own, logits, _FAR)
    return neighbours(memory, flat_features(task, model, x), k, logits.shape[1]), jax.nn.softmax(logits)


def logarithm(lam: Array, near: Array, model: Array) -> Array:
    """`log(lam p_kNN + (1 - lam) softmax)`."""
    return jnp.log(jnp.maximum(lam * near + (1.0 - lam) * model, _LEAST))


@kept
def remembering(task: Task, k: int, rows: int, width: int) -> Task:
    """The task with a `Memory` of `rows` examples and `width` features beside the running statistics of its models.

    Its predictions are `log(lam p_kNN + (1 - lam) softmax(logits))`, its loss is that of the model alone.
    """

    def parts(variables: Variables) -> tuple[Variables, Memory]:
        return variables._replace(stats=variables.stats["model"]), variables.stats["memory"]

    def init(key):
        model = task.init(key)
        return Variables(model.params, {"model": model.stats, "memory": no_memory(rows, width)})

    def loss(variables, batch, key):
        model, memory = parts(variables)
        value, running = task.loss(model, batch, key)
        return value, {"model": running, "memory": memory}

    def predict(variables, x):
        model, memory = parts(variables)
        return logarithm(memory.lam, *both(task, model, memory, x, k))

    return Task(init, loss, predict, task.head, metrics=task.metrics)


def memorized(task: Task, solver: Solver, client: Data, model: Variables, empty: Memory) -> Memory:
    """The features and labels of ONE client's examples, in their order, in the first rows of `empty`."""
    place = jnp.arange(solver.width(client), dtype=jnp.int32)

    def write(carry: tuple[Array, Memory], batch: Batch, key: Array) -> tuple[Array, Memory]:
        t, memory = carry
        at = t * len(place) + place
        h = jnp.where(batch.mask[:, None], flat_features(task, model, batch.x), 0.0)
        labels = jnp.where(batch.mask, batch.y, -1)
        features = memory.features.at[at].set(h, mode="drop")
        return t + 1, memory._replace(features=features, labels=memory.labels.at[at].set(labels, mode="drop"))

    start = jnp.zeros((), jnp.int32), empty._replace(classes=client.classes)
    return for_each_minibatch(solver, client, write, start, jax.random.key(0), shuffle=False)[0][1]


def knnper(
    task: Task,
    solver: Solver,
    *,
    k: int = 10,
    scale: Any = 1.0,
    lam: Any = 0.5,
    validation: float = 0.2,
    split_seed: int = 0,
    capacity: int | None = None,
) -> Algorithm:
    """kNN-Per: FedAvg, and for use `p = lam_i p_kNN + (1 - lam_i) softmax(logits)` of the global model.

    A client remembers the features of its training examples under the global model. For an example x, p_kNN has the
    shares of the classes among the k that are nearest; one at distance d counts as `exp(-d^2 / (F scale))`, with F
    features.

    Args:
        task: a classifier that can compute features, such as all of `fedamp_jax.models`.
        solver: FedAvg's local training.
        k: number of neighbours, at least 1; all, if a client has fewer examples.
        scale: of the kernel, greater than 0; a number, one per client `[M]`, a schedule of the round or a tracer.
        lam: weight of the neighbours, in [0, 1]; likewise. 0 is FedAvg. None: each client chooses it among 0, 0.1, ...,
            1, by the likelihood of its validation examples, with the others as neighbours.
        validation: for `lam=None`, the share of each client's examples that are for validation, in (0, 1); at least
            one. They are drawn once, and the global model is never trained on them. Once lam_i is chosen, they are
            remembered, too. A client with a single example has lam_i = 0.
        split_seed: of that draw, and of that for `capacity`; both also follow the client's id.
        capacity: at most so many of a client's examples are remembered, drawn at random; None: all.

    Returns:
        The `Algorithm`. What `personalize` gives is for the task `algorithm.reader(train)`, which `run` uses by itself:
        `evaluate(algorithm.reader(train), models, test)`. Each model holds N x F numbers more than the global one,
        where N is the number of examples of the largest client, or `capacity`: those of smaller clients are padded.

    Raises:
        ValueError, TypeError: if an argument is out of range or of the wrong kind, or the task has no features; in
            `init`, data without labels.

    The kernel is the authors' program's, which evaluates a grid of weights on the test data. Validation examples are
    lost to the global model: with few examples per client, one weight for all may be better. Running statistics are
    averaged as the parameters are.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.knnper(task, fedamp_jax.Solver(optax.adam(1e-3)), k=10)
    """
    check_parts(task, solver)
    check_features("kNN-Per", task)
    check_integer("k", k, low=1)
    check_number("scale", scale, low=0, allow_array=True)
    if lam is not None:
        check_number("lam", lam, low=0, high=1, strict=False, allow_array=True)
    check_number("validation", validation, low=0, high=1)
    if validation == 1:
        raise ValueError("validation must be below 1: the rest is what the global model is trained on")
    check_integer("split_seed", split_seed, low=0)
    if capacity is not None:
        check_integer("capacity", capacity, low=1)
    once = dataclasses.replace(solver, optimizer=solver.at_round, keep_optimizer=False, epochs=1)

    def key_of(client: Data) -> Array:
        return jax.random.fold_in(jax.random.key(split_seed), client.id)

    def split(client: Data) -> tuple[Data, Data]:
        return split_client(client, validation, key_of(client))

    trains_on = None if lam is not None else lambda client: split(client)[0]
    base = averaging(task, solver, mu=0.0, stats="mix", examples=trains_on)

    def some_of(client: Data) -> Data:
        if capacity is None:
            return client
        view = View(seed_of(stream("capacity", key_of(client))), jnp.zeros_like(client.size), client.size)
        return client._replace(size=jnp.minimum(client.size, capacity), views=(*client.views, view))

    def shape(data: Data) -> tuple[int, int]:
        rows = int(data.longest) if capacity is None else min(capacity, data.longest)
        return rows, init_centroids("kNN-Per", task, data).mean.shape[1]

    def chosen(client: Data, model: Variables, empty: Memory) -> Array:
        part, held = split(client)
        memory = memorized(task, solver, part, model, empty)
        grid = jnp.arange(_STEPS + 1, dtype=jnp.float32) / _STEPS

        def add(total: Array, batch: Batch, key: Array) -> Array:
            near, global_ = both(task, model, memory, batch.x, k)
            label = batch.y[:, None] == jnp.arange(near.shape[1], dtype=jnp.int32)[None]
            label = label & batch.mask[:, None]
            p = (jnp.sum(jnp.where(label, a, 0.0), axis=1, keepdims=True) for a in (near, global_))
            return total + jnp.sum(jnp.where(batch.mask[:, None], logarithm(grid[None], *p), 0.0), axis=0)

        total = jnp.zeros_like(grid)
        likelihood = for_each_minibatch(solver, held, add, total, jax.random.key(0), shuffle=False)[0]
        return jnp.where(client.size > 1, grid[jnp.argmax(likelihood)], 0.0)

    def init(key, data):
        init_centroids("kNN-Per", task, data)
        return base.init(key, data)

    def personalize(key, state, data):
        empty, models = no_memory(*shape(data)), base.personalize(key, state, data)

        def local(key, client, epochs, mine, model, scale_i, *lam_i):
            blank = empty._replace(scale=scale_i)
            weight = lam_i[0] if lam_i else chosen(client, model, blank)
            return memorized(task, solver, some_of(client), model, blank)._replace(lam=weight), jnp.zeros(
                (), jnp.float32
            )

        numbers = [of_clients("scale", scale, state.round, data)]
        numbers += [] if lam is None else [of_clients("lam", lam, state.round, data)]
        memories, _ = for_each_client(once, at_home(data), local, broadcast(empty, len(data.size)), models, *numbers,
                                      key=key)  # fmt: skip
        return Variables(models.params, {"model": models.stats, "memory": memories})

    def reader(data):
        return remembering(task, k, *shape(data))

    return base._replace(init=init, personalize=personalize, reader=reader)
