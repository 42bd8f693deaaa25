"""The numbers of both papers' experiments: hyper-parameters and published results by data set, setting and method.

Comments say where a value is not the paper's, and why. Sources: Huang et al. 2021, arXiv 2007.03797 ("FedAMP paper"),
Tables 1 to 6 and Appendix C; Nikoloutsopoulos et al. 2023 ("PFLEGO paper"), Tables 1 and 2 and Section 4.2.
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np

from fedamp_jax.data import Federation

Degree = Literal["high", "medium", "none"]

# Appendix C, "Details of Implementations" and "Settings of Hyperparameters".
LEARNING_RATE = 1e-3  # Adam
EPOCHS = 10
BATCH_SIZE = 100
WIDTH = 64  # channels of ResNet18's first stage
# By option. The paper does not say whether Adam's state is kept between rounds; here it is not.
LOCAL_STEPS = {
    "optimizer": "adam", "learning_rate": LEARNING_RATE, "epochs": EPOCHS, "batch_size": BATCH_SIZE,
    "keep_optimizer": False,
}  # fmt: skip
ROUNDS = 90
# Ours: from 100 to 200 rounds, the methods gain less than a point on average (experiments/studies/FINDINGS.md).
DIGITS_ROUNDS = 100
LAMBDA = 1.0
MU = 1e-2  # FedProx: "i = 2 provided best performance for all"

# PFLEGO paper, Section 4.2. It gives the learning rates of two figures only; these are the rates of its authors'
# program, in which the server's optimizer is Adam where the paper has SGD.
TAU = 50
BETA = 0.007  # of the clients, also in FedAvg and FedPer
RHO = 0.003  # of the server
PFLEGO_STEPS = {"tau": TAU, "client_rate": BETA, "server_rate": RHO, "server": "adam", "measure": "local",
                "initial_heads": "own"}  # fmt: skip
PFLEGO_CLIENTS = 100
PFLEGO_PARTICIPATION = 0.2
PFLEGO_ROUNDS = 200
PFLEGO_FINAL_ROUNDS = 10  # Tables 1 and 2 are means over this many last rounds
OMNIGLOT_ROUNDS = 1000  # Table 2: "the last 10 global rounds of the first 1000"; Fig. 3 goes on to 5,000
DEGREES: dict[Degree, str] = {
    "high": "High-Pers",
    "medium": "Medium-Pers",
    "none": "No-Pers",
}  # K = 2, C/2, C classes per client
PFLEGO_METHODS = ("FedPer", "FedAvg", "PFLEGO")
OMNIGLOT_METHODS = ("FedRep", "FedBABU", "FedProx", "Ditto", "FedPer", "FedAvg", "FedRecon", "PFLEGO")

# Neither paper gives a value for Ditto.
DITTO_LAMBDA = 0.1

# The grids that sigma was tuned on.
SIGMA_GRID = {"FedAMP": tuple(10.0**i for i in range(7)), "HeurFedAMP": (1.0, 10.0, 25.0, 50.0, 75.0, 100.0)}

_SETS = ("mnist", "fashion_mnist", "emnist", "cifar100")

# Tables 4, 5, 6.
PAPER_SIGMA = {
    "iid": {"FedAMP": (100.0, 100.0, 10.0, 1e6), "HeurFedAMP": (25.0, 50.0, 50.0, 10.0)},
    "pathological": {"FedAMP": (100.0, 10.0, 10.0, 1e6), "HeurFedAMP": (25.0, 100.0, 50.0, 10.0)},
    "practical": {"FedAMP": (100.0, 10.0, 10.0, 1e6), "HeurFedAMP": (25.0, 100.0, 50.0, 10.0)},
}
PAPER_APFL_ALPHA = {
    "iid": (0.0, 0.0, 0.0, 0.0),
    "pathological": (0.25, 0.25, 0.25, 0.25),
    "practical": (0.25, 0.75, 0.25, 0.25),
}

# The paper does not use digits, so these are ours. For an MLP on MNIST, fitting sigma to the distances after the first
# round (3, and 200 for HeurFedAMP) was worse than the paper's values: in later rounds attention narrows to few clients.
DIGITS_SIGMA = {
    "iid": {"FedAMP": 10.0, "HeurFedAMP": 10.0},
    "pathological": {"FedAMP": 1.6, "HeurFedAMP": 280.0},
    "practical": {"FedAMP": 1.6, "HeurFedAMP": 280.0},
}

OTHERS = 8
"""N_i of Appendix C's self weight `1 / (N_i + 1)` where no two clients have the same distribution."""

# Tables 1, 2, 3: BMTA in percent.
_BMTA = {
    "iid": """
        Separate    99.27 81.66 54.41  9.82
        FedAvg      99.31 91.94 74.38 49.59
        FedProx     98.81 90.19 73.14 46.50
        FedAvg-FT   98.98 90.17 70.53 35.07
        FedProx-FT  98.72 89.02 69.49 40.77
        SCAFFOLD    98.89 89.04 72.51 43.06
        APFL        98.93 91.03 73.95 49.02
        FedAMP      99.22 92.05 74.07 45.68
        HeurFedAMP  99.28 91.80 74.07 45.88""",
    "pathological": """
        Separate    98.73 97.67 99.15 92.67
        FedAvg      98.39 77.88 19.44  2.70
        FedProx     97.15 83.80 48.81  2.81
        FedAvg-FT   99.66 98.07 99.24 95.00
        FedProx-FT  99.63 98.00 99.27 94.36
        SCAFFOLD    99.34 94.58 98.75  2.04
        APFL        98.24 97.44 98.90 52.11
        FedAMP      99.53 97.95 99.27 94.87
        HeurFedAMP  99.38 98.17 99.26 94.74""",
    "practical": """
        Separate    86.30 86.73 61.78 39.99
        FedAvg      81.82 79.50 72.27 35.21
        FedProx     81.46 78.71 70.55 37.31
        FedAvg-FT   91.79 89.73 78.93 49.00
        FedProx-FT  94.10 87.51 77.31 50.24
        SCAFFOLD    98.50 40.20 77.98 21.29
        APFL        85.05 84.08 59.07 16.45
        FedAMP      97.59 90.97 81.22 53.04
        HeurFedAMP  97.36 91.37 81.47 53.27""",
}
PAPER_BMTA = {
    (setting, dataset, row.split()[0]): float(row.split()[1 + column])
    for setting, table in _BMTA.items()
    for row in table.strip().splitlines()
    for column, dataset in enumerate(_SETS)
}

# PFLEGO's Table 1: test accuracy in percent and its 95 % confidence interval; columns high, medium, none.
_TABLE1 = {
    "mnist": """
        FedPer  97.88 0.25  92.83 0.46  87.23 0.33
        FedAvg  97.54 0.25  92.83 0.52  93.12 0.24
        PFLEGO  98.43 0.21  94.22 0.43  90.68 0.17""",
    "cifar10": """
        FedPer  85.15 1.08  61.01 0.84  37.88 0.59
        FedAvg  85.18 0.96  64.53 0.75  61.33 0.52
        PFLEGO  87.81 0.94  74.83 0.66  58.98 0.81""",
    "emnist": """
        FedPer  97.78 0.51  74.19 0.36  48.12 0.23
        FedAvg  97.29 0.54  68.82 0.29  69.40 0.10
        PFLEGO  98.49 0.43  74.43 0.40  55.42 0.19""",
    "fashion_mnist": """
        FedPer  96.14 0.35  88.22 0.64  77.44 0.59
        FedAvg  96.35 0.47  87.51 0.73  83.59 0.35
        PFLEGO  96.34 0.43  89.84 0.52  81.49 0.51""",
}
PFLEGO_TABLE1 = {
    (dataset, degree, row.split()[0]): (float(row.split()[1 + 2 * column]), float(row.split()[2 + 2 * column]))
    for dataset, table in _TABLE1.items()
    for row in table.strip().splitlines()
    for column, degree in enumerate(DEGREES)
}

# PFLEGO's Table 2: Omniglot.
PFLEGO_TABLE2 = {
    "FedRep": (69.65, 2.47), "FedBABU": (68.45, 1.53), "FedProx": (48.41, 1.83), "Ditto": (50.88, 1.72),
    "FedPer": (68.02, 1.74), "FedAvg": (49.65, 1.74), "FedRecon": (74.06, 1.19), "PFLEGO": (75.85, 1.21),
}  # fmt: skip


def sigma(setting: str, dataset: str, method: str) -> float | Literal["auto"]:
    """The paper's sigma, or ours for digits; for other data sets that the paper does not use, that of MNIST.

    For settings that the paper does not have it is `"auto"`.
    """
    if setting not in PAPER_SIGMA:
        return "auto"
    if dataset == "digits":
        return DIGITS_SIGMA[setting][method]
    return PAPER_SIGMA[setting][method][_SETS.index(dataset) if dataset in _SETS else 0]


def as_in_tables(own: Mapping[str, Any]) -> bool:
    """Whether settings are those of Tables 1 to 3: all clients in every round, with the paper's local steps."""
    all_clients = own["participation"] == 1 and not own.get("holdout_clients")
    steps = _usual(own, LOCAL_STEPS) and own.get("epochs_range") is None
    return all_clients and steps and own.get("width", WIDTH) == WIDTH


def bmta(setting: str, dataset: str, own: Mapping[str, Any]) -> dict[str, float]:
    """The BMTA of Tables 1 to 3 by method; empty if the settings are not those of the tables."""
    found = PAPER_BMTA.items() if as_in_tables(own) else ()
    return {name: value for (s, d, name), value in found if (s, d) == (setting, dataset)}


def as_in_pflego_tables(own: Mapping[str, Any]) -> bool:
    """Whether settings are those of PFLEGO's Tables 1 and 2: its clients, participation and steps."""
    # The papers have no digits: a smaller experiment of the same kind has its line in the tables.
    data = own.get("clients") in (None, PFLEGO_CLIENTS) and own.get("rotations") in (None, "train")
    alike = (data or own.get("dataset") == "digits") and own.get("labels", "own") == "own"
    return alike and _usual(own, PFLEGO_STEPS) and own["participation"] == PFLEGO_PARTICIPATION


def _usual(own: Mapping[str, Any], steps: Mapping[str, Any]) -> bool:
    if own.get("validation_fraction") or own.get("quick"):
        return False
    return own["drop_rate"] == 0 and all(own.get(name, value) == value for name, value in steps.items())


def apfl_alpha(setting: str, dataset: str) -> float:
    """APFL's mixing weight (Tables 4 to 6); for data sets that the paper does not use, that of MNIST.

    For settings that the paper does not have it is that of the practical one.
    """
    return PAPER_APFL_ALPHA.get(setting, PAPER_APFL_ALPHA["practical"])[_SETS.index(dataset) if dataset in _SETS else 0]


def self_weights(setting: str, federation: Federation) -> np.ndarray:
    """`xi_ii = 1 / (N_i + 1)` of Appendix C, `[M]` float32; N_i other clients have the same distribution as client i.

    Clients have the same distribution if they are of one group; in the setting `"pathological"`, if they have the same
    set of classes in training; in `"iid"`, always. In settings that the paper does not have no two clients do, and
    Appendix C would give each client the weight 1, which is training alone: there N_i is `OTHERS`.
    """
    train, _, groups = federation
    distributions: list[Any]
    if setting == "iid":
        distributions = [0] * len(train.size)
    elif groups is not None:
        distributions = list(groups)
    elif setting == "pathological":
        distributions = [tuple(np.unique(train.examples(i)[1])) for i in range(len(train.size))]
    else:
        return np.full(len(train.size), 1 / (OTHERS + 1), np.float32)
    return np.array([1 / distributions.count(one) for one in distributions], np.float32)
