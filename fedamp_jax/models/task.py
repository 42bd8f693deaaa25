"""From a Flax Linen module to a `Task`: the only thing that the engine knows about a model."""

import inspect
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedamp_jax.types import Array, Batch, PyTree, Task, Variables

# Finite, so that no inf - inf can arise; so low that its probability underflows to exactly 0 beside any real logit.
_NEVER = -1e30


def cross_entropy(logits: Array, batch: Batch) -> Array:
    """Mean cross entropy over the real rows of a batch and the client's own classes.

    Logits of classes that the client does not have get probability and gradient exactly 0. Rows where `batch.mask` is
    False are selected away before anything is computed from them: NaN there reaches neither the value nor the gradient.

    Args:
        logits: `[B, C]` float.
        batch: its `y`, `mask` and `classes` are read, `x` is not.

    Returns:
        `[]` float32; 0 if no row is real.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedamp_jax.models import cross_entropy
        >>> from fedamp_jax.types import Batch
        >>> batch = Batch(x=jnp.zeros((2, 1)), y=jnp.array([0, 0]), mask=jnp.array([True, False]), classes=jnp.array(2))
        >>> round(float(cross_entropy(jnp.zeros((2, 5)), batch)), 4)  # two classes of its own: log 2
        0.6931
    """
    column = jnp.arange(logits.shape[1], dtype=jnp.int32)[None, :]
    # The inner selection keeps NaN out of log_softmax, whose derivative would turn a zero cotangent into NaN again.
    safe = jnp.where(batch.mask[:, None], logits.astype(jnp.float32), jnp.float32(0))
    log_p = jax.nn.log_softmax(jnp.where(column < batch.classes, safe, jnp.float32(_NEVER)))
    # A comparison instead of an index: its gradient is a select, where an index's would be a scatter.
    picked = jnp.where((batch.y[:, None] == column) & batch.mask[:, None], log_p, jnp.float32(0))
    count = jnp.maximum(jnp.sum(batch.mask, dtype=jnp.float32), jnp.float32(1))
    return -jnp.sum(picked) / count


def to_float(x: Array) -> Array:
    """Makes network input of what a data set stores: uint8 to float32 in 0..1, other floats to float32, else as is.

    Args:
        x: any shape; uint8 images, floats, or integers that a model looks up itself.

    Returns:
        The same shape.
    """
    if x.dtype == jnp.uint8:
        return x.astype(jnp.float32) / jnp.float32(255)
    return x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x


def keep_rows(x: Array, mask: Array) -> Array:
    """Replaces padding rows by zeros, whatever they hold.

    Args:
        x: `[B, ...]`.
        mask: `[B]` bool.

    Returns:
        `[B, ...]`, rows where `mask` is False are 0.
    """
    return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - 1)), x, jnp.zeros((), x.dtype))


class Classifier(nn.Module):
    """A body that makes features and a linear head: the cut that personalized methods make.

    Parameters are `params["body"]` and `params["head"]`.

    Attributes:
        body: a module with `__call__(x [B, ...], train, mask [B]) -> [B, F]`.
        classes: C, the width of the head.
    """

    body: nn.Module
    classes: int

    def setup(self):
        self.head = nn.Dense(self.classes)

    def features(self, x: Array, train: bool, mask: Array) -> Array:
        """`[B, F]` float32, what the head sees."""
        return self.body(x, train, mask).astype(jnp.float32)

    def logits(self, features: Array) -> Array:
        """`[B, C]` float32, the head alone."""
        return self.head(features)

    def __call__(self, x: Array, train: bool, mask: Array) -> Array:
        """`[B, C]` float32."""
        return self.logits(self.features(x, train, mask))


class _Module:
    """Calls a Linen module whatever of `train` and `mask` its methods take, and keeps its statistics apart."""

    def __init__(self, model: nn.Module, shape: tuple[int, ...], dtype: Any):
        self.model, self.shape, self.dtype = model, shape, dtype

    def example(self, rows: int = 1) -> Array:
        return jnp.zeros((rows, *self.shape), self.dtype)

    def keywords(self, method: str, train: bool, mask: Array) -> dict[str, Any]:
        taken = inspect.signature(getattr(type(self.model), method)).parameters
        return {name: value for name, value in (("train", train), ("mask", mask)) if name in taken}

    def init(self, key: Array) -> dict[str, Any]:
        x = self.example()
        keywords = self.keywords("__call__", False, jnp.ones(1, bool))
        return dict(self.model.init({"params": key, "dropout": key}, to_float(x), **keywords))

    def input(self, x: Array) -> Array:
        """Checks the shape while tracing: a broadcast deep inside a network names nothing that the user wrote."""
        if x.shape[1:] not in (self.shape, (*self.shape, 1)) and (*x.shape[1:], 1) != self.shape:
            raise ValueError(
                f"x has shape {x.shape}, but this model was made for examples of shape {self.shape}, that is for x of "
                f"shape {('B', *self.shape)}: make the model with shape={tuple(x.shape[1:])}, or reshape the data"
            )
        x = x.reshape(x.shape[:1] + self.shape)
        # Tokens arrive as floats: a data set stores all numbers but uint8 as float32, which holds them up to 2^24.
        tokens = jnp.issubdtype(self.dtype, jnp.integer) and self.dtype != jnp.uint8
        return x.astype(self.dtype) if tokens else to_float(x)

    def predict(self, variables: Variables, x: Array) -> Array:
        x = self.input(x)
        keywords = self.keywords("__call__", False, jnp.ones(x.shape[0], bool))
        logits: Any = self.model.apply(_collections(variables), x, **keywords)
        return logits.astype(jnp.float32)

    def train(self, variables: Variables, batch: Batch, key: Array, method: str) -> tuple[Array, PyTree]:
        # Zero rows in place of padding: past this line no NaN exists that a backward pass could multiply by 0.
        x = keep_rows(self.input(batch.x), batch.mask)
        some = jnp.any(batch.mask)
        # Statistics of no row at all would be 0 / 0; with a batch of only padding they are thrown away below.
        keywords = self.keywords(method, True, batch.mask | ~some)
        out, changed = self.model.apply(
            _collections(variables), x, **keywords, rngs={"dropout": key}, mutable=["batch_stats"], method=method
        )
        new = changed.get("batch_stats", ())
        return out, jax.tree.map(lambda new, old: jnp.where(some, new, old), new, variables.stats)


def _collections(variables: Variables) -> dict[str, PyTree]:
    stats = {"batch_stats": variables.stats} if jax.tree.leaves(variables.stats) else {}
    return {"params": variables.params, **stats}


def _find_head(paths: Sequence[str], head: Sequence[str] | str | None) -> tuple[str, ...]:
    """The prefixes of the head's parameters; every one must name at least one parameter."""
    tops = list(dict.fromkeys(path.split("/")[0] for path in paths))
    if head is None:
        return ("head",) if "head" in tops else (tops[-1],)
    head = (head,) if isinstance(head, str) else tuple(head)
    if not head:
        raise ValueError(f"head names no parameter; give the beginnings of some of these paths: {', '.join(paths)}")
    for prefix in head:
        if not any(path == prefix or path.startswith(prefix + "/") for path in paths):
            raise ValueError(f"head={prefix!r} is the beginning of no parameter's path; there are: {', '.join(paths)}")
    return head


def _inspect(module: _Module) -> tuple[list[str], jax.ShapeDtypeStruct]:
    """Parameter paths in the order in which the model makes them, and the logits' shape; computes nothing."""
    paths: list[str] = []

    def shapes(key):
        variables = module.init(key)
        extra = sorted(set(variables) - {"params", "batch_stats"})
        if extra:
            raise ValueError(f"the model has variables {extra}; only 'params' and 'batch_stats' are supported")
        if not jax.tree.leaves(variables.get("params", {})):
            raise ValueError("the model has no parameters")
        paths.extend(_paths(variables["params"]))
        return module.predict(Variables(variables["params"], variables.get("batch_stats", ())), module.example())

    logits = jax.eval_shape(shapes, jax.random.key(0))
    if logits.ndim != 2:
        raise ValueError(f"logits must be [B, C]; for x of shape {(1, *module.shape)} the model gives {logits.shape}")
    return paths, logits


def _paths(tree: Any, prefix: str = "") -> list[str]:
    if not hasattr(tree, "items"):
        return [prefix]
    return [path for name, child in tree.items() for path in _paths(child, f"{prefix}/{name}" if prefix else name)]


def from_linen(
    model: nn.Module, sample_shape: Sequence[int], *, head: Sequence[str] | str | None = None, dtype: Any = jnp.float32
) -> Task:
    """Makes a `Task` of a Flax Linen module.

    The module's `__call__(x)` may also take `train` (bool) and `mask` (`[B]` bool, True for real rows; give it to
    BatchNorm as `mask=mask[:, None]`, so that a partial batch is normalised by its real rows only). uint8 inputs reach
    it as float32 in 0..1, padding rows as zeros. BatchNorm's statistics (`batch_stats`) become `Variables.stats`; a
    random generator named `dropout` is there in training.

    Args:
        model: the module; a `Classifier` also gives the task `features` and `head_loss`.
        sample_shape: the shape of one example, without the batch axis.
        head: beginnings of the paths of the parameters that make the personal head, whole names between slashes
            (`"Dense_1"` is not the beginning of `"Dense_10/kernel"`). Default: `"head"` if the model has such a layer,
            else the last top-level layer that it makes.
        dtype: what the model takes. An integer type other than uint8, for models that look tokens up, gets the data
            set's numbers as such; all others get float32.

    Returns:
        The task; its loss is `cross_entropy`.

    Raises:
        ValueError: a prefix of `head` names no parameter; logits are not `[B, C]`; the model has collections other
            than `params` and `batch_stats`. While tracing: x is not of the sample shape.

    Example:
        >>> import flax.linen as nn, jax
        >>> from fedamp_jax.models import from_linen
        >>> task = from_linen(nn.Sequential([nn.Dense(16), nn.relu, nn.Dense(3)]), (4,))
        >>> task.head
        ('layers_2',)
        >>> task.predict(task.init(jax.random.key(0)), jax.numpy.ones((5, 4))).shape
        (5, 3)
    """
    module = _Module(model, tuple(sample_shape), dtype)
    paths, _ = _inspect(module)

    def init(key: Array) -> Variables:
        variables = module.init(key)
        return Variables(variables["params"], variables.get("batch_stats", ()))

    def loss(variables: Variables, batch: Batch, key: Array) -> tuple[Array, PyTree]:
        logits, stats = module.train(variables, batch, key, "__call__")
        return cross_entropy(logits, batch), stats

    def features(variables: Variables, batch: Batch, key: Array) -> tuple[Array, PyTree]:
        return module.train(variables, batch, key, "features")

    def head_loss(variables: Variables, features: Array, batch: Batch) -> Array:
        rows = keep_rows(features, batch.mask)
        logits: Any = model.apply(_collections(variables), rows, method="logits")
        return cross_entropy(logits, batch)

    cut = isinstance(model, Classifier)
    return Task(
        init, loss, module.predict, _find_head(paths, head), features if cut else None, head_loss if cut else None
    )
