"""The contract: all that the engine knows about a model, about data and about an algorithm.

Axis letters, used after every array field and in every docstring:
`M` clients, `N` examples of one client, `T` examples of all clients, `B` batch, `D` parameters of one model, `C`
classes.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from fedamp_jax.layout import Static, positions
from fedamp_jax.placement.placement import Placement

Array = jax.Array
Device: TypeAlias = jax.Device  # pyright: ignore[reportInvalidTypeForm]  # jaxlib ships no type for it
PyTree = Any


class Variables(NamedTuple):
    """One client's model; `Variables [M, ...]` is the same tree with a leading client axis on every leaf.

    Attributes:
        params: what local training updates and the server mixes; float32 leaves.
        stats: running statistics that a forward pass updates (BatchNorm's mean and variance); `()` if there are none.
    """

    params: PyTree
    stats: PyTree = ()


class Batch(NamedTuple):
    """Examples of ONE client, as a loss sees them.

    Attributes:
        x: `[B, ...]`, in the dtype of the data set (uint8 images arrive as uint8); a tree of them if an example has
            several inputs.
        y: `[B]` int32 labels in `0..classes-1`, or `[B, ...]` float32 targets; 0 where `mask` is False.
        mask: `[B]` bool, False for padding. A loss is the mean over the rows where it is True.
        classes: `[]` int32, the client's number of classes; logits from there on are not used. 0 if y are targets.
        rows: `[B]` int32, the examples' positions in the client's data, the largest int32 for padding; None if unknown.
    """

    x: PyTree
    y: Array
    mask: Array
    classes: Array
    rows: Array | None = None


class Metric(NamedTuple):
    """A number for each example, whose mean over a client's examples is reported.

    >>> import jax.numpy as jnp, fedamp_jax
    >>> def within_one(outputs, batch):
    ...     return (jnp.abs(outputs - batch.y) < 1).astype(jnp.float32)
    >>> metric = fedamp_jax.Metric("within one", within_one)

    Attributes:
        name: what `Run.metrics` calls it; the metrics of a task have different names.
        function: `(outputs [B, ...], batch) -> [B] float32`. Rows where `batch.mask` is False do not count, whatever
            it gives there.
        larger_is_better: False for errors.
    """

    name: str
    function: Callable[[Array, Batch], Array]
    larger_is_better: bool = True


def correct(logits: Array, batch: Batch) -> Array:
    """Whether the largest logit of the client's own classes is the label's: `[B]` float32, 1 or 0.

    Args:
        logits: `[B, C]`.
        batch: with labels `y [B]`.

    Raises:
        TypeError: if `batch.y` are no labels.
    """
    if not jnp.issubdtype(batch.y.dtype, jnp.integer) or logits.ndim != 2:
        raise TypeError(
            f"accuracy compares integer labels y [B] with logits [B, C], got y {batch.y.dtype} {list(batch.y.shape)} "
            f"and outputs {list(logits.shape)}: give the task other metrics, such as fedamp_jax.models.MSE"
        )
    own = jnp.arange(logits.shape[-1])[None] < batch.classes
    found = jnp.where(own, logits, -jnp.inf)
    # NaN counts as the largest: a model that has diverged would be right wherever the label is 0.
    right = (jnp.argmax(found, axis=-1) == batch.y) & ~jnp.isnan(jnp.max(found, axis=-1))
    return right.astype(jnp.float32)


ACCURACY = Metric("accuracy", correct)
"""The share of examples whose label has the largest logit; the metric of a task that names none."""


class Base(NamedTuple):
    """Weights that a task closes over and does not train, such as those of a pretrained model.

    Attributes:
        merge: `Variables -> Variables`, from ONE client's parameters to those of the whole model.
        fingerprint: `() -> str`, a hash of the weights: what was trained on others is of no use with these.
        scale: factor of the products `A B` of adapters; None without adapters.
    """

    merge: Callable[[Variables], Variables]
    fingerprint: Callable[[], str]
    scale: float | None = None


class Task(NamedTuple):
    """A model and its loss: pure functions for ONE client.

    `fedamp_jax.models` makes one from a Flax module, Linen or nnx. Written by hand it takes ten lines:

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
        predict: `(variables, x [B, ...]) -> outputs [B, ...]` float32, in evaluation mode; logits `[B, C]` for a
            classifier.
        head: the parameters of the personal head, for methods that split a model into body and head: prefixes of
            their paths, such as `("head",)` or `("Dense_1/kernel", "Dense_1/bias")`.
        features: `(variables, batch, key) -> (features [B, ...], new stats)`, the body alone; None if the model cannot
            be split there. Lets PFLEGO pass its data through the body once.
        head_loss: `(variables, features, batch) -> scalar`, the loss given the features; None without `features`.
        metrics: what is evaluated, each a `Metric`; the first one is the main one.
        base: what the parameters are changes of, as `fedamp_jax.models.adapted` makes it; None for nothing.
        predict_features: `(variables, x [B, ...]) -> features [B, ...]` float32, the body alone in evaluation mode,
            whose features `predict` passes to the head; None if the model cannot be split there. For methods that
            compare features: FedProto, FedPAC, kNN-Per.
    """

    init: Callable[[Array], Variables]
    loss: Callable[[Variables, Batch, Array], tuple[Array, PyTree]]
    predict: Callable[[Variables, Any], Array]
    head: tuple[str, ...] = ("head",)
    features: Callable[[Variables, Batch, Array], tuple[Array, PyTree]] | None = None
    head_loss: Callable[[Variables, Array, Batch], Array] | None = None
    metrics: tuple[Metric, ...] = (ACCURACY,)
    base: Base | None = None
    predict_features: Callable[[Variables, Any], Array] | None = None


class View(NamedTuple):
    """A part of each client's examples, drawn at random: a range in a random order of them.

    Row i of the view is row `shuffled(first + i)` of the client's data, for the permutation of `0..total-1` that
    follows from the seed (`fedamp_jax.kernels.shuffle`). No example is copied.

    Attributes:
        seed: `[M, 2]` uint32; `[2]` for ONE client, as the others then are `[]`.
        first: `[M]` int32, where the range begins.
        total: `[M]` int32, the number of examples before the division.
    """

    seed: Array
    first: Array
    total: Array


class Data(NamedTuple):
    """The data of all clients, one client's examples after the other's. `fedamp_jax.data` builds and validates it.

    In the functions of ONE client, x and y are those of all clients, and the other arrays are its own numbers `[]`:
    `fedamp_jax.engine.take_batch` reads its examples. A client costs what its own examples cost, in memory and in time.

    Attributes:
        x: `[T, ...]`, or a dictionary or tuple of such arrays; uint8 stays uint8 until a step reads it. Rows that
            belong to no client never reach a result.
        y: `[T]` int32 labels, or `[T, ...]` float32 targets.
        start: `[M]` int32, the row of x and y where the client's examples begin.
        size: `[M]` int32, how many it has. 0 for a client without test data, and for a padding client, which
            `Placement.place` adds where the devices do not divide the clients.
        classes: `[M]` int32, each client's number of classes; 0 if y are targets.
        id: `[M]` int32, the client's identity in random number generation: results follow it, not the position.
        online: `[M]` bool, whether the client takes part in this round. An offline client neither trains nor sends, and
            a client without examples is offline in every round.
        longest: at least the largest size; static.
        views: divisions of the clients' examples, the last one inmost: `size` rows of the last are the client's data.
        placement: where the clients live; static, so it is a part of the tree's structure and holds no array.
        typical: the largest size that is at most twice the median; static, 0 if it is not known. Where it is far below
            `longest`, clients up to it run a program of their own, with narrower batches (see `layout.parts`).
        larger: at least the number of clients with more than `typical` examples in this process; static.
    """

    x: PyTree
    y: Array
    start: Array
    size: Array
    classes: Array
    id: Array
    online: Array
    longest: Static
    views: tuple[View, ...] = ()
    placement: Placement = Placement()
    typical: Static = Static(0)
    larger: Static = Static(0)

    @property
    def clients(self) -> int:
        """The number of clients, padding clients not counted."""
        return self.placement.count(len(self.size))

    def client(self, i: int) -> "Data":
        """ONE client's data, as the functions of a method get them; `i`: its position."""
        return self._of(i)

    def select(self, clients: Any) -> "Data":
        """Some of the clients, or all in another order, by positions `[K]` or mask `[M]`; no example is copied.

        >>> import fedamp_jax
        >>> train, test, groups = fedamp_jax.data.federation("digits")
        >>> train.select([3, 0]).id.tolist()
        [3, 0]
        """
        return self._of(np.asarray(clients))

    def examples(self, i: int) -> tuple[PyTree, Array]:
        """The examples of the client at position `i`, `(x [N, ...], y [N])`, of concrete data.

        >>> import fedamp_jax
        >>> train, test, groups = fedamp_jax.data.federation("digits")
        >>> x, y = train.examples(3)
        >>> x.shape, y.shape
        ((70, 8, 8), (70,))
        """
        rows = positions(self.select([i]))
        return jax.tree.map(lambda a: jnp.take(a, rows, axis=0), (self.x, self.y))

    def _of(self, rows: Any) -> "Data":
        own = self._replace(x=None, y=None)
        return jax.tree.map(lambda a: a[rows], own)._replace(x=self.x, y=self.y)


class Info(NamedTuple):
    """What a round reports beside its state; it may be plotted and dropped.

    Attributes:
        loss: `[M]` float32, the client's training loss, averaged over its steps (without penalties); 0 if offline.
        epochs: `[M]` int32, local epochs trained; 0 if offline.
        rejected: `[M]` bool, the client's update was not finite and was discarded.
        xi: `[M, M]` float32, the weights by which this round mixed models for each client, rows receive: attention
            weights, or the shares of the members of its cluster; None for methods without either.
        error: `[]` int32, 0 if the round was carried out, else a code of the algorithm's own; None if it cannot fail.
    """

    loss: Array
    epochs: Array
    rejected: Array
    xi: Array | None = None
    error: Array | None = None


class RoundError(ValueError):
    """A round that its algorithm refused. Attributes: state: the state after it, with the models from before it."""

    state: Any = None


class Algorithm(NamedTuple):
    """A federated method: pure functions, of which three are required.

    Attributes:
        init: `(key, data) -> state`, a NamedTuple of its own type that holds what must survive a restart.
        round: `(key, state, data) -> (state, Info)`, one communication round. `fedamp_jax.round` compiles it.
        personalize: `(key, state, data) -> Variables [M, ...]`, the models to use; evaluation sees only these.
        explain: `(info, data) -> RoundError` for a round whose `info.error` is not 0; None with `info.error` None.
        join: `(state, fresh) -> state`, how further clients start (see `fedamp_jax.join`): `fresh` is what `init` gives
            all clients, with the newcomers last, and comes back with what newcomers get in leaves `[M, ...]`; the other
            clients' rows there, and leaves without clients, are not read. None: newcomers start as in `init`.
        reader: `data -> Task`, for a method whose models are none of the task that it trains: the task whose `predict`
            reads what `personalize` gives for these training data. None: the task that it was made with.
    """

    init: Callable[[Array, Data], Any]
    round: Callable[[Array, Any, Data], tuple[Any, Info]]
    personalize: Callable[[Array, Any, Data], Variables]
    explain: Callable[[Info, Data], RoundError] | None = None
    join: Callable[[Any, Any], Any] | None = None
    reader: Callable[[Data], Task] | None = None
