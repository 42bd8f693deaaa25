"""FedRoD (Chen and Chao, ICLR 2022): a generic head without the bias of class frequencies, and a personal one."""

import jax
import jax.numpy as jnp

from fedamp_jax.algorithms.shared_body import Phase, shared_body
from fedamp_jax.engine import Solver, check_parts, for_each_minibatch
from fedamp_jax.trees import combine, head_mask, partition
from fedamp_jax.types import Algorithm, Array, Batch, Data, PyTree, Task, Variables

_ABSENT = -1e30  # finite, to avoid inf - inf; the probability underflows to exactly 0


def log_counts(solver: Solver, client: Data, classes: int) -> Array:
    """The logarithm of how many of ONE client's examples have each label, `[classes]` float32; of none, -1e30.

    >>> import optax, fedamp_jax
    >>> data = fedamp_jax.data.from_lists([jnp.zeros((4, 1))], [[0, 0, 0, 2]], classes=3)
    >>> jnp.exp(log_counts(fedamp_jax.Solver(optax.sgd(0.1)), data.client(0), 3)).round().tolist()
    [3.0, 0.0, 1.0]
    """

    def add(counts: Array, batch: Batch, key: Array) -> Array:
        label = batch.y[:, None] == jnp.arange(classes, dtype=jnp.int32)[None]
        return counts + jnp.sum(label & batch.mask[:, None], axis=0, dtype=jnp.float32)

    zero = jnp.zeros((classes,), jnp.float32)
    counts, _ = for_each_minibatch(solver, client, add, zero, jax.random.key(0), shuffle=False)
    return jnp.where(counts > 0, jnp.log(jnp.maximum(counts, 1.0)), jnp.float32(_ABSENT))


def check_linear_head(task: Task, why: str) -> int:
    """The number of classes of a head that is one linear layer with a bias; `why` it must be one is for the message.

    Raises:
        ValueError: if it is anything else.
    """
    params = jax.eval_shape(task.init, jax.random.key(0)).params
    shapes = sorted((a.shape for a in jax.tree.leaves(partition(params, head_mask(task, params))[0])), key=len)
    if [len(shape) for shape in shapes] != [1, 2] or shapes[0][0] != shapes[1][1] or shapes[0][0] < 2:
        raise ValueError(
            f"{why}, for which a head must be one linear layer, with a bias [C] of at least two "
            f"classes and a kernel [F, C], got parameters of the shapes {', '.join(map(str, shapes))} in "
            f"head={task.head}: give the model such a last layer, and name it as its head"
        )
    return shapes[0][0]


def fedrod(task: Task, solver: Solver, *, stats: str = "mix") -> Algorithm:
    """FedRoD with linear heads, Chen and Chao 2022: body and generic head minimise the balanced softmax
    loss, and are averaged; a personal head is added to the generic one and minimises the client's own loss.

    With features h, generic head g, personal head p_i and counts n_ic of the classes in ALL of client i's examples,
    each step moves (body, g) along the gradient of `loss(g(h) + log n_ic, y)` and p_i along that of
    `loss(stop(g(h)) + p_i(stop(h)), y)`. Where n_ic is 0, class c takes no part in the client's balanced softmax.

    Args:
        task: a classifier whose loss is the cross entropy, and whose `task.head` is one linear layer with a bias, so
            that the sum of two heads is a head again, and log n_ic is added to the bias.
        solver: local training, of both heads.
        stats: as in `fedper`.

    Returns:
        The `Algorithm`; `personalize` gives models with head g + p_i, and `state.shared["model"]` is the generic model.
        Means weigh clients by their number of examples. `info.loss` is the sum of both losses.

    Raises:
        ValueError: a head that is not one linear layer, and as `fedper`.
        TypeError: in `init`, data without labels.

    Personal heads start from zero, so that a client that has not trained, a newcomer too, has the generic model. The
    paper's other form, a hypernetwork that makes personal heads of class frequencies, is left out.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedrod(task, fedamp_jax.Solver(optax.adam(1e-3)))
    """
    check_parts(task, solver)
    classes = check_linear_head(task, "FedRoD adds the logits of two heads")

    def summed(params: PyTree) -> PyTree:
        head, body = partition(params["model"], head_mask(task, params["model"]))
        return combine(jax.tree.map(jnp.add, head, params["own"]), body)

    def both(prior: Array) -> Task:
        def init(key):
            start = task.init(key)
            head, _ = partition(start.params, head_mask(task, start.params))
            return Variables({"model": start.params, "own": jax.tree.map(jnp.zeros_like, head)}, start.stats)

        def loss(variables, batch, key):
            params, running = variables
            head, body = partition(params["model"], head_mask(task, params["model"]))
            balanced = combine(jax.tree.map(lambda a: a + prior if a.ndim == 1 else a, head), body)
            generic, new = task.loss(Variables(balanced, running), batch, key)
            # What body and generic head compute is the same in both losses, and XLA computes it once.
            fixed = {"model": jax.lax.stop_gradient(params["model"]), "own": params["own"]}
            personal, _ = task.loss(Variables(summed(fixed), running), batch, key)
            return generic + personal, new

        return task._replace(init=init, loss=loss, head=("own",), features=None, head_loss=None)

    base = shared_body(both(jnp.zeros((classes,), jnp.float32)), solver, [Phase("all")], stats=stats,
                       of_client=lambda client: both(log_counts(solver, client, classes)))  # fmt: skip

    def init(key, data):
        if not jnp.issubdtype(data.y.dtype, jnp.integer):
            raise TypeError(f"FedRoD counts the labels of each class, but y is {data.y.dtype}: use another method")
        return base.init(key, data)

    def personalize(key, state, data):
        models = base.personalize(key, state, data)
        return Variables(summed(models.params), models.stats)

    return base._replace(init=init, personalize=personalize)
