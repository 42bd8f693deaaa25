"""FedAMP and HeurFedAMP over the paper's grids of sigma; each grid is one vmapped program."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import fedamp_jax
from fedamp_jax import Info, Placement, Solver, Task, metrics
from fedamp_jax.data import Federation
from fedamp_jax.experiments import paper_values
from fedamp_jax.experiments.train import participation


def sweep_sigma(setting: str, options: Any, federation: Federation, task: Task, solver: Solver) -> dict[str, Any]:
    """BMTA and in-group weight of the last round for every sigma of the paper's grids.

    Returns:
        `{method: {"sigma": [...], "bmta": [percent], "in_group_weight": [...]}}`; without groups the weights are NaN.
    """
    train, test, groups = federation
    train, test = (Placement(chunk=options.chunk).place(data) for data in (train, test))
    who = participation(options, len(train.size))
    self_weight = paper_values.self_weights(setting, federation)
    factories = {"FedAMP": fedamp_jax.fedamp, "HeurFedAMP": fedamp_jax.heurfedamp}
    rows = {}
    for method, factory in factories.items():

        def one(sigma: jax.Array, factory=factory) -> tuple[jax.Array, jax.Array]:
            algorithm = factory(task, solver, sigma=sigma, self_weight=self_weight, lam=paper_values.LAMBDA)
            key = jax.random.key(options.seed)

            def measured(key: jax.Array, state: Any, info: Info) -> tuple[jax.Array, jax.Array | None]:
                accuracy = fedamp_jax.evaluate(task, algorithm.personalize(key, state, train), test)
                return jnp.mean(accuracy), info.xi

            _, (accuracy, xi) = fedamp_jax.scan_rounds(
                algorithm, algorithm.init(key, train), train, key, options.rounds,
                participation=who, each=measured,
            )  # fmt: skip
            return 100.0 * jnp.max(accuracy), xi[-1]

        bmta, xi = jax.jit(jax.vmap(one))(jnp.array(paper_values.SIGMA_GRID[method], jnp.float32))
        inside = [float("nan") if groups is None else metrics.in_group_weight(x, groups) for x in np.asarray(xi)]
        rows[method] = {
            "sigma": list(paper_values.SIGMA_GRID[method]),
            "bmta": bmta.tolist(),
            "in_group_weight": inside,
        }
    return rows
