"""Omniglot: Table 2 and Figs. 3 and 4 of the PFLEGO paper (Nikoloutsopoulos et al. 2023).

python experiments/omniglot.py --dataset omniglot --data-dir DIR
python experiments/omniglot.py                      # a substitute made of the bundled digits, minutes on a laptop
python experiments/omniglot.py --help
"""

from fedamp_jax.experiments.omniglot import main

if __name__ == "__main__":
    main()
