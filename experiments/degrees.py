"""Degrees of personalization: Table 1 and Figs. 2 and 6 of the PFLEGO paper (Nikoloutsopoulos et al. 2023).

python experiments/degrees.py                       # the bundled digits, minutes on a laptop
python experiments/degrees.py --dataset mnist --data-dir DIR
python experiments/degrees.py --dataset cifar10 --degree high --participation 0.2 0.4 1.0   # Fig. 6
"""

from fedamp_jax.experiments import degrees, pflego_paper
from fedamp_jax.experiments.paper_values import DEGREES
from fedamp_jax.runner.entry import main
from fedamp_jax.runner.experiment import Experiment, Panel
from fedamp_jax.runner.messages import invited
from fedamp_jax.runner.options import Options, Schedule

EXPERIMENT = Experiment(
    name="degrees",
    text=__doc__,
    options=Options(
        setting=degrees.Degrees(labels="own"),  # a client numbers its classes 0..K-1
        schedule=Schedule(participation=0.2, evaluate_every=10, rounds=None),  # 200 rounds; 100 for digits
        training=pflego_paper.FullBatch(tau=50, client_rate=0.007, server_rate=0.003, server="adam"),
    ),
    datasets=("digits", "mnist", "fashion_mnist", "emnist", "cifar10"),
    names=("FedPer", "FedAvg", "PFLEGO"),
    finish=degrees.finish,
    clients=degrees.clients,
    model=degrees.model,  # a perceptron; a small CNN for CIFAR-10
    methods=degrees.methods,
    paper=degrees.paper,
    score_rounds=10,  # the score is the mean over the last ten rounds
    panels={"degree": Panel(DEGREES.__getitem__, tuple(DEGREES)), "participation": Panel(invited)},
)

if __name__ == "__main__":
    main(EXPERIMENT)
