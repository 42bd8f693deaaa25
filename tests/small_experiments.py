"""What the tests of the experiments share."""

import dataclasses
import functools
import json
import sys

import jax
import numpy as np

import fedamp_jax
from fedamp_jax.experiments.catalogue import EXPERIMENTS
from fedamp_jax.placement import client_mesh
from fedamp_jax.runner import command_line, entry, machine


def command(monkeypatch, main, *arguments):
    """Run an experiment's `main` with a command line; without `--devices`, on one of the eight devices of the tests."""
    monkeypatch.setattr(sys, "argv", ["experiment.py", *map(str, arguments)])
    jax.devices()  # the tests' eight: an experiment that comes first would split the CPU by itself
    if "--devices" not in arguments:
        monkeypatch.setattr(machine, "client_mesh", lambda devices: client_mesh(1))
    main()


def main_of(experiment):
    """The `main` of an experiment, or of the package's experiment of this name."""
    return functools.partial(entry.main, EXPERIMENTS[experiment] if isinstance(experiment, str) else experiment)


practical = main_of("practical")


def parsed(experiment, *words):
    """What a command line asks for."""
    experiment = EXPERIMENTS[experiment] if isinstance(experiment, str) else experiment
    return command_line.parse(experiment, [str(word) for word in words])


def options_of(experiment, *words):
    """The options of the one run that a command line asks for."""
    (variant,) = parsed(experiment, *words).variants
    return variant.options


def read(folder):
    return json.loads((folder / "results.json").read_text())


def small_federation():
    """Four clients, two classes."""
    rng = np.random.default_rng(0)
    sets = [fedamp_jax.data.from_lists([rng.normal(size=(6, 3)) for _ in range(4)], [[0, 1, 0, 1, 0, 1]] * 4)] * 2
    return fedamp_jax.data.Federation(*sets, np.array([0, 0, 1, 1], np.int32))


TINY = dataclasses.replace(
    EXPERIMENTS["practical"],
    clients=lambda options: fedamp_jax.data.balanced(small_federation()),
    model=lambda options, federation: fedamp_jax.models.mlp(2, hidden=(4,), shape=(3,)),
)
"""The practical setting with four small clients."""

tiny = main_of(TINY)


def method_entry(accuracy, rounds=1, **changes):
    """One method's entry in results.json, of clients with these accuracies `[M]` in the last and best round."""
    bmta = float(np.mean(accuracy))
    curve = [bmta] * rounds
    entry = {
        "bmta": bmta, "best_round": 1, "final": bmta, "accuracy": list(accuracy), "best_accuracy": list(accuracy),
        "rounds": list(range(1, rounds + 1)), "mean_accuracy": curve, "loss": [0.1] * rounds, "seconds": 1.0,
        "first_round_seconds": 1.0, "seconds_per_round": 0.1, "rejected": {}, "paper": None, "in_group_weight": None,
        "ari": None, "xi": None, "last_rounds": {"mean": bmta, "ci95": 0.5, "rounds": 10},
    }  # fmt: skip
    return {**entry, **changes}
