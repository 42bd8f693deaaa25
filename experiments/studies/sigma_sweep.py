"""FedAMP and HeurFedAMP over the paper's grids of sigma; each grid is one vmapped program."""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import fedamp_jax
from fedamp_jax import Info, Placement, Solver, Task, analysis
from fedamp_jax.data import Federation
from fedamp_jax.experiments import paper_values
from fedamp_jax.report.figures import value_panels
from fedamp_jax.runner.options import participation


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
                algorithm, algorithm.init(key, train), train, options.rounds, key,
                participation=who, each=measured,
            )  # fmt: skip
            return 100.0 * jnp.max(accuracy), xi[-1]

        bmta, xi = jax.jit(jax.vmap(one))(jnp.array(paper_values.SIGMA_GRID[method], jnp.float32))
        inside = [float("nan") if groups is None else analysis.in_group_weight(x, groups) for x in np.asarray(xi)]
        rows[method] = {
            "sigma": list(paper_values.SIGMA_GRID[method]),
            "bmta": bmta.tolist(),
            "in_group_weight": inside,
        }
    return rows


def sigma_sensitivity(rows: Mapping[str, Mapping[str, Any]], chance: float | None = None) -> Figure | None:
    """The effect of sigma, the scale of the attention: BMTA and in-group weight over a grid of its values.

    Args:
        rows: method name to `sigma` `[S]` (positive), `bmta` `[S]` (percent) and, where known, `in_group_weight` `[S]`.
        chance: the in-group weight of uniform weights, drawn as a dashed line.

    >>> figure = sigma_sensitivity({"FedAMP": {"sigma": [1, 10, 100], "bmta": [80.0, 91.5, 90.0]}})
    >>> len(figure.axes)
    1
    """
    figure = value_panels(rows, "sigma", ["bmta", "in_group_weight"], chance)
    if figure is not None:
        for panel in figure.axes:
            panel.set(xlabel="sigma (log scale)", xscale="log")
        figure.suptitle("Sensitivity to sigma")
    return figure
