"""The contract: everything the engine knows about a model, about data and about an algorithm.

Axis letters, used after every array field and in every docstring:
`M` clients, `N` examples of one client (padded), `B` batch, `D` parameters of one model, `C` classes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax

Array = jax.Array
Device: TypeAlias = jax.Device  # pyright: ignore[reportInvalidTypeForm]  # jaxlib tells no types
PyTree = Any


class Variables(NamedTuple):
    """One client's model; `Variables [M, ...]` is the same tree with a leading client axis on every leaf.

    Attributes:
        params: what local training updates and what a server mixes; float32 leaves.
        stats: running statistics that a forward pass updates (BatchNorm's mean and variance); `()` if there are none.
    """

    params: PyTree
    stats: PyTree = ()


class Batch(NamedTuple):
    """Examples of ONE client, as a loss sees them.

    Attributes:
        x: `[B, ...]`, the dtype of the data set (uint8 images arrive as uint8).
        y: `[B]` int32 labels in `0..classes-1`; 0 where `mask` is False.
        mask: `[B]` bool, False for padding. A loss is the mean over the True rows.
        classes: `[]` int32, how many classes this client has; logits from there on are not its own.
    """

    x: Array
    y: Array
    mask: Array
    classes: Array


class Task(NamedTuple):
    """A model and its loss: pure functions for ONE client.

    `fedamp_jax.models` makes one from a Flax Linen module; by hand it takes ten lines:

    >>> import jax, jax.numpy as jnp, fedamp_jax
    >>> def init(key):
    ...     return fedamp_jax.Variables({"head": {"kernel": jax.random.normal(key, (4, 3)), "bias": jnp.zeros(3)}})
    >>> def predict(variables, x):
    ...     head = variables.params["head"]
    ...     return x @ head["kernel"] + head["bias"][None]
    >>> def loss(variables, batch, key):
    ...     return fedamp_jax.cross_entropy(predict(variables, batch.x), batch), variables.stats
    >>> task = fedamp_jax.Task(init, loss, predict)

    Attributes:
        init: `key -> Variables`.
        loss: `(variables, batch, key) -> (scalar float32, new stats)`; the key is for dropout and the like.
        predict: `(variables, x [B, ...]) -> logits [B, C]` float32, in evaluation mode.
        head: which parameters are the personal head, for the methods that split a model into body and head: the
            beginnings of their paths, such as `("head",)` or `("Dense_1/kernel", "Dense_1/bias")`.
        features: `(variables, batch, key) -> (features [B, ...], new stats)`, the body alone; None if the model has no
            such cut. Lets PFLEGO pass its data through the body once.
        head_loss: `(variables, features, batch) -> scalar`, the loss given the features; None with `features`.
    """

    init: Callable[[Array], Variables]
    loss: Callable[[Variables, Batch, Array], tuple[Array, PyTree]]
    predict: Callable[[Variables, Array], Array]
    head: tuple[str, ...] = ("head",)
    features: Callable[[Variables, Batch, Array], tuple[Array, PyTree]] | None = None
    head_loss: Callable[[Variables, Array, Batch], Array] | None = None


class Data(NamedTuple):
    """The data of all clients, padded to a common length. `fedamp_jax.data` makes and checks one.

    Attributes:
        x: `[M, N, ...]`; uint8 stays uint8 until a step reads it. What lies beyond `size` is never read into a result.
        y: `[M, N]` int32 labels.
        size: `[M]` int32, how many of the N rows are examples, at least 1; 0 marks a row that is nobody, as
            `fedamp_jax.sharding` adds them where the devices do not divide the clients.
        classes: `[M]` int32, number of classes of each client.
        id: `[M]` int32, the client's name in random number generation: results follow it, not the position.
        online: `[M]` bool, who takes part in this round. A client that is offline neither trains nor sends.
    """

    x: Array
    y: Array
    size: Array
    classes: Array
    id: Array
    online: Array


class Info(NamedTuple):
    """What one round tells: one may plot it and drop it.

    Attributes:
        loss: `[M]` float32, the client's training loss, averaged over its steps (without penalties); 0 if offline.
        epochs: `[M]` int32, local epochs trained; 0 if offline.
        rejected: `[M]` bool, the client's update was not finite and was thrown away.
        xi: `[M, M]` float32, the attention weights of this round, rows receive; None for methods without.
    """

    loss: Array
    epochs: Array
    rejected: Array
    xi: Array | None = None


class Algorithm(NamedTuple):
    """A federated method: three pure functions.

    Attributes:
        init: `(key, data) -> state`, a NamedTuple of its own type that holds what must survive a restart.
        round: `(key, state, data) -> (state, Info)`, one communication round. `fedamp_jax.round` compiles it.
        personalize: `(key, state, data) -> Variables [M, ...]`, the models to use; evaluation sees only these.
    """

    init: Callable[[Array, Data], Any]
    round: Callable[[Array, Any, Data], tuple[Any, Info]]
    personalize: Callable[[Array, Any, Data], Variables]
