"""FedAMP with one design decision changed at a time: the decisions that the paper leaves open, and their effect.

    python experiments/studies/ablation.py                          # the bundled digits, the practical setting
    python experiments/studies/ablation.py --dataset mnist --data-dir DIR --model mlp --rounds 20
    python experiments/studies/ablation.py --methods base mean own-init

Each variant is FedAMP as in `practical.py`, except for what `VARIANTS` says about it.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import fedamp_jax
from fedamp_jax import Algorithm, Task
from fedamp_jax.data import Federation
from fedamp_jax.experiments import fedamp_paper, paper_values
from fedamp_jax.report.schema import RunResults
from fedamp_jax.runner import command_line, cost, messages, run_folder
from fedamp_jax.runner.options import Unused
from fedamp_jax.runner.train import train_methods


@dataclasses.dataclass(frozen=True)
class Options(fedamp_paper.Options):
    """The settings of one run."""

    methods: tuple[str, ...] = ("all",)
    """Variants to train, by name (base, own-init, ...), or all."""
    sigma: float | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """Of the variant `base`. Default: the paper's or ours."""
    sgd_learning_rate: Unused[float] = paper_values.SGD_LEARNING_RATE
    heur_sigma: Unused[float | None] = None
    holdout_clients: Unused[int] = 0


class Variant(NamedTuple):
    """A variant of FedAMP.

    Attributes:
        text: what is changed, in words.
        change: `(sigma, M) -> arguments` of `fedamp` that replace those of `base`.
    """

    text: str
    change: Callable[[float, int], dict[str, Any]]


VARIANTS = {
    "base": Variant("as in `practical.py`", lambda sigma, m: {}),
    "personal-start": Variant("local training starts from w_i, not from u_i", lambda s, m: {"start": "personal"}),
    "own-init": Variant("every client has its own initial model", lambda s, m: {"common_init": False}),
    "sigma-10th": Variant("a tenth of sigma", lambda s, m: {"sigma": s / 10}),
    "sigma-10x": Variant("ten times sigma", lambda s, m: {"sigma": 10 * s}),
    "sigma-100x": Variant("a hundred times sigma", lambda s, m: {"sigma": 100 * s}),
    "mean": Variant("all others have equal weight: sigma is practically infinite", lambda s, m: {"sigma": 1e12}),
    "self-half": Variant("xi_ii = 1/2", lambda s, m: {"self_weight": 0.5}),
    "self-1-of-M": Variant("xi_ii = 1/M", lambda s, m: {"self_weight": 1 / m}),
    "alpha-1": Variant("alpha_k = 1 in every round: the proximal weight is 1/2", lambda s, m: {"alpha": 1.0}),
    "no-prox": Variant("lambda = 0: no proximal term", lambda s, m: {"lam": 0.0}),
    "stale": Variant("models of offline clients are used too (with --drop-rate)", lambda s, m: {"stale": "include"}),
    "eq5": Variant(
        "Eq. 5 as printed, xi_ii = 1 - sum of the others; alpha_k = sigma / M, the largest safe value",
        lambda s, m: {"self_weight": None, "alpha": s / m},
    ),
}


def make_algorithms(options: Options, federation: Federation, task: Task) -> dict[str, Algorithm]:
    """Every variant of FedAMP by its name."""
    m = len(federation.train.size)
    solver = fedamp_paper.make_solver(options)
    self_weight = paper_values.self_weights("practical", federation)
    sigma = options.sigma
    assert sigma is not None  # `finish` has set it
    base = {"sigma": sigma, "self_weight": self_weight, "lam": paper_values.LAMBDA}
    return {name: fedamp_jax.fedamp(task, solver, **{**base, **v.change(sigma, m)}) for name, v in VARIANTS.items()}


def sigma_of(variant: str, options: Options) -> float:
    """A variant's sigma."""
    assert options.sigma is not None  # `finish` has set it
    return VARIANTS[variant].change(options.sigma, 1).get("sigma", options.sigma)


def prepare(options: Options) -> tuple[Federation, Task, dict[str, Algorithm]]:
    """The clients, the model, and every variant by its name."""
    federation = fedamp_paper.load(options, "practical")
    task = fedamp_paper.make_task(options, federation)
    return federation, task, make_algorithms(options, federation, task)


def execute(options: Options, folder: Path) -> RunResults:
    """Train every chosen variant, writing results into `folder` after each one; returns the results."""
    federation, task, algorithms = prepare(options)
    sigmas = {name: sigma_of(name, options) for name in algorithms}
    results = train_methods("ablation", options, folder, federation, task, algorithms, {}, sigmas=sigmas)
    run_folder.write_files(results, folder)
    messages.console.print(f"Report: {folder / 'report.html'}", highlight=False, soft_wrap=True)
    return results


def main() -> None:
    """Run from the command line."""
    with command_line.experiment(Options, __doc__, "ablation") as (options, folder):
        options = fedamp_paper.finish(options, "practical")
        if options.dry_run is not None:
            federation, _, algorithms = prepare(options)
            return cost.show(options, federation, algorithms)
        execute(options, folder)


if __name__ == "__main__":
    main()
