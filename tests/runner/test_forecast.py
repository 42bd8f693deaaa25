"""How long a run takes at least, before its first round."""

import jax
import numpy as np
import pytest

import fedamp_jax
from fedamp_jax import Placement
from fedamp_jax.runner import cost, messages
from fedamp_jax.runner.options import Options
from tests.registry import federation
from tests.small_experiments import command, tiny


def test_operations_of_a_step():
    """Of an MLP: forward and the gradients of both kernels and of the hidden layer, by hand.

    Failed with the padded length in place of the batch.
    """
    task = fedamp_jax.models.mlp(3, hidden=(7,), shape=(5,))
    products = 5 * 7 + 7 * 3
    assert cost.step_flops(task, federation(), 4, "cpu") == 2 * 4 * (products + products + 7 * 3)


@pytest.mark.parametrize(("changes", "hours"), [
    ({}, 1.0), ({"rounds": 5}, 0.5), ({"participation": 0.5, "drop_rate": 0.5}, 0.25), ({"epochs_range": (1, 3)}, 0.2),
])  # fmt: skip
def test_a_long_run_is_announced(changes, hours, monkeypatch):
    """Its time follows rounds, epochs and participation. Failed with the sum over padded rows, and without dropouts."""
    monkeypatch.setattr(cost, "product_speed", lambda placement: 1e12)
    monkeypatch.setattr(cost, "step_flops", lambda *a: flops)
    data = federation()
    steps = sum(-(-int(n) // 4) for n in np.asarray(data.size))
    flops = 3600e12 / (steps * 10 * 10)
    options = Options().replace(**{"rounds": 10, "epochs": 10, "batch_size": 4, **changes})
    left = dict.fromkeys(["FedAMP", "FedAvg"], options.schedule.rounds)
    text = cost.at_least(None, data, Placement(), options, left)
    assert text is not None and f"at least {messages.readable(2 * 3600 * hours)}: 2 methods" in text
    assert f"{messages.readable(3600 * hours)} each" in text


@pytest.mark.slow
def test_a_long_run_says_its_memory(tmp_path, monkeypatch, capsys):
    """Before it trains; a short one does not. Failed when only --devices and --offload asked for it."""
    arguments = ("--rounds", 1, "--epochs", 1, "--methods", "Separate", "--out")
    for name, text in (("long", "This will take at least a day"), ("short", None)):
        monkeypatch.setattr(cost, "at_least", lambda *a, text=text: text)
        command(monkeypatch, tiny, *arguments, tmp_path / name)
        said = capsys.readouterr().out
        assert ("a round takes 1 device(s)" in said) == (name == "long"), said


def test_a_short_run_is_not_announced(monkeypatch):
    """Nor is anything measured for it. Failed without the look at the operations first."""
    monkeypatch.setattr(cost, "product_speed", lambda placement: pytest.fail("measured"))
    options = Options().replace(rounds=30)
    clients = fedamp_jax.data.federation("digits").train
    task = fedamp_jax.models.mlp(10, shape=(8, 8))
    assert cost.at_least(task, clients, Placement(), options, {"FedAMP": 30}) is None


def test_the_speed_of_a_product():
    """On all devices of a mesh at once; faster than a thousandth and slower than 100 times of this machine's NumPy."""
    place = fedamp_jax.placement.OnMesh(mesh=fedamp_jax.placement.client_mesh(2))
    assert 1e8 < cost.product_speed(place) < 1e14 and jax.device_count() == 8
