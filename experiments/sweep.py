"""FedAMP and HeurFedAMP over the paper's grids of sigma: each grid is one vmapped program."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import settings
from command_line import Options

import fedamp_jax
from fedamp_jax import Solver, Task, metrics
from fedamp_jax.data import Federation


def sweep_sigma(setting: str, options: Options, federation: Federation, task: Task, solver: Solver) -> dict[str, Any]:
    """BMTA and the last round's in-group weight for every sigma of the paper's grids.

    Returns:
        `{method: {"sigma": [...], "bmta": [percent], "in_group_weight": [...]}}`; NaN weights without groups.
    """
    train, test, groups = federation
    labels = [np.asarray(train.y[i, : train.size[i]]) for i in range(len(train.size))]
    own = settings.self_weights(setting, groups, labels)
    factories = {"FedAMP": fedamp_jax.fedamp, "HeurFedAMP": fedamp_jax.heurfedamp}
    rows = {}
    for method, factory in factories.items():

        def one(sigma: jax.Array, factory=factory) -> tuple[jax.Array, jax.Array]:
            algorithm = factory(task, solver, sigma=sigma, self_weight=own, lam=settings.LAMBDA)
            key = jax.random.key(options.seed)

            def step(state, k):
                key_online, key_round, key_use = jax.random.split(jax.random.fold_in(key, k), 3)
                shares = options.participation, options.drop_rate
                online = fedamp_jax.sample_online(key_online, len(labels), *shares, train.id)
                state, info = algorithm.round(key_round, state, train._replace(online=online))
                accuracy = fedamp_jax.evaluate(task, algorithm.personalize(key_use, state, train), test)
                return state, (jnp.mean(accuracy), info.xi)

            _, (accuracy, xi) = jax.lax.scan(step, algorithm.init(key, train), jnp.arange(options.rounds))
            return 100.0 * jnp.max(accuracy), xi[-1]

        bmta, xi = jax.jit(jax.vmap(one))(jnp.array(settings.SIGMA_GRID[method], jnp.float32))
        inside = [float("nan") if groups is None else metrics.in_group_weight(x, groups) for x in np.asarray(xi)]
        rows[method] = {"sigma": list(settings.SIGMA_GRID[method]), "bmta": bmta.tolist(), "in_group_weight": inside}
    return rows
