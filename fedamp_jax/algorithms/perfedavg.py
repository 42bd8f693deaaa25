"""Per-FedAvg (Fallah et al., NeurIPS 2020): a global model from which one gradient step makes each client's own."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from fedamp_jax.algorithms.fedavg import FedAvgState, fedavg
from fedamp_jax.checks import check_choice, check_number
from fedamp_jax.engine import (
    Local,
    Solver,
    at_home,
    check_parts,
    for_each_client,
    for_each_minibatch,
    full_gradient,
    of_clients,
    sample_batch,
    server,
    stream,
)
from fedamp_jax.types import Algorithm, Batch, PyTree, Task, Variables


def moved(params: PyTree, rate: Any, gradient: PyTree) -> PyTree:
    """`params - rate * gradient`."""
    return jax.tree.map(lambda w, g: w - rate * g, params, gradient)


def perfedavg(
    task: Task, solver: Solver, *, alpha: Any = 0.01, beta: Any = 0.01, hessian: str = "none", stats: str = "mix"
) -> Algorithm:
    """Per-FedAvg, Algorithm 1 of Fallah et al. 2020: FedAvg on `F_i(w) = f_i(w - alpha grad f_i(w))`, the loss after
    one gradient step.

    A local step takes three independent batches D, D' and D'' of the client's examples:
    `v = w - alpha grad f_i(w, D)`, `w -= beta (I - alpha H_i(w, D'')) grad f_i(v, D')`.

    Args:
        task: the model.
        solver: epochs and batch size. D' are the minibatches of its passes; D and D'' are drawn anew in each step. Its
            optimizer is not used: the method has steps of its own.
        alpha: rate of the step that personalizes, at least 0; a number, one per client `[M]`, a schedule of the round
            or a tracer. 0 is FedAvg with SGD.
        beta: rate of the local steps, greater than 0; likewise.
        hessian: `"none"` leaves the Hessian H_i out, the first order approximation (FO), which needs two gradients in
            a step; `"exact"` multiplies by it, at the cost of about three more.
        stats: as in `fedprox`.

    Returns:
        The `Algorithm`; `personalize` takes one step of rate alpha along the gradient of ALL of the client's training
        data. A client whose step is not finite uses the global model. `info.loss` is that after the step, on D'.

    Raises:
        ValueError, TypeError: if a hyper-parameter is out of range or of the wrong kind.

    Departs from the paper: means weigh clients by their number of examples, as `fedavg` does, where the paper's are
    uniform. The paper's second approximation of the Hessian, by a difference of gradients (HF), is left out: the
    product with the Hessian is exact here. Running statistics follow D'.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.perfedavg(task, fedamp_jax.Solver(optax.sgd(0.1)), alpha=0.05, beta=0.1)
    """
    check_parts(task, solver)
    check_number("alpha", alpha, low=0, strict=False, allow_array=True)
    check_number("beta", beta, low=0, allow_array=True)
    check_choice("hessian", hessian, ("none", "exact"))
    new_stats = server.statistics_policy(stats)
    own_solver = dataclasses.replace(solver, optimizer=solver.at_round, keep_optimizer=False)
    base = fedavg(task, own_solver, stats=stats)

    def round(key, state, data):
        k = state.round

        def local(key, client, epochs, mine, alpha_i, beta_i):
            def step(carry, batch: Batch, key):
                w, running, total = carry

                def loss(params, batch, name):
                    return task.loss(Variables(params, running), batch, stream(name, key))

                first = sample_batch(own_solver, client, stream("D", key))
                v = moved(w, alpha_i, jax.grad(loss, has_aux=True)(w, first, "first")[0])
                (value, new), g = jax.value_and_grad(loss, has_aux=True)(v, batch, "second")
                if hessian == "exact":
                    third = sample_batch(own_solver, client, stream("D''", key))

                    def along(params):  # its gradient is the product of the Hessian and g
                        slope = jax.grad(loss, has_aux=True)(params, third, "third")[0]
                        return sum(jax.tree.leaves(jax.tree.map(lambda a, b: jnp.sum(a * b), slope, g)))

                    g = moved(g, alpha_i, jax.grad(along)(w))
                return moved(w, beta_i, g), new, total + value

            begin = (*mine.variables, jnp.zeros((), jnp.float32))
            (w, running, total), steps = for_each_minibatch(own_solver, client, step, begin, key, epochs=epochs,
                                                            shuffle=solver.shuffle)  # fmt: skip
            return Local(Variables(w, running)), total / jnp.maximum(steps, 1).astype(jnp.float32)

        rates = (of_clients(name, rate, k, data) for name, rate in (("alpha", alpha), ("beta", beta)))
        received = Local(base.personalize(key, state, data))
        sent, info = for_each_client(own_solver, data, local, received, *rates, key=key)
        weights = server.sample_weights(data, info)
        params = server.weighted_mean(weights, sent.variables.params, state.params)
        running, trained = new_stats(weights, sent.variables.stats, state.stats, state.trained)
        return FedAvgState(params, running, trained, (), k + 1), info

    def personalize(key, state, data):
        def local(key, client, epochs, mine, alpha_i):
            gradient, running, loss = full_gradient(task, own_solver, client, mine, key)
            return Variables(moved(mine.params, alpha_i, gradient), running), loss

        once = dataclasses.replace(own_solver, epochs=1)
        rates = of_clients("alpha", alpha, state.round, data)
        return for_each_client(once, at_home(data), local, base.personalize(key, state, data), rates, key=key)[0]

    return base._replace(round=round, personalize=personalize)
