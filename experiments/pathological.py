"""The pathological setting of the FedAMP paper (Huang et al. 2021, Section 7 and Appendix C), every method.

python experiments/pathological.py                      # the bundled digits, a few minutes on a laptop
python experiments/pathological.py --dataset mnist --data-dir DIR
python experiments/pathological.py --help
"""

from fedamp_jax.experiments.fedamp_paper import main

if __name__ == "__main__":
    main("pathological")
