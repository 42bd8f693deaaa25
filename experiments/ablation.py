"""FedAMP with one decision changed at a time: what the paper leaves open, and what each choice is worth.

    python experiments/ablation.py                          # the bundled digits, the practical setting
    python experiments/ablation.py --dataset mnist --data-dir DIR --model mlp --rounds 20
    python experiments/ablation.py --methods base mean own-init

Every row is FedAMP as in `practical.py` but for what `VARIANTS` says of it.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import command_line
import common
import numpy as np
import outputs
import runner
import settings
from command_line import Unused

import fedamp_jax
from fedamp_jax import Algorithm, Task
from fedamp_jax.data import Federation


@dataclasses.dataclass
class Options(common.Options):
    """The settings of one run. Without any, everything runs on the bundled digits."""

    methods: tuple[str, ...] = ("all",)
    """Names of variants (base, own-init, ...), or all."""
    sgd_learning_rate: Unused[float] = settings.SGD_LEARNING_RATE
    heur_sigma: Unused[float | None] = None
    sigma_sweep: Unused[bool] = False


class Variant(NamedTuple):
    """Attributes: text: what is changed, in words. change: `(sigma, M) -> arguments` of `fedamp` in place of base's."""

    text: str
    change: Callable[[float, int], dict[str, Any]]


VARIANTS = {
    "base": Variant("as in `practical.py`", lambda sigma, m: {}),
    "personal-start": Variant("local training starts from w_i, not from u_i", lambda s, m: {"start": "personal"}),
    "own-init": Variant("every client has an initial model of its own", lambda s, m: {"common_init": False}),
    "sigma-10th": Variant("a tenth of sigma", lambda s, m: {"sigma": s / 10}),
    "sigma-10x": Variant("ten times sigma", lambda s, m: {"sigma": 10 * s}),
    "sigma-100x": Variant("a hundred times sigma", lambda s, m: {"sigma": 100 * s}),
    "mean": Variant("all others weigh alike: sigma is infinite for practical purposes", lambda s, m: {"sigma": 1e12}),
    "self-half": Variant("xi_ii = 1/2", lambda s, m: {"self_weight": 0.5}),
    "self-1-of-M": Variant("xi_ii = 1/M", lambda s, m: {"self_weight": 1 / m}),
    "alpha-1": Variant("alpha_k = 1 in every round: the proximal term weighs 1/2", lambda s, m: {"alpha": 1.0}),
    "no-prox": Variant("lambda = 0: no proximal term", lambda s, m: {"lam": 0.0}),
    "stale": Variant("models of clients that are offline count (with --drop-rate)", lambda s, m: {"stale": "include"}),
    "eq5": Variant(
        "Eq. 5 as printed, xi_ii = 1 - sum of the others; alpha_k = sigma / M, the largest that is safe",
        lambda s, m: {"self_weight": None, "alpha": s / m},
    ),
}


def make_algorithms(options: Options, federation: Federation, task: Task) -> dict[str, Algorithm]:
    """FedAMP by the name of the variant."""
    m, train = len(federation.train.size), federation.train
    labels = [np.asarray(train.y[i, : train.size[i]]) for i in range(m)]
    solver = common.make_solver(options)
    own = settings.self_weights("practical", federation.groups, labels)
    base = {"sigma": options.sigma, "self_weight": own, "lam": settings.LAMBDA}
    return {
        name: fedamp_jax.fedamp(task, solver, **{**base, **v.change(options.sigma, m)}) for name, v in VARIANTS.items()
    }


def execute(options: Options, folder: Path) -> dict[str, Any]:
    """Train every chosen variant, writing results into `folder` after each one; returns the results."""
    federation = common.load(options, "practical")
    task = common.make_task(options, federation)
    algorithms = make_algorithms(options, federation, task)
    results = runner.train_methods("ablation", options, folder, federation, task, algorithms, {})
    outputs.write_files(results, folder)
    outputs.console.print(f"Report: {folder / 'report.html'}", highlight=False, soft_wrap=True)
    return results


def main() -> None:
    """Run from the command line."""
    command = command_line.parse(Options, __doc__, "ablation")
    with command_line.errors_for_people():
        runner.use_devices(command)
        folder = Path(command.out) if command.out else outputs.default_folder("ablation", command)
        execute(common.finish(command, "practical"), folder)


if __name__ == "__main__":
    main()
