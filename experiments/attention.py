"""FedAMP with other attention weights, the same setting for every data set.

python experiments/attention.py --seeds 0 1 2       # the bundled digits, judged on validation data
python experiments/attention.py --dataset cifar100 --data-dir DIR --model mlp --rounds 20
python experiments/attention.py --validation-fraction 0 --methods FedAMP perplexity-8 groups mean
python experiments/attention.py --help
"""

from fedamp_jax.experiments.attention import main

if __name__ == "__main__":
    main()
