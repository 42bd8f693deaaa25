"""The example of adapters on images, with a few random images in place of the data sets."""

import importlib.util
import json
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from fedamp_jax.data import Source
from fedamp_jax.models import cnn

FILE = Path(__file__).parents[2] / "examples" / "adapters" / "images.py"


@pytest.fixture
def images(monkeypatch):
    spec = importlib.util.spec_from_file_location("images", FILE)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "images", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "network", lambda classes: cnn(classes, filters=(2, 2), hidden=(4,)))
    return module


def source(name, classes, n=60):
    rng = np.random.default_rng(0)
    x = rng.integers(0, 256, (2 * n, 28, 28)).astype(np.uint8)
    y = (np.arange(2 * n) % classes).astype(np.int32)
    return Source(name, x[:n], y[:n], x[n:], y[n:], classes)


def test_letters_have_no_digit_among_them(images):
    """Upper and lower case are one class. Failed with digits as the first classes."""
    x, y = images.letters(source("emnist", 62, 62), 1000)
    assert len(x) == 52 and (y[:26] == np.arange(26)).all() and (y[26:] == np.arange(26)).all()
    assert len(images.letters(source("emnist", 62, 62), 7)[0]) == 7


def test_the_models_share_the_pretrained_body(images):
    """All but the one from nothing start with it, under the same new head. Failed with the base's head."""
    base = images.pretrained(source("emnist", 62), 30, 1)
    nothing, *others = (model.task.init(jax.random.key(3)) for model in images.models(base, 2))
    _, whole, head, adapters = (model.task for model in images.models(base, 2))
    x = np.ones((2, 28, 28), np.float32)
    first, *rest = (np.asarray(task.predict(v, x)) for task, v in zip((whole, head, adapters), others))
    for logits in rest:
        np.testing.assert_allclose(logits, first, rtol=1e-6)
    jax.tree.map(np.testing.assert_array_equal, nothing.params["head"], others[1].params["head"])
    sizes = [images.trained_bytes(task) for task in (head, adapters, whole)]
    assert sizes == sorted(sizes) and sizes[0] == 4 * (4 + 1) * 10


@pytest.mark.slow
def test_the_command_writes_every_row(images, monkeypatch, tmp_path, capsys):
    """One for each method and model, with what is sent. Failed with bytes of a method that sends nothing."""
    file = tmp_path / "found.json"
    monkeypatch.setattr(
        images.fedamp_jax.data, "load", lambda name, folder: source(name, 62 if name == "emnist" else 10)
    )
    small = {"clients": 4, "groups": 2, "examples": 5, "rounds": 6, "epochs": 1, "letters": 20, "letter-epochs": 1}
    words = [word for name, value in small.items() for word in (f"--{name}", str(value))]
    monkeypatch.setattr(sys, "argv", ["images.py", "--out", str(file), *words])
    images.main()
    found = json.loads(file.read_text())
    rows = {(row["model"], row["method"]): row for row in found["rows"]}
    assert len(rows) == 13 and found["settings"]["rounds"] == 6
    assert all((row["bytes"] == 0) == (row["method"] == "Separate") for row in rows.values())
    assert len(rows["adapters", "FedAMP, distances of A and B"]["in_group"]) == 6
    assert all(0 <= row["accuracy"] <= 1 and row["seconds"] > 0 for row in rows.values())
    assert capsys.readouterr().out.count("\n| ") >= 13
