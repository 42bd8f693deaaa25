"""Accuracy of the honest clients while others send corrupted models, for every method.

python experiments/faulty.py                        # the bundled digits
python experiments/faulty.py --methods FedAvg FedAMP --attacks sign --dataset mnist --data-dir DIR
python experiments/faulty.py --help
"""

from fedamp_jax.experiments.faulty import main

if __name__ == "__main__":
    main()
