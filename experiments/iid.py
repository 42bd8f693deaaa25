"""Clients that do not differ: the IID setting of the FedAMP paper, every method.

    python experiments/iid.py                      # the bundled digits, a few minutes on a laptop
    python experiments/iid.py --dataset mnist --data-dir DIR --model mlp --methods FedAMP FedAvg-FT

Huang et al. 2021, Section 7 and Appendix C: equal parts of the shuffled data. All else is as in
`practical.py`, with the paper's hyper-parameters for this setting.
"""

from fedamp_jax.experiments import fedamp_paper
from fedamp_jax.runner.entry import main

EXPERIMENT = fedamp_paper.experiment("iid", __doc__)

if __name__ == "__main__":
    main(EXPERIMENT)
