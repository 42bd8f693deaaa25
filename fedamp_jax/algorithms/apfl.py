"""APFL (Deng et al. 2020, Algorithm 1): a mixture of a personal and the global model, trained together."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedamp_jax import trees
from fedamp_jax.checks import check_number
from fedamp_jax.engine import (
    Solver,
    broadcast_to_clients,
    check_parts,
    for_each_client,
    init_model,
    of_clients,
    server,
    solve,
)
from fedamp_jax.types import Algorithm, Array, PyTree, Task, Variables


class APFLState(NamedTuple):
    """The two models of every client.

    Attributes:
        params: the global parameters w.
        personal: the clients' v_i, leaves `[M, ...]`.
        alpha: `[M]` float32, the mixing weights.
        stats: running statistics of the global and of the mixed models, two trees with leaves `[M, ...]`.
        trained: `[M]` bool, who has trained; see `engine.server.statistics_policy`.
        round: `[]` int32.
    """

    params: PyTree
    personal: PyTree
    alpha: Array
    stats: tuple[PyTree, PyTree]
    trained: Array
    round: Array


def _mix(alpha: Array, v: PyTree, w: PyTree) -> PyTree:
    """`alpha v + (1 - alpha) w` for one client, or for all with `alpha [M]` and leaves `[M, ...]`."""
    return jax.tree.map(lambda a, b: trees.expand_dims_like(alpha, a) * (a - b) + b, v, w)


def _both(task: Task) -> Task:
    """The task whose parameters are (w, v, alpha) and whose loss is `f(w) + f(alpha v + (1 - alpha) w)`.

    w counts as a constant in the second term. The gradient with respect to v then carries the factor alpha of the
    chain rule, and the one with respect to alpha is `<grad f(mixed), v - w>`; all three use the values before the step.
    """

    def loss(variables, batch, key):
        w, v, alpha = variables.params
        plain, stats_w = task.loss(Variables(w, variables.stats[0]), batch, key)
        mixed, stats_v = task.loss(Variables(_mix(alpha, v, jax.lax.stop_gradient(w)), variables.stats[1]), batch, key)
        return plain + mixed, (stats_w, stats_v)

    return task._replace(loss=loss)


def _projected_sgd(rate: Array) -> optax.GradientTransformation:
    """SGD that keeps alpha, the last leaf, within [0, 1]."""

    def stay_inside(updates: Any, params: Any) -> Any:
        w, v, alpha = updates
        if alpha is not None:
            alpha = jnp.clip(params[2] + alpha, 0.0, 1.0) - params[2]
        return (w, v, alpha)

    return optax.chain(optax.sgd(rate), optax.stateless(stay_inside))


def apfl(
    task: Task,
    solver: Solver,
    *,
    alpha: Any = 0.25,
    adapt_alpha: bool = False,
    learning_rate: Any = 1e-2,
    stats: str = "mix",
) -> Algorithm:
    """APFL: each step moves w_i along `grad f(w_i)` and v_i along `alpha grad f(alpha v_i + (1 - alpha) w_i)`.

    Args:
        task: the model.
        solver: epochs and batch size. Its optimizer is not used: the method is plain SGD.
        alpha: mixing weights, a number or one per client `[M]`, in [0, 1]; the FedAMP paper tunes over 0, 0.25, 0.5,
            0.75. 0 is FedAvg.
        adapt_alpha: let every step move alpha_i too, along `<grad f(mixed), v_i - w_i>`, kept within [0, 1].
        learning_rate: of all of them, greater than 0; a number, one per client `[M]`, a schedule of the round or a
            tracer. The FedAMP paper found 1e-2 best (Appendix C).
        stats: as in `fedprox`, of both models.

    Returns:
        The `Algorithm`; `personalize` mixes v_i with the averaged w. `info.loss` is the sum of both models' losses.

    Raises:
        ValueError: a number out of range, or unknown `stats`; in `init`, another number of alphas than of clients.

    Departs from the paper: w is weighted by numbers of examples, as in the other averaging methods here, so that
    alpha = 0 is FedAvg. The authors' program (FedTorch) differs: it mixes the outputs of the two models and not their
    parameters, takes the step of v_i after that of w_i, evaluates v_i with the client's own w_i before the average, and
    moves alpha once in a round, with 0.02 alpha added to its gradient.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.apfl(task, fedamp_jax.Solver(optax.sgd(1e-2)), alpha=0.25)
    """
    check_parts(task, solver)
    if callable(alpha):
        raise TypeError("alpha must be a number or one for each client: a schedule would be evaluated in round 0 only")
    check_number("alpha", alpha, low=0, high=1, strict=False, allow_array=True)
    check_number("learning_rate", learning_rate, low=0, allow_array=True)
    new_stats = server.statistics_policy(stats)
    own_solver = dataclasses.replace(solver, optimizer=solver.at_round, keep_optimizer=False)
    pair = _both(task)

    def init(key, data):
        start, m = init_model(task, key), len(data.size)
        running = trees.broadcast(start.stats, m)
        again = jax.tree.map(jnp.copy, running)  # a buffer of its own: a round donates all of a state's
        # A copy: every round donates the state, and not the caller's array.
        mixing = jnp.array(broadcast_to_clients("alpha", jnp.asarray(alpha, jnp.float32), data))
        trained, k = jnp.zeros((m,), bool), jnp.zeros((), jnp.int32)
        return APFLState(start.params, trees.broadcast(start.params, m), mixing, (running, again), trained, k)

    def round(key, state, data):
        def local(key, client, epochs, mine, rate_i):
            sgd = dataclasses.replace(own_solver, optimizer=lambda k: _projected_sgd(rate_i))
            trained = tuple(
                jax.tree.map(lambda _, f=flag: f, p) for p, flag in zip(mine.params, (True, True, adapt_alpha))
            )
            result, loss = solve(pair, sgd, client, mine, key, epochs=epochs, k=state.round, trainable=trained)
            return result.variables, loss

        w = trees.broadcast(state.params, len(data.size))
        begin = Variables((w, state.personal, state.alpha), state.stats)
        rates = of_clients("learning_rate", learning_rate, state.round, data)
        sent, info = for_each_client(own_solver, data, local, begin, rates, key=key)
        weights = server.sample_weights(data, info)
        params = server.weighted_mean(weights, sent.params[0], state.params)
        running, trained = new_stats(weights, sent.stats, state.stats, state.trained)
        return APFLState(params, sent.params[1], sent.params[2], running, trained, state.round + 1), info

    def personalize(key, state, data):
        w = trees.broadcast(state.params, len(data.size))
        return Variables(_mix(state.alpha, state.personal, w), state.stats[1])

    def join(state, fresh):
        # Their mixture is w, whatever alpha is.
        running = server.statistics_of_newcomers(state.stats[0], state.trained, fresh.stats[0])
        return fresh._replace(personal=trees.broadcast_like(state.params, fresh.personal), stats=(running, running))

    return Algorithm(init, round, personalize, join=join)
