"""Clients without groups: Dirichlet class proportions, Dirichlet sizes, or shards of sorted classes, every method.

python experiments/dirichlet.py --alpha 0.1 --clients 20     # the bundled digits, a few minutes on a laptop
python experiments/dirichlet.py --dataset cifar10 --data-dir DIR --balanced --alpha 0.3
python experiments/dirichlet.py --help
"""

from fedamp_jax.experiments.dirichlet import main

if __name__ == "__main__":
    main()
