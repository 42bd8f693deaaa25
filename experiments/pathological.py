"""Two classes for each client: the pathological setting of the FedAMP paper, every method.

    python experiments/pathological.py                      # the bundled digits, a few minutes on a laptop
    python experiments/pathological.py --dataset mnist --data-dir DIR --model mlp --methods FedAMP FedAvg-FT

Huang et al. 2021, Section 7 and Appendix C: two classes for each client. All else is as in
`practical.py`, with the paper's hyper-parameters for this setting.
"""

from fedamp_jax.experiments import fedamp_paper
from fedamp_jax.runner.entry import main

EXPERIMENT = fedamp_paper.experiment("pathological", __doc__)

if __name__ == "__main__":
    main(EXPERIMENT)
