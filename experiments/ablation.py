"""FedAMP with one design decision changed at a time.

python experiments/ablation.py                      # the bundled digits, the practical setting
python experiments/ablation.py --dataset mnist --data-dir DIR --model mlp --rounds 20
python experiments/ablation.py --methods base mean own-init
python experiments/ablation.py --help
"""

from fedamp_jax.experiments.ablation import main

if __name__ == "__main__":
    main()
