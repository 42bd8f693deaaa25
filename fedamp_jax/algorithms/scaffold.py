"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1): control variates correct the drift of the clients."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedamp_jax.checks import check_choice, check_number
from fedamp_jax.engine import (
    Solver,
    at_round,
    check_parts,
    for_each_client,
    full_gradient,
    init_model,
    of_clients,
    server,
    solve,
    stream,
)
from fedamp_jax.trees import broadcast, broadcast_like
from fedamp_jax.types import Algorithm, Array, PyTree, Task, Variables


class ScaffoldState(NamedTuple):
    """The server's and the clients' variates.

    Attributes:
        params: the global parameters x.
        control: the server's control variate c, a tree like `params`.
        controls: the clients' c_i, leaves `[M, ...]`.
        clients: `Variables [M]`, each client's model after its last local training, y_i.
        trained: `[M]` bool, who has trained; see `engine.server.statistics_policy`.
        round: `[]` int32.
    """

    params: PyTree
    control: PyTree
    controls: PyTree
    clients: Variables
    trained: Array
    round: Array


def scaffold(
    task: Task,
    solver: Solver,
    *,
    learning_rate: Any = 1e-2,
    global_step: Any = 1.0,
    option: str = "II",
    personal: str = "local",
    stats: str = "mix",
) -> Algorithm:
    """SCAFFOLD: local steps `y -= learning_rate (g_i(y) - c_i + c)` from the global model x.

    Args:
        task: the model.
        solver: epochs and batch size. Its optimizer is not used: the method is plain SGD.
        learning_rate: eta_l, greater than 0; a number, one per client `[M]`, a schedule of the round or a tracer. The
            FedAMP paper found 1e-2 best (Appendix C).
        global_step: eta_g, greater than 0; 1 in the FedAMP paper.
        option: how a client updates its variate: `"II"`, `c_i - c + (x - y_i) / (K eta_l)`, or `"I"`, the gradient of
            all its data at x.
        personal: the models to use: each client's own after local training (`"local"`), or the global one (`"global"`).
            The FedAMP paper's tables count SCAFFOLD among the personalized methods.
        stats: as in `fedprox`, here averaged uniformly.

    Returns:
        The `Algorithm`. Means over the clients online are uniform, as published.

    Raises:
        ValueError: a number out of range, or an unknown option.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.scaffold(task, fedamp_jax.Solver(optax.sgd(1e-2)), learning_rate=1e-2)
    """
    check_parts(task, solver)
    check_number("learning_rate", learning_rate, low=0, allow_array=True)
    check_number("global_step", global_step, low=0)
    check_choice("option", option, ("I", "II"))
    check_choice("personal", personal, ("local", "global"))
    new_stats = server.statistics_policy(stats)
    own_solver = dataclasses.replace(solver, optimizer=solver.at_round, keep_optimizer=False)

    def init(key, data):
        start, m = init_model(task, key), len(data.size)
        zero = jax.tree.map(jnp.zeros_like, start.params)
        controls, clients = broadcast((zero, start), m)
        trained, k = jnp.zeros((m,), bool), jnp.zeros((), jnp.int32)
        return ScaffoldState(start.params, zero, controls, clients, trained, k)

    def round(key, state, data):
        x, c, k = state.params, state.control, state.round

        def local(key, client, epochs, mine, rate_i):
            c_i, last = mine
            sgd = dataclasses.replace(own_solver, optimizer=lambda k: optax.sgd(rate_i))
            begin = Variables(x, last.stats)
            shift = jax.tree.map(jnp.subtract, c, c_i)
            result, loss = solve(task, sgd, client, begin, key, epochs=epochs, k=k, correction=shift)
            y = result.variables
            if option == "I":
                new, _, _ = full_gradient(task, sgd, client, begin, stream("full gradient", key))
            else:
                width = sgd.width(client)
                steps = epochs * ((client.size + width - 1) // width)  # K
                rate = rate_i * jnp.maximum(steps, 1).astype(jnp.float32)
                new = jax.tree.map(lambda a, b, d: (a - b) / rate - d, x, y.params, shift)
            return (new, y), loss

        rates, keep = of_clients("learning_rate", learning_rate, k, data), (state.controls, state.clients)
        (controls, clients), info = for_each_client(own_solver, data, local, keep, rates, key=key)
        counts = (data.online & ~info.rejected).astype(jnp.float32)  # the clients of S, with equal weights
        change = jax.tree.map(jnp.subtract, controls, state.controls)
        present = jnp.sum(counts) / data.clients  # |S| / M; the variates of the others did not change
        control = jax.tree.map(
            lambda a, d: a + present * d, c, server.weighted_mean(counts, change, jax.tree.map(jnp.zeros_like, c))
        )
        step, mean = at_round(global_step, k), server.weighted_mean(counts, clients.params, x)
        params = jax.tree.map(lambda a, b: a + step * (b - a), x, mean)
        running, trained = new_stats(counts, clients.stats, state.clients.stats, state.trained)
        return ScaffoldState(params, control, controls, clients._replace(stats=running), trained, k + 1), info

    def personalize(key, state, data):
        if personal == "local":
            return state.clients
        return Variables(broadcast(state.params, len(data.size)), state.clients.stats)

    def join(state, fresh):
        running = server.statistics_of_newcomers(state.clients.stats, state.trained, fresh.clients.stats)
        clients = Variables(broadcast_like(state.params, fresh.clients.params), running)
        # So c stays the mean of all c_i, and a newcomer's first steps are not corrected.
        return fresh._replace(controls=broadcast_like(state.control, fresh.controls), clients=clients)

    return Algorithm(init, round, personalize, join=join)
