"""FedPAC (Xu et al., ICLR 2023): features that agree across clients, and heads combined by feature statistics."""

import dataclasses
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from optax.projections import projection_simplex

from fedamp_jax.algorithms.shared_body import PartlySharedState, assemble, init_body, mask_of
from fedamp_jax.checks import check_number
from fedamp_jax.engine import (
    Centroids,
    Local,
    Solver,
    aligned,
    check_features,
    check_parts,
    class_means,
    feature_statistics,
    for_each_client,
    init_centroids,
    mean_centroids,
    of_clients,
    resample_epochs,
    server,
    solve,
)
from fedamp_jax.trees import head_mask, partition, where
from fedamp_jax.types import Algorithm, Array, Task

_FAR = -1e9  # a value that the projection never gives any weight
_STEPS = 200  # of the quadratic programs, whose weights are then right to 1e-5


class FedPACState(NamedTuple):
    """Attributes: model: body, heads and statistics. centroids: the global mean features of each class, and of how many
    examples each was computed last, 0 for a class that no client had yet.
    """

    model: PartlySharedState
    centroids: Centroids

    @property
    def round(self) -> Array:
        """`[]` int32."""
        return self.model.round


def combination(distances: Array, variance: Array, present: Array) -> Array:
    """Weights of heads: row i minimises `sum_j a_j^2 V_j + ||s_i - sum_j a_j s_j||^2` over the simplex, `[M, M]`.

    As the weights sum to 1, the second term is `sum_j a_j d_ij - a' D a / 2` with squared distances d: no more is
    needed of the statistics s. All rows have the same quadratic part.

    Args:
        distances: `[M, M]`, `||s_i - s_j||^2`.
        variance: `[M]`, V, at least 0.
        present: `[M]` bool; the others have weight 0, and their rows are those of the identity.

    >>> far = jnp.array([[0.0, 9.0], [9.0, 0.0]])
    >>> weights = combination(far, jnp.array([1.0, 1.0]), jnp.array([True, True]))
    >>> [[round(a, 3) for a in row] for row in weights.tolist()]
    [[0.909, 0.091], [0.091, 0.909]]
    """
    both = present[:, None] & present[None]
    count = jnp.maximum(jnp.sum(present, dtype=jnp.float32), 1.0)
    d = jnp.where(both, distances, 0.0)
    row = jnp.sum(d, axis=1) / count
    # The Gram matrix of the statistics around their mean, from their distances.
    gram = jnp.where(both, -0.5 * (d - row[:, None] - row[None] + jnp.sum(row) / count), 0.0)
    own = jnp.eye(len(d), dtype=bool)
    hessian = gram + jnp.where(own & both, variance[:, None], 0.0)
    bound = jnp.max(jnp.sum(jnp.abs(hessian), axis=1))  # at least the largest eigenvalue
    hessian, linear = (a / jnp.where(bound > 0, bound, 1.0) for a in (hessian, gram))

    def project(a: Array) -> Array:
        a = jnp.where(present[None], a, jnp.float32(_FAR))
        # optax divides floats by integer counts, which are of 64 bits where these are allowed.
        with jax.numpy_dtype_promotion("standard"), jax.enable_x64(False):
            return jax.vmap(projection_simplex)(a)

    def step(_: Any, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        a, ahead, t = carry
        slope = jnp.einsum("ij,jk->ik", ahead, hessian, precision="highest") - linear
        new = project(ahead - slope)
        # Momentum starts again where it leads uphill (O'Donoghue and Candes 2015).
        uphill = jnp.sum((ahead - new) * (new - a), axis=1, keepdims=True) > 0
        t = jnp.where(uphill, 1.0, t)
        later = (1.0 + jnp.sqrt(1.0 + 4.0 * t * t)) / 2.0
        return new, new + (t - 1.0) / later * (new - a), later

    start = project(own.astype(jnp.float32))
    ones = jnp.ones((len(d), 1), jnp.float32)
    found = jax.lax.fori_loop(0, _STEPS, step, (start, start, ones))[0]
    return jnp.where(present[:, None], found, own.astype(jnp.float32))


def fedpac(
    task: Task,
    solver: Solver,
    *,
    lam: Any = 1.0,
    head_solver: Solver | None = None,
    common_init: bool = True,
    stats: str = "mix",
) -> Algorithm:
    """FedPAC (Xu et al. 2023): bodies whose features are drawn to global class means, and for each client
    the combination of all heads that its feature statistics recommend.

    In a round a client computes, under the global body it received, `s_i = (p_ic mu_ic)_c` from its class frequencies
    p_ic and mean features mu_ic, and `V_i = (mean of ||h||^2 - ||s_i||^2) / n_i`. It trains its head; then the body, on
    `F_i + lam * mean of ||h(x) - c_y||^2 / F`, with the global mean features c_y of the class, F of them. The server
    averages bodies and mean features, and sends client i the head `sum_j a_ij h_j` whose weights minimise
    `sum_j a_j^2 V_j + ||s_i - sum_j a_j s_j||^2` over the simplex.

    Args:
        task: a classifier that can compute features, such as all of `fedamp_jax.models`.
        solver: the body's training.
        lam: weight of the alignment, at least 0; a number, one per client `[M]`, a schedule of the round or a tracer.
        head_solver: the head's optimizer, epochs and batch size; None for those of `solver`, with one epoch as in the
            paper.
        common_init: one initial head for all clients, or one each.
        stats: as in `fedper`.

    Returns:
        The `Algorithm`; `info.xi` holds the weights of the heads. Clients that are offline or rejected keep their
        heads, and neither their heads nor their statistics are combined. `info.loss` is that of the body's training, of
        both terms.

    Raises:
        ValueError: a number out of range, unknown `stats`, a task without features or without a head.
        TypeError: in `init`, data without labels.

    Departs from the authors' program, which sets weights below 0.001 to 0 and draws the features of classes without a
    global mean to the client's own.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedpac(task, fedamp_jax.Solver(optax.adam(1e-3)), lam=1.0)
    """
    check_parts(task, solver, head_solver=head_solver)
    check_features("FedPAC", task)
    check_number("lam", lam, low=0, strict=False, allow_array=True)
    new_stats = server.statistics_policy(stats)
    of_head = dataclasses.replace(head_solver or dataclasses.replace(solver, epochs=1), keep_optimizer=False)

    def init(key, data):
        model = init_body(task, solver, data, key, common=common_init, part="body")
        return FedPACState(model, init_centroids("FedPAC", task, data))

    def round(key, state, data):
        model, centroids, k, place = state.model, state.centroids, state.model.round, data.placement
        begin = assemble(model, data)
        mask = head_mask(task, begin.params)

        def local(key, client, epochs, mine, lam_i):
            start = mine[0]
            means, square = feature_statistics(task, solver, client, start.variables, centroids)
            size = jnp.maximum(client.size, 1).astype(jnp.float32)
            s = means.mean * (means.counts / size)[:, None]
            variance = (square - jnp.sum(jnp.square(s))) / size
            keys = [jax.random.fold_in(key, number) for number in (0, 1)]
            headed, _ = solve(task, of_head, client, start.variables, keys[0], k=k, trainable=mask_of("head", mask),
                              epochs=resample_epochs(of_head, epochs, keys[0]))  # fmt: skip
            trained, loss = solve(aligned(task, centroids, lam_i), solver, client, headed.variables, keys[1], k=k,
                                  epochs=epochs, trainable=mask_of("body", mask),
                                  optimizer_state=start.optimizer)  # fmt: skip
            after = class_means(task, solver, client, trained.variables, centroids)
            return (trained, after, s, variance), loss

        none = jax.tree.map(lambda a: jnp.zeros((len(data.size), *a.shape), a.dtype), centroids)
        keep = (Local(begin, model.optimizer), none, none.mean, jnp.zeros((len(data.size),), jnp.float32))
        (sent, after, s, variance), info = for_each_client(solver, data, local, keep, of_clients("lam", lam, k, data),
                                                           key=key)  # fmt: skip
        here = data.online & ~info.rejected
        present, variance = place.replicate((here, jnp.maximum(variance, 0.0)))
        xi = place.replicate(combination(server.sq_dists(place.by_parameters(s)), variance, present))
        heads, bodies = partition(sent.variables.params, mask)
        heads = where(here, server.mix(xi, place.by_parameters(heads)), heads)
        weights = server.sample_weights(data, info)
        body = server.weighted_mean(weights, bodies, model.shared)
        running, trained = new_stats(weights, sent.variables.stats, model.stats, model.trained)
        new = PartlySharedState(body, heads, running, trained, sent.optimizer, k + 1)
        return FedPACState(new, mean_centroids(after, here, centroids)), info._replace(xi=xi)

    def personalize(key, state, data):
        return assemble(state.model, data)

    def join(state, fresh):
        running = server.statistics_of_newcomers(state.model.stats, state.model.trained, fresh.model.stats)
        return fresh._replace(model=fresh.model._replace(stats=running))

    return Algorithm(init, round, personalize, join=join)
