"""The pathological setting of the FedAMP paper (Huang et al. 2021, Section 7, Appendix C), every method, one command.

python experiments/pathological.py                       # the bundled digits, in a few minutes on a laptop
python experiments/pathological.py --dataset mnist --data-dir DIR
python experiments/pathological.py --help
"""

from common import main

if __name__ == "__main__":
    main("pathological", "pathological")
