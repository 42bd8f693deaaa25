"""Three hospitals' tables from scikit-learn's breast_cancer: 569 patients, 30 measurements of cell nuclei each.

    python examples/silos/make_tables.py FOLDER

The hospitals differ as real ones may: patients are divided by the mean texture of their nuclei, so that each hospital
sees another kind; they have 285, 190 and 94 patients, and some of the measurements are missing, most in the smallest.
"""

import csv
import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer

SITES = {"north": (0.0, 0.01), "east": (0.5, 0.03), "south": (5 / 6, 0.10)}
"""Where a hospital's share of the patients, ordered by texture, begins; and its share of missing values."""


def write(folder: Path) -> None:
    """Write `north.csv`, `east.csv` and `south.csv`."""
    found = load_breast_cancer()
    x, y, names = found.data, found.target, [name.replace(" ", "_") for name in found.feature_names]
    order, rng = np.argsort(x[:, names.index("mean_texture")], kind="stable"), np.random.default_rng(0)
    ends = [*(share for share, _ in SITES.values()), 1.0]
    folder.mkdir(parents=True, exist_ok=True)
    for (site, (first, missing)), end in zip(SITES.items(), ends[1:]):
        mine = rng.permutation(order[round(first * len(y)) : round(end * len(y))])
        with open(folder / f"{site}.csv", "w", newline="") as file:
            table = csv.writer(file)
            table.writerow([*names, "benign"])
            for i in mine:
                cells = ["" if rng.random() < missing else repr(float(v)) for v in x[i]]
                table.writerow([*cells, y[i]])


if __name__ == "__main__":
    write(Path(sys.argv[1]))
