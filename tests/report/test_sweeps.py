"""Accuracy over an option of which a run has several values."""

import itertools

import numpy as np
import pytest

from fedamp_jax.report import figures
from fedamp_jax.report.sweeps import sweeps
from fedamp_jax.runner import grid
from tests.runner.test_experiment import fake, variant


def summary(**values):
    """A run for each combination of these values, whose accuracies say which one it is."""
    parts = {}
    for combination in itertools.product(*values.values()):
        own = dict(zip(values, combination, strict=True))
        final = 90 + sum(v for v in combination if isinstance(v, (int, float)))
        entries = {name: {"final": final + k, "final_std": 0.1 * final} for k, name in enumerate(("FedAvg", "FedAMP"))}
        parts[str(own)] = {"settings": {"dataset": "digits", "epochs_range": [1, 2], **own}, "methods": entries}
    return {"experiment": "concept", "dataset": "digits", "settings": {}, "parts": parts}


def test_a_line_for_each_method_in_the_order_of_the_values():
    """Failed with the values in the order of the command line, and with best in place of last accuracies."""
    (found,) = sweeps(summary(strength=(1.0, 0.25, 0.0)))
    assert found.option == "strength" and list(found.panels) == [""]
    x, y, deviation = found.panels[""]["FedAMP"]
    assert list(x) == [0.0, 0.25, 1.0] and y.tolist() == [91.0, 91.25, 92.0]
    np.testing.assert_allclose(deviation, [9.0, 9.025, 9.1])
    figure = figures.sweep(summary(strength=(1.0, 0.25, 0.0)), found)
    (axes,) = figure.axes
    assert axes.get_xlabel() == "strength" and [line.get_label() for line in axes.get_lines()] == ["FedAvg", "FedAMP"]
    assert axes.get_lines()[1].get_xdata().tolist() == [0.0, 0.25, 1.0]
    assert figure._suptitle.get_text() == "concept on digits"


@pytest.mark.parametrize("values", [
    {"strength": (0.0, 1.0)}, {"shift": ("labels", "rotation", "both")}, {"sigma": (1, 2, "auto")}, {"strength": (1,)},
])  # fmt: skip
def test_two_values_or_words_are_no_line(values):
    """Failed for words, which have no place on an axis."""
    assert sweeps(summary(**values)) == []


def test_other_options_have_a_panel_for_each_of_their_values():
    """And each option that has three numbers is drawn. Failed where one line went through the values of both."""
    found = sweeps(summary(shift=("labels", "rotation"), drop_rate=(0.0, 0.3, 0.1)))
    assert [(one.option, list(one.panels)) for one in found] == [("drop rate", ["shift labels", "shift rotation"])]
    both = sweeps(summary(strength=(0, 1, 2), drop_rate=(0.0, 0.3, 0.1)))
    assert [one.option for one in both] == ["strength", "drop rate"] and len(both[1].panels) == 3
    assert both[0].panels["drop rate 0.3"]["FedAvg"].y.tolist() == [90.3, 91.3, 92.3]


def test_a_method_that_lacks_values():
    """Is drawn where it has three, and left out with fewer. NaN and null leave a gap. Failed with KeyError."""
    content = summary(strength=(0.0, 0.25, 0.5, 1.0))
    parts = list(content["parts"].values())
    del parts[1]["methods"]["FedAMP"], parts[0]["methods"]["FedAvg"], parts[1]["methods"]["FedAvg"]
    parts[2]["methods"]["FedAMP"]["final"] = None
    (found,) = sweeps(content)
    assert list(found.panels[""]) == ["FedAMP"] and list(found.panels[""]["FedAMP"].x) == [0.0, 0.5, 1.0]
    np.testing.assert_array_equal(found.panels[""]["FedAMP"].y, [91.0, np.nan, 92.0])


def test_the_report_of_several_values_shows_it(tmp_path):
    """On the page and as files, if there are three. Failed without the figure, and for two values."""
    variants = [variant(f"{rate:.0%} dropped", drop_rate=rate) for rate in (0.1, 0.5, 0.3)]
    grid.run("practical", variants, (), tmp_path / "three", fake)
    page = (tmp_path / "three" / "report.html").read_text()
    assert "<h2>Accuracy over drop rate</h2>" in page and 'href="accuracy-over-drop-rate.svg"' in page
    assert all((tmp_path / "three" / f"accuracy-over-drop-rate.{kind}").is_file() for kind in figures.FORMATS)
    assert "drop rate %{x}" in page
    grid.run("practical", variants[:2], (), tmp_path / "two", fake)
    assert "Accuracy over" not in (tmp_path / "two" / "report.html").read_text()
    assert not list((tmp_path / "two").glob("accuracy-over*"))
