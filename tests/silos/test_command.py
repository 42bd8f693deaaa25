"""`fedamp silos` on one machine."""

import subprocess
import sys
from pathlib import Path

import pytest

import fedamp_jax
from fedamp_jax import __main__ as fedamp
from fedamp_jax.silos import Settings, command

HERE = Path(__file__).parents[2] / "examples" / "silos"


def test_in_process(tmp_path, monkeypatch, capsys):
    """Accuracies of each site, what is sent, and each site's own model in its folder.

    Failed when all sites had one folder.
    """
    subprocess.run([sys.executable, HERE / "make_tables.py", tmp_path / "tables"], check=True)
    monkeypatch.setenv("HOSPITAL_TABLES", str(tmp_path / "tables"))
    settings = str(HERE / "hospital.py")
    fedamp.main(["silos", "in-process", settings, "--sites", "north", "south", "--methods", "FedPer", "--rounds", "2",
                 "--out", str(tmp_path / "kept")])  # fmt: skip
    out = capsys.readouterr().out
    assert "north " in out
    assert "1 exchange a round" in out
    task, _ = Settings(settings).method("FedPer")
    own = [
        fedamp_jax.load_models(tmp_path / "kept" / site / "FedPer" / "model.npz", task) for site in ("north", "south")
    ]
    heads = [saved.models.params["head"]["kernel"] for saved in own]
    assert (heads[0] != heads[1]).any()


def test_missing_flare_is_explained(monkeypatch):
    """Failed with ImportError's own text."""
    monkeypatch.setitem(sys.modules, "fedamp_jax.silos.flare", None)
    monkeypatch.delattr(fedamp_jax.silos, "flare", raising=False)
    with pytest.raises(SystemExit, match=r"pip install 'fedamp_jax\[flare\]'"):
        command._flare()
