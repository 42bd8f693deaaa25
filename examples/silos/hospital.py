"""The settings file of every party of the example: the model, the methods, and a hospital's table.

At the server only `method` is called. `data` reads the CSV of the site in the folder that HOSPITAL_TABLES names.
"""

import csv
import os
from pathlib import Path

import numpy as np
import optax

import fedamp_jax

FEATURES = 30


def method(name):
    """The model and the method of that name; the same on all machines."""
    task = fedamp_jax.models.mlp(classes=2, shape=(FEATURES,), hidden=(32,))
    solver = fedamp_jax.Solver(optax.adam(1e-2), epochs=5, batch_size=32)
    methods = {
        "FedAMP": lambda: fedamp_jax.fedamp(task, solver, sigma=fedamp_jax.attention.perplexity(1), self_weight=0.5),
        "FedAvg": lambda: fedamp_jax.fedavg(task, solver),
        "HeurFedAMP": lambda: fedamp_jax.heurfedamp(task, solver, sigma=10.0, self_weight=0.5),
        "SCAFFOLD": lambda: fedamp_jax.scaffold(task, solver, learning_rate=0.05),
        "Ditto": lambda: fedamp_jax.ditto(task, solver),
        "FedPer": lambda: fedamp_jax.fedper(task, solver),
        "PFLEGO": lambda: fedamp_jax.pflego(task, solver, beta=0.1, rho=0.1),
        "FedFomo": lambda: fedamp_jax.fedfomo(task, solver),
    }
    return task, methods[name]()


def data(site):
    """The site's training and test data: every fourth patient is for testing."""
    with open(Path(os.environ["HOSPITAL_TABLES"]) / f"{site}.csv", newline="") as file:
        rows = list(csv.reader(file))[1:]
    x = np.array([[float(cell) if cell else np.nan for cell in row[:-1]] for row in rows], np.float32)
    y = np.array([int(row[-1]) for row in rows])
    testing = np.arange(len(y)) % 4 == 0
    # Missing values and scales by the hospital's own training patients: nothing is shared for them.
    center, scale = np.nanmean(x[~testing], axis=0), np.nanstd(x[~testing], axis=0)
    x = np.where(np.isnan(x), 0, (x - center) / np.where(scale > 0, scale, 1)).astype(np.float32)
    return tuple(fedamp_jax.data.from_lists([x[part]], [y[part]], classes=2) for part in (~testing, testing))
