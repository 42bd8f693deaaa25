"""Degrees of personalization: Table 1 and Figs. 2 and 6 of the PFLEGO paper (Nikoloutsopoulos et al. 2023).

python experiments/degrees.py                       # the bundled digits, minutes on a laptop
python experiments/degrees.py --dataset mnist --data-dir DIR
python experiments/degrees.py --dataset cifar10 --degrees high --participation 0.2 0.4 1.0   # Fig. 6
python experiments/degrees.py --help
"""

from fedamp_jax.experiments.degrees import main

if __name__ == "__main__":
    main()
