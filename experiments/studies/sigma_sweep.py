"""FedAMP and HeurFedAMP over the paper's grids of sigma; each grid is one vmapped program.

    python experiments/studies/sigma_sweep.py                  # the bundled digits, the practical setting
    python experiments/studies/sigma_sweep.py --dataset mnist --data-dir DIR --model mlp --rounds 20

Writes `sigma_sweep.json` and the figure `sigma` into the folder.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import fedamp_jax
from fedamp_jax import Info, Placement, Solver, Task, analysis
from fedamp_jax.data import Federation
from fedamp_jax.experiments import fedamp_paper, paper_values
from fedamp_jax.report import figures, files
from fedamp_jax.report.figures import value_panels
from fedamp_jax.runner import command_line
from fedamp_jax.runner.experiment import prepare
from fedamp_jax.runner.messages import say
from fedamp_jax.runner.options import Options, participation


def sweep_sigma(options: Options, federation: Federation, task: Task, solver: Solver) -> dict[str, Any]:
    """BMTA and in-group weight of the last round for every sigma of the paper's grids.

    Returns:
        `{method: {"sigma": [...], "bmta": [percent], "in_group_weight": [...]}}`; without groups the weights are NaN.
    """
    train, test, groups = federation
    train, test = (Placement(chunk=options.machine.chunk).place(data) for data in (train, test))
    who = participation(options.schedule, len(train.size))
    self_weight = paper_values.self_weights("practical", federation)
    factories = {"FedAMP": fedamp_jax.fedamp, "HeurFedAMP": fedamp_jax.heurfedamp}
    rows = {}
    for method, factory in factories.items():

        def one(sigma: jax.Array, factory=factory) -> tuple[jax.Array, jax.Array]:
            algorithm = factory(task, solver, sigma=sigma, self_weight=self_weight, lam=paper_values.LAMBDA)
            key = jax.random.key(options.schedule.seed)

            def measured(key: jax.Array, state: Any, info: Info) -> tuple[jax.Array, jax.Array | None]:
                accuracy = fedamp_jax.evaluate(task, algorithm.personalize(key, state, train), test)
                return jnp.mean(accuracy), info.xi

            _, (accuracy, xi) = fedamp_jax.scan_rounds(
                algorithm, algorithm.init(key, train), train, options.schedule.number_of_rounds, key,
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


EXPERIMENT = fedamp_paper.experiment(
    "sigma_sweep",
    __doc__,
    options=Options(setting="practical", attention=fedamp_paper.Attention()),
    names=("FedAMP", "HeurFedAMP"),
    quick_names=(),
    panels={},
)


def main() -> None:
    """Run from the command line."""
    with command_line.readable_errors():
        command = command_line.parse(EXPERIMENT)
        options, folder = command.variants[0].options, command_line.folder_of(command, "sigma_sweep")
        federation, task, _, _ = prepare(EXPERIMENT, options, ())
        rows = sweep_sigma(options, federation, task, options.training.solver())
        files.write_json(rows, folder / "sigma_sweep.json")
        figure = sigma_sensitivity(rows, analysis.chance_in_group_weight(federation.groups))
        if figure is not None:
            figures.save_all(figure, folder / "sigma")
        say(f"{folder / 'sigma_sweep.json'}")


if __name__ == "__main__":
    main()
