"""The experiment `concept`: what its options do."""

import dataclasses

import numpy as np
import pytest

import fedamp_jax
from fedamp_jax import attention
from fedamp_jax.experiments import fedamp_paper
from fedamp_jax.experiments.catalogue import EXPERIMENTS
from tests.small_experiments import command, main_of, options_of, parsed, read, small_federation


def test_options_reach_the_federation(monkeypatch):
    """Failed with the strength left at its default."""
    options = options_of("concept", "--clients", 8, "--groups", 4, "--shift", "rotation", "--strength", 0.25)
    asked = {}
    monkeypatch.setattr(fedamp_jax.data, "federation", lambda name, where, **k: asked.update(k, where=where))
    monkeypatch.setattr(fedamp_jax.data, "balanced", lambda clients: clients)
    fedamp_paper.clients(options)
    del asked["source"]
    assert asked == {"where": "concept", "seed": 0, "shift": "rotation", "groups": 4, "strength": 0.25, "clients": 8}


def test_shift_and_strength_are_panels():
    """Failed with one of them left out of the panels."""
    variants = parsed("concept", "--shift", "labels", "rotation", "--strength", 0, 0.5, 1).variants
    titles = [f"{shift}, strength {value}" for shift in ("labels", "rotation") for value in ("0", "0.5", "1")]
    assert [variant.title for variant in variants] == titles
    assert variants[4].options.setting.shift == "rotation" and variants[4].options.setting.strength == 0.5


def test_clients_find_how_many_others_to_learn_from():
    """A number in place of auto brings back the self weight of the groups' size. Failed with that of other settings."""
    options = options_of("concept")
    setup = fedamp_paper.setup(options, fedamp_paper.clients(options), None)
    assert setup.sigma == setup.heur_sigma == attention.auto()
    np.testing.assert_allclose(setup.self_weight, 1 / 4)
    named = fedamp_paper.setup(options_of("concept", "--sigma", 1.6), fedamp_paper.clients(options), None)
    assert named.sigma == 1.6


TINY = dataclasses.replace(
    EXPERIMENTS["concept"],
    clients=lambda options: fedamp_jax.data.balanced(small_federation()),
    model=lambda options, federation: fedamp_jax.models.mlp(2, hidden=(4,), shape=(3,)),
)
"""The experiment with four small clients."""


@pytest.mark.slow
def test_a_tiny_run(tmp_path, monkeypatch):
    """Two strengths, with equal weights in FedAMP's first round. Failed with the self weight of a group."""
    words = ("--strength", 0, 1, "--methods", "FedAvg", "FedAMP", "--rounds", 1, "--epochs", 1)
    command(monkeypatch, main_of(TINY), *words, "--out", tmp_path / "a")
    found = read(tmp_path / "a")
    assert list(found["parts"]) == ["strength 0", "strength 1"] and found["settings"]["strength"] == [0.0, 1.0]
    one = read(tmp_path / "a" / "strength-1")
    assert one["settings"]["sigma"] == "auto" and np.allclose(one["methods"]["FedAMP"]["xi"], 1 / 4)


@pytest.mark.parametrize(("words", "message"), [
    (("--strength", 2), "--strength must be at least 0 and at most 1"),
    (("--groups", 1), "--groups must be at least 2"),
    (("--groups", 11), "--groups 11 with permuted labels need as many classes, but there are 10"),
    (("--groups", 5, "--clients", 4), "--groups 5 of 4 clients: use at most as many groups as clients"),
])  # fmt: skip
def test_refuses(words, message):
    """By the name of the option, before data are read. Failed for the names of arguments of functions."""
    with pytest.raises(ValueError, match=message):
        parsed("concept", "--dataset", "mnist", "--data-dir", "/nowhere", *words)
