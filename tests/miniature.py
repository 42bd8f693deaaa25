"""What the tests of the experiments share; importing it makes `experiments/` importable, as its programs see it."""

import json
import sys
from pathlib import Path

import numpy as np

import fedamp_jax

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))


def command(monkeypatch, main, *arguments):
    """Run an experiment's `main` with a command line; without `--devices`, on one of the tests' eight."""
    monkeypatch.setattr(sys, "argv", ["experiment.py", *map(str, arguments)])
    if "--devices" not in arguments:
        monkeypatch.setattr("runner.mesh_for", lambda options: None)
    main()


def read(folder):
    return json.loads((folder / "results.json").read_text())


def small():
    """Four clients, two classes."""
    rng = np.random.default_rng(0)
    sets = [fedamp_jax.data.from_lists([rng.normal(size=(6, 3)) for _ in range(4)], [[0, 1, 0, 1, 0, 1]] * 4)] * 2
    return fedamp_jax.data.Federation(*sets, np.array([0, 0, 1, 1], np.int32))
