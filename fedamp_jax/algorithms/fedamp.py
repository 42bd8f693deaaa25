"""FedAMP and HeurFedAMP (Huang et al., AAAI 2021): a personal cloud model for every client.

A round is five lines: distances and weights, mix, solve with the proximal term, reject what diverged.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import optax

from fedamp_jax import attention, checks, stacked
from fedamp_jax.local import Local, Prox, Solver, check_parts, for_each_client, init_clients, solve
from fedamp_jax.types import Algorithm, Array, PyTree, Task, Variables

ALPHA = optax.exponential_decay(1e4, transition_steps=30, decay_rate=0.1, staircase=True, end_value=1e2)
"""Appendix C: alpha_k starts at 1e4 and falls by 0.1 every 30 rounds, in the paper's 90 to 100. There it stays: a step
of local training is stable while learning rate * lam / alpha_k < 2, so that an alpha that falls on ends every run."""


class FedAMPState(NamedTuple):
    """Attributes: clients: `Local [M]`, the personal models w_i. round: `[]` int32, k - 1 of the paper."""

    clients: Local
    round: Array


def _attentive(
    weights: Callable[[PyTree, Array, Array, Array], Array],
    task: Task,
    solver: Solver,
    alpha: Any,
    lam: Any,
    start: str,
    common_init: bool,
    stats: str,
    stale: str,
) -> Algorithm:
    """Algorithm 1 for any attention `weights(params [M, ...], hears [M], sends [M], k) -> xi [M, M]`."""
    check_parts(task, solver)
    checks.number("alpha", alpha, low=0)
    checks.number("lam", lam, low=0, strict=False)
    checks.choice("start", start, ("cloud", "personal"))
    checks.choice("stats", stats, ("local", "mix"))
    checks.choice("stale", stale, ("exclude", "include"))

    def init(key, data):
        return FedAMPState(init_clients(task, solver, key, data, common=common_init), jnp.zeros((), jnp.int32))

    def round(key, state, data):
        k, mine = state.round, state.clients.variables
        sends = data.online if stale == "exclude" else data.size > 0
        xi = weights(mine.params, data.online, sends, k)
        # With a negative self weight u_i is no convex combination, so nobody trains; `fedamp_jax.round` reports it.
        data = data._replace(online=data.online & jnp.all(attention.given_to_self(xi) >= 0))
        cloud = stacked.mix(xi, mine.params)
        running = stacked.mix(xi, mine.stats) if stats == "mix" else mine.stats
        begin = Variables(cloud if start == "cloud" else mine.params, running)
        weight = checks.at_round(lam, k) / checks.at_round(alpha, k)

        def local(key, client, epochs, mine_i, begin_i, cloud_i):
            return solve(task, solver, key, client, begin_i, epochs=epochs, k=k, prox=Prox(cloud_i, weight),
                         optimizer_state=mine_i.optimizer)  # fmt: skip

        clients, info = for_each_client(solver, key, data, local, state.clients, begin, cloud)
        return FedAMPState(clients, k + 1), info._replace(xi=xi)

    def personalize(key, state, data):
        return state.clients.variables

    return Algorithm(init, round, personalize)


def fedamp(
    task: Task,
    solver: Solver,
    *,
    sigma: Any,
    self_weight: Any,
    alpha: Any = ALPHA,
    lam: Any = 1.0,
    slope: attention.Slope = attention.neg_exp,
    start: str = "cloud",
    common_init: bool = True,
    stats: str = "local",
    stale: str = "exclude",
) -> Algorithm:
    """FedAMP, Algorithm 1 of Huang et al. 2021: `u_i = sum_j xi_ij w_j` (Eq. 5), then each client minimises
    `F_i(w) + lam / (2 alpha_k) ||w - u_i||^2` (Eq. 6).

    Numbers may be floats, schedules of the round, or tracers (a sweep over sigma is a `vmap`).

    Args:
        task: the model.
        solver: local training.
        sigma: scale of squared distances, greater than 0; of the order of `||w_i - w_j||^2` between like clients.
        self_weight: None for Eq. 5 as printed, `xi_ii = 1 - sum_j xi_ij`, which needs a small alpha; or a number in
            [0, 1], or one per client `[M]`: then the others' weights are normalised to `1 - xi_ii`. Appendix C takes
            `1 / (N_i + 1)`, N_i being the number of other clients with the same distribution.
        alpha: step size alpha_k, greater than 0. By default Appendix C's: 1e4, falling by 0.1 every 30 rounds, from the
            60th on 100. Local steps of the learning rate r are stable while `r lam / alpha_k < 2`.
        lam: lambda of Eq. 1, at least 0.
        slope: `log A'`: `attention.neg_exp`, `attention.scad` or `attention.mcp`.
        start: local training starts from u_i (`"cloud"`) or from w_i (`"personal"`).
        common_init: one initial model for all clients, or one each.
        stats: BatchNorm statistics stay each client's own (`"local"`) or are mixed by xi (`"mix"`).
        stale: the last models of clients that are offline are left out of xi (`"exclude"`) or count (`"include"`).

    Returns:
        The `Algorithm`; `info.xi` holds the weights. If a self weight comes out negative or a weight is not finite,
        nobody trains in that round and `fedamp_jax.round` raises.

    Raises:
        ValueError, TypeError: if a hyper-parameter is out of range or of the wrong kind.

    The paper leaves open where local training starts, and how `xi_ii = 1/(N_i + 1)` goes with alpha = 1e4 (only
    normalised weights make sense of it). Departs from the paper: models start alike (`common_init`), as models that
    start apart hardly come near each other.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedamp(task, fedamp_jax.Solver(optax.adam(1e-3)), sigma=10.0, self_weight=1 / 21)
    """
    checks.number("sigma", sigma, low=0)
    if self_weight is not None:
        checks.number("self_weight", self_weight, low=0, high=1, strict=False, per_client=True)

    def weights(params, hears, sends, k):
        own = None if self_weight is None else checks.at_round(self_weight, k)
        return attention.fedamp_weights(params, hears, sends, sigma=checks.at_round(sigma, k),
                                        alpha=checks.at_round(alpha, k), slope=slope, self_weight=own)  # fmt: skip

    return _attentive(weights, task, solver, alpha, lam, start, common_init, stats, stale)


def heurfedamp(
    task: Task,
    solver: Solver,
    *,
    sigma: Any,
    self_weight: Any,
    alpha: Any = ALPHA,
    lam: Any = 1.0,
    start: str = "cloud",
    common_init: bool = True,
    stats: str = "local",
    stale: str = "exclude",
) -> Algorithm:
    """HeurFedAMP, Section 6 of Huang et al. 2021: FedAMP with weights from cosine similarities (Eq. 8).

    Args:
        task: the model.
        solver: local training.
        sigma: sharpness of the softmax over cosines, greater than 0.
        self_weight: xi_ii, a number in [0, 1] or one per client `[M]`; Appendix C takes `1 / (N_i + 1)`.
        alpha: as in `fedamp`; here it only sets the proximal weight `lam / (2 alpha_k)`.
        lam, start, common_init, stats, stale: as in `fedamp`.

    Returns:
        The `Algorithm`; `info.xi` holds the weights.

    Raises:
        ValueError, TypeError: if a hyper-parameter is out of range or of the wrong kind.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.heurfedamp(task, fedamp_jax.Solver(optax.adam(1e-3)), sigma=25.0, self_weight=1 / 21)
    """
    checks.number("sigma", sigma, low=0)
    if self_weight is None:
        raise ValueError("self_weight must be given for heurfedamp: Eq. 8 treats xi_ii as a hyper-parameter in [0, 1]")
    checks.number("self_weight", self_weight, low=0, high=1, strict=False, per_client=True)

    def weights(params, hears, sends, k):
        own = checks.at_round(self_weight, k)
        return attention.heurfedamp_weights(params, hears, sends, sigma=checks.at_round(sigma, k), self_weight=own)

    return _attentive(weights, task, solver, alpha, lam, start, common_init, stats, stale)
