"""Clients without groups: class proportions or sizes drawn from a Dirichlet distribution, or shards of sorted classes.

    python experiments/dirichlet.py --alpha 0.1 --clients 20     # the bundled digits, a few minutes on a laptop
    python experiments/dirichlet.py --dataset cifar10 --data-dir DIR --balanced --alpha 0.3
    python experiments/dirichlet.py --split shards

All else is as in `practical.py`, but for sigma: the paper has no value for clients without groups.
"""

from fedamp_jax.experiments import dirichlet, fedamp_paper
from fedamp_jax.runner.entry import main
from fedamp_jax.runner.options import Options

EXPERIMENT = fedamp_paper.experiment(
    "dirichlet",
    __doc__,
    options=Options(
        setting=dirichlet.Dirichlet(split="dirichlet", alpha=0.1, balanced=False, clients=None),
        attention=fedamp_paper.Attention(sigma=None, heur_sigma=None),  # of this setting: auto
    ),
    finish=dirichlet.finish,
)

if __name__ == "__main__":
    main(EXPERIMENT)
