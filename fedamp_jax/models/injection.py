"""Other products inside the dense layers and convolutions of a Flax module, Linen or nnx, while a function runs."""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import flax.linen as nn
from flax import nnx
from jax import lax

from fedamp_jax.types import Array

Product = Callable[..., Array]
"""`(x, kernel, ...) -> y`: `lax.dot_general` or `lax.conv_general_dilated`, or what a layer has in their place."""


class Layer(NamedTuple):
    """A layer that multiplies its input by a kernel.

    Attributes:
        kind: `"dense"` or `"conv"`.
        inputs: how many of the kernel's axes, the first ones, the product sums over.
        axes: how many it has.
        product: what the layer computes with.
    """

    kind: str
    inputs: int
    axes: int
    product: Product


Visit = Callable[[str, Layer, Mapping[str, Any]], Product | None]
"""`(path, layer, params) -> product` for a layer such as `body/Dense_0` and its parameters, which may be more than it
knows; none while it is being made. None leaves the layer's own product.
"""

_FIELDS = {"dense": "dot_general", "conv": "conv_general_dilated"}
_VISIT: contextvars.ContextVar[Visit | None] = contextvars.ContextVar("visit", default=None)


@contextlib.contextmanager
def injected(visit: Visit) -> Iterator[None]:
    """Within it, dense layers and convolutions compute with the products that `visit` gives them.

    The layers' own fields `dot_general` and `conv_general_dilated` get other values in a call. Layers with groups or
    batch axes are not visited.

    Args:
        visit: what it closes over is the same in all calls: a part of a module may be compiled once for several. What
            differs comes with the parameters.
    """

    def call(run: Callable[..., Any], args: Any, given: Any, context: nn.module.InterceptorContext) -> Any:
        layer = context.module
        found = described(layer) if context.method_name == "__call__" and layer.path else None
        params = layer.variables.get("params", {})
        product = None if found is None else visit("/".join(layer.path), found, params)
        if found is None or product is None:
            return run(*args, **given)
        changed: Any = layer.clone(parent=None, **_changes(layer, found, product))
        return changed.apply({"params": params}, *args, **given)

    token = _VISIT.set(visit)
    try:
        with nn.intercept_methods(call):
            yield
    finally:
        _VISIT.reset(token)


def inject(module: nnx.Module, params: Mapping[Any, Any]) -> None:
    """What `injected` does to an nnx module that is about to be used, with these parameters."""
    visit = _VISIT.get()
    if visit is None:
        return
    for path, layer in nnx.iter_modules(module):
        found = described(layer)
        own: Any = functools.reduce(lambda tree, name: tree.get(name, {}), path, params)
        product = None if found is None else visit("/".join(map(str, path)), found, own)
        if found is not None and product is not None:
            for name, value in _changes(layer, found, product).items():
                setattr(layer, name, value)


def described(layer: Any) -> Layer | None:
    """What `visit` gets of a layer, None for others.

    >>> described(nn.DenseGeneral((2, 4), axis=(-2, -1)))[:3], described(nn.Conv(8, (3, 3)))[:3]
    (('dense', 2, 4), ('conv', 3, 4))
    """
    kind = inputs = axes = None
    if isinstance(layer, (nn.Dense, nnx.Linear)):
        kind, inputs, axes = "dense", 1, 2
    elif isinstance(layer, nn.DenseGeneral) and not layer.batch_dims:
        kind, inputs, axes = "dense", _count(layer.axis), _count(layer.axis) + _count(layer.features)
    elif isinstance(layer, nnx.LinearGeneral) and not layer.batch_axis:
        kind, inputs, axes = "dense", _count(layer.axis), _count(layer.axis) + _count(layer.out_features)
    elif isinstance(layer, (nn.Conv, nnx.Conv)) and layer.feature_group_count == 1:
        kind, inputs, axes = "conv", _count(layer.kernel_size) + 1, _count(layer.kernel_size) + 2
    if kind is None or inputs is None or axes is None:
        return None
    field = _FIELDS[kind]
    made = getattr(layer, f"{field}_cls", None)
    product = made() if made is not None else getattr(layer, field, None) or getattr(lax, field)
    return Layer(kind, inputs, axes, product)


def _count(axes: Any) -> int:
    return len(axes) if isinstance(axes, Sequence) else 1


def _changes(layer: Any, found: Layer, product: Product) -> dict[str, Any]:
    """The fields of a layer that make it compute with this product."""
    field = _FIELDS[found.kind]
    return {field: product, **({f"{field}_cls": None} if hasattr(layer, f"{field}_cls") else {})}
