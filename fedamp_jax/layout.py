"""Where arrays lie on several devices, said while a round is traced: no method knows, two places do.

Local training runs on each device for its own clients (`per_device`). Aggregation lays the parameters instead of the
clients over the devices (`by_parameters`, `by_clients`: one all-to-all there, one back), so that no device ever holds
all models. On one device all of this is nothing. `fedamp_jax.sharding` places arrays before a round.
"""

import contextlib
import contextvars
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import get_opaque_trace_state, jaxpr_as_fun
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedamp_jax.types import Array, PyTree

AXIS = "clients"
"""The mesh axis that the clients are dealt out over."""

# A context of our own, part of jit's cache key, and not `jax.set_mesh`: see `placeless`.
_in_use = jax.make_user_context(None)

# What `by_parameters` has exchanged in the round that is being traced: ids of the leaves -> (leaves, trace, result).
_exchanged: contextvars.ContextVar[dict | None] = contextvars.ContextVar("_exchanged", default=None)


def use(mesh: Mesh | None) -> contextlib.AbstractContextManager:
    """The context in which to trace or call a compiled function for `mesh`; None is one device."""
    return _in_use(mesh)


def active() -> Mesh | None:
    """The mesh that what is being traced will run on; None on one device, and inside of `per_device`."""
    return _in_use.value


def _constrain(a: Array, *spec: str | None) -> Array:
    return jax.lax.with_sharding_constraint(a, NamedSharding(_in_use.value, P(*spec)))


def placeless(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, traced as if its arguments lay nowhere; plain `fn` where no mesh is in use.

    An argument of a jitted function carries the mesh that it lies on in its type. Where `per_device` runs a function
    that closes over such a value (a global model, say), `zeros_like` of it is refused: the mesh is not the one within.
    """
    if active() is None:
        return fn

    def call(*args: Any) -> Any:
        plain = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype, weak_type=a.weak_type), args)
        memo = _exchanged.set({})
        try:
            program, out = jax.make_jaxpr(fn, return_shape=True)(*plain)
        finally:
            _exchanged.reset(memo)
        return jax.tree.unflatten(jax.tree.structure(out), jaxpr_as_fun(program)(*jax.tree.leaves(args)))

    return call


def per_device(fn: Callable[..., Any]) -> Callable[..., Any]:
    """`fn`, run by each device on the rows that it holds; plain `fn` where no mesh is in use.

    Args:
        fn: takes and returns trees with leaves `[M, ...]` and treats every row alike: it sees some rows only. What it
            closes over is on every device.

    Returns:
        A function of the same arguments that causes no communication.

    Raises:
        ValueError: when it is called with a number of rows that the devices do not divide.
    """
    mesh = active()
    if mesh is None:
        return fn

    def spread(*args: Any) -> Any:
        m = jax.tree.leaves(args)[0].shape[0]
        if m % mesh.size:
            raise ValueError(f"{m} clients on {mesh.size} devices: let fedamp_jax.sharding.shard place the data")
        # check_vma would ask every loop of local training to mark its constants as different on each device.
        return jax.shard_map(alone, mesh=mesh, in_specs=P(AXIS), out_specs=P(AXIS), check_vma=False)(*args)

    def alone(*args: Any) -> Any:
        with _in_use(None):
            return fn(*args)

    return spread


def by_parameters(leaves: list[Array]) -> list[Array]:
    """Leaves `[M, ...]`, clients over the devices, as arrays `[M, d']` with parameters over them: an all-to-all each.

    d' is a multiple of the devices, filled up with zeros. Small leaves go together. Without a mesh, each leaf as
    `[M, d]`. Within one round the same leaves are exchanged once, however often they are asked for.
    """
    flats, mesh = [a.reshape(a.shape[0], -1) for a in leaves], active()
    if mesh is None:
        return flats
    known, name, here = _exchanged.get(), tuple(map(id, leaves)), get_opaque_trace_state()
    if known is not None and name in known and known[name][1] == here:
        return known[name][2]

    def exchange(group: list[int]) -> Array:
        flat = jnp.concatenate([flats[i] for i in group], axis=1)
        flat = jnp.pad(flat, ((0, 0), (0, -flat.shape[1] % mesh.size)))
        # The first constraint says where the padding is done: before the exchange, on each device's own rows.
        return _constrain(_constrain(flat, AXIS), None, AXIS)

    result = [exchange(group) for group in _groups(leaves, mesh)]
    if known is not None:
        known[name] = (leaves, here, result)  # with the leaves, so that their ids stay theirs
    return result


def by_clients(flats: list[Array], leaves: list[Array]) -> list[Array]:
    """The way back: arrays like those that `by_parameters(leaves)` gave, shaped and laid out as `leaves` are."""
    mesh = active()
    if mesh is None:
        return [flat.reshape(a.shape) for flat, a in zip(flats, leaves)]
    back = list(leaves)
    for flat, group in zip(flats, _groups(leaves, mesh)):
        flat, start = _constrain(_constrain(flat, None, AXIS), AXIS), 0
        for i in group:
            width = math.prod(leaves[i].shape[1:])
            back[i] = flat[:, start : start + width].reshape(leaves[i].shape)
            start += width
    return back


def _groups(leaves: list[Array], mesh: Mesh) -> list[list[int]]:
    """Which leaves are exchanged together: of one type, those with less than 64 numbers of a client for a device."""
    small: dict[Any, list[int]] = {}
    for i, a in enumerate(leaves):
        alone = math.prod(a.shape[1:]) >= 64 * mesh.size
        small.setdefault(i if alone else a.dtype, []).append(i)
    return list(small.values())


def summed(fn: Callable[..., Array], slices: list[Array], *args: Array) -> Array:
    """`fn(slices, *args)`, a sum over parameters: each device sums over its own, then the sums are added.

    Args:
        fn: returns an array whose contributions of different parameters add up.
        slices: arrays `[M, d']` from `by_parameters`.
        *args: arrays that every device gets whole.
    """
    mesh = active()
    if mesh is None:
        return fn(slices, *args)
    add = lambda *given: jax.lax.psum(fn(*given), AXIS)  # noqa: E731
    specs = (P(None, AXIS), *(P() for _ in args))
    return jax.shard_map(add, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)(slices, *args)


def settle(tree: PyTree, m: int) -> PyTree:
    """Say where a new state lies: leaves `[m, ...]` with their clients, the rest on every device, each round alike."""
    if active() is None:
        return tree
    return jax.tree.map(lambda a: _constrain(a, AXIS) if a.ndim and a.shape[0] == m else _constrain(a), tree)


def everywhere(tree: PyTree) -> PyTree:
    """Every device, and so every process, gets all of it: what is small and shall be read."""
    if active() is None:
        return tree
    return jax.tree.map(_constrain, tree)


def per_client(name: str, value: Array, m: int) -> Array:
    """`value`, a number or one per client, as `[m]`; rows that are nobody get NaN, and so does a client left without.

    Raises:
        ValueError: if there are not as many numbers as clients; `name` is what they are called.
    """
    mesh = active()
    missing = m - value.shape[0] if value.ndim else 0
    if not 0 <= missing < (mesh.size if mesh else 1):
        raise ValueError(f"{name} has {value.shape[0]} numbers for {m} clients")
    return jnp.pad(value, (0, missing), constant_values=jnp.nan) if value.ndim else jnp.broadcast_to(value, (m,))
