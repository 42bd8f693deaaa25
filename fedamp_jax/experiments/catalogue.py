"""The experiments by name, as the command `fedamp` has them; `experiments/` beside the package spells them out."""

from fedamp_jax.experiments.concept import CONCEPT
from fedamp_jax.experiments.degrees import DEGREES
from fedamp_jax.experiments.dirichlet import DIRICHLET
from fedamp_jax.experiments.fedamp_paper import experiment
from fedamp_jax.experiments.omniglot import OMNIGLOT
from fedamp_jax.runner.experiment import Experiment

_EXAMPLES = """

    python experiments/{0}.py                                     # the bundled digits
    python experiments/{0}.py --dataset mnist --model mlp --methods FedAMP FedAvg-FT --rounds 20
    python experiments/{0}.py --drop-rate 0.1 0.3 --epochs-range 1 19 --seeds 0 1 2
"""
_PAPER = {
    "practical": "Groups of clients with dominating classes: the practical setting",
    "pathological": "Two classes for each client: the pathological setting",
    "iid": "Clients that do not differ: the IID setting",
}

EXPERIMENTS: dict[str, Experiment] = {
    **{
        name: experiment(name, f"{text} of the FedAMP paper (Huang et al. 2021).{_EXAMPLES.format(name)}")
        for name, text in _PAPER.items()
    },
    "dirichlet": DIRICHLET,
    "concept": CONCEPT,
    "degrees": DEGREES,
    "omniglot": OMNIGLOT,
}
"""Every experiment of the package, by name."""
