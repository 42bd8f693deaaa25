"""FedALA (Zhang et al., AAAI 2023): each client learns how much of the global model to take over, number by number."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedamp_jax.checks import check_integer, check_number
from fedamp_jax.engine import (
    Local,
    Solver,
    check_parts,
    for_each_client,
    for_each_minibatch,
    init_clients,
    init_model,
    of_clients,
    server,
    solve,
    split_client,
    stream,
)
from fedamp_jax.trees import broadcast_like, combine, head_mask, partition, path_names, prefix_mask, where
from fedamp_jax.types import Algorithm, Array, PyTree, Task, Variables


class FedALAState(NamedTuple):
    """Attributes: params: the global model. clients: `Local [M]`, each client's model after its last training.
    weights: W_i, leaves `[M, ...]` in [0, 1], None for the lower layers. turns: `[M]` int32, how often the client has
    trained. round: `[]` int32.
    """

    params: PyTree
    clients: Local
    weights: PyTree
    turns: Array
    round: Array


def fedala(
    task: Task,
    solver: Solver,
    *,
    eta: Any = 1.0,
    share: float = 0.8,
    first_epochs: int = 10,
    layers: Sequence[str] | None = None,
    stats: str = "local",
) -> Algorithm:
    """FedALA (Zhang et al. 2023): client i trains from `w_i + (w - w_i) * W_i` in its upper layers, and from the global
    model w in the others; the server averages.

    w_i is the client's own model after its last training, and W_i, of the shape of the upper layers, has a weight for
    each number. Before it trains, the client takes steps on W_i to lower the loss of the model that it would start
    from: `W_i <- clip(W_i - eta grad, 0, 1)` by minibatches of a random share of its examples. W_i starts at 1, as in
    FedAvg.

    Args:
        task: the model.
        solver: local training, and the batch size of the steps on W_i.
        eta: rate of these steps, at least 0; a number, one per client `[M]`, a schedule of the round or a tracer. 0 is
            FedAvg.
        share: of a client's examples, drawn in each round, that W_i is learnt from, in (0, 1].
        first_epochs: passes over this share when W_i is learnt for the first time; later there is one.
        layers: path prefixes of the upper layers, such as `("head", "body/Dense_1")`; None for `task.head`.
        stats: BatchNorm statistics stay each client's own (`"local"`), or are averaged as the parameters are (`"mix"`).
            Clients that have not trained, newcomers too, have the average either way.

    Returns:
        The `Algorithm`; `personalize` gives the clients' models after their last training, and the global one to those
        that have not trained yet. A client learns W_i from its second training on; before, it has no model of its own.

    Raises:
        ValueError, TypeError: if an argument is out of range or of the wrong kind, or a prefix in `layers` is none of
            a parameter's path; in `init`, as `fedper`.

    Departs from the authors' program, which learns W_i for the first time until the standard deviation of the losses of
    the last passes is below a threshold; here that takes a fixed number of passes.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedala(task, fedamp_jax.Solver(optax.adam(1e-3)))
    """
    check_parts(task, solver)
    check_number("eta", eta, low=0, strict=False, allow_array=True)
    check_number("share", share, low=0, high=1)
    check_integer("first_epochs", first_epochs, low=1)
    new_stats = server.statistics_policy(stats)
    learning = dataclasses.replace(solver, epochs=first_epochs)

    layers = (layers,) if isinstance(layers, str) else layers
    shapes = jax.eval_shape(task.init, jax.random.key(0)).params
    unknown = [layer for layer in layers or () if not any(jax.tree.leaves(prefix_mask((layer,), shapes)))]
    if unknown or layers == ():
        raise ValueError(
            f"layers={layers} must be prefixes of the parameters' paths; there are: {', '.join(path_names(shapes))}"
        )

    def upper(params: PyTree) -> PyTree:
        return head_mask(task, params) if layers is None else prefix_mask(layers, params)

    def init(key, data):
        start, clients = init_model(task, key), init_clients(task, solver, data, key)
        ones = jax.tree.map(jnp.ones_like, partition(clients.variables.params, upper(start.params))[0])
        turns = jnp.zeros((len(data.size),), jnp.int32)
        return FedALAState(start.params, clients, ones, turns, jnp.zeros((), jnp.int32))

    def round(key, state, data):
        mask, k = upper(state.params), state.round
        theirs, lower = partition(state.params, mask)

        def local(key, client, epochs, mine, eta_i):
            own, weights, turns = mine
            kept, running = partition(own.variables.params, mask)[0], own.variables.stats

            def mixed(weights: PyTree) -> PyTree:
                return combine(jax.tree.map(lambda a, b, w: a + (b - a) * w, kept, theirs, weights), lower)

            def step(weights, batch, key):
                def loss(w):
                    return task.loss(Variables(mixed(w), running), batch, key)[0]

                return jax.tree.map(lambda w, g: jnp.clip(w - eta_i * g, 0.0, 1.0), weights, jax.grad(loss)(weights))

            # In a client's first training W_i is 1, and its own model does not count.
            passes = jnp.where(turns > 1, 1, jnp.where(turns > 0, first_epochs, 0))
            some = client if share == 1 else split_client(client, share, stream("share", key))[1]
            weights, _ = for_each_minibatch(learning, some, step, weights, stream("weights", key), epochs=passes)
            trained, loss = solve(task, solver, client, Variables(mixed(weights), running), key, epochs=epochs, k=k,
                                  optimizer_state=own.optimizer)  # fmt: skip
            return (trained, weights, turns + 1), loss

        (clients, weights, turns), info = for_each_client(
            solver, data, local, (state.clients, state.weights, state.turns), of_clients("eta", eta, k, data), key=key
        )
        counts, before = server.sample_weights(data, info), state.clients.variables.stats
        params = server.weighted_mean(counts, clients.variables.params, state.params)
        running, _ = new_stats(counts, clients.variables.stats, before, state.turns > 0)
        clients = clients._replace(variables=clients.variables._replace(stats=running))
        return FedALAState(params, clients, weights, turns, k + 1), info

    def personalize(key, state, data):
        own = state.clients.variables
        params = where(state.turns > 0, own.params, broadcast_like(state.params, own.params))
        return Variables(params, own.stats)

    def join(state, fresh):
        variables = fresh.clients.variables
        running = server.statistics_of_newcomers(state.clients.variables.stats, state.turns > 0, variables.stats)
        return fresh._replace(clients=fresh.clients._replace(variables=variables._replace(stats=running)))

    return Algorithm(init, round, personalize, join=join)
