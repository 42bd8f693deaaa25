"""The experiment `concept`: what its options do."""

import dataclasses

import numpy as np
import pytest

import fedamp_jax
from fedamp_jax.experiments import fedamp_paper, paper_values
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


@pytest.mark.parametrize(("sigma", "own"), [("auto", 1 / 4), (1.6, 1 / 4)])
def test_a_client_listens_to_as_many_others_as_its_group_has(sigma, own):
    """Perplexity 3 and a self weight of 1/4 for 20 clients in 5 groups. Failed with the 8 of the other settings."""
    words = () if sigma == "auto" else ("--sigma", sigma)
    options = options_of("concept", *words)
    setup = fedamp_paper.setup(options, fedamp_paper.clients(options), None)
    assert options.attention.heur_sigma == "auto" and setup.heur_sigma.k == 3
    assert options.attention.sigma == sigma and (setup.sigma.k == 3 if sigma == "auto" else setup.sigma == sigma)
    np.testing.assert_allclose(setup.self_weight, own)


def test_perplexity():
    """Of groups; 8 in other settings. At least 1, where every client is a group of its own."""
    clients = small_federation()
    assert paper_values.perplexity("concept", clients) == 1
    assert paper_values.perplexity("concept", clients._replace(groups=np.arange(4))) == 1
    assert paper_values.perplexity("concept", clients._replace(groups=np.zeros(4, int))) == 3
    assert paper_values.perplexity("practical", clients) == paper_values.perplexity("dirichlet", clients) == 8


TINY = dataclasses.replace(
    EXPERIMENTS["concept"],
    clients=lambda options: fedamp_jax.data.balanced(small_federation()),
    model=lambda options, federation: fedamp_jax.models.mlp(2, hidden=(4,), shape=(3,)),
)
"""The experiment with four small clients."""


def test_a_tiny_run(tmp_path, monkeypatch):
    """Two strengths, with the weights of FedAMP. Failed with a self weight of 1/9."""
    words = ("--strength", 0, 1, "--methods", "FedAvg", "FedAMP", "--rounds", 1, "--epochs", 1)
    command(monkeypatch, main_of(TINY), *words, "--out", tmp_path / "a")
    found = read(tmp_path / "a")
    assert list(found["parts"]) == ["strength 0", "strength 1"] and found["settings"]["strength"] == [0.0, 1.0]
    one = read(tmp_path / "a" / "strength-1")
    assert one["settings"]["sigma"] == "auto" and np.allclose(np.diag(one["methods"]["FedAMP"]["xi"]), 1 / 2)


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
