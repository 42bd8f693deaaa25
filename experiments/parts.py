"""Runs made of runs: several seeds become mean and standard deviation, several settings a figure with a panel each.

Every part is a run of its own in a folder of its own, so that `--resume` goes on with the part that was interrupted.
"""

import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import outputs

from fedamp_jax import metrics, plotting, report

_CURVES = ("mean_accuracy", "loss", "in_group_weight", "ari")
_CLIENTS = ("accuracy", "best_accuracy")
_NUMBERS = ("bmta", "final", "seconds_per_round", "first_round_seconds")


class Variant(NamedTuple):
    """One setting of several.

    Attributes:
        title: of its panel, and in another spelling the name of its folder; empty if it is the only one.
        options: of its run.
    """

    title: str
    options: Any


Train = Callable[[Any, Path], dict[str, Any]]  # (options, folder) -> results


def run(
    experiment: str, variants: Sequence[Variant], seeds: Sequence[int], folder: Path, train: Train
) -> dict[str, Any]:
    """Train every variant with every seed; returns the results that `folder` gets.

    A single variant with a single seed is a run in `folder` itself. Several seeds lie in `seed=...`, several variants
    in folders named after their titles, and `folder` gets what sums them up.

    Args:
        experiment: its name.
        variants: at least one.
        seeds: in place of the options' own; empty: theirs.
        folder: where to write.
        train: runs one part.

    Raises:
        ValueError: a seed or a variant comes twice, or the folder is not free (`outputs.claim`).
    """
    for name, values in (("seeds", [str(s) for s in seeds]), ("settings", [v.title for v in variants])):
        if len(set(values)) < len(values):
            raise ValueError(f"{name} must differ, got {', '.join(values)}: leave out what comes twice")
    several = len(variants) > 1
    if several:
        mine = {"experiment": experiment, **_settings(variants, seeds)}
        outputs.claim(folder, mine, variants[0].options.resume, [_slug(v.title) for v in variants])
    results = {}
    for title, options in variants:
        inside = folder / _slug(title) if several else folder
        results[title] = _all_seeds(experiment, options, seeds, inside, train)
    if not several:
        outputs.console.print(f"Report: {folder / 'report.html'}", highlight=False, soft_wrap=True)
        return results[variants[0].title]
    summary = summarize(experiment, variants, seeds, results)
    report.write_json(summary, folder / "results.json")
    write_summary_report(summary, results, folder)
    return summary


def _all_seeds(experiment: str, options: Any, seeds: Sequence[int], folder: Path, train: Train) -> dict[str, Any]:
    """One variant: every seed's run, and, if there are several, what they come to."""
    if len(seeds) < 2:
        return train(dataclasses.replace(options, seed=seeds[0]) if seeds else options, folder)
    mine = {"experiment": experiment, **outputs.settings_of(options), "seed": None, "seeds": list(seeds)}
    outputs.claim(folder, mine, options.resume, [f"seed={s}" for s in seeds])
    runs = [train(dataclasses.replace(options, seed=s), folder / f"seed={s}") for s in seeds]
    combined = combine(runs, seeds)
    outputs.write_files(combined, folder)
    return combined


def combine(runs: Sequence[Mapping[str, Any]], seeds: Sequence[int]) -> dict[str, Any]:
    """The results of several seeds as one results dictionary of the same form.

    Numbers, curves and each client's accuracy become means over the seeds, and `bmta_std` and `final_std` are added:
    the standard deviation over seeds (of a sample, n - 1). The BMTA is the mean of the seeds' BMTAs, not the best of
    the mean curve. p-values are of the clients' mean accuracies. xi is only averaged where the groups are the same.
    """
    first = runs[0]
    names = [name for name in first["methods"] if all(name in run["methods"] for run in runs)]
    alike = first["groups"] is not None and all(run["groups"] == first["groups"] for run in runs)
    methods = {name: _combine_method([run["methods"][name] for run in runs], alike) for name in names}
    return {
        **first,
        "settings": {**first["settings"], "seed": None, "seeds": list(seeds)},
        "groups": first["groups"] if alike else None,
        "chance_in_group_weight": first["chance_in_group_weight"] if alike else None,
        "methods": methods,
        "wilcoxon": metrics.wilcoxon_table({name: method["accuracy"] for name, method in methods.items()}),
    }


def _combine_method(runs: Sequence[Mapping[str, Any]], alike: bool) -> dict[str, Any]:
    """One method's entry from those of several seeds."""
    method = dict(runs[0])
    for key in (*_NUMBERS, *_CURVES, *_CLIENTS):
        values = [run[key] for run in runs]
        # A null in JSON, NaN before it, is unknown: it makes the mean unknown.
        known = None not in values
        method[key] = np.mean(np.array(values, np.float64), axis=0).tolist() if known else None
    for key in ("bmta", "final"):
        method[f"{key}_std"] = float(np.std([run[key] for run in runs], ddof=1))
    method["best_rounds"] = [run["best_round"] for run in runs]
    method["best_round"] = int(np.median(method["best_rounds"]))
    method["seconds"] = sum(run["seconds"] for run in runs)
    method["xi"] = np.mean([run["xi"] for run in runs], axis=0).tolist() if alike and method["xi"] is not None else None
    counts = [(client, n) for run in runs for client, n in run["rejected"].items()]
    method["rejected"] = {c: sum(n for other, n in counts if other == c) for c, _ in counts}
    if "last_rounds" in method:
        tails = [run["last_rounds"] for run in runs]
        mean, ci = (float(np.mean([tail[key] for tail in tails])) for key in ("mean", "ci95"))
        method["last_rounds"] = {**tails[0], "mean": mean, "ci95": ci}
        method["last_rounds"]["std"] = float(np.std([tail["mean"] for tail in tails], ddof=1))
    return method


def _settings(variants: Sequence[Variant], seeds: Sequence[int]) -> dict[str, Any]:
    """The settings of all variants together: a list where they differ."""
    each = [outputs.settings_of(v.options) for v in variants]
    same = {key: value for key, value in each[0].items() if all(one[key] == value for one in each)}
    varied = {key: [one[key] for one in each] for key in each[0] if key not in same}
    return {**same, **varied, **({"seed": None, "seeds": list(seeds)} if seeds else {})}


def summarize(
    experiment: str, variants: Sequence[Variant], seeds: Sequence[int], results: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """`results.json` of several variants: `parts`, by title, holds each one's results without xi."""
    head = outputs.describe_run(experiment, variants[0].options)
    light = {
        title: {
            "folder": _slug(title),
            "settings": part["settings"],
            "clients": part["clients"],
            "methods": {name: {**method, "xi": None} for name, method in part["methods"].items()},
            "wilcoxon": part["wilcoxon"],
        }
        for title, part in results.items()
    }
    return {**head, "settings": _settings(variants, seeds), "parts": light}


def write_summary_report(summary: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    """`report.html` and `panels.png` of several variants, and their table in the terminal."""
    first = next(iter(results.values()))
    rows = {f"{n} ({title})": m for title, part in results.items() for n, m in part["methods"].items()}
    page = {**first, **summary, "methods": rows, "wilcoxon": {}, "chance_in_group_weight": None}
    figure = plotting.panels(summary)
    plotting.save(figure, folder / "panels.png")
    plotting.replace(folder / "report.html", report.html(page, {"Convergence": figure}).encode())
    outputs.console.print(report.table(page))
    text = f"Report: {folder / 'report.html'}; each part has one of its own."
    outputs.console.print(text, highlight=False, soft_wrap=True)


def _slug(title: str) -> str:
    """`10% dropped` as the name of a folder: `10-dropped`."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
