"""Groups of clients with dominating classes: the practical setting of the FedAMP paper, every method.

    python experiments/practical.py                      # the bundled digits, a few minutes on a laptop
    python experiments/practical.py --dataset mnist --data-dir DIR --model mlp --methods FedAMP FedAvg-FT
    python experiments/practical.py --drop-rate 0.1 0.3 --epochs-range 1 19 --seeds 0 1 2

Huang et al. 2021, Section 7 and Appendix C. What is not said here is a default of `fedamp_jax.runner.options`.
"""

from fedamp_jax.experiments import fedamp_paper
from fedamp_jax.runner.entry import main
from fedamp_jax.runner.experiment import Experiment
from fedamp_jax.runner.options import Options, Schedule, Training

EXPERIMENT = Experiment(
    name="practical",
    text=__doc__,
    options=Options(
        setting="practical",  # as fedamp_jax.data.federation names it: a group has its own dominating classes
        schedule=Schedule(participation=1.0, rounds=None),  # the paper's 90 rounds; 100 for digits, not in the paper
        training=Training(model="auto", epochs=10, batch_size=100, optimizer="adam", learning_rate=1e-3),
        attention=fedamp_paper.Attention(sigma=None, heur_sigma=None),  # the paper's Table 6
    ),
    datasets=fedamp_paper.DATASETS,
    names=fedamp_paper.METHODS,  # every method of fedamp_jax.algorithms.registry
    finish=fedamp_paper.finish,
    clients=fedamp_paper.clients,
    model=fedamp_paper.model,  # a perceptron for digits, the paper's CNN, ResNet18 for CIFAR
    methods=fedamp_paper.methods,  # with the paper's hyper-parameters
    paper=fedamp_paper.paper,
    scales=fedamp_paper.scales,
    quick_names=fedamp_paper.QUICK_METHODS,
    panels=fedamp_paper.PANELS,  # several values of --participation or --drop-rate are panels of one figure
)

if __name__ == "__main__":
    main(EXPERIMENT)
