"""PFLEGO (Nikoloutsopoulos et al. 2023, Algorithm 1): exact SGD on personal heads over a shared body."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedamp_jax import checks
from fedamp_jax.algorithms.fedavg import mixed_stats, sample_weights
from fedamp_jax.algorithms.partial import BodyState, assemble, init_body
from fedamp_jax.heads import head_mask, join, split
from fedamp_jax.local import (
    Solver,
    batch_width,
    check_parts,
    fold_blocks,
    for_each_client,
    full_gradient,
    share_of,
    take_batch,
)
from fedamp_jax.types import Algorithm, Array, Batch, Data, PyTree, Task, Variables


class PFLEGOState(NamedTuple):
    """Attributes: model: body, heads and statistics. server: the server optimizer's state."""

    model: BodyState
    server: PyTree

    @property
    def round(self) -> Array:
        """`[]` int32."""
        return self.model.round


def _features(features: Callable, solver: Solver, key: Array, client: Data, start: Variables) -> Array:
    """The body's features of all of ONE client's data, `[N, ...]`, in one pass."""

    def of(batch: Batch, rows: Array) -> Array:
        return features(start, batch, jax.random.fold_in(key, rows[0]))[0]

    def fold(batch: Batch, rows: Array, phi: Array) -> Array:
        return phi.at[rows].set(of(batch, rows), mode="drop")

    width = batch_width(solver, client)
    one = jax.eval_shape(lambda rows: of(take_batch(client, rows, rows >= 0), rows), jnp.zeros(width, jnp.int32))
    return fold_blocks(solver, client, fold, jnp.zeros((client.y.shape[0], *one.shape[1:]), one.dtype))


def head_steps(
    task: Task, solver: Solver, key: Array, client: Data, start: Variables, head: PyTree, steps: Array, beta: Array
) -> PyTree:
    """The parameters after `steps` gradient steps on the head with the body fixed (Algorithm 1, the first loop).

    Where the task has `features`, the data pass through the body once, whatever the number of steps.
    """
    own, body = split(start.params, head)
    features, head_loss = task.features, task.head_loss
    if features is None or head_loss is None:
        on_features, loss = client, lambda variables, batch, key: task.loss(variables, batch, key)[0]
    else:
        on_features = client._replace(x=_features(features, solver, key, client, start))

        def loss(variables, batch, key):
            return head_loss(variables, batch.x, batch)

    def step(t: Array, own: PyTree) -> PyTree:
        key_step = jax.random.fold_in(key, t)

        def fold(batch: Batch, rows: Array, total: PyTree) -> PyTree:
            key_batch, share = jax.random.fold_in(key_step, rows[0]), share_of(batch, client)
            g = jax.grad(lambda h: loss(Variables(join(h, body), start.stats), batch, key_batch))(own)
            return jax.tree.map(lambda a, b: a + share * b, total, g)

        gradient = fold_blocks(solver, on_features, fold, jax.tree.map(jnp.zeros_like, own))
        return jax.tree.map(lambda w, g: w - beta * g, own, gradient)

    return join(jax.lax.fori_loop(0, steps, step, own), body)


def pflego(
    task: Task,
    solver: Solver,
    *,
    beta: Any = 0.007,
    rho: Any = 0.003,
    server_optimizer: optax.GradientTransformation | None = None,
    weigh_heads: bool = False,
    common_init: bool = True,
    stats: str = "local",
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
        beta: learning rate of the tau - 1 head steps.
        rho: learning rate of the joint step.
        server_optimizer: the optax optimizer that takes theta along the gradient of Eq. 4; None for SGD with `rho`. The
            authors' program uses Adam, `optax.adam(0.003)`, where their paper writes SGD.
        weigh_heads: multiply the heads' joint step by alpha_i. Eq. 3 and Algorithm 1 do not, but Eq. 5 does, and only
            so is the step unbiased for the heads too (Proposition 1).
        common_init: one initial head for all clients, or one each.
        stats: BatchNorm statistics stay each client's own (`"local"`) or are averaged (`"mix"`).

    Returns:
        The `Algorithm`. `I / r` of Eq. 3 and 4 is the number of clients over the number online in the round.

    Raises:
        ValueError: a rate out of range, and as `fedper`.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.pflego(task, fedamp_jax.Solver(optax.sgd(0.1), epochs=50))
    """
    check_parts(task, solver)
    checks.number("beta", beta, low=0)
    checks.number("rho", rho, low=0)
    checks.choice("stats", stats, ("local", "mix"))
    own_solver = dataclasses.replace(solver, keep_optimizer=False)

    def server_at(k: Array) -> optax.GradientTransformation:
        return server_optimizer or optax.sgd(checks.at_round(rho, k))

    def init(key, data):
        model = init_body(task, own_solver, key, data, common=common_init, part="body")
        return PFLEGOState(model, server_at(model.round).init(model.body))

    def round(key, state, data):
        model, k = state.model, state.model.round
        begin = assemble(model, data)
        head = head_mask(task, begin.params)
        there, here = (jnp.sum(a, dtype=jnp.float32) for a in (data.size > 0, data.online))
        boost = there / jnp.maximum(here, 1.0)  # I / r
        share = data.size.astype(jnp.float32) / jnp.sum(data.size, dtype=jnp.float32)  # alpha_i, over ALL clients

        def local(key, client, epochs, mine, share_i):
            params = head_steps(task, own_solver, key, client, mine[0], head, epochs - 1, checks.at_round(beta, k))
            joint, running, loss = full_gradient(task, own_solver, key, client, Variables(params, mine[0].stats))
            g_head, g_body = split(joint, head)
            rate = checks.at_round(rho, k) * boost * (share_i if weigh_heads else 1.0)
            heads, body = split(params, head)
            heads = jax.tree.map(lambda w, g: w - rate * g, heads, g_head)  # Eq. 3
            return (Variables(join(heads, body), running), g_body), loss

        zero = jax.tree.map(jnp.zeros_like, split(begin.params, head)[1])
        (after, g), info = for_each_client(own_solver, key, data, local, (begin, zero), share)
        # Who was offline or rejected left a gradient of zero.
        total = jax.tree.map(lambda a: boost * jnp.einsum("i,i...->...", share, a, precision="highest"), g)
        with jax.numpy_dtype_promotion("standard"):
            updates, server = server_at(k).update(total, state.server, model.body)
        anyone = jnp.any(data.online & ~info.rejected)
        keep = lambda new, old: jax.tree.map(lambda a, b: jnp.where(anyone, a, b), new, old)  # noqa: E731
        body = keep(optax.apply_updates(model.body, updates), model.body)  # Eq. 4
        running = mixed_stats(stats, sample_weights(data, info), after.stats, model.stats)
        heads = split(after.params, head)[0]
        return PFLEGOState(BodyState(body, heads, running, (), k + 1), keep(server, state.server)), info

    def personalize(key, state, data):
        return assemble(state.model, data)

    return Algorithm(init, round, personalize)
