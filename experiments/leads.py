"""What might explain the paper's FedAvg on MNIST: the practical setting with one thing changed at a time.

python experiments/leads.py                          # the bundled digits
python experiments/leads.py --dataset mnist --data-dir DIR --model mlp --leads tenth sorted --methods FedAvg FedAMP
python experiments/leads.py --leads base l2-1e-2 l2-1e-2+sorted
python experiments/leads.py --help
"""

from fedamp_jax.experiments.leads import main

if __name__ == "__main__":
    main()
