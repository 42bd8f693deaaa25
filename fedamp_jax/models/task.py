"""Makes a `Task`, all that the algorithms need to know about a model, from a Flax Linen module."""

import inspect
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedamp_jax.types import Array, Batch, PyTree, Task, Variables

# Finite, to avoid inf - inf, and so low that the probability underflows to exactly 0.
_EXCLUDED = -1e30


def cross_entropy(logits: Array, batch: Batch) -> Array:
    """Mean cross entropy over the real rows of a batch and the client's own classes.

    Classes from `batch.classes` on have probability and gradient exactly 0. Padding rows, where `batch.mask` is False,
    affect neither the value nor the gradient, even if they are NaN.

    Args:
        logits: `[B, C]` floats.
        batch: the batch; `x` is not used.

    Returns:
        `[]` float32; 0 if there are no real rows.

    Example:
        >>> import jax.numpy as jnp
        >>> from fedamp_jax.models import cross_entropy
        >>> from fedamp_jax.types import Batch
        >>> batch = Batch(x=jnp.zeros((2, 1)), y=jnp.array([0, 0]), mask=jnp.array([True, False]), classes=jnp.array(2))
        >>> round(float(cross_entropy(jnp.zeros((2, 5)), batch)), 4)  # two classes: log 2
        0.6931
    """
    column = jnp.arange(logits.shape[1], dtype=jnp.int32)[None, :]
    # Replace padding before log_softmax: its derivative would multiply the zero cotangents by NaN.
    safe = jnp.where(batch.mask[:, None], logits.astype(jnp.float32), jnp.float32(0))
    log_p = jax.nn.log_softmax(jnp.where(column < batch.classes, safe, jnp.float32(_EXCLUDED)))
    # A comparison instead of indexing, because the gradient of indexing is a scatter.
    picked = jnp.where((batch.y[:, None] == column) & batch.mask[:, None], log_p, jnp.float32(0))
    count = jnp.maximum(jnp.sum(batch.mask, dtype=jnp.float32), jnp.float32(1))
    return -jnp.sum(picked) / count


def to_float(x: Array) -> Array:
    """Converts stored data to network input.

    Args:
        x: array of any shape.

    Returns:
        An array of the same shape: uint8 as float32 scaled to 0..1, floats as float32, other dtypes unchanged.
    """
    if x.dtype == jnp.uint8:
        return x.astype(jnp.float32) / jnp.float32(255)
    return x.astype(jnp.float32) if jnp.issubdtype(x.dtype, jnp.floating) else x


def keep_rows(x: Array, mask: Array) -> Array:
    """Replaces padding rows with zeros, even if they contain NaN.

    Args:
        x: `[B, ...]`.
        mask: `[B]` bool, True for real rows.

    Returns:
        `[B, ...]`, zeros where `mask` is False.
    """
    return jnp.where(mask.reshape(mask.shape + (1,) * (x.ndim - 1)), x, jnp.zeros((), x.dtype))


class Classifier(nn.Module):
    """A body that computes features, and a linear head, the part that several methods personalize.

    The parameters are `params["body"]` and `params["head"]`.

    Attributes:
        body: a module with `__call__(x [B, ...], train, mask [B]) -> [B, F]`.
        classes: number of classes C, the width of the head.
    """

    body: nn.Module
    classes: int

    def setup(self):
        self.head = nn.Dense(self.classes)

    def features(self, x: Array, train: bool, mask: Array) -> Array:
        """The input of the head, `[B, F]` float32."""
        return self.body(x, train, mask).astype(jnp.float32)

    def logits(self, features: Array) -> Array:
        """Applies the head to features `[B, F]`; returns logits `[B, C]` float32."""
        return self.head(features)

    def __call__(self, x: Array, train: bool, mask: Array) -> Array:
        """The logits, `[B, C]` float32."""
        return self.logits(self.features(x, train, mask))


class _Module:
    """A Linen module with a fixed input shape; passes `train` and `mask` only to methods that take them."""

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
        """Checks the shape of x while tracing, and converts x to the model's input."""
        if x.shape[1:] not in (self.shape, (*self.shape, 1)) and (*x.shape[1:], 1) != self.shape:
            raise ValueError(
                f"x has shape {x.shape}, but this model was made for examples of shape {self.shape}, that is, x of "
                f"shape {('B', *self.shape)}: make the model with shape={tuple(x.shape[1:])}, or reshape the data"
            )
        x = x.reshape(x.shape[:1] + self.shape)
        # Tokens arrive as float32, the dtype of all data but uint8; float32 represents integers up to 2^24 exactly.
        tokens = jnp.issubdtype(self.dtype, jnp.integer) and self.dtype != jnp.uint8
        return x.astype(self.dtype) if tokens else to_float(x)

    def predict(self, variables: Variables, x: Array) -> Array:
        x = self.input(x)
        keywords = self.keywords("__call__", False, jnp.ones(x.shape[0], bool))
        logits: Any = self.model.apply(_collections(variables), x, **keywords)
        return logits.astype(jnp.float32)

    def train(self, variables: Variables, batch: Batch, key: Array, method: str) -> tuple[Array, PyTree]:
        # Replace padding before the network: a backward pass would multiply its zero cotangents by NaN.
        x = keep_rows(self.input(batch.x), batch.mask)
        some = jnp.any(batch.mask)
        # Statistics of no rows would be 0 / 0: a batch of only padding uses all rows, and its statistics are discarded.
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
    """Returns the path prefixes of the head's parameters, after checking that each matches a parameter."""
    tops = list(dict.fromkeys(path.split("/")[0] for path in paths))
    if head is None:
        return ("head",) if "head" in tops else (tops[-1],)
    head = (head,) if isinstance(head, str) else tuple(head)
    if not head:
        raise ValueError(f"head is empty: give prefixes of some of the parameters' paths: {', '.join(paths)}")
    for prefix in head:
        if not any(path == prefix or path.startswith(prefix + "/") for path in paths):
            raise ValueError(f"head={prefix!r} is not a prefix of any parameter's path; paths are: {', '.join(paths)}")
    return head


def _inspect(module: _Module) -> tuple[list[str], jax.ShapeDtypeStruct]:
    """Returns the parameter paths in order of creation, and the shape of the logits; computes shapes only."""
    paths: list[str] = []

    def shapes(key):
        variables = module.init(key)
        extra = sorted(set(variables) - {"params", "batch_stats"})
        if extra:
            raise ValueError(f"the model has variables {extra}, but only 'params' and 'batch_stats' are supported")
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
    """Makes a `Task` from a Flax Linen module.

    Besides `x`, the module's `__call__` may take `train` (bool) and `mask` (`[B]` bool, True for real rows). Pass the
    mask on to `nn.BatchNorm` as `mask=mask[:, None]`, so that a partial batch is normalized by its real rows only.
    uint8 inputs are converted to float32 in 0..1, and in training padding rows are zeros. BatchNorm's statistics
    (`batch_stats`) become `Variables.stats`. In training, a random generator named `dropout` is available.

    Args:
        model: the module; a `Classifier` also gives the task `features` and `head_loss`.
        sample_shape: shape of one example, without the batch axis.
        head: path prefixes of the parameters that form the personal head. Names are matched as a whole: `"Dense_1"` is
            not a prefix of `"Dense_10/kernel"`. None means `"head"` if the model has such a layer, else the top-level
            layer that it creates last.
        dtype: dtype of the model's input. For an integer dtype other than uint8, as for models that look up tokens, x
            is converted to it; for all others to float32.

    Returns:
        A `Task` whose loss is `cross_entropy`.

    Raises:
        ValueError: if a prefix in `head` matches no parameter, logits are not `[B, C]`, or the model has collections
            other than `params` and `batch_stats`; while tracing, if x does not have the sample shape.

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

    split = isinstance(model, Classifier)
    return Task(
        init, loss, module.predict, _find_head(paths, head), features if split else None, head_loss if split else None
    )
