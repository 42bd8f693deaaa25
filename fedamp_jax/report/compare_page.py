"""The page of several runs: what differs between them, accuracies side by side, curves by run and by method."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from fedamp_jax import analysis
from fedamp_jax.report import charts
from fedamp_jax.report.files import Record, Row, p_value
from fedamp_jax.report.method_table import number, p_text, spread
from fedamp_jax.report.page import Page
from fedamp_jax.report.schema import Head, MethodResults, Part, RunResults, is_grid, judged_by
from fedamp_jax.report.sweeps import Sweep

_ACCURACIES = """BMTA: best mean test accuracy over the rounds; final: mean test accuracy of the last round; percent. ±:
    standard deviation over seeds."""
_TESTS = """points: the mean accuracy of the last round minus that of the first run. p: two-sided, of the Wilcoxon
    signed-rank test over the clients' accuracies in the same round, corrected for the number of all p-values of the
    table by Holm's method; – where the runs are not of the same clients for as many rounds."""

_SWEEP = (
    "Mean over clients after the last round. Bands, where there are several seeds: one standard deviation over them."
)


class Shown(NamedTuple):
    """One run.

    Attributes:
        name: of the file, and of the setting if the file has several.
        record: the file.
        run: its methods and settings.
        report: path of its own report, relative to the page; None: there is none.
    """

    name: str
    record: Record
    run: RunResults | Part
    report: str | None = None

    def row(self, method: str) -> Row:
        """One method."""
        run = self.run
        return Row(method, self.record, self.record.content, run["settings"], run["clients"], run["methods"][method])


def runs_in(records: Sequence[Record]) -> list[Shown]:
    """The single runs of all records."""
    found = []
    for record in records:
        content = record.content
        if is_grid(content):
            found += [Shown(f"{record.name}: {heading}", record, part) for heading, part in content["parts"].items()]
        else:
            found.append(Shown(record.name, record, content))  # pyright: ignore[reportArgumentType]
    return found


def check(runs: Sequence[Shown]) -> None:
    """Refuse runs that cannot be compared.

    Raises:
        ValueError: there are fewer than two, two have one name, or they are of different data sets.
    """
    names = [run.name for run in runs]
    if len(runs) < 2:
        raise ValueError(f"a comparison needs at least two runs, got {', '.join(names) or 'none'}")
    if twice := [name for name in dict.fromkeys(names) if names.count(name) > 1]:
        raise ValueError(f"runs must have different names, got {twice[0]} twice: rename its folder or file")
    data = {run.name: run.record.content["dataset"] for run in runs}
    if len(set(data.values())) > 1:
        listed = ", ".join(f"{name} of {dataset}" for name, dataset in data.items())
        raise ValueError(f"runs of different data sets cannot be compared: {listed}; give those of one data set")


def html(
    title: str,
    runs: Sequence[Shown],
    command: str,
    figures: Mapping[str, str] | None = None,
    sweeps: Sequence[Sweep] = (),
) -> str:
    """The page: a single file that loads nothing else.

    Args:
        title: its heading.
        runs: at least two, see `check`.
        command: that made it.
        figures: links to files beside the page.
        sweeps: accuracies over an option, to be shown as well.

    Returns:
        HTML. All text from the results is escaped.
    """
    page = Page(title)
    if figures:
        page.links("Files beside this page", figures)
    reports = {run.name: run.report for run in runs if run.report is not None}
    if reports:
        page.links("Reports of the runs", reports)
    _accuracies(page, runs)
    label = _label(runs)
    for sweep in sweeps:
        page.heading(f"Accuracy over {sweep.option}")
        page.text(_SWEEP, "note")
        page.charts({part: charts.lines(of, label, over=sweep.option) for part, of in sweep.panels.items()})
    _curves(page, runs)
    page.heading("Settings")
    _differences(page, runs)
    page.code(command)
    return page.html()


def methods_of(runs: Sequence[Shown]) -> list[str]:
    """The methods of all runs."""
    return list(dict.fromkeys(name for run in runs for name in run.run["methods"]))


def _accuracies(page: Page, runs: Sequence[Shown]) -> None:
    """A row per method and run; the p-values compare a run with the first one that has the method."""
    found = [run.row(name) for name in methods_of(runs) for run in runs if name in run.run["methods"]]
    names = [run.name for name in methods_of(runs) for run in runs if name in run.run["methods"]]
    first = {row.method: row for row in reversed(found)}
    raw = [None if row is first[row.method] else _p(row, first[row.method]) for row in found]
    known = iter(analysis.holm([p for p in raw if p is not None]))
    rows = []
    for row, name, p in zip(found, names, raw, strict=True):
        entry, base = row.entry, first[row.method]
        cells = [spread(entry[key], entry.get(f"{key}_std")) for key in ("bmta", "final")]
        points = None if row is base else _mean(entry) - _mean(base.entry)
        shown = number(None if points is None or np.isnan(points) else points, "+.2f")
        corrected = None if p is None else next(known)
        rows.append([f"{row.method}, {name}", *cells, str(entry["best_round"]), shown, p_text(corrected)])
    page.heading("Accuracies")
    page.table(["method, run", "BMTA (%)", "final (%)", "best round", "points", "p"], rows)
    page.text(f"{_ACCURACIES} {_TESTS}", "note")


def _p(row: Row, base: Row) -> float | None:
    mine, theirs = ([a is None for a in of.entry["accuracy"]] for of in (row, base))
    return None if mine != theirs or all(mine) else p_value(row, base)


def _mean(entry: MethodResults) -> float:
    return analysis.mean_over_clients(np.asarray(entry["accuracy"], np.float64))


def _curves(page: Page, runs: Sequence[Shown]) -> None:
    """A chart per run with its methods, and one per method with the runs that have it, all with one scale."""
    label = _label(runs)
    of = label.removesuffix(" (%)")
    limits = charts.common_limits([m for run in runs for m in run.run["methods"].values()], "mean_accuracy")
    page.heading(f"{of.capitalize()} by run")
    page.charts({run.name: charts.curves(run.run["methods"], "mean_accuracy", label, limits=limits) for run in runs})
    page.heading(f"{of.capitalize()} by method")
    shared = {name: [run for run in runs if name in run.run["methods"]] for name in methods_of(runs)}
    page.charts(
        {
            name: charts.curves({r.name: r.run["methods"][name] for r in some}, "mean_accuracy", label, limits=limits)
            for name, some in shared.items()
            if len(some) > 1
        }
    )


def _label(runs: Sequence[Shown]) -> str:
    """Of the axis of accuracies."""
    kinds = {judged_by(run.run["settings"]) for run in runs}
    return f"mean {kinds.pop()} accuracy (%)" if len(kinds) == 1 else "mean accuracy (%)"


def _differences(page: Page, runs: Sequence[Shown]) -> None:
    """A table of what differs between the runs."""
    heads: list[Head] = [run.record.content for run in runs]
    own: list[dict[str, Any]] = [
        {"experiment": head["experiment"], "rounds": head["rounds"], "clients": run.run["clients"],
         **{key: value for key, value in run.run["settings"].items() if key != "rounds"}, "device": head["device"],
         "created": head["created"], **head["versions"]}
        for head, run in zip(heads, runs, strict=True)
    ]  # fmt: skip
    keys = list(dict.fromkeys(key for one in own for key in one))

    def text(one: dict[str, Any], key: str) -> str:
        return json.dumps(one[key]).strip('"') if key in one else "–"

    rows = [[key, *(text(one, key) for one in own)] for key in keys]
    page.table(["differing", *(run.name for run in runs)], [row for row in rows if len(set(row[1:])) > 1], kind="text")
    page.pairs("common", {row[0]: row[1] for row in rows if len(set(row[1:])) == 1})
