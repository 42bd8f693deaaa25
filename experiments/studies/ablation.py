"""FedAMP with one design decision changed at a time: the decisions that the paper leaves open, and their effect.

    python experiments/studies/ablation.py                          # the bundled digits, the practical setting
    python experiments/studies/ablation.py --dataset mnist --data-dir DIR --model mlp --rounds 20
    python experiments/studies/ablation.py --methods base mean own-init

Each variant is FedAMP as in `practical.py`, except for what `VARIANTS` says about it.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import fedamp_jax
from fedamp_jax import Algorithm, Task
from fedamp_jax.data import Federation
from fedamp_jax.experiments import fedamp_paper, paper_values
from fedamp_jax.runner.entry import main
from fedamp_jax.runner.experiment import nothing
from fedamp_jax.runner.options import Options


@dataclasses.dataclass(frozen=True)
class Sigma:
    """Attention weights."""

    sigma: float | None = None
    """Of the variant base. Default: the paper's or ours."""


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


def methods(options: Options, federation: Federation, task: Task, names: Sequence[str]) -> dict[str, Algorithm]:
    """The variants of FedAMP of these names."""
    m, solver = len(federation.train.size), options.training.solver()
    self_weight = paper_values.self_weights("practical", federation)
    sigma = options.attention.sigma
    base = {"sigma": sigma, "self_weight": self_weight, "lam": paper_values.LAMBDA}
    return {name: fedamp_jax.fedamp(task, solver, **{**base, **VARIANTS[name].change(sigma, m)}) for name in names}


def scales(options: Options) -> Mapping[str, float | None]:
    """Each variant's sigma."""
    sigma = options.attention.sigma
    return {name: variant.change(sigma, 1).get("sigma", sigma) for name, variant in VARIANTS.items()}


EXPERIMENT = fedamp_paper.experiment(
    "ablation",
    __doc__,
    options=Options(setting="practical", attention=Sigma()),
    names=tuple(VARIANTS),
    quick_names=(),
    methods=methods,
    paper=nothing,
    scales=scales,
)

if __name__ == "__main__":
    main(EXPERIMENT)
