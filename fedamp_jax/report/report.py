"""What an experiment writes: `report.html`, figures, `results.json`, `history.csv`.

All of it is made from the results alone, whether they come from memory or from `results.json` (where NaN is null and
keys are strings). Files are written atomically.
"""

import os
from pathlib import Path

from matplotlib.figure import Figure

from fedamp_jax.files import local_path
from fedamp_jax.report import figures, run_page
from fedamp_jax.report.files import write_text
from fedamp_jax.report.schema import RunResults

_FIGURES = {  # File name without its ending, and function.
    "convergence": figures.convergence,
    "accuracy": figures.accuracy_distribution,
    "xi": figures.xi_heatmap,
    "groups": figures.group_discovery,
}


def write(results: RunResults, out_dir: str | os.PathLike[str]) -> Path:
    """Write `report.html` and its figures as PNG, SVG and PDF into `out_dir`; returns the report's path.

    Args:
        results: of the run.
        out_dir: the folder, made if needed.

    Raises:
        ValueError: it is none of this machine; see `fedamp_jax.files.local_path`.
    """
    out, drawn = local_path(out_dir, "the folder of the report"), figures_of(results)
    for name, figure in drawn.items():
        figures.save_all(figure, out / name)
    return write_text(out / "report.html", run_page.html(results, list(drawn)))


def figures_of(results: RunResults) -> dict[str, Figure]:
    """The figures of a run by name; those that would be empty are left out."""
    every = {name: draw(results) for name, draw in _FIGURES.items()}
    return {name: figure for name, figure in every.items() if figure is not None}
