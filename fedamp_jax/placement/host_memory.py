"""More models than a device can hold: they stay in the host's memory, and visit the device a few at a time.

A round is traced once and then run operation by operation by JAX's CPU backend, in whose memory all `[M, ...]` arrays
lie. What takes time goes to the device in pieces: local training a chunk of clients at a time (`rows_p`), mixtures and
distances a block of parameters at a time (`columns_p`). While the device computes on a piece, the next one is gathered
and sent. What most rounds do without is run if it is needed (`when_p`).
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import SingleDeviceSharding

from fedamp_jax.checks import check_type
from fedamp_jax.layout import D, contiguous
from fedamp_jax.placement import visits
from fedamp_jax.placement.placement import ByParameters, Placement, is_spread, one_client
from fedamp_jax.placement.visits import columns_p, host, pieces_of, rows_p, when_p
from fedamp_jax.programs import memory
from fedamp_jax.programs.jaxpr import OneClient, array_bytes, peak
from fedamp_jax.programs.kept import kept


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, kw_only=True)
class InHostMemory(Placement):
    """Clients kept in the host's memory, `chunk` of which visit a device at a time that cannot hold all of them.

    A round is not one compiled program then, and cannot be part of one: `jax.jit` of it is refused.

    Attributes:
        device: such as `jax.devices()[0]`.
        chunk: clients on the device at a time; None: as many as suit it.
        transmit: as in `Placement`.

    Raises:
        TypeError: if `device` is not a device.

    >>> import optax, fedamp_jax
    >>> placement = InHostMemory(device=jax.devices()[0], chunk=5)
    >>> train = placement.place(fedamp_jax.data.federation("digits").train)
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.separate(task, fedamp_jax.Solver(optax.adam(1e-3), epochs=1))
    >>> key = jax.random.key(0)
    >>> state, info = fedamp_jax.round(algorithm, placement.init(algorithm, key, train), train, key)
    """

    device: Any

    def __post_init__(self):
        super().__post_init__()
        check_type("device", self.device, jax.Device, "such as jax.devices()[0]")

    @property
    def first_device(self) -> Any:
        return self.device

    def standing(self, client: OneClient) -> int:
        """Nothing stands: clients only visit."""
        return 0

    def place(self, data: D) -> D:
        if any(map(is_spread, jax.tree.leaves(data))):
            raise ValueError("the data are spread over several devices: InHostMemory is for a single one")
        return jax.device_put(contiguous(data), host())._replace(placement=self)

    def init(self, algorithm: Any, key: Array, data: Any) -> Any:
        with jax.default_device(host()):
            return algorithm.init(key, data)

    def call(self, compiled: Any, static: tuple, *args: Any) -> Any:
        """`compiled(*static, *args)`, of which only the pieces above are compiled. Traced once."""
        leaves, tree = jax.tree.flatten(args)
        with jax.default_device(host()):
            program, out = traced(compiled.__wrapped__, static, tree, _kinds(leaves))
            return jax.tree.unflatten(out, jaxpr_as_fun(program)(*leaves))

    def compile(self, compiled: Any, static: tuple, *shapes: Any) -> None:
        """Nothing: the pieces of a round are compiled when they are first needed."""

    def fitting(self, need: Any, chosen: Any) -> Placement:
        return self

    def estimate(self, compiled: Any, static: tuple, *shapes: Any) -> "HostEstimate":
        leaves, tree = jax.tree.flatten(shapes)
        program, _ = traced(compiled.__wrapped__, static, tree, _kinds(leaves))
        return _estimate(program.jaxpr)

    def for_each_client(self, step, data, out, *args, work, at_most=None):
        chunk = self.side_by_side(len(work), one_client(step, data, out, *args), at_most)
        pieces = pieces_of(step, chunk, data, out, args)
        return jax.tree.unflatten(jax.tree.structure(out), pieces.run(work, self.device))

    def for_each_pair(self, fn, data, columns, *args, work):
        m = len(work)
        chunk = self.side_by_side(m, one_client(lambda one, column, *row: fn(one, *row)(column), data, columns, *args))

        def step(client: Any, _: Any, *row_and_some: Any) -> Any:
            *row, some = row_and_some
            return lax.map(fn(client, *row), some)

        def fill(a: Any) -> Any:
            return jnp.concatenate([a, jnp.broadcast_to(a[-1:], (-m % chunk, *a.shape[1:]))])

        # One program for all blocks of columns: a block is an argument that every chunk of rows gets whole.
        columns = jax.tree.map(fill, columns)
        blocks = [jax.tree.map(lambda a, c=c: a[c : c + chunk], columns) for c in range(0, m, chunk)]
        pieces = pieces_of(step, chunk, data, jnp.zeros((m, chunk), jnp.float32), args, whole=blocks[0])
        found = [pieces._replace(whole=jax.tree.leaves(block)).run(work, self.device)[0] for block in blocks]
        return jnp.concatenate(found, axis=1)[:, :m]

    def when(self, needed, compute, otherwise):
        program = jax.make_jaxpr(compute)()
        leaves, structure = jax.tree.flatten(otherwise)
        return jax.tree.unflatten(structure, when_p.bind(needed, *program.consts, *leaves, program=program.jaxpr))

    def by_parameters(self, tree: Any) -> ByParameters:
        return _InBlocks(self, tree)


@dataclasses.dataclass(frozen=True)
class _InBlocks(ByParameters):
    """Models of which a block of columns visits the device at a time."""

    placement: InHostMemory

    def map(self, fn, fixed):
        leaves, structure = jax.tree.flatten(self.tree)
        if not leaves:
            return self.tree
        new = columns_p.bind(fixed, *leaves, fn=fn, add=False, device=self.placement.device)
        return jax.tree.unflatten(structure, new)

    def sum(self, fn, fixed):
        return columns_p.bind(fixed, *jax.tree.leaves(self.tree), fn=fn, add=True, device=self.placement.device)[0]


def _kinds(leaves: list[Any]) -> tuple:
    return tuple((a.shape, a.dtype, getattr(a, "weak_type", False)) for a in leaves)


@kept
def traced(fn: Callable[..., Any], static: tuple, tree: Any, kinds: tuple) -> tuple[ClosedJaxpr, Any]:
    """The program of `fn(*static, ...)` and the structure of its result.

    Args:
        fn: a pure function.
        static: its first arguments, hashable.
        tree: the structure of the rest.
        kinds: `(shape, dtype, weak_type)` of each of their leaves.
    """
    shapes = [jax.ShapeDtypeStruct(shape, dtype, weak_type=weak) for shape, dtype, weak in kinds]
    made = functools.partial(fn, *static)
    program, out = jax.make_jaxpr(made, return_shape=True)(*jax.tree.unflatten(tree, shapes))
    return program, jax.tree.structure(out)


class HostEstimate(NamedTuple):
    """A round whose clients stay in the host's memory. All numbers are bytes.

    Attributes:
        host: state, data and everything between, at the worst moment.
        device: the largest piece with all that its computation needs, and the next one in line.
        sent: to the device in a round.
        returned: from the device in a round.
    """

    host: int
    device: int
    sent: int
    returned: int

    def __str__(self) -> str:
        host, device, sent, returned = map(memory.readable, self)
        return (
            f"{host} in the host's memory, {device} on the device at a time; a round sends {sent} and brings back "
            f"{returned}"
        )


def _estimate(jaxpr: Any) -> HostEstimate:
    largest = sent = returned = 0

    def count(eqn: Any) -> None:
        nonlocal largest, sent, returned
        if eqn.primitive in (rows_p, columns_p):
            sent += sum(array_bytes(v.aval) for v in eqn.invars)
            returned += sum(array_bytes(v.aval) for v in eqn.outvars)
            largest = max(largest, _on_device(eqn))

    most = peak(jaxpr, count)
    return HostEstimate(most, largest, sent, returned)


def _on_device(eqn: Any) -> int:
    """Bytes on the device for one of the pieces of work that an equation sends there."""
    if eqn.primitive is columns_p:
        fixed, *leaves = (v.aval for v in eqn.invars)
        block = min(visits.BLOCK_BYTES, max(map(array_bytes, leaves)))
        return array_bytes(fixed) + 2 * block + 2 * (array_bytes(eqn.outvars[0].aval) if eqn.params["add"] else block)
    there = SingleDeviceSharding(eqn.params["device"])
    most = {piece.part: piece for piece in reversed(eqn.params["programs"])}  # that for most examples of each part
    return max(_of_piece(piece, there, eqn.params["lengths"][1]) for piece in most.values())


def _of_piece(piece: Any, there: Any, whole: int) -> int:
    """Bytes on the device for a piece, the next one in line, and arrays that all get, the first `whole` arguments."""
    jaxpr = piece.jaxpr
    fixed, rows = (
        [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype, sharding=there) for v in some]
        for some in ([*jaxpr.constvars, *jaxpr.invars[:whole]], jaxpr.invars[whole:])
    )
    used = piece.compiled.lower(fixed, rows).compile().memory_analysis()
    return 2 * (used.argument_size_in_bytes + used.output_size_in_bytes) + used.temp_size_in_bytes
