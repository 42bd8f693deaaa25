"""The iid setting of the FedAMP paper (Huang et al. 2021, Section 7 and Appendix C), every method.

python experiments/iid.py                      # the bundled digits, a few minutes on a laptop
python experiments/iid.py --dataset mnist --data-dir DIR
python experiments/iid.py --help
"""

from fedamp_jax.experiments.fedamp_paper import main

if __name__ == "__main__":
    main("iid")
