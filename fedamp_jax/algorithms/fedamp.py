"""FedAMP (Huang et al., AAAI 2021), and Algorithm 1 for any attention: weights, mix, solve, reject what diverged."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple, TypedDict, Unpack

import jax
import jax.numpy as jnp
import optax

from fedamp_jax import attention
from fedamp_jax.algorithms import collaborators
from fedamp_jax.checks import check_choice, check_number
from fedamp_jax.engine import (
    Local,
    Penalty,
    Prox,
    Solver,
    at_round,
    check_parts,
    for_each_client,
    init_clients,
    low_rank,
    of_clients,
    server,
    solve,
)
from fedamp_jax.placement.placement import Placement
from fedamp_jax.trees import broadcast_like, check_float32, where
from fedamp_jax.types import Algorithm, Array, Data, Info, PyTree, RoundError, Task, Variables

ALPHA = optax.exponential_decay(1e4, transition_steps=30, decay_rate=0.1, staircase=True, end_value=1e2)
"""Appendix C: alpha_k starts at 1e4 and falls by 0.1 every 30 rounds, in the paper's 90 to 100. There it stays: a step
of local training is stable while learning rate * lam / alpha_k < 2, so an alpha that keeps falling ends every run."""


class FedAMPState(NamedTuple):
    """Attributes: clients: `Local [M]`, the personal models w_i. trained: `[M]` bool, who has trained.
    round: `[]` int32, k - 1 of the paper. memory: what the attention weights remember; `()` for FedAMP and HeurFedAMP.
    """

    clients: Local
    trained: Array
    round: Array
    memory: PyTree = ()


class Shared(TypedDict, total=False):
    """Arguments of `attentive` that FedAMP and HeurFedAMP pass on."""

    start: str
    common_init: bool
    stats: str
    stale: str


def attentive(
    task: Task,
    solver: Solver,
    weights: Callable[..., Any],
    *,
    memory: attention.Memory | None = None,
    penalty: Callable[..., Penalty] | None = None,
    numbers: Callable[[Array, Data], tuple[Array, ...]] | None = None,
    examples: Callable[[Data], Data] | None = None,
    explain: Callable[[Info, Data], RoundError] | None = None,
    start: str = "cloud",
    common_init: bool = True,
    stats: str = "local",
    stale: str = "exclude",
) -> Algorithm:
    """Algorithm 1 of Huang et al. 2021 for attention weights of your own.

    In each round the server mixes `u_i = sum_j xi_ij w_j`, and client i trains from u_i.

    Args:
        task, solver: the model and local training.
        weights: `(models, edges, k, data) -> xi [M, M]` float32, rows receive: `models` are all clients' parameters
            for `server.sq_dists`, `server.cosines` and the like, `models.tree` has them as leaves `[M, ...]`;
            `edges [M, M]` bool says which models may reach which clients, never the client's own; `k` is the round.
            A client without edges must have weight 1 for its own model, as `attention.normalize` gives it.
        memory: what the weights remember: a fifth argument, which they return with the weights, `(xi, memory)`.
        penalty: `(u_i, k, *numbers_i) -> Penalty`, a term of client i's objective, such as `Prox`; None for none.
        numbers: `(k, data) -> ([M], ...)`, the clients' own numbers for the penalty; None for none.
        examples: `client -> client`, the examples that ONE client trains on; None for all.
        explain: `(info, data) -> RoundError`. With it a round whose weights are not finite, or negative on the
            diagonal, trains no client and reports an error; without it nothing looks at the weights.
        start: local training starts from the cloud model u_i (`"cloud"`) or from w_i (`"personal"`).
        common_init: one initial model for all clients, or one each.
        stats: BatchNorm statistics are mixed by xi (`"mix"`); or they stay each client's own (`"local"`), and only
            those that a client's first training starts from are mixed, as u_i is.
        stale: the last models of clients that are offline are left out of xi (`"exclude"`) or count (`"include"`).

    Returns:
        The `Algorithm`; `info.xi` holds the weights.

    Raises:
        ValueError, TypeError: if an argument is out of range or of the wrong kind.

    >>> import jax.numpy as jnp, optax, fedamp_jax
    >>> from fedamp_jax import attention
    >>> from fedamp_jax.engine import server
    >>> def nearest(models, edges, k, data):
    ...     return attention.normalize(-server.sq_dists(models), edges, jnp.float32(0.5))
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = attentive(task, fedamp_jax.Solver(optax.adam(1e-3)), nearest)
    """
    check_parts(task, solver)
    check_choice("start", start, ("cloud", "personal"))
    check_choice("stats", stats, ("local", "mix"))
    check_choice("stale", stale, ("exclude", "include"))

    def init(key, data):
        clients = init_clients(task, solver, data, key, common=common_init)
        remembered = () if memory is None else jax.tree.map(jnp.copy, memory.init(clients.variables))
        return FedAMPState(clients, jnp.zeros((len(data.size),), bool), jnp.zeros((), jnp.int32), remembered)

    def round(key, state, data):
        k, mine, place = state.round, state.clients.variables, data.placement
        check_float32(mine)  # a mixture is float32 whatever they are, so `solve` would not notice
        models = place.by_parameters(mine.params)
        sends = data.online if stale == "exclude" else data.size > 0
        edges = attention.edges(*place.replicate((data.online, sends)))
        found = weights(models, edges, k, data, *(() if memory is None else (state.memory,)))
        xi, remembered = (found, ()) if memory is None else found
        xi = place.replicate(xi)
        error = None
        if explain is not None:
            # With a negative self weight u_i is no convex combination, so no client trains.
            fine = jnp.all(attention.own_weights(xi) >= 0)
            data, error = data._replace(online=data.online & fine), (~fine).astype(jnp.int32)
        cloud = server.mix(xi, models)
        running = server.mix(xi, place.by_parameters(mine.stats))
        running = running if stats == "mix" else where(state.trained, mine.stats, running)
        begin = Variables(cloud if start == "cloud" else mine.params, running)
        of_each = numbers(k, data) if numbers else ()

        def local(key, client, epochs, mine_i, begin_i, cloud_i, *numbers_i):
            return solve(task, solver, examples(client) if examples else client, begin_i, key, epochs=epochs, k=k,
                         penalty=penalty(cloud_i, k, *numbers_i) if penalty else None,
                         optimizer_state=mine_i.optimizer)  # fmt: skip

        clients, info = for_each_client(solver, data, local, state.clients, begin, cloud, *of_each, key=key)
        info = info._replace(xi=xi, error=error)
        remembered = () if memory is None else memory.update(remembered, begin, info)
        trained = state.trained | ((info.epochs > 0) & ~info.rejected)
        return FedAMPState(clients, trained, k + 1, remembered), info

    def personalize(key, state, data):
        return state.clients.variables

    def join(state, fresh):
        # An initial model, of a client that has not trained, would draw the mean away from what the others found.
        counts = jnp.where(jnp.any(state.trained), state.trained, True).astype(jnp.float32)
        mine = state.clients.variables
        mean = server.weighted_mean(counts, mine, jax.tree.map(lambda a: a[0], mine))
        variables = broadcast_like(mean, fresh.clients.variables)
        remembered = () if memory is None else memory.init(variables)
        return fresh._replace(clients=fresh.clients._replace(variables=variables), memory=remembered)

    return Algorithm(init, round, personalize, explain, join)


def proximal(alpha: Any, lam: Any) -> dict[str, Any]:
    """The validated penalty of Eq. 6, `lam / (2 alpha_k) ||w - u_i||^2`, as arguments of `attentive`."""
    check_number("alpha", alpha, low=0)
    check_number("lam", lam, low=0, strict=False, allow_array=True)

    def penalty(cloud: PyTree, k: Array, lam_i: Array) -> Prox:
        return Prox(cloud, lam_i / at_round(alpha, k))

    return {"penalty": penalty, "numbers": lambda k, data: (of_clients("lam", lam, k, data),)}


def geometry_of(task: Task, solver: Solver, of: str) -> server.Geometry:
    """The geometry that `of` names in `fedamp` and `heurfedamp`."""
    check_choice("of", of, ("models", "parameters"))
    check_parts(task, solver)
    scale = None if task.base is None else task.base.scale
    return server.PARAMETERS if scale is None or of == "parameters" else low_rank.products(scale)


def fedamp(
    task: Task,
    solver: Solver,
    *,
    sigma: Any,
    self_weight: Any,
    alpha: Any = ALPHA,
    lam: Any = 1.0,
    slope: attention.Slope = attention.neg_exp,
    of: str = "models",
    **shared: Unpack[Shared],
) -> Algorithm:
    """FedAMP, Algorithm 1 of Huang et al. 2021: `u_i = sum_j xi_ij w_j` (Eq. 5), then each client minimises
    `F_i(w) + lam / (2 alpha_k) ||w - u_i||^2` (Eq. 6).

    Numbers may be floats, schedules of the round, or tracers (a sweep over sigma is a `vmap`).

    Args:
        task, solver: the model and local training.
        sigma: scale of squared distances, greater than 0; of the order of `||w_i - w_j||^2` between similar clients.
            One per client `[M]` is the scale of the models that it receives.
            Or `attention.perplexity(k)`, which finds each client's own in every round, or `attention.auto()`, for which
            clients find k.
        self_weight: None for Eq. 5 as printed, `xi_ii = 1 - sum_j xi_ij`, which needs a small alpha; or a number in
            [0, 1], or one per client `[M]`: then the others' weights are normalised to `1 - xi_ii`. Appendix C takes
            `1 / (N_i + 1)`, N_i being the number of other clients with the same distribution. With `attention.auto()`
            None, and `1 / (k_i + 1)` follows.
        alpha: step size alpha_k, greater than 0. By default Appendix C's: 1e4, falling by 0.1 every 30 rounds, from the
            61st round on 100. With `self_weight` it only sets the weight of the proximal term.
        lam: weight of the proximal term, at least 0; one per client `[M]`, or as alpha a number, a schedule or a
            tracer.
        slope: `log A'` of the attention-inducing function: `attention.neg_exp`, `scad`, `mcp`, or one of your own.
        of: what distances are of. It matters with adapters alone (`fedamp_jax.models.adapted`): the `"models"` that
            they make, and so the products A B, without forming these; or the `"parameters"`, A and B.
        **shared: `start`, `common_init`, `stats` and `stale`, see `attentive`.

    Returns:
        The `Algorithm`; `info.xi` holds the weights. If a self weight comes out negative or a weight is not finite, no
        client trains in that round and `fedamp_jax.round` raises `NegativeSelfWeightError`.

    Raises:
        ValueError, TypeError: if a hyper-parameter is out of range or of the wrong kind.

    The paper leaves open where local training starts, and how `xi_ii = 1/(N_i + 1)` goes with alpha = 1e4 (only
    normalised weights make sense of it). Departs from the paper: models start alike (`common_init`), as models that
    start apart hardly come near each other.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedamp(task, fedamp_jax.Solver(optax.adam(1e-3)), sigma=10.0, self_weight=1 / 21)
    """
    attention.check_hyperparameters(sigma, self_weight)
    if not callable(slope):
        raise TypeError(
            f"slope must be a function, fedamp_jax.attention.neg_exp, scad, mcp or one of your own, got {slope!r}"
        )

    geometry = geometry_of(task, solver, of)

    def given(models, edges, sigma, own, alpha: Any = 1.0):
        return attention.fedamp_weights(
            models, edges, sigma=sigma, alpha=alpha, slope=slope, self_weight=own, geometry=geometry
        )

    if isinstance(sigma, attention.Auto):
        chosen, memory = collaborators.found(task, solver, sigma, given)
        return attentive(task, solver, chosen, memory=memory, **proximal(alpha, lam), **shared)

    def weights(models, edges, k, data):
        own = None if self_weight is None else of_clients("self_weight", self_weight, k, data)
        return given(models, edges, attention.sigma_at_round(sigma, k, data), own, at_round(alpha, k))

    explain = attention.explain if self_weight is None or attention.may_fail(sigma, self_weight) else None
    return attentive(task, solver, weights, **proximal(alpha, lam), explain=explain, **shared)


def distances(state: FedAMPState, data: Data) -> jax.Array:
    """Squared distances between the clients' models, `[M, M]`."""
    return data.placement.call(_distances, (data.placement,), state.clients.variables.params)


@functools.partial(jax.jit, static_argnums=0)
def _distances(place: Placement, params: Any) -> jax.Array:
    return place.replicate(place.program(lambda params: server.sq_dists(place.by_parameters(params)))(params))
