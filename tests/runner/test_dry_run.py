"""`--dry-run`: what a round takes, told without training, data or accelerators."""

import os
import subprocess
import sys
from pathlib import Path

import ablation
import attention_variants
import jax
import leads
import numpy as np
import pytest

import fedamp_jax
from fedamp_jax import Placement
from fedamp_jax.data.blank import blank
from fedamp_jax.experiments import fedamp_paper, omniglot
from fedamp_jax.programs.cost import Estimate
from fedamp_jax.runner import cost
from tests.accelerators import topology_or_skip
from tests.registry import federation
from tests.small_experiments import command, main_of, options_of, practical

SCRIPT = Path(__file__).parents[2] / "experiments" / "practical.py"


def run(monkeypatch, capsys, *words):
    """What the command prints."""
    monkeypatch.setattr(sys, "argv", ["practical.py", *words])
    monkeypatch.setenv("COLUMNS", "200")
    practical()
    return capsys.readouterr().out


@pytest.mark.slow
def test_on_this_machine(monkeypatch, capsys, tmp_path):
    """A lower bound for the method that is named, and nothing is written. Failed when the run began all the same."""
    out = run(
        monkeypatch, capsys, "--dry-run", "here", "--methods", "FedAvg", "--rounds", "7", "--out", f"{tmp_path}/r"
    )
    assert "FedAvg" in out and "FedAMP" not in out and "7 rounds" in out and "lower bound" in out
    assert "measured here" in out and "30 to 70 examples, 50 on average" in out
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("main", "words", "shown"),
    [
        (main_of(ablation.EXPERIMENT), ("--methods", "mean"), "mean"),
        (main_of(attention_variants.EXPERIMENT), ("--methods", "sigma-1"), "sigma-1"),
        (main_of(leads.EXPERIMENT), ("--lead", "tenth", "--methods", "FedAvg"), "FedAvg"),
        (main_of("degrees"), ("--methods", "FedAvg"), "FedAvg"),
        (main_of("omniglot"), ("--methods", "FedAvg"), "FedAvg"),
    ],
    ids=["ablation", "attention", "leads", "degrees", "omniglot"],
)
@pytest.mark.slow_variants
def test_of_every_experiment(main, words, shown, monkeypatch, capsys, tmp_path):
    """Failed when attention trained and wrote results, and when the ablation knew no variant but `base`."""
    monkeypatch.setenv("COLUMNS", "200")
    command(monkeypatch, main, "--dry-run", "here", *words, "--out", tmp_path / "r")
    out = capsys.readouterr().out
    assert f"│ {shown} " in out and "lower bound" in out
    assert not (tmp_path / "r").exists()


def test_omniglot_without_the_data():
    """50 alphabets of the published sizes, and one client at a time where the CPU trains. Failed with a download."""
    options = options_of("omniglot", "--dataset", "omniglot", "--dry-run", "here")
    assert options.machine.chunk == 1
    assert options_of("omniglot", "--dataset", "omniglot", "--dry-run", "v5e:1x1").machine.chunk is None
    train, test, _ = omniglot.clients(options)
    assert train.classes.tolist()[:5] == [20, 29, 26, 41, 40] and int(train.classes.sum()) == 1623
    assert int(train.size.sum()) == 4 * 15 * 1623 and int(test.size.sum()) == 5 * 1623


def test_a_lower_bound_counts_the_examples_that_there_are():
    """Seven steps of the ten that clients as large as the largest would take, at the device's peak.

    Failed with the operations of the compiled program, which are those of clients of one size.
    """
    train = federation(sizes=(10, 10, 1, 5, 3))
    found = Estimate(1, 5, 0, 0, 0, {}, flops=100.0, seconds=None, at_least=10.0)
    assert cost._seconds(found, train, Placement(), batch=5)[:2] == (pytest.approx(7.0), "> 7")
    assert cost._seconds(found._replace(seconds=3.0), train, Placement(), batch=5)[:2] == (3.0, "3")


def test_a_refusal(monkeypatch, capsys):
    """The compiler's words, and what to do. Failed with a traceback."""
    refused = jax.errors.JaxRuntimeError(
        "RESOURCE_EXHAUSTED: E1000: CompileTimeHbmOom:\nRan out of memory. Used 34.80G of 15.75G hbm."
    )

    def estimate(*_):
        raise refused

    monkeypatch.setattr(fedamp_jax, "estimate", estimate)
    out = run(monkeypatch, capsys, "--dry-run", "here")
    assert "Used 34.80G of 15.75G hbm." in out and "--chunk" in out and " no " in out


@pytest.mark.parametrize(
    ("place", "says"),
    [("v7:1x1", "the kinds are v2"), ("v5e:1", "give a shape such as v5e:2x2"), ("h100:0x1", "such as h100:2")],
)
def test_a_place_that_is_none(place, says, monkeypatch, capsys):
    """An error that a person understands, before anything is loaded."""
    with pytest.raises(SystemExit):
        run(monkeypatch, capsys, "--dry-run", place)
    assert says in capsys.readouterr().err.replace("\n", " ")


@pytest.mark.parametrize(
    ("name", "sizes"), [("mnist", (500, 400, 300, 200, 100)), ("cifar100", (500, 400, 300, 200, 100))]
)
def test_without_the_data(name, sizes):
    """Blank images are divided as the real ones: 100 clients in groups of the paper's sizes. Needs no download."""
    train, _, groups = fedamp_paper.clients(options_of("practical", "--dataset", name, "--dry-run", "v5e:1x1"))
    assert sorted(np.asarray(train.size), reverse=True) == [n for n in sizes for _ in range(20)]
    assert groups is not None and int(train.classes[0]) == blank(name).classes
    assert train.x.shape[1:] == blank(name).x_train.shape[1:] and not train.x.any()


@pytest.mark.accelerator
def test_on_a_tpu_that_is_not_here():
    """From the command line, where JAX would look for a TPU: the compiler's estimate, and no complaint of libtpu's."""
    topology_or_skip("v5e:1x1")
    environment = {name: value for name, value in os.environ.items() if name not in ("JAX_PLATFORMS", "XLA_FLAGS")}
    command = [sys.executable, str(SCRIPT), "--dry-run", "v5e:1x1"]
    done = subprocess.run(command, env={**environment, "COLUMNS": "200"}, capture_output=True, text=True, check=True)
    assert "FedAMP" in done.stdout and "yes, of 15.75 GiB" in done.stdout and "compiler's own estimate" in done.stdout
    assert "libtpu" not in done.stderr and "TPU_ACCELERATOR_TYPE" not in done.stderr
