"""The comparison of several runs: what it shows, and what it refuses. `test_page.py` opens it in a browser."""

import json
from typing import Any

import numpy as np
import pytest

from fedamp_jax.report import files
from fedamp_jax.report.files import Record, Row, p_value
from fedamp_jax.runner import compare
from tests.report.test_report import cells, own
from tests.small_experiments import command, method_entry

HEAD: Any = {"experiment": "practical", "dataset": "digits", "rounds": 1}


def run_of(folder, dataset="digits", experiment="practical", **settings):
    """A folder with a result file of two methods and eight clients, whose accuracies rise with the setting `lam`."""
    lam = settings.get("lam", 0)
    methods = {name: method_entry(80.0 + lam * np.arange(8.0), bmta=90.0) for name in ("FedAvg", "FedAMP")}
    usual = {"seed": 0, "participation": 1.0, "drop_rate": 0.0, "model": "mlp"}
    content = {"experiment": experiment, "dataset": dataset, "created": "2030", "command": "python x.py",
               "settings": {**usual, **settings}, "versions": {"jax": "0"}, "device": "cpu", "rounds": 1,
               "methods": methods, "clients": 8, "groups": None, "chance_in_group_weight": None,
               "wilcoxon": {}}  # fmt: skip
    files.write_json(content, folder / "results.json")
    return folder


def test_runs_side_by_side(tmp_path, monkeypatch):
    """Points and p are of the last round, against the first run. Failed with BMTA's points, with p-values that were not
    corrected, and with p between runs of other clients.
    """
    runs = [run_of(tmp_path / f"lam={lam}", lam=lam) for lam in (0, 1, 2)]
    runs.append(run_of(tmp_path / "seed", lam=1, seed=7))
    command(monkeypatch, compare.main, *runs, "--out", tmp_path / "page.html")
    accuracies, differing, common = cells(own((tmp_path / "page.html").read_text()))
    rows = {row[0]: row[1:] for row in accuracies}
    assert rows["FedAMP, lam=0"] == ["90.00", "80.00", "1", "–", "–"]
    assert rows["FedAMP, lam=1"][3:] == ["+3.50", "0.0625"]  # 2^-6, one of four
    assert rows["FedAMP, lam=2"][3:] == ["+7.00", "0.0625"]
    assert rows["FedAMP, seed"][3:] == ["+3.50", "–"]
    assert ["lam", "0", "1", "2", "1"] in differing and ["seed", "0", "0", "0", "7"] in differing
    assert ["drop_rate", "0.0"] in common and len(differing) == 3


def test_parts_are_runs(tmp_path, monkeypatch):
    """A file of several settings is compared part by part. Failed when only single runs were taken."""
    one = json.loads((run_of(tmp_path / "a") / "results.json").read_text())
    part = {key: one.pop(key) for key in ("methods", "clients", "wilcoxon")}
    one["parts"] = {name: {**part, "folder": name, "settings": one["settings"]} for name in ("x", "y")}
    files.write_json(one, tmp_path / "grid" / "results.json")
    command(monkeypatch, compare.main, tmp_path / "grid", "--out", tmp_path / "page.html")
    assert "grid: x" in (tmp_path / "page.html").read_text()


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (["digits"], "at least two runs, got digits"),
        (["digits", "mnist"], "digits of digits, mnist of mnist; give those of one data set"),
        (["digits", "digits"], "got digits twice: rename"),
        (["digits", "nowhere"], "nowhere does not exist"),
        (["digits", "theorems"], "of the experiment convergence, whose results have no curves by method"),
        (["digits", "digits/results.json", "--out", "x.txt"], "must be the name of an HTML file"),
    ],
)
def test_what_cannot_be_compared(runs, message, tmp_path, monkeypatch, capsys):
    """A message that says why, and no page. Failed with a traceback, and with curves of two data sets on one page."""
    monkeypatch.chdir(tmp_path)
    for name in ("digits", "mnist"):
        run_of(tmp_path / name, dataset=name)
    rows = {key: [] for key in ("K", "gap", "bound", "B", "gap_eq5")}
    theorem = {**rows, "slope": -1.0, "best": 0.0}
    head = json.loads((tmp_path / "digits" / "results.json").read_text())
    head.pop("methods")
    head = {**head, "experiment": "convergence", "theorem1": theorem, "theorem2": theorem}
    files.write_json(head, tmp_path / "theorems" / "results.json")
    with pytest.raises(SystemExit) as stopped:
        command(monkeypatch, compare.main, *runs)
    assert stopped.value.code == 2 and message in " ".join(capsys.readouterr().err.split())
    assert not list(tmp_path.glob("*.html")) and not list(tmp_path.glob("*.txt"))


def test_p_needs_the_same_clients():
    """Settings on which the clients depend; a file may be older than an option. Failed when only the seed counted."""
    entry: Any = method_entry(80.0 + np.arange(8.0))

    def row(**own):
        return Row("FedAvg", Record("a", HEAD), HEAD, {"seed": 0, **own}, 8, entry)

    assert p_value(row(), row(quick=False, validation_fraction=0.0, holdout_clients=0)) == 1
    for one in ({"alpha": 1.0}, {"split": "shards"}, {"balanced": True}, {"quick": True}, {"holdout_clients": 2}):
        assert p_value(row(), row(**one)) is None
