"""Each client's metrics, and its predictions, under its own model."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

from fedamp_jax.checks import check_choice
from fedamp_jax.driver.rounds import check_not_donated, fitted
from fedamp_jax.engine.minibatches import take_batch
from fedamp_jax.engine.task_checks import check_task, check_task_fits
from fedamp_jax.layout import with_examples, without_examples
from fedamp_jax.placement.placement import is_spread
from fedamp_jax.programs.jaxpr import repeat
from fedamp_jax.programs.jitted import Jitted
from fedamp_jax.types import Algorithm, Array, Batch, Data, Task, Variables

# Evaluated at once, of one client and of all: bounds the memory of activations, for ResNet18 to 3 GiB.
_EXAMPLES, _TOGETHER = 256, 512


def evaluate(task: Task, variables: Variables, data: Data, metric: str | None = None) -> Array:
    """Each client's metric on its own data, averaged over its examples: accuracy, unless the task has other metrics.

    Args:
        task: the model.
        variables: `[M, ...]`, such as `algorithm.personalize(key, state, train)` gives.
        data: examples of the same M clients. Clients that are offline are evaluated, too.
        metric: the name of one of `task.metrics`; None: the first one.

    Returns:
        `[M]` float32, NaN for a client without examples. Accuracies are in 0..1.

    Raises:
        TypeError: if `variables` are not `Variables`, or the metric is none for these data.
        ValueError: if the data have more classes than the model has outputs, there are not M models, or the task has no
            such metric.

    >>> import jax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> models = jax.vmap(task.init)(jax.random.split(jax.random.key(0), 20))
    >>> fedamp_jax.evaluate(task, models, test).shape
    (20,)
    """
    check_models(task, variables, data)
    check_task_fits(task, data)
    by_name = {one.name: one for one in task.metrics}
    name = task.metrics[0].name if metric is None else metric
    check_choice("metric", name, tuple(by_name))
    chosen = task._replace(metrics=(by_name[name],))
    with jax.debug_nans(False):  # the flag stops at the NaN of a client without examples
        return data.placement.call(compiled_scores, (chosen,), variables, data)[:, 0]


def predict(task: Task, variables: Variables, data: Data) -> Array:
    """What each client's model gives for its own examples.

    Where y are labels, the logits of classes that a client does not have are -inf: they were not trained, and count
    neither in the loss nor in the accuracy. So the largest logit is a class of the client's, and `softmax` gives the
    probabilities that were trained.

    Args:
        task: the model.
        variables: `[M, ...]`, as for `evaluate`.
        data: examples of the same M clients; of y only the dtype is read.

    Returns:
        `[M, N, ...]` float32, N the size of the largest client: what `task.predict` gives for each example, -inf for
        classes from `data.classes` on; zeros in the rows beyond a client's size.

    Raises:
        TypeError, ValueError: as `evaluate`.

    >>> import jax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> models = jax.vmap(task.init)(jax.random.split(jax.random.key(0), 20))
    >>> fedamp_jax.predict(task, models, test).shape
    (20, 25, 10)
    """
    check_models(task, variables, data)
    check_task(task)
    return data.placement.call(compiled_outputs, (task,), variables, data)


def own_logits(outputs: Array, classes: Array | int) -> Array:
    """Logits with -inf for the classes that a client does not have.

    Args:
        outputs: `[B, C]`; those of another rank are returned as they are, and so is a single logit.
        classes: the client's number of classes; 0 if its targets are no labels, which changes nothing.

    >>> own_logits(jnp.zeros((1, 3)), 2).tolist(), own_logits(jnp.zeros((1, 3)), 0).tolist()
    ([[0.0, 0.0, -inf]], [[0.0, 0.0, 0.0]])
    """
    if outputs.ndim != 2:
        return outputs
    column = jnp.arange(outputs.shape[1], dtype=jnp.int32)[None]
    return jnp.where((column < classes) | (jnp.asarray(classes) == 0), outputs, -jnp.inf)


def check_models(task: Task, variables: Variables, data: Data) -> None:
    """Checks that there is one model for each client.

    Raises:
        TypeError: if `variables` are not `Variables`, or not of this task.
        ValueError: if there is another number of them.
    """
    if not isinstance(variables, Variables):
        kind = type(variables).__name__
        raise TypeError(f"variables must be what algorithm.personalize(key, state, data) gives, got a {kind}")
    wanted, found = jax.tree.structure(check_task(task)), jax.tree.structure(variables)
    if wanted != found:
        raise TypeError(
            f"variables are no models of this task, which has {wanted}, got {found}: give the task that they were "
            "trained with, and where the method has one of its own, as kNN-Per, algorithm.reader(train)"
        )
    m, rows = len(data.size), {a.shape[:1] for a in jax.tree.leaves(variables)}
    if rows != {(m,)}:
        raise ValueError(f"variables must hold one model for each of {m} clients, leaves [{m}, ...]; got axes {rows}")


@functools.partial(Jitted, static=1)
def compiled_scores(task: Task, variables: Variables, data: Data) -> Array:
    """`[M, P]` float32, a column for each of the task's metrics; NaN for a client without examples."""
    place = data.placement
    return place.replicate(place.program(functools.partial(_scores, task))(variables, data))


@functools.partial(Jitted, static=1)
def compiled_outputs(task: Task, variables: Variables, data: Data) -> Array:
    """The program of `predict`."""
    return data.placement.program(functools.partial(_outputs, task))(variables, data)


def _blocks(data: Data) -> tuple[int, int, int]:
    """Examples in a block of one client, such blocks, and clients that are evaluated side by side at most."""
    block = min(data.longest, _EXAMPLES)
    return block, -(-data.longest // block), max(1, _TOGETHER // block)


def _rows_of(b: Array | int, block: int) -> Array:
    return b * block + jnp.arange(block, dtype=jnp.int32)


def _block_of(client: Data, b: Array | int, block: int) -> Batch:
    rows = _rows_of(b, block)
    return take_batch(client, rows, rows < client.size)


def _scores(task: Task, variables: Variables, data: Data) -> Array:
    most = _blocks(data)[2]
    functions = [metric.function for metric in task.metrics]

    def one(client: Data, _: Array, variables: Variables) -> Array:
        block, blocks = _blocks(client)[:2]

        def add(b: Array, total: Array) -> Array:
            batch = _block_of(client, b, block)
            outputs = task.predict(variables, batch.x)
            scores = jnp.stack([score(outputs, batch).astype(jnp.float32) for score in functions])
            return total + jnp.sum(jnp.where(batch.mask[None], scores, 0.0), axis=1)

        own = (client.size + block - 1) // block
        total = repeat(own, add, jnp.zeros((len(functions),), jnp.float32), at_most=blocks)
        mean = total / jnp.maximum(client.size, 1).astype(jnp.float32)
        return jnp.where(client.size > 0, mean, jnp.nan)

    scores = jnp.full((len(data.size), len(functions)), jnp.nan, jnp.float32)
    return data.placement.for_each_client(one, data, scores, variables, work=data.size, at_most=most)


def _outputs(task: Task, variables: Variables, data: Data) -> Array:
    n, most = data.longest, _blocks(data)[2]

    def outputs(client: Data, variables: Variables, b: Array | int) -> Array:
        batch = _block_of(client, b, _blocks(client)[0])
        made = task.predict(variables, batch.x).astype(jnp.float32)
        return own_logits(made, batch.classes) if jnp.issubdtype(batch.y.dtype, jnp.integer) else made

    def one(client: Data, zeros: Array, variables: Variables) -> Array:
        block, blocks = _blocks(client)[:2]

        def write(b: Array, made: Array) -> Array:
            rows = _rows_of(b, block)
            return made.at[jnp.where(rows < client.size, rows, n)].set(outputs(client, variables, b), mode="drop")

        return repeat((client.size + block - 1) // block, write, zeros, at_most=blocks)

    own, examples = without_examples(data)
    example = jax.eval_shape(lambda own, v: outputs(with_examples(own, examples), v, 0), *_first(own, variables))
    zeros = jnp.zeros((len(data.size), n, *example.shape[1:]), jnp.float32)
    return data.placement.for_each_client(one, data, zeros, variables, work=data.size, at_most=most)


def _first(*trees: Any) -> Any:
    """The shapes of one client's rows."""
    return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape[1:], a.dtype), trees)


def reader_of(task: Task, algorithm: Algorithm, train: Data) -> Task:
    """The task whose `predict` reads the models of `algorithm.personalize`."""
    return task if algorithm.reader is None else algorithm.reader(train)


def personal_scores(task: Task, algorithm: Algorithm, key: Array, state: Any, train: Data, test: Data) -> Array:
    """The task's metrics of the models of `algorithm.personalize`, as one program; `[M, P]` float32."""
    train, task = fitted(algorithm, state, train, key), reader_of(task, algorithm, train)
    with jax.debug_nans(False):  # as in `evaluate`
        return train.placement.call(compiled_personal_scores, (task, algorithm.personalize), key, state, train, test)


@functools.partial(Jitted, static=2)
def compiled_personal_scores(
    task: Task, personalize: Callable[..., Variables], key: Array, state: Any, train: Data, test: Data
) -> Array:
    """The program of `personal_scores`."""
    place = train.placement

    def scores(key: Array, state: Any, train: Data, test: Data) -> Array:
        return _scores(task, personalize(key, state, train), test)

    return place.replicate(place.program(scores)(key, state, train, test))


def personal_models(algorithm: Algorithm, key: Array, state: Any, train: Data, m: int) -> Variables:
    """The models of `algorithm.personalize`, `[m, ...]`, without padding clients.

    Models that are spread over devices are gathered as NumPy arrays, by all processes.
    """
    check_not_donated(state)
    train = fitted(algorithm, state, train, key)
    models = train.placement.call(compiled_personal_models, (algorithm.personalize,), key, state, train)

    def gathered(a: Any) -> Any:
        if not is_spread(a):
            return a
        return (np.asarray(a) if a.is_fully_addressable else multihost_utils.process_allgather(a, tiled=True))[:m]

    return jax.tree.map(gathered, models)


@functools.partial(Jitted, static=1)
def compiled_personal_models(personalize: Callable[..., Variables], key: Array, state: Any, train: Data) -> Variables:
    """The program of `personal_models`."""
    return train.placement.program(personalize)(key, state, train)
