"""PFLEGO (Nikoloutsopoulos et al. 2023, Algorithm 1): exact SGD on personal heads over a shared body."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedamp_jax.algorithms.shared_body import PartlySharedState, assemble, init_body
from fedamp_jax.checks import check_number
from fedamp_jax.engine import (
    Solver,
    as_client,
    at_round,
    check_parts,
    for_each_client,
    for_each_minibatch,
    full_gradient,
    of_clients,
    server,
    share_of,
    take_batch,
)
from fedamp_jax.programs.jaxpr import repeat
from fedamp_jax.trees import check_float32, combine, expand_dims_like, head_mask, partition, where
from fedamp_jax.types import Algorithm, Array, Batch, Data, PyTree, Task, Variables


class PFLEGOState(NamedTuple):
    """Attributes: model: body, heads and statistics. server: the server optimizer's state."""

    model: PartlySharedState
    server: PyTree

    @property
    def round(self) -> Array:
        """`[]` int32."""
        return self.model.round


def _features(task: Task, solver: Solver, client: Data, start: Variables, key: Array) -> Data:
    """ONE client whose inputs are the body's features of all of its data, computed in one pass."""
    assert task.features is not None
    features = task.features

    def write(made: tuple[Array, Array], batch: Batch, key: Array) -> tuple[Array, Array]:
        new = features(start, batch, key)[0], batch.y
        return jax.tree.map(lambda a, b: a.at[batch.rows].set(b, mode="drop"), made, new)

    def example(rows: Array) -> tuple[Array, Array]:
        batch = take_batch(client, rows, rows >= 0)
        return features(start, batch, key)[0], batch.y

    one = jax.eval_shape(example, jnp.zeros(solver.width(client), jnp.int32))
    empty = jax.tree.map(lambda a: jnp.zeros((client.longest, *a.shape[1:]), a.dtype), one)
    x, y = for_each_minibatch(solver, client, write, empty, key, shuffle=False)[0]
    return as_client(client, x, y, client.size)


def head_steps(
    task: Task, solver: Solver, client: Data, start: Variables, head: PyTree, steps: Array, beta: Array, key: Array
) -> PyTree:
    """The parameters after `steps` full-batch gradient steps on the head with the body fixed (Algorithm 1, first loop).

    `steps` is less than `solver.max_epochs`, as the joint step comes after them.

    Where the task has `features`, the data pass through the body once, whatever the number of steps.
    """
    own, body = partition(start.params, head)
    if task.features is None or task.head_loss is None:
        on_features, loss = client, lambda variables, batch, key: task.loss(variables, batch, key)[0]
    else:
        head_loss = task.head_loss
        on_features = _features(task, solver, client, start, key)

        def loss(variables, batch, key):
            return head_loss(variables, batch.x, batch)

    def step(t: Array, own: PyTree) -> PyTree:
        def add(total: PyTree, batch: Batch, key: Array) -> PyTree:
            g = jax.grad(lambda h: loss(Variables(combine(h, body), start.stats), batch, key))(own)
            share = share_of(batch, client)
            return jax.tree.map(lambda a, b: a + share * b, total, g)

        zero = jax.tree.map(jnp.zeros_like, own)
        key_step = jax.random.fold_in(key, t)
        gradient, _ = for_each_minibatch(solver, on_features, add, zero, key_step, shuffle=False)
        return jax.tree.map(lambda w, g: w - beta * g, own, gradient)

    return combine(repeat(steps, step, own, at_most=solver.max_epochs - 1), body)


def pflego(
    task: Task,
    solver: Solver,
    *,
    beta: Any = 0.007,
    rho: Any = 0.003,
    server_optimizer: optax.GradientTransformation | None = None,
    weigh_heads: bool = False,
    common_init: bool = True,
    stats: str = "mix",
) -> Algorithm:
    """PFLEGO: tau - 1 gradient steps on the head W_i, then one joint gradient at (W_i, theta).

    The joint gradient moves W_i by Eq. 3 and the shared body theta by Eq. 4. All gradients are over all of the client's
    data.

    Args:
        task: the model; `task.head` says what the head is. With `task.features` the tau - 1 steps cost one pass
            through the body in all, without it one each.
        solver: `epochs` is tau, one full-batch step being one pass; `batch_size` is how many examples are held at once,
            and changes nothing but memory unless a normalisation couples the examples of a batch. Its optimizer is not
            used: the method has steps of its own.
        beta: learning rate of the tau - 1 head steps; a number, one per client `[M]`, a schedule of the round or a
            tracer.
        rho: learning rate of the joint step, of all clients, as the server's step on theta is one step for all.
        server_optimizer: the optax optimizer that takes theta along the gradient of Eq. 4; None for SGD with `rho`. The
            authors' program uses Adam, `optax.adam(0.003)`, where their paper writes SGD.
        weigh_heads: multiply the heads' joint step by alpha_i. Eq. 3 and Algorithm 1 do not, but Eq. 5 does, and only
            so is the step unbiased for the heads too (Proposition 1).
        common_init: one initial head for all clients, or one each, as in the paper.
        stats: as in `fedper`.

    Returns:
        The `Algorithm`. `I / r` of Eq. 3 and 4 is the number of clients over the number whose update counts in
        the round. The authors' program divides the weights alpha_i by the examples of the participants alone, and
        multiplies by `I / r` too; with SGD as the server's optimizer, `rho` is about `I / r` times as strong there.

    Raises:
        ValueError: a rate out of range, and as `fedper`.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.pflego(task, fedamp_jax.Solver(optax.sgd(0.1), epochs=50))
    """
    check_parts(task, solver)
    check_number("beta", beta, low=0, allow_array=True)
    check_number("rho", rho, low=0)
    new_stats = server.statistics_policy(stats)
    own_solver = dataclasses.replace(solver, optimizer=solver.at_round, keep_optimizer=False)

    def server_at(k: Array) -> optax.GradientTransformation:
        return server_optimizer or optax.sgd(at_round(rho, k))

    def init(key, data):
        model = init_body(task, own_solver, data, key, common=common_init, part="body")
        return PFLEGOState(model, server_at(model.round).init(model.shared))

    def round(key, state, data):
        model, k = state.model, state.model.round
        begin = assemble(model, data)
        check_float32(begin)
        head = head_mask(task, begin.params)

        def local(key, client, epochs, mine, beta_i):
            start = mine[0]
            params = head_steps(task, own_solver, client, start, head, epochs - 1, beta_i, key)
            joint, running, loss = full_gradient(task, own_solver, client, Variables(params, start.stats), key)
            return (Variables(params, running), joint), loss

        # A client that is offline or rejected leaves its head, and a gradient of zero.
        zero = jax.tree.map(jnp.zeros_like, begin.params)
        (after, joint), info = for_each_client(own_solver, data, local, (begin, zero),
                                               of_clients("beta", beta, k, data), key=key)  # fmt: skip
        here = data.online & ~info.rejected
        boost = data.clients / jnp.maximum(jnp.sum(here, dtype=jnp.float32), 1.0)  # I / r
        share = data.size.astype(jnp.float32) / jnp.sum(data.size, dtype=jnp.float32)  # alpha_i, over ALL clients
        rate = at_round(rho, k) * boost * (share if weigh_heads else jnp.ones_like(share))
        (heads, _), (g_head, g) = partition(after.params, head), partition(joint, head)
        heads = jax.tree.map(lambda w, g: w - expand_dims_like(rate, g) * g, heads, g_head)  # Eq. 3
        total = jax.tree.map(lambda a: boost * jnp.einsum("i,i...->...", share, a, precision="highest"), g)
        with jax.numpy_dtype_promotion("standard"):
            updates, new_server = server_at(k).update(total, state.server, model.shared)
        body = optax.apply_updates(model.shared, updates)  # Eq. 4
        body, new_server = where(jnp.any(here), (body, new_server), (model.shared, state.server))
        running, trained = new_stats(server.sample_weights(data, info), after.stats, model.stats, model.trained)
        return PFLEGOState(PartlySharedState(body, heads, running, trained, (), k + 1), new_server), info

    def personalize(key, state, data):
        return assemble(state.model, data)

    def join(state, fresh):
        running = server.statistics_of_newcomers(state.model.stats, state.model.trained, fresh.model.stats)
        return fresh._replace(model=fresh.model._replace(stats=running))

    return Algorithm(init, round, personalize, join=join)
