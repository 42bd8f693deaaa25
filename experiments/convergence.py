"""Theorems 1 and 2 of the FedAMP paper (Huang et al. 2021, Section 5): measured gap and bound.

python experiments/convergence.py
python experiments/convergence.py --help
"""

from fedamp_jax.experiments.convergence import main

if __name__ == "__main__":
    main()
