"""All methods with hyper-parameters from one budget."""

import json

import fair_table
import numpy as np
import pytest

from fedamp_jax.algorithms.registry import METHODS


def cell(method, setting, test, **other):
    return {"dataset": "digits", "setting": setting, "method": method, "test": test, "down": 100, "up": 50,
            "model": 100, "seconds": 2.0, **other}  # fmt: skip


CELLS = [
    cell("A", "practical", [0.9, 0.8]), cell("B", "practical", [0.7, 0.7]), cell("C", "practical", [0.6, 0.6]),
    cell("A", "labels", [0.5, 0.5]), cell("B", "labels", [0.9, 0.9]), cell("C", "labels", [0.1, 0.1]),
    cell("A", "rotation", [0.5, 0.5]),  # not run with the others yet
]  # fmt: skip


def test_the_table_has_what_all_methods_were_run_in():
    """Ranks over two settings; the range over seeds. Failed with ranks from worst to best."""
    lines = fair_table.table(CELLS).splitlines()
    assert lines[0] == "| method | digits, practical | digits, labels | mean rank | models down, up | seconds |"
    assert lines[2] == "| A | 85.0 ± 5.0 | 50.0 ± 0.0 | 1.5 | 1.00, 0.50 | 2.0 |"
    assert [line.split()[1] for line in lines[2:]] == ["A", "B", "C"]
    assert lines[4].endswith("| 3.0 | 1.00, 0.50 | 2.0 |")


@pytest.mark.parametrize(("methods", "q"), [(2, 1.960), (5, 2.728), (10, 3.164)])
def test_critical_differences(methods, q):
    """Table 5 of Demsar 2006. Failed without the square root of two."""
    expected = q * np.sqrt(methods * (methods + 1) / (6 * 14))
    np.testing.assert_allclose(fair_table.critical_difference(methods, 14), expected, rtol=1e-3)


def test_every_method_has_eight_settings():
    """Failed with a grid of four."""
    for name in METHODS:
        assert len(fair_table.GRIDS.get(name, fair_table.Grid()).all) == 8


@pytest.mark.slow
def test_a_run_goes_on(tmp_path, capsys):
    """Two methods, whose best setting is chosen on validation data; what is there is not run again.

    Failed with the worst setting, and with a file that was written anew.
    """
    out = tmp_path / "fair.jsonl"
    words = ["run", "--rounds", "1", "--epochs", "2", "--seeds", "0", "--settings", "practical", "--out", str(out)]
    fair_table.main([*words, "--methods", "FedAMP"])
    first = out.read_text()
    fair_table.main([*words, "--methods", "FedAMP", "FedAvg-FT"])
    assert out.read_text().startswith(first)
    found = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["method"] for one in found] == ["FedAMP", "FedAvg-FT"]
    for one in found:
        assert one["best"]["validation"] == max(tried["validation"] for tried in one["tried"])
        assert len(one["tried"]) == 8 and 0 < one["test"][0] < 1
        assert 0 < one["seconds"] < 60
    capsys.readouterr()
    fair_table.main(["report", str(out), "--figure", str(tmp_path / "fair.png")])
    assert "| FedAMP |" in capsys.readouterr().out
    assert (tmp_path / "fair.png").stat().st_size > 5000
