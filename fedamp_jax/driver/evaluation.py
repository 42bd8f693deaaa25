"""Each client's accuracy under its own model."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from fedamp_jax.driver.rounds import fitted
from fedamp_jax.placement.jitted import Jitted
from fedamp_jax.trees import check_float32
from fedamp_jax.types import Algorithm, Array, Data, Task, Variables

# Evaluated at once, of one client and of all: bounds the memory of activations, for ResNet18 to 3 GiB.
_EXAMPLES, _TOGETHER = 256, 512


@functools.lru_cache(maxsize=64)
def _outputs(task: Task, shape: tuple[int, ...], dtype: Any) -> int:
    """The number of logits of one example; computes shapes only."""
    model = jax.eval_shape(task.init, jax.random.key(0))
    check_float32(model)
    return jax.eval_shape(task.predict, model, jax.ShapeDtypeStruct((1, *shape), dtype)).shape[-1]


def check_task_fits(task: Task, data: Data) -> None:
    """Checks that the task can learn these data.

    The number of classes is not checked if the data are traced, or held in part by other processes.

    Raises:
        TypeError: if the task's parameters are not float32.
        ValueError: if the task has fewer outputs than the data have classes: higher labels would add nothing to the
            loss.
    """
    outputs = _outputs(task, data.x.shape[2:], data.x.dtype)
    if isinstance(data.classes, Tracer) or not getattr(data.classes, "is_fully_addressable", True):
        return
    classes = int(np.asarray(data.classes).max())  # NumPy's max: JAX's would be traced under a trace
    if classes > outputs:
        raise ValueError(
            f"the model has {outputs} outputs, but the data have {classes} classes: build the model with {classes}"
        )


def evaluate(task: Task, variables: Variables, data: Data) -> Array:
    """Each client's accuracy on its own data.

    Args:
        task: the model.
        variables: `[M, ...]`, such as `algorithm.personalize(key, state, train)` gives.
        data: examples of the same M clients. Clients that are offline are evaluated, too.

    Returns:
        `[M]` float32 in 0..1.

    Raises:
        TypeError: if `variables` are not `Variables`.
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
    check_task_fits(task, data)
    return data.placement.call(compiled_accuracies, (task,), variables, data)


@functools.partial(Jitted, static_argnums=0)
def compiled_accuracies(task: Task, variables: Variables, data: Data) -> Array:
    """`[M]` float32; a padding client's is 0."""
    place = data.placement
    return place.replicate(place.program(functools.partial(_accuracies, task))(variables, data))


def _accuracies(task: Task, variables: Variables, data: Data) -> Array:
    m, n = data.y.shape
    block = min(n, _EXAMPLES)
    blocks = -(-n // block)

    def one(_: Array, variables: Variables, client: Data) -> Array:
        def count(b: Array, correct: Array) -> Array:
            rows = b * block + jnp.arange(block)
            logits = task.predict(variables, client.x.at[rows].get(mode="clip"))
            own = jnp.arange(logits.shape[-1])[None] < client.classes
            hit = jnp.argmax(jnp.where(own, logits, -jnp.inf), axis=-1) == client.y.at[rows].get(mode="clip")
            return correct + jnp.sum(hit & (rows < client.size), dtype=jnp.int32)

        correct = jax.lax.fori_loop(0, blocks, count, jnp.zeros((), jnp.int32))
        return correct.astype(jnp.float32) / jnp.maximum(client.size, 1).astype(jnp.float32)

    accuracies, most = jnp.zeros((m,), jnp.float32), max(1, _TOGETHER // block)
    return data.placement.for_each_client(one, accuracies, variables, data, work=data.size, at_most=most)


def personal_accuracy(task: Task, algorithm: Algorithm, key: Array, state: Any, train: Data, test: Data) -> Array:
    """`evaluate` of `algorithm.personalize`, as one program; `[M]` float32."""
    train = fitted(algorithm, state, train, key)
    return train.placement.call(compiled_personal_accuracy, (task, algorithm.personalize), key, state, train, test)


@functools.partial(Jitted, static_argnums=(0, 1))
def compiled_personal_accuracy(
    task: Task, personalize: Callable[..., Variables], key: Array, state: Any, train: Data, test: Data
) -> Array:
    """The program of `personal_accuracy`."""
    place = train.placement

    def accuracies(key: Array, state: Any, train: Data, test: Data) -> Array:
        return _accuracies(task, personalize(key, state, train), test)

    return place.replicate(place.program(accuracies)(key, state, train, test))
