"""What an experiment writes: `report.html`, figures, `results.json`, `history.csv`.

All of it is made from the results alone, whether they come from memory or from `results.json` (where NaN is null and
keys are strings). Files are written atomically.
"""

import csv
import io
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from fedamp_jax.experiments import plotting, run_page
from fedamp_jax.experiments.schema import RunResults, plain

_FIGURES = {  # File name without its ending, and function.
    "convergence": plotting.convergence,
    "accuracy": plotting.accuracy_distribution,
    "xi": plotting.xi_heatmap,
    "groups": plotting.group_discovery,
}
COLUMNS = ["method", "round", "mean_accuracy", "loss", "in_group_weight", "ari"]
"""Of `history.csv`."""


def write(
    results: RunResults, out_dir: str | os.PathLike[str], sweep: Mapping[str, Mapping[str, Any]] | None = None
) -> Path:
    """Write `report.html` and its figures as PNG, SVG and PDF into `out_dir`; returns the report's path.

    Args:
        results: of the run.
        out_dir: the folder, made if needed.
        sweep: rows of `plotting.sigma_sensitivity`, for a figure of their own.
    """
    out = Path(out_dir)
    figures = {name: draw(results) for name, draw in _FIGURES.items()}
    figures |= {"sigma": plotting.sigma_sensitivity(sweep)} if sweep else {}
    drawn = {name: figure for name, figure in figures.items() if figure is not None}
    for name, figure in drawn.items():
        plotting.save_all(figure, out / name)
    return _write_text(out / "report.html", run_page.html(results, list(drawn), sweep))


def history_rows(results: RunResults) -> list[dict[str, Any]]:
    """A row per method and round: method, round, mean_accuracy, loss, in_group_weight, ari (None: unknown)."""
    rows = []
    methods = cast(Mapping[str, Mapping[str, Any]], plain(results["methods"], "methods"))
    for name, method in methods.items():
        curves = [method["rounds"], *(method.get(key) or [None] * len(method["rounds"]) for key in COLUMNS[2:])]
        rows += [dict(zip(COLUMNS, [name, *values])) for values in zip(*curves, strict=True)]
    return rows


def write_history(results: RunResults, path: str | os.PathLike[str]) -> Path:
    """Write `history_rows` as CSV with a header; unknown and non-finite values are empty cells."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(history_rows(results))
    return _write_text(path, text.getvalue())


def write_json(results: Mapping[str, Any], path: str | os.PathLike[str]) -> Path:
    """Write results as standard JSON: NaN and infinities become null, arrays become lists, keys become strings.

    Raises:
        TypeError: JSON cannot represent a value; the message says which.
    """
    text = json.dumps(plain(results, "results"), indent=1, allow_nan=False, ensure_ascii=False)
    # Put a list of numbers on one line. Strings are not changed: a line break inside a JSON string is written \n.
    text = re.sub(r"\[\n\s*([^\[\]{}\"]*?)\n\s*\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text)
    return _write_text(path, text + "\n")


def _write_text(path: str | os.PathLike[str], text: str) -> Path:
    # A command line may hold bytes that are not valid text.
    return plotting.replace(path, text.encode("utf-8", "backslashreplace"))
