"""Local training of ONE client, with a number of steps that may be traced; `clients` runs it for all."""

import dataclasses
import inspect
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax

from fedamp_jax.checks import check_integer, check_type
from fedamp_jax.engine.minibatches import for_each_minibatch
from fedamp_jax.engine.task_checks import check_task
from fedamp_jax.trees import check_float32, combine, partition, seeded
from fedamp_jax.types import Array, Batch, Data, PyTree, Task, Variables


class Penalty(Protocol):
    """A term of the local objective beside the loss. `Prox` is one."""

    def gradient(self, params: PyTree) -> PyTree:
        """Its gradient, a tree like `params`."""
        ...

    def value(self, params: PyTree) -> Array:
        """The term itself, `[]` float32, for optimizers that compare values of the objective."""
        ...


class Prox(NamedTuple):
    """The penalty `weight / 2 * ||w - center||^2` on the trained parameters.

    Attributes:
        center: a tree like the parameters.
        weight: `[]` float32; FedAMP's is `lam / alpha_k` (Eq. 6), FedProx's is `mu`.
    """

    center: PyTree
    weight: Array

    def gradient(self, params: PyTree) -> PyTree:
        """`weight * (w - center)`."""
        weight = self.weight  # read once: a tracer of its own for each leaf costs compile time
        return jax.tree.map(lambda w, c: weight * (w - c), params, self.center)

    def value(self, params: PyTree) -> Array:
        """`weight / 2 * ||w - center||^2`."""
        parts = jax.tree.map(lambda w, c: jnp.sum(jnp.square(w - c)), params, self.center)
        return self.weight / 2 * sum(jax.tree.leaves(parts), jnp.zeros((), jnp.float32))


@dataclasses.dataclass(frozen=True)
class Solver:
    """How a client trains in one round.

    Attributes:
        optimizer: an optax optimizer, or a function `round [] int32 -> optimizer` for learning rates that follow a
            schedule of the round, or a function `(round, client) -> optimizer` of ONE client's `Data` for rates of its
            own, such as `lambda k, client: optax.sgd(rates[client.id])`. A schedule inside an optax optimizer counts
            steps, and from 0 again in each round unless `keep_optimizer`; there is a warning where it can be detected.
            Optimizers that ask for more than the gradient, such as `optax.lbfgs` and
            `optax.contrib.reduce_on_plateau`, get the minibatch's objective: its `value`, its gradient `grad` and the
            function `value_fn`, with the method's penalty and correction.
        epochs: passes over the client's data in a round; a pair `(low, high)` draws a whole number uniformly from
            `low..high` for each client and round (the paper's heterogeneous training: `(1, 19)`); an integer array
            `[M]` gives each client its own number in every round.
        batch_size: examples per step. The last batch of a pass holds what is left.
        keep_optimizer: keep each client's optimizer state from round to round. The papers start afresh.
        shuffle: reshuffle the client's data in each pass; False reads them in the order in which they are stored.

    Raises:
        TypeError, ValueError: if a value is of the wrong kind or out of range.

    >>> Solver(optax.sgd(0.1), epochs=(1, 19), batch_size=32).max_epochs
    19
    """

    optimizer: optax.GradientTransformation | Callable[..., optax.GradientTransformation]
    epochs: int | tuple[int, int] | np.ndarray | Array = 10
    batch_size: int = 100
    keep_optimizer: bool = False
    shuffle: bool = True

    def __post_init__(self):
        if not isinstance(self.optimizer, optax.GradientTransformation):
            if not callable(self.optimizer):
                given = repr(self.optimizer)
                raise TypeError(f"optimizer must be an optax optimizer or a function of the round, got {given}")
            if str(getattr(self.optimizer, "__module__", "")).startswith("optax."):
                name = getattr(self.optimizer, "__name__", "adam")  # else the round would be its learning rate
                raise TypeError(f"optimizer is the function optax.{name}: call it, such as optax.{name}(1e-3)")
        if self.epochs_of_clients is not None and self.epochs_of_clients.dtype.kind not in "iu":
            raise TypeError(f"epochs must be whole numbers, got {self.epochs!r}")
        low, high = self.epochs_range
        check_integer("epochs", low, low=1)
        check_integer("epochs (upper end of the range)", high, low=low)
        check_integer("batch_size", self.batch_size, low=1)
        if not self.keep_optimizer and _schedule_restarts(self.optimizer):
            warnings.warn(
                "the optimizer's schedule counts the steps of one round, as its state starts afresh in each: give "
                "optimizer=lambda k: optax.sgd(schedule(k)) for a schedule of the round k, or keep_optimizer=True for "
                "one of all steps",
                stacklevel=3,
            )

    @property
    def epochs_range(self) -> tuple[int, int]:
        """Least and largest number of local epochs."""
        if self.epochs_of_clients is not None:
            return int(self.epochs_of_clients.min()), int(self.epochs_of_clients.max())
        if isinstance(self.epochs, (tuple, list)):
            if len(self.epochs) != 2:
                raise ValueError(f"epochs must be a number or a pair (low, high), got {self.epochs!r}")
            low, high = self.epochs
            return low, high
        return self.epochs, self.epochs  # pyright: ignore[reportReturnType]

    @property
    def epochs_of_clients(self) -> np.ndarray | None:
        """`[M]` epochs of the clients, None if all have the same or draw theirs."""
        given = self.epochs
        return np.asarray(given) if isinstance(given, (np.ndarray, jax.Array)) and given.ndim == 1 else None

    @property
    def max_epochs(self) -> int:
        """Largest number of local epochs in a round."""
        return self.epochs_range[1]

    @property
    def follows_client(self) -> bool:
        """Whether the optimizer is a function of the round and the client."""
        if isinstance(self.optimizer, optax.GradientTransformation):
            return False
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        given = inspect.signature(self.optimizer).parameters.values()
        return len([p for p in given if p.kind in kinds and p.default is p.empty]) == 2

    def at_round(self, k: Array, client: Data) -> optax.GradientTransformation:
        """The optimizer of round `k` for ONE client."""
        if isinstance(self.optimizer, optax.GradientTransformation):
            return self.optimizer
        made = self.optimizer(k, client) if self.follows_client else self.optimizer(k)
        check_type("optimizer(round)", made, optax.GradientTransformation, "such as lambda k: optax.sgd(schedule(k))")
        return made

    def width(self, client: Data) -> int:
        """`B`: the batch size, or the size of the largest client if that is smaller."""
        return min(self.batch_size, client.longest)


_AHEAD = (0, 1, 10, 1_000, 100_000)  # steps


def _schedule_restarts(optimizer: Any) -> bool:
    """Whether an optimizer has a schedule of its steps that is not constant, as far as optax's own state shows.

    The count alone is set ahead, so that Adam's, which corrects its bias by another, is not taken for a schedule.
    """
    if not isinstance(optimizer, optax.GradientTransformation):
        return False

    def is_schedule(s: Any) -> bool:
        return isinstance(s, (optax.ScaleByScheduleState, optax.InjectStatefulHyperparamsState))

    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        try:
            # By shapes first: a solver that is made before `split_cpu` must not start JAX on the whole CPU.
            shapes = jax.eval_shape(optimizer.init, {"w": jax.ShapeDtypeStruct((1, 1), jnp.float32)})
            if not any(map(is_schedule, jax.tree.leaves(shapes, is_leaf=is_schedule))):
                return False
            with jax.ensure_compile_time_eval():
                one = {"w": jnp.ones((1, 1), jnp.float32)}
                state = optimizer.init(one)
                states = [jax.tree.map(lambda s, n=n: _ahead(s, n), state, is_leaf=is_schedule) for n in _AHEAD]
                steps = [jax.tree.leaves(optimizer.update(one, state, one)[0])[0] for state in states]
                return any(bool(jnp.any(step != steps[0])) for step in steps)
        except Exception:  # a transformation that needs other parameters, or a traced rate: unknown
            return False


def _ahead(state: Any, steps: int) -> Any:
    """A part of an optimizer's state in which so many more steps of a schedule are counted; others are as they were."""
    if isinstance(state, optax.ScaleByScheduleState):
        return state._replace(count=state.count + steps)
    if isinstance(state, optax.InjectStatefulHyperparamsState):  # holds a counter for each hyper-parameter's schedule
        return state._replace(hyperparams_states=jax.tree.map(lambda count: count + steps, state.hyperparams_states))
    return state


def check_parts(task: Any, solver: Any, **others: Any) -> None:
    """Validate what every method is made of; `others`: further solvers by name, or None.

    Raises:
        TypeError: if `task` is not a `Task`, its `init` does not return `Variables`, or a solver is not a `Solver`.
    """
    check_task(task)
    for name, given in {"solver": solver, **{k: v for k, v in others.items() if v is not None}}.items():
        check_type(name, given, Solver, "such as fedamp_jax.Solver(optax.adam(1e-3))")


class Local(NamedTuple):
    """What one client's training leaves behind.

    Attributes:
        variables: the model.
        optimizer: the optimizer's state if the solver keeps it, else `()`.
    """

    variables: Variables
    optimizer: PyTree = ()


def _update(
    optimizer: optax.GradientTransformation,
    grads: PyTree,
    state: PyTree,
    params: PyTree,
    objective: Callable[[PyTree], Array],
) -> tuple[PyTree, PyTree]:
    """One step of an optimizer, with the value of the objective if it asks for it.

    Optax does not say which optimizers do; those raise a TypeError without. Others are traced as ever, without a second
    pass through the model.
    """
    try:
        return optimizer.update(grads, state, params)
    except TypeError:
        if not isinstance(optimizer, optax.GradientTransformationExtraArgs):
            raise
    return optimizer.update(grads, state, params, value=objective(params), grad=grads, value_fn=objective)


def solve(
    task: Task,
    solver: Solver,
    client: Data,
    start: Variables,
    key: Array,
    *,
    epochs: Array | int,
    k: Array,
    penalty: Penalty | None = None,
    correction: PyTree | None = None,
    trainable: PyTree | None = None,
    optimizer_state: PyTree = (),
) -> tuple[Local, Array]:
    """Train ONE client by minibatch gradient steps.

    Args:
        task: the model and its loss.
        solver: optimizer, batch size.
        client: ONE client's `Data`.
        start: where training starts; float32 parameters.
        key: the client's key of this round.
        epochs: `[]` int32, passes over the data; 0 returns `start`.
        k: `[]` int32, the round.
        penalty: a further term of the objective, such as `Prox`; its gradient is added to the loss's.
        correction: a tree like the parameters, added to every gradient (SCAFFOLD's `c - c_i`).
        trainable: a tree of Python bools like the parameters: what is trained; the rest is not even differentiated.
        optimizer_state: the state to continue from if `solver.keep_optimizer`.

    Returns:
        The trained `Local`, and the loss averaged over the steps, `[]` float32, without the penalty.

    Raises:
        TypeError: if parameters are not float32.
    """
    check_float32(start)
    optimizer = solver.at_round(k, client)
    trained, frozen = partition(start.params, trainable)
    shift = partition(correction, trainable)[0] if correction is not None else None
    key_noise = jax.random.split(key, 3)[2]  # the other two are for_each_minibatch's
    opt_state = seeded(optimizer_state if solver.keep_optimizer else optimizer.init(trained), key_noise)

    def loss(trained: PyTree, stats: PyTree, batch: Batch, key: Array) -> tuple[Array, PyTree]:
        return task.loss(Variables(combine(trained, frozen), stats), batch, key)

    def step(carry: tuple, batch: Batch, key: Array) -> tuple:
        trained, stats_before, opt_state, total = carry
        (value, stats), grads = jax.value_and_grad(loss, has_aux=True)(trained, stats_before, batch, key)
        if penalty is not None:
            pull = partition(penalty.gradient(combine(trained, frozen)), trainable)[0]
            grads = jax.tree.map(jnp.add, grads, pull)
        if shift is not None:
            grads = jax.tree.map(jnp.add, grads, shift)

        def objective(trained: PyTree) -> Array:
            parts = [loss(trained, stats_before, batch, key)[0]]
            parts += [] if penalty is None else [penalty.value(combine(trained, frozen))]
            if shift is not None:
                parts += jax.tree.leaves(jax.tree.map(lambda w, c: jnp.sum(w * c), trained, shift))
            return sum(parts[1:], parts[0])

        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer count
            updates, opt_state = _update(optimizer, grads, opt_state, trained, objective)
        return optax.apply_updates(trained, updates), stats, opt_state, total + value

    carry = (trained, start.stats, opt_state, jnp.zeros((), jnp.float32))
    carry, steps = for_each_minibatch(solver, client, step, carry, key, epochs=epochs, shuffle=solver.shuffle)
    trained, stats, opt_state, total = carry
    local = Local(Variables(combine(trained, frozen), stats), opt_state if solver.keep_optimizer else ())
    return local, total / jnp.maximum(steps, 1).astype(jnp.float32)
