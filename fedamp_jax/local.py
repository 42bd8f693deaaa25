"""Local training: one client's solver, and the one mechanism that runs it for all clients.

`solve` is written for ONE client with a dynamic number of steps. `for_each_client` gives it to all of them: it sorts
the round's clients by their work and runs chunks of them, each chunk one `vmap` that takes as many steps as its
longest member needs. That serves clients of different sizes, random numbers of epochs, partial participation and
memory limits alike.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedamp_jax import checks, layout, offload, stacked
from fedamp_jax.heads import join, split
from fedamp_jax.types import Array, Batch, Data, Info, PyTree, Task, Variables


@dataclasses.dataclass(frozen=True)
class Solver:
    """How a client trains in one round.

    Attributes:
        optimizer: an optax optimizer, or a function `round [] int32 -> optimizer` for learning rates that follow a
            schedule of the round.
        epochs: passes over the client's data in a round; a pair `(low, high)` draws a whole number uniformly from
            `low..high` for each client and round (the paper's heterogeneous training: `(1, 19)`).
        batch_size: examples per step. The last batch of a pass holds what is left; the data are reshuffled each pass.
        keep_optimizer: keep each client's optimizer state from round to round. The papers start afresh.
        chunk: clients trained side by side; None chooses (see `chunk_size`). No result depends on it, but for the order
            in which sums are rounded: parameters agree to about 1e-5, relative, after a few rounds.
        corrupt: for studies of faulty clients: `(key, client, trained) -> what it sends instead`, for ONE client; the
            same tree, of everything that its local training replaces. It must return `trained` for the honest ones.

    Raises:
        TypeError, ValueError: if a value is of the wrong kind or out of range.

    >>> Solver(optax.sgd(0.1), epochs=(1, 19), batch_size=32).max_epochs
    19
    """

    optimizer: optax.GradientTransformation | Callable[[Array], optax.GradientTransformation]
    epochs: int | tuple[int, int] = 10
    batch_size: int = 100
    keep_optimizer: bool = False
    chunk: int | None = None
    corrupt: Callable[[Array, Data, Any], Any] | None = None

    def __post_init__(self):
        if not isinstance(self.optimizer, optax.GradientTransformation):
            if not callable(self.optimizer):
                given = repr(self.optimizer)
                raise TypeError(f"optimizer must be an optax optimizer or a function of the round, got {given}")
            if str(getattr(self.optimizer, "__module__", "")).startswith("optax."):
                name = getattr(self.optimizer, "__name__", "adam")  # else the round would be its learning rate
                raise TypeError(f"optimizer is the function optax.{name}: call it, such as optax.{name}(1e-3)")
        low, high = self.epochs_range
        checks.whole("epochs", low, low=1)
        checks.whole("epochs (upper end of the range)", high, low=low)
        checks.whole("batch_size", self.batch_size, low=1)
        if self.chunk is not None:
            checks.whole("chunk", self.chunk, low=1)
        if self.corrupt is not None and not callable(self.corrupt):
            raise TypeError(f"corrupt must be a function (key, client, trained) -> sent, got {self.corrupt!r}")

    @property
    def epochs_range(self) -> tuple[int, int]:
        """Least and largest number of local epochs."""
        if isinstance(self.epochs, (tuple, list)):
            if len(self.epochs) != 2:
                raise ValueError(f"epochs must be a number or a pair (low, high), got {self.epochs!r}")
            low, high = self.epochs
            return low, high
        return self.epochs, self.epochs

    @property
    def max_epochs(self) -> int:
        """Largest number of local epochs in a round."""
        return self.epochs_range[1]

    def at_round(self, k: Array) -> optax.GradientTransformation:
        """The optimizer of round `k`."""
        return self.optimizer if isinstance(self.optimizer, optax.GradientTransformation) else self.optimizer(k)


def check_parts(task: Any, solver: Any, **others: Any) -> None:
    """Refuse what every method is made of, if it is something else; `others`: further solvers by name, or None.

    Raises:
        TypeError: if `task` is no `Task` or a solver no `Solver`.
    """
    checks.kind("task", task, Task, "such as fedamp_jax.models.mlp(classes=10)")
    for name, given in {"solver": solver, **{k: v for k, v in others.items() if v is not None}}.items():
        checks.kind(name, given, Solver, "such as fedamp_jax.Solver(optax.adam(1e-3))")


class Prox(NamedTuple):
    """The penalty `weight / 2 * ||w - center||^2` on the trained parameters.

    Attributes:
        center: a tree like the parameters.
        weight: `[]` float32; FedAMP's is `lam / alpha_k` (Eq. 6), FedProx's is `mu`.
    """

    center: PyTree
    weight: Array


class Local(NamedTuple):
    """What one client's training leaves behind.

    Attributes:
        variables: the model.
        optimizer: the optimizer's state if the solver keeps it, else `()`.
    """

    variables: Variables
    optimizer: PyTree = ()


def init_optimizer(solver: Solver, params: PyTree, trainable: PyTree | None = None) -> PyTree:
    """Optimizer states `[M, ...]` before the first round if the solver keeps them, else `()`; `params [M, ...]`."""
    if not solver.keep_optimizer:
        return ()
    optimizer = solver.at_round(jnp.zeros((), jnp.int32))
    return jax.vmap(lambda p: optimizer.init(split(p, trainable)[0]))(params)


def init_model(task: Task, key: Array) -> Variables:
    """`task.init(key)` in arrays of its own: rounds give the state away, and not what the task may hold."""
    return jax.tree.map(jnp.copy, task.init(key))


def init_clients(task: Task, solver: Solver, key: Array, data: Data, *, common: bool = True) -> Local:
    """`Local [M]` before the first round: one initial model for all clients, or one of each client's own."""
    if common:
        variables = stacked.broadcast(task.init(key), data.y.shape[0])
    else:
        variables = jax.vmap(lambda i: task.init(jax.random.fold_in(key, i)))(data.id)
    return Local(variables, init_optimizer(solver, variables.params))


def seeded(optimizer_state: PyTree, key: Array) -> PyTree:
    """An optimizer's state whose generators (of gradient noise) draw from ONE client's key of this round.

    As `optimizer.init` makes them they are alike for all clients, and in every round if the state starts afresh.
    """
    is_key = lambda a: isinstance(a, jax.Array) and jnp.issubdtype(a.dtype, jax.dtypes.prng_key)  # noqa: E731
    return jax.tree.map(lambda a: jax.random.fold_in(key, jax.random.bits(a)) if is_key(a) else a, optimizer_state)


def batch_width(solver: Solver, data: Data) -> int:
    """`B`: the solver's batch size, or the largest client's if that is smaller."""
    return min(solver.batch_size, data.y.shape[-1])


def minibatch_order(key: Array, size: Array, epochs: int, width: int) -> Array:
    """Row numbers in the order in which each pass reads them, `[epochs, width]` int32; real rows come first.

    Args:
        key: the client's key of this round.
        size: `[]` int32, the client's number of examples.
        epochs: number of passes.
        width: at least the padded length of the client's data; padding rows come last.
    """

    def one_pass(k: Array) -> Array:
        # Padding sorts behind every real row. Drawn for all passes at once, as a sort inside the step would cost as
        # much as the step of a small model.
        draw = jnp.where(jnp.arange(width) < size, jax.random.uniform(k, (width,), jnp.float32), jnp.inf)
        return jnp.argsort(draw).astype(jnp.int32)

    return jax.vmap(one_pass)(jax.random.split(key, epochs))


def take_batch(client: Data, rows: Array, real: Array) -> Batch:
    """The examples `rows [B]` of ONE client as a `Batch`; where `real [B]` is False, row 0 stands in and is masked."""
    rows = jnp.where(real, rows, 0)
    return Batch(client.x[rows], jnp.where(real, client.y[rows], 0), real, client.classes)


def fold_blocks(solver: Solver, client: Data, fold: Callable[[Batch, Array, Any], Any], carry: Any) -> Any:
    """`carry = fold(batch, rows [B], carry)` over all of ONE client's data in order, a batch at a time.

    What a method asks of the whole data set (a full gradient, all features) so needs no more memory than a step.
    """
    width = batch_width(solver, client)

    def block(b: Array, carry: Any) -> Any:
        rows = b * width + jnp.arange(width, dtype=jnp.int32)
        return fold(take_batch(client, rows, rows < client.size), rows, carry)

    return jax.lax.fori_loop(0, (client.size + width - 1) // width, block, carry)


def share_of(batch: Batch, client: Data) -> Array:
    """`[]` float32, how much of ONE client's data a batch is."""
    return jnp.sum(batch.mask, dtype=jnp.float32) / client.size.astype(jnp.float32)


def full_gradient(
    task: Task, solver: Solver, key: Array, client: Data, variables: Variables
) -> tuple[PyTree, PyTree, Array]:
    """Gradient of the mean loss over ALL of one client's data: `(gradient, new stats, loss [])`.

    Summed over batches, which is exact unless a batch's normalisation couples its examples.
    """

    def fold(batch: Batch, rows: Array, carry: tuple) -> tuple:
        grads, stats, total = carry
        share = share_of(batch, client)
        (value, stats), g = jax.value_and_grad(
            lambda p: task.loss(Variables(p, stats), batch, jax.random.fold_in(key, rows[0])), has_aux=True
        )(variables.params)
        return jax.tree.map(lambda a, b: a + share * b, grads, g), stats, total + share * value

    zero = jax.tree.map(jnp.zeros_like, variables.params)
    return fold_blocks(solver, client, fold, (zero, variables.stats, jnp.zeros((), jnp.float32)))


def solve(
    task: Task,
    solver: Solver,
    key: Array,
    client: Data,
    start: Variables,
    *,
    epochs: Array,
    k: Array,
    prox: Prox | None = None,
    correction: PyTree | None = None,
    trainable: PyTree | None = None,
    optimizer_state: PyTree = (),
) -> tuple[Local, Array]:
    """Train ONE client by minibatch gradient steps.

    Args:
        task: the model and its loss.
        solver: optimizer, batch size.
        key: the client's key of this round.
        client: one row of `Data`: `x [N, ...]`, `y [N]`, scalars for the rest.
        start: where training starts.
        epochs: `[]` int32, passes over the data; 0 returns `start`.
        k: `[]` int32, the round.
        prox: penalty on the distance from a centre. Its gradient `weight * (w - center)` is added to the loss's.
        correction: a tree like the parameters, added to every gradient (SCAFFOLD's `c - c_i`).
        trainable: a tree of Python bools like the parameters: what is trained; the rest is not even differentiated.
        optimizer_state: the state to go on from if `solver.keep_optimizer`.

    Returns:
        The trained `Local`, and the loss averaged over the steps, `[]` float32, without the penalty.
    """
    optimizer, batch_size = solver.at_round(k), batch_width(solver, client)
    trained, frozen = split(start.params, trainable)
    center = split(prox.center, trainable)[0] if prox is not None else None
    shift = split(correction, trainable)[0] if correction is not None else None

    key_order, key_steps, key_noise = jax.random.split(key, 3)
    opt_state = seeded(optimizer_state if solver.keep_optimizer else optimizer.init(trained), key_noise)
    padded = -(-client.y.shape[0] // batch_size) * batch_size
    order = minibatch_order(key_order, client.size, solver.max_epochs, padded)
    per_pass = (client.size + batch_size - 1) // batch_size

    def loss(trained: PyTree, stats: PyTree, batch: Batch, key: Array) -> tuple[Array, PyTree]:
        return task.loss(Variables(join(trained, frozen), stats), batch, key)

    def step(t: Array, carry: tuple) -> tuple:
        trained, stats, opt_state, total = carry
        first = (t % per_pass) * batch_size
        rows = jax.lax.dynamic_slice(order, (t // per_pass, first), (1, batch_size))[0]
        real = first + jnp.arange(batch_size) < client.size
        batch = take_batch(client, rows, real)
        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(
            trained, stats, batch, jax.random.fold_in(key_steps, t)
        )
        if prox is not None:
            weight = prox.weight
            grads = jax.tree.map(lambda g, w, c: g + weight * (w - c), grads, trained, center)
        if shift is not None:
            grads = jax.tree.map(jnp.add, grads, shift)
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer count
            updates, opt_state = optimizer.update(grads, opt_state, trained)
        return optax.apply_updates(trained, updates), stats, opt_state, total + value

    steps = epochs * per_pass
    carry = (trained, start.stats, opt_state, jnp.zeros((), jnp.float32))
    trained, stats, opt_state, total = jax.lax.fori_loop(0, steps, step, carry)
    local = Local(Variables(join(trained, frozen), stats), opt_state if solver.keep_optimizer else ())
    return local, total / jnp.maximum(steps, 1).astype(jnp.float32)


fitting = jax.make_user_context(None)
"""A context: its value, if not None, is how many clients of a device fit side by side (see `fedamp_jax.memory`)."""


def chunk_size(wanted: int | None, m: int, parameters: int) -> int:
    """How many clients to train side by side.

    On a GPU or TPU all of them, or as many as fit: the batched matmuls want to be large. On a CPU as many as keep
    parameters, gradients and optimizer state of a chunk (five copies) near the second-level cache; larger models one
    at a time, as one client's matmuls are large enough by themselves.

    Args:
        wanted: `Solver.chunk`; taken if given.
        m: number of clients.
        parameters: `D`.
    """
    if wanted is not None:
        return min(wanted, m)
    if fitting.value is not None:
        return min(fitting.value, m)
    if jax.default_backend() != "cpu":
        return m
    return max(1, min(m, (1 << 19) // max(parameters, 1)))


def draw_epochs(solver: Solver, keys: Array, online: Array) -> Array:
    """Local epochs of this round, `[M]` int32, from each client's own key; 0 for who is offline."""
    low, high = solver.epochs_range
    draw = jax.vmap(lambda k: jax.random.randint(k, (), low, high + 1, jnp.int32))(keys)
    return jnp.where(online, draw, 0)


def drawn_anew(solver: Solver, key: Array, epochs: Array) -> Array:
    """Epochs of a second training in a round, `[]` int32, for ONE client that trains the first one for `epochs`."""
    return draw_epochs(solver, jax.random.fold_in(key, 1 << 22)[None], epochs[None] > 0)[0]


def for_each_client(
    solver: Solver, key: Array, data: Data, local: Callable[..., tuple[Any, Array]], keep: Any, *args: Any
) -> tuple[Any, Info]:
    """Run `local` for every client that is online; on several devices each runs its own clients, in chunks of its own.

    Args:
        solver: for the number of epochs and the chunk.
        key: the round's key; a client's is `fold_in(key, client id)`, so nothing depends on order, chunk or company.
        data: all clients' data.
        local: `(key, client, epochs, keep_i, *args_i) -> (new keep_i, loss)` for ONE client.
        keep: a tree with leaves `[M, ...]`, what `local` replaces. A client that is offline, or whose result is not
            finite, keeps its row: a NaN is selected away here and reaches nobody.
        *args: further trees with leaves `[M, ...]` of which `local` gets its client's rows.

    Returns:
        The new `keep`, and `Info` without `xi`.
    """

    def one(key: Array, client: Data, epochs: Array, keep_i: Any, *args_i: Any) -> tuple[Any, Array, Array]:
        new, loss = local(key, client, epochs, keep_i, *args_i)
        if solver.corrupt is not None:
            new = solver.corrupt(jax.random.fold_in(key, 1 << 21), client, new)
        fine = stacked.all_finite(new)
        took_part = epochs > 0
        chosen = jax.tree.map(lambda a, b: jnp.where(fine & took_part, a, b), new, keep_i)
        return chosen, jnp.where(took_part, loss, 0.0), took_part & ~fine

    def on_device(data: Data, keep: Any, *args: Any) -> tuple[Any, Info]:
        keys = jax.vmap(lambda i: jax.random.split(jax.random.fold_in(key, i)))(data.id)
        epochs = draw_epochs(solver, keys[:, 0], data.online)
        m = data.y.shape[0]
        parameters = sum(a.size for a in jax.tree.leaves(keep)) // m
        chunk = chunk_size(solver.chunk or offload.most(parameters), m, parameters)
        new, loss, rejected = _in_chunks(one, chunk, epochs * data.size, keys[:, 1], data, epochs, keep, *args)
        return new, Info(loss, epochs, rejected)

    return layout.per_device(on_device)(data, keep, *args)


def _in_chunks(
    one: Callable[..., tuple], chunk: int, work: Array, key: Array, data: Data, epochs: Array, keep: Any, *args: Any
) -> tuple[Any, Array, Array]:
    """`one` for each of M rows, `chunk` at a time, the ones with most `work [M]` first; those without are not run."""
    m = len(work)
    if offload.active() is not None:
        some = lambda out, key, data, epochs, *args: jax.vmap(one)(key, data, epochs, out[0], *args)  # noqa: E731
        out = (keep, jnp.zeros((m,), jnp.float32), jnp.zeros((m,), bool))
        return offload.over_rows(some, chunk, work, out, key, data, epochs, *args)
    if chunk >= m:
        return jax.vmap(one)(key, data, epochs, keep, *args)

    # The longest first, so that a chunk's members are of like length and those without work fill whole chunks at the
    # end, which are not run. Results are written into `keep`'s own buffer: no second stack of models is made.
    order = jnp.argsort(-work, stable=True)
    order = jnp.concatenate([order, jnp.full((-m % chunk,), m, order.dtype)])
    needed = (jnp.sum(epochs > 0) + chunk - 1) // chunk

    def run_chunk(c: Array, out: tuple) -> tuple:
        rows = jax.lax.dynamic_slice_in_dim(order, c * chunk, chunk)  # row m is nobody: read clipped, never written
        key_c, client, epochs_c, keep_c, *args_c = jax.tree.map(
            lambda a: a.at[rows].get(mode="clip"), (key, data, epochs, out[0], *args)
        )
        result = jax.vmap(one)(key_c, client, jnp.where(rows < m, epochs_c, 0), keep_c, *args_c)
        return jax.tree.map(lambda a, r: a.at[rows].set(r, mode="drop"), out, result)

    out = (keep, jnp.zeros((m,), jnp.float32), jnp.zeros((m,), bool))
    return jax.lax.fori_loop(0, needed, run_chunk, out)
