"""Omniglot: Table 2 and Figs. 3 and 4 of the PFLEGO paper (Nikoloutsopoulos et al. 2023).

    python experiments/omniglot.py --dataset omniglot --data-dir DIR
    python experiments/omniglot.py                       # a substitute made of the bundled digits, minutes on a laptop

Each of the 50 clients has an alphabet of its own; `fedamp_jax/experiments/omniglot.py` says what the paper leaves open.
"""

from fedamp_jax.experiments import degrees, omniglot, pflego_paper
from fedamp_jax.runner.entry import main
from fedamp_jax.runner.experiment import Experiment
from fedamp_jax.runner.options import Options, Schedule

EXPERIMENT = Experiment(
    name="omniglot",
    text=__doc__,
    options=Options(
        setting=omniglot.Rotations(rotations=None),  # added to the training sets alone; none for digits
        schedule=Schedule(participation=0.2, evaluate_every=10, rounds=None),  # 1,000 rounds; 30 for digits
        training=pflego_paper.FullBatch(tau=50, client_rate=0.007, server_rate=0.003, server="adam"),
    ),
    datasets=("digits", "omniglot"),
    names=("FedRep", "FedBABU", "FedProx", "Ditto", "FedPer", "FedAvg", "FedRecon", "PFLEGO"),
    finish=omniglot.finish,
    clients=omniglot.clients,
    model=omniglot.model,  # the paper's CNN; a perceptron for digits
    methods=degrees.methods,
    paper=omniglot.paper,
    score_rounds=10,  # the score is the mean over the last ten rounds
)

if __name__ == "__main__":
    main(EXPERIMENT)
