"""Runs of a program as results with figures and a page, as the experiments have them."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
from matplotlib.figure import Figure

from fedamp_jax import Run, analysis
from fedamp_jax.files import local_path
from fedamp_jax.report import attention_history, files, provenance, report
from fedamp_jax.report.combine import p_values
from fedamp_jax.report.schema import MethodResults, RunResults


@dataclasses.dataclass(frozen=True)
class Report:
    """Results and how to look at them.

    Attributes:
        results: what `results.json` holds; `fedamp_jax.report.schema.RunResults` describes it.
    """

    results: RunResults

    @property
    def figures(self) -> dict[str, Figure]:
        """Matplotlib figures by name: `convergence`, `accuracy`, and with attention weights `xi` and `groups`."""
        return report.figures_of(self.results)

    def write(self, folder: str | os.PathLike[str]) -> Path:
        """Write `report.html`, the figures, `results.json` and `history.csv`; returns the path of the page."""
        folder = local_path(folder, "the folder of the report")
        files.write_json(self.results, folder / "results.json")
        files.write_history(self.results, folder / "history.csv")
        return report.write(self.results, folder)


def of_runs(
    runs: Mapping[str, Run],
    groups: Sequence[int] | np.ndarray | None = None,
    *,
    title: str = "runs",
    dataset: str = "own data",
    settings: Mapping[str, Any] | None = None,
) -> Report:
    """Figures and a page of several methods on the same clients.

    Args:
        runs: what `fedamp_jax.run` returned, by the name of the method, all with the same clients.
        groups: `[M]`, each client's group, if it has one; attention weights are drawn group by group.
        title: of the page, in front of the name of the data set.
        dataset: its name.
        settings: what a reader should know of the runs, by name; shown on the page.

    Returns:
        The `Report`.

    Raises:
        ValueError: there are no runs, or their numbers of clients differ, also from those of `groups`.
        AttributeError: a run's task has no metric `accuracy`.

    >>> import optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedavg(task, fedamp_jax.Solver(optax.adam(1e-3), epochs=1))
    >>> run = fedamp_jax.run(task, algorithm, train, test, rounds=2, progress=False)
    >>> sorted(of_runs({"FedAvg": run}, groups).figures)
    ['accuracy', 'convergence']
    """
    clients = {name: run.accuracy.shape[1] for name, run in runs.items()}
    if groups is not None:
        clients["groups"] = len(groups)
    if not runs:
        raise ValueError("runs must have at least one run, such as {'FedAMP': fedamp_jax.run(...)}")
    if len(set(clients.values())) > 1:
        raise ValueError(f"all runs must have the same clients, got {clients}")
    methods = {name: method_results(run) for name, run in runs.items()}
    rounds = max((run.rounds[-1] for run in runs.values() if len(run.rounds)), default=0)
    known = None if groups is None else np.asarray(groups)
    results: RunResults = {
        **provenance.describe_run(title, dataset, settings or {}, rounds),
        "clients": next(iter(clients.values())),
        "groups": None if known is None else known.tolist(),
        "chance_in_group_weight": None if known is None else analysis.chance_in_group_weight(known),
        "methods": methods,
        "wilcoxon": p_values(methods),
    }
    return Report(results)


def method_results(run: Run, paper: float | None = None, settings: Mapping[str, Any] | None = None) -> MethodResults:
    """One method's entry in results.json; accuracies in percent. `settings` are the method's own."""
    summary = analysis.accuracy_summary(100.0 * run.accuracy.astype(np.float64), run.rounds)
    entry = {
        **summary,
        "loss": run.loss,
        "seconds": run.seconds,
        "first_round_seconds": run.first_seconds,
        "seconds_per_round": run.seconds_per_round,
        "rejected": {str(i): int(n) for i, n in enumerate(run.rejected) if n},
        "paper": paper,
        "in_group_weight": run.observed.get("in_group_weight"),
        "ari": run.observed.get("ari"),
        "xi": None if run.xi is None else run.xi.tolist(),
        "attention": attention_history.entry(run),
        "settings": dict(settings or {}),
    }
    return cast(MethodResults, entry)
