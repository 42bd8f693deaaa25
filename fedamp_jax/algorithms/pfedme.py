"""pFedMe (Dinh et al., NeurIPS 2020): personal models at the Moreau envelopes of the clients' losses."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedamp_jax.checks import check_integer, check_number
from fedamp_jax.engine import (
    Prox,
    Solver,
    as_client,
    at_round,
    check_parts,
    for_each_client,
    for_each_minibatch,
    init_model,
    of_clients,
    server,
    solve,
)
from fedamp_jax.trees import broadcast, broadcast_like
from fedamp_jax.types import Algorithm, Array, PyTree, Task, Variables


class PFedMeState(NamedTuple):
    """The global and the personal models.

    Attributes:
        params: the global parameters w.
        personal: `Variables [M]`, the theta_i after each client's last training.
        trained: `[M]` bool, who has trained; see `engine.server.statistics_policy`.
        round: `[]` int32.
    """

    params: PyTree
    personal: Variables
    trained: Array
    round: Array


def pfedme(
    task: Task,
    solver: Solver,
    *,
    lam: Any = 15.0,
    eta: Any = 0.05,
    beta: Any = 1.0,
    inner_steps: int = 5,
    stats: str = "local",
) -> Algorithm:
    """pFedMe (Algorithm 1): `theta = argmin f(theta) + lam / 2 ||theta - w_i||^2`, `w_i -= eta lam (w_i - theta)`.

    That is one local round, for each minibatch, from the global model w on. The argmin is approximated by a few steps
    on this minibatch from w_i. The server takes `w = (1 - beta) w + beta mean_i w_i`.

    Args:
        task: the model.
        solver: epochs and batch size; its optimizer, afresh for each minibatch, takes the steps of theta.
        lam: pull of theta towards w_i, at least 0; a number, one per client `[M]`, a schedule of the
            round or a tracer.
        eta: learning rate of w_i, greater than 0; stable while `eta * lam` is at most 1. The authors take 0.005
            for 800 rounds.
        beta: step of the server, at least 0; 1 is the mean, larger ones go beyond it.
        inner_steps: steps of theta for each minibatch, at least 1.
        stats: BatchNorm statistics stay each client's own (`"local"`), as theta_i is, or are averaged (`"mix"`).
            Clients that have not trained, newcomers too, have the average either way, and train from w with it.

    Returns:
        The `Algorithm`; `personalize` gives the personal models theta_i. `info.loss` is theirs.

    Raises:
        ValueError, TypeError: if a hyper-parameter is out of range or of the wrong kind.

    Departs from the paper: clients that do not take part do not train either, and the mean is weighted by numbers of
    examples, as in the authors' program. The paper leaves open where theta starts; here from w_i. In that program theta
    continues from the last minibatch, and 0.001 theta is added to its gradient. What it evaluates as the personal model
    is w_i, as both names refer to the same tensors there.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.pfedme(task, fedamp_jax.Solver(optax.sgd(0.09), batch_size=20))
    """
    check_parts(task, solver)
    check_number("lam", lam, low=0, strict=False, allow_array=True)
    check_number("eta", eta, low=0, allow_array=True)
    check_number("beta", beta, low=0, strict=False)
    check_integer("inner_steps", inner_steps, low=1)
    new_stats = server.statistics_policy(stats)
    inner = dataclasses.replace(solver, epochs=inner_steps, keep_optimizer=False, shuffle=False)  # of one minibatch

    def init(key, data):
        start = init_model(task, key)
        m = len(data.size)
        return PFedMeState(start.params, broadcast(start, m), jnp.zeros((m,), bool), jnp.zeros((), jnp.int32))

    def round(key, state, data):
        w, k = state.params, state.round
        pulls, rates = of_clients("lam", lam, k, data), of_clients("eta", eta, k, data)

        def local(key, client, epochs, mine, pull, eta_i):
            rate = eta_i * pull

            def step(carry, batch, key):
                w_i, theta, total = carry
                # A minibatch is a client whose every pass is one step; its real rows come first.
                some = as_client(client, batch.x, batch.y, jnp.sum(batch.mask, dtype=jnp.int32))
                found, loss = solve(task, inner, some, Variables(w_i, theta.stats), key, epochs=inner_steps, k=k,
                                    penalty=Prox(w_i, pull))  # fmt: skip
                theta = found.variables
                return jax.tree.map(lambda a, b: a - rate * (a - b), w_i, theta.params), theta, total + loss

            begin = (w, Variables(w, mine[0].stats), jnp.zeros((), jnp.float32))
            (w_i, theta, total), steps = for_each_minibatch(solver, client, step, begin, key, epochs=epochs,
                                                            shuffle=solver.shuffle)  # fmt: skip
            return (theta, w_i), total / jnp.maximum(steps, 1).astype(jnp.float32)

        received = broadcast(w, len(data.size))
        (personal, sent), info = for_each_client(solver, data, local, (state.personal, received), pulls, rates, key=key)
        weights = server.sample_weights(data, info)
        mean, step = server.weighted_mean(weights, sent, w), at_round(beta, k)
        params = jax.tree.map(lambda a, b: a + step * (b - a), w, mean)
        running, trained = new_stats(weights, personal.stats, state.personal.stats, state.trained)
        return PFedMeState(params, personal._replace(stats=running), trained, k + 1), info

    def personalize(key, state, data):
        return state.personal

    def join(state, fresh):
        running = server.statistics_of_newcomers(state.personal.stats, state.trained, fresh.personal.stats)
        return fresh._replace(personal=Variables(broadcast_like(state.params, fresh.personal.params), running))

    return Algorithm(init, round, personalize, join=join)
