"""The one seam between methods and devices.

A method says what happens to every client and what is computed from all models. A `Placement` decides on which device
that runs, and offers four verbs for it:

- `for_each_client` runs a function of ONE client for all of them;
- `for_each_pair` runs a function of one client and another one's model for all pairs;
- `by_parameters` lays models out by parameters in place of clients, for what the server computes across clients;
- `replicate` puts a small result on every device.

`Data` carry their placement, so that a compiled program always is the one for the place where its arrays lie.
"""

import dataclasses
import functools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.core import Tracer
from jax.sharding import NamedSharding

from fedamp_jax import platforms
from fedamp_jax.checks import check_integer
from fedamp_jax.layout import D, Part, parts, with_examples, within, without_examples
from fedamp_jax.programs import cost, memory
from fedamp_jax.programs.jaxpr import OneClient, repeat, together


@jax.tree_util.register_static
@dataclasses.dataclass(frozen=True, kw_only=True)
class Placement:
    """All clients on one device, JAX's default one. `OnMesh` and `InHostMemory` are the other placements.

    Attributes:
        chunk: how many clients a device trains side by side; None chooses (see `side_by_side`). No result depends on
            it, but for the order in which sums are rounded: parameters agree to about 1e-5, relative, after a few
            rounds.
        transmit: what becomes of a client's update on its way to the server, `(key, client, update) -> update` for ONE
            client, such as noise, quantization or a fault (see `fedamp_jax.corrupted`); None: it arrives as it was
            sent.

    Raises:
        TypeError, ValueError: if `chunk` is not a whole number of at least 1.

    >>> import fedamp_jax
    >>> Placement(chunk=5).place(fedamp_jax.data.federation("digits").train).placement
    Placement(chunk=5, transmit=None)
    """

    chunk: int | None = None
    transmit: Callable[[Array, Any, Any], Any] | None = None

    def __post_init__(self):
        if self.chunk is not None:
            check_integer("chunk", self.chunk, low=1)
        if self.transmit is not None and not callable(self.transmit):
            raise TypeError(f"transmit must be a function (key, client, update) -> update, got {self.transmit!r}")

    # --- properties ---------------------------------------------------------------------------------------------------

    @property
    def platform(self) -> str:
        """The platform that programs are compiled for: `"cpu"`, `"gpu"` or `"tpu"`."""
        return self.first_device.platform

    @property
    def devices(self) -> int:
        """How many devices share the clients."""
        return 1

    @property
    def holds_examples(self) -> bool:
        """Whether the examples are here, and not with clients that are elsewhere."""
        return True

    def count(self, rows: int) -> int:
        """The number of clients among `rows` rows, padding clients not counted."""
        return rows

    def rows(self, clients: int) -> int:
        """The number of rows that `clients` clients take."""
        return clients

    def side_by_side(self, clients: int, client: OneClient | None = None, at_most: int | None = None) -> int:
        """How many of a device's clients it trains side by side: `chunk`, or what suits its platform and its memory.

        Args:
            clients: clients of the device.
            client: what runs for each of them; None: something small.
            at_most: a further limit.
        """
        chosen = self.chunk
        if chosen is None:
            chosen = platforms.side_by_side(self.platform, lambda: client is not None and client.convolves)
            room = memory.room(self.first_device)
            if client is not None and room is not None and chosen != 1:
                fit = max(1, memory.side_by_side(room, self.standing(client), client.peak))
                chosen = fit if chosen is None else min(fit, chosen)
        return min(n for n in (chosen, clients, at_most) if n is not None)

    def standing(self, client: OneClient) -> int:
        """Bytes that a device holds of all its clients while `client` runs for each of them."""
        return client.held // self.devices

    @property
    def first_device(self) -> Any:
        """One of the devices, if possible of this process."""
        return platforms.default_device()

    @property
    def shared(self) -> Any:
        """The sharding of arrays that all clients read, such as a pretrained model; None: wherever they are."""
        return None

    # --- getting there ------------------------------------------------------------------------------------------------

    def place(self, data: D) -> D:
        """The data, moved to where this placement keeps clients; `data.placement` says so from then on."""

        def put(a: Any) -> Array:
            a = jnp.asarray(a)
            moves = type(data.placement) is not type(self) and not isinstance(a, Tracer) and not is_spread(a)
            return jax.device_put(a, self.first_device) if moves and a.committed else a

        return jax.tree.map(put, data)._replace(placement=self)

    def init(self, algorithm: Any, key: Array, data: Any) -> Any:
        """`algorithm.init(key, data)`, made where the state will lie."""
        return algorithm.init(key, data)

    def shapes(self, data: Any) -> Any:
        """Abstract data as `place` would leave them, for a compilation that needs no arrays."""
        return jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), data)._replace(placement=self)

    def state_shapes(self, algorithm: Any, key: Any, data: Any) -> Any:
        """The abstract state for abstract data."""
        return jax.eval_shape(algorithm.init, key, data)

    # --- running ------------------------------------------------------------------------------------------------------

    def call(self, compiled: Callable[..., Any], static: tuple, *args: Any) -> Any:
        """`compiled(*static, *args)`.

        Args:
            compiled: a function from `jax.jit`, of which the first arguments are static.
            static: these.
            *args: trees of arrays.
        """
        return compiled(*static, *args)

    def compile(self, compiled: Any, static: tuple, *shapes: Any) -> None:
        """Compile what `call` with such arguments will run, which then finds it; the arguments may be abstract."""
        compiled.lower(*static, *shapes).compile()

    def program(self, fn: Callable[..., Any]) -> Callable[..., Any]:
        """`fn`, to be compiled for this placement: `jax.jit(placement.program(fn))`."""
        return fn

    def settle(self, state: Any, rows: int) -> Any:
        """Within a compiled round, fix where the new state lies, so that every round starts alike."""
        return state

    def replicate(self, tree: Any) -> Any:
        """Arrays that are small, and that every device (and so every process) gets whole."""
        return tree

    def estimate(self, compiled: Any, static: tuple, *shapes: Any) -> Any:
        """What a call of `compiled` takes, from abstract arguments: an object that can be printed."""
        return cost.estimate(compiled.trace(*static, *shapes), self, *shapes)

    def fitting(self, need: "Callable[[Placement], memory.Need | None]", chosen: Callable[[], int]) -> "Placement":
        """This placement, with a smaller chunk if a program turns out to take more than a device's memory.

        Args:
            need: what the program takes when it is compiled for a placement, None if the compiler refuses it.
            chosen: how many clients this placement trains side by side in the program.
        """
        room = memory.room(self.first_device)
        if self.chunk is not None or room is None:
            return self
        if self.platform == "tpu":
            room = sys.maxsize  # what its compiler accepts does fit, even if the sizes in its analysis add up to more
        chunk = memory.largest_chunk(lambda chunk: need(dataclasses.replace(self, chunk=chunk)), chosen, room)
        return self if chunk is None else dataclasses.replace(self, chunk=chunk)

    # --- the verbs of a method ----------------------------------------------------------------------------------------

    def for_each_client(
        self,
        step: Callable[..., Any],
        data: Any,
        out: Any,
        *args: Any,
        work: Array,
        at_most: int | None = None,
    ) -> Any:
        """`out` with the rows of all clients that have work replaced by `step(client, out_i, *args_i)`.

        Args:
            step: a function of ONE client, which may close over arrays that all clients share.
            data: all clients' `Data`, of which `step` gets one client's.
            out: leaves `[M, ...]`; `step` returns a tree like one row of it.
            *args: further trees with leaves `[M, ...]`, of which `step` gets one row.
            work: `[M]`, how long each client takes. The longest go first, so that clients that run side by side are of
                similar length; those with 0 may not be run at all.
            at_most: a further limit to it.

        Returns:
            A tree like `out`.
        """
        refuse_spread((data, out, args))
        chunk = self.side_by_side(len(work), one_client(step, data, out, *args), at_most)
        return in_chunks(step, chunk, work, data, out, *args)

    def for_each_pair(
        self,
        fn: Callable[..., Callable[[Any], Array]],
        data: Any,
        columns: Any,
        *args: Any,
        work: Array,
    ) -> Array:
        """`fn(client_i, *args_i)(columns_j) -> scalar float32` for all pairs, `[M, M]`.

        Rows without `work [M]` may stay 0. On several devices the columns travel around, so that no device ever holds
        all of them.
        """

        def step(client: Any, out_i: Any, *args_i: Any) -> Any:
            return lax.map(fn(client, *args_i), columns)

        m = len(work)
        return self.for_each_client(step, data, jnp.zeros((m, m), jnp.float32), *args, work=work)

    def when(self, needed: Array, compute: Callable[[], Any], otherwise: Any) -> Any:
        """`compute()` if `needed []` is True, else `otherwise`, a tree like it: for what most rounds do without.

        `compute` may use the other verbs. Nothing of it is run or sent where it is not needed.
        """
        return lax.cond(needed, compute, lambda: otherwise)

    def by_parameters(self, tree: Any) -> "ByParameters":
        """All clients' models, leaves `[M, ...]`, laid out by parameters in place of clients over the devices."""
        refuse_spread(tree)
        return ByParameters(self, tree)


@dataclasses.dataclass(frozen=True)
class ByParameters:
    """All clients' models, laid out so that each device has its share of the parameters of every client.

    Attributes:
        placement: of the clients.
        tree: the models as they were given, leaves `[M, ...]`.
    """

    placement: Placement
    tree: Any

    def map(self, fn: Callable[[Array, Array], Array], fixed: Array) -> Any:
        """`fn(columns [M, d], fixed) -> [M, d]` for all parameters; a tree like the models, laid out by clients again.

        Args:
            fn: treats every column alike. A function with a name of its own, as it may be compiled once for all calls.
            fixed: what it needs whole.
        """
        return jax.tree.map(lambda a: fn(a.reshape(a.shape[0], -1), fixed).reshape(a.shape), self.tree)

    def sum(self, fn: Callable[[Array, Array], Array], fixed: Array) -> Array:
        """The sum over all parameters of `fn(columns [M, d], fixed) -> [M, M]` float32; arguments as in `map`."""
        flats = [a.reshape(a.shape[0], -1) for a in jax.tree.leaves(self.tree)]
        return sum((fn(flat, fixed) for flat in flats), jnp.zeros((len(flats[0]),) * 2, jnp.float32))


def in_chunks(step: Callable[..., Any], chunk: int, work: Array, data: Any, out: Any, *args: Any) -> Any:
    """`step(client, out_i, *args_i)` for each of M clients, `chunk` side by side, those with most `work [M]` first.

    Chunks that have no work at all are not run. Results are written into `out`'s own buffer: no second stack of models
    is made.
    """
    m, (own, examples) = len(work), without_examples(data)

    def program(part: Part) -> Callable[..., Any]:
        # On a CPU what a minibatch costs follows the array that it is read from: XLA shares out among threads what
        # reads from a large one, however little it reads.
        copied = part.width == 1 and part.reach <= data.typical and data.placement.platform == "cpu"

        def one(own: Any, *rows: Any) -> Any:
            return together(step, part.width)(within(with_examples(own, examples), part.reach, copied), *rows)

        # One client at a time runs without vmap, which would make every branch and loop of its step a selection.
        return jax.vmap(one) if part.width > 1 else lambda *rows: expand(one(*jax.tree.map(lambda a: a[0], rows)))

    several = parts(data, m, chunk)
    if several[0].width >= m:
        return program(several[0])(own, out, *args)
    number = (own.size <= data.typical).astype(jnp.int32) if len(several) > 1 else jnp.zeros((m,), jnp.int32)
    order = jnp.lexsort((-work, number, work <= 0))  # one part after the other, and then the clients without work

    def run_chunk(run: Callable[..., Any], width: int, begin: Any, end: Any, c: Any, out: Any) -> Any:
        place = begin + c * width + jnp.arange(width, dtype=jnp.int32)
        # The last chunk is filled up with clients behind the part's end, whose results are not written.
        read = order[jnp.minimum(place, m - 1)]
        write = jnp.where(place < end, read, m)
        result = run(*jax.tree.map(lambda a: a[read], (own, out, *args)))
        return jax.tree.map(lambda a, r: a.at[write].set(r, mode="drop"), out, result)

    begin = jnp.int32(0)
    for i, part in enumerate(several):
        members = (number == i) & (work > 0)
        if part.width >= m:  # All rows where they are: reordered ones would be a second stack of models.
            result = program(part)(own._replace(size=jnp.where(members, own.size, 0)), out, *args)
            out = jax.tree.map(
                lambda a, r, of=members: jnp.where(of.reshape(m, *(1,) * (a.ndim - 1)), r, a), out, result
            )
            continue
        end = begin + jnp.sum(members, dtype=jnp.int32)
        body = functools.partial(run_chunk, program(part), part.width, begin, end)
        chunks = (end - begin + part.width - 1) // part.width
        out, begin = repeat(chunks, body, out, at_most=-(-part.most // part.width)), end
    return out


def one_client(step: Callable[..., Any], data: Any, *args: Any) -> OneClient:
    """What is known of a step of ONE client before it is compiled."""
    own, examples = without_examples(data)
    return OneClient(lambda all_of, own, *rows: step(with_examples(own, all_of), *rows), own, *args, shared=examples)


def expand(tree: Any) -> Any:
    """A tree of one client as leaves `[1, ...]`."""
    return jax.tree.map(lambda a: jnp.asarray(a)[None], tree)


def refuse_spread(tree: Any) -> None:
    """Refuse arrays that are spread over several devices, where a placement expects them on one.

    XLA would partition the program by itself, and silently gather all models on every device.

    Raises:
        ValueError: if there is one; it says how to place data.
    """
    for a in jax.tree.leaves(tree):
        traced = not isinstance(a, jax.Array) or isinstance(a, Tracer)
        mesh = getattr(getattr(jax.typeof(a) if traced else a, "sharding", None), "mesh", None)
        if mesh is not None and mesh.size > 1 and not mesh.are_all_axes_manual:
            raise ValueError(
                f"arrays are spread over {mesh.size} devices, but the data's placement is a single device: let "
                "fedamp_jax.placement.OnMesh(mesh=...) place the data and make the state, with .place(data) and "
                ".init(algorithm, key, data)"
            )


def is_spread(a: Any) -> bool:
    """Whether a concrete array lies on more than one device."""
    return isinstance(a, jax.Array) and isinstance(a.sharding, NamedSharding) and a.sharding.mesh.size > 1
