"""Groups of clients that disagree: the same examples with permuted labels, turned images, or a feature shift.

    python experiments/concept.py --shift labels --groups 5 --strength 1.0 --clients 20   # the bundled digits
    python experiments/concept.py --strength 0 0.25 0.5 0.75 1     # from no disagreement to full, with a figure of it
    python experiments/concept.py --dataset mnist --data-dir DIR --model mlp --shift rotation --groups 4

All else is as in `practical.py`, but for sigma: the paper has no value for clients that disagree.
"""

from fedamp_jax.experiments import concept, fedamp_paper
from fedamp_jax.runner.entry import main
from fedamp_jax.runner.experiment import Panel
from fedamp_jax.runner.options import Options

EXPERIMENT = fedamp_paper.experiment(
    "concept",
    __doc__,
    options=Options(
        setting=concept.Concept(shift="labels", groups=5, strength=1.0, clients=None),
        attention=fedamp_paper.Attention(sigma=None, heur_sigma=None),  # of this setting: auto
    ),
    finish=concept.finish,
    panels={"shift": Panel(str), "strength": Panel(concept.strength), **fedamp_paper.PANELS},
)

if __name__ == "__main__":
    main(EXPERIMENT)
