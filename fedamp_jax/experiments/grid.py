"""Several runs by one command: over seeds, mean and standard deviation; over settings, a figure with a panel each.

Every run has a folder of its own, so that `--resume` continues the one that was interrupted.
"""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from fedamp_jax.checks import check_integer
from fedamp_jax.experiments import (
    attention_history,
    comparison,
    method_table,
    plotting,
    report,
    result_files,
    run_folder,
)
from fedamp_jax.experiments.schema import GridResults, MethodResults, Part, RunResults, title
from fedamp_jax.experiments.train import p_values

_CURVES = ("mean_accuracy", "loss", "in_group_weight", "ari")
_CLIENTS = ("accuracy", "best_accuracy")
_NUMBERS = ("bmta", "final", "seconds_per_round", "first_round_seconds")


class Variant(NamedTuple):
    """One of several settings.

    Attributes:
        title: the title of its panel, from which the name of its folder is made; empty if there is only one setting.
        options: of its run.
    """

    title: str
    options: Any


Train = Callable[[Any, Path], RunResults]
"""`(options, folder) -> results`: one run."""


def run(
    experiment: str, variants: Sequence[Variant], seeds: Sequence[int], folder: Path, train: Train
) -> RunResults | GridResults:
    """Train every variant with every seed; returns the results that are written to `folder`.

    A single variant with a single seed is written to `folder` itself. With several seeds, each has a folder `seed=...`;
    with several variants, each has a folder named after its title. `folder` then gets their summary.

    Args:
        experiment: its name.
        variants: at least one.
        seeds: replace the seed of the options, unless empty.
        folder: where to write.
        train: does one run.

    Raises:
        ValueError: a seed or a title is given twice, or the folder holds something else (`run_folder.claim`).
    """
    for name, values in (("--seeds", [str(s) for s in seeds]), ("settings", [v.title for v in variants])):
        if len(set(values)) < len(values):
            raise ValueError(f"{name} must differ, got {', '.join(values)}: give each once")
    for seed in seeds:
        check_integer("--seeds", seed, low=0)
    several, found = len(variants) > 1, None
    if several:
        mine = {"experiment": experiment, **_settings(variants, seeds)}
        found = run_folder.claim(folder, mine, variants[0].options.resume, [_slug(v.title) for v in variants])
    results = {}
    for heading, options in variants:
        inside = folder / _slug(heading) if several else folder
        results[heading] = _all_seeds(experiment, options, seeds, inside, train)
    if not several:
        run_folder.console.print(f"Report: {folder / 'report.html'}", highlight=False, soft_wrap=True)
        return results[variants[0].title]
    summary = summarize(experiment, variants, seeds, results)
    if found and json.loads(json.dumps(summary["parts"])) == cast(GridResults, found)["parts"]:
        summary = cast(GridResults, found)  # nothing was trained: it says which command and versions it is of
    report.write_json(summary, folder / "results.json")
    write_summary_report(summary, results, folder)
    return summary


def _all_seeds(experiment: str, options: Any, seeds: Sequence[int], folder: Path, train: Train) -> RunResults:
    """One variant with every seed; several seeds are combined."""
    if len(seeds) < 2:
        return train(dataclasses.replace(options, seed=seeds[0]) if seeds else options, folder)
    mine = {"experiment": experiment, **run_folder.settings_of(options), "seed": None, "seeds": list(seeds)}
    run_folder.claim(folder, mine, options.resume, [f"seed={s}" for s in seeds])
    runs = [train(dataclasses.replace(options, seed=s), folder / f"seed={s}") for s in seeds]
    combined = combine(runs, seeds)
    run_folder.write_files(combined, folder)
    return combined


def combine(runs: Sequence[RunResults], seeds: Sequence[int]) -> RunResults:
    """The results of several seeds, combined into results of the same form.

    Numbers, curves and each client's accuracy are averaged over the seeds. `bmta_std` and `final_std` are the sample
    standard deviations over seeds (n - 1). The BMTA is the mean of the seeds' BMTAs, not the best of the mean curve.
    Curves have such deviations as well, in every round. `new_clients` are those of all seeds. p-values compare
    the clients' mean accuracies. xi and distances are averaged only if all seeds have the same groups.
    """
    first = runs[0]
    names = [name for name in first["methods"] if all(name in run["methods"] for run in runs)]
    alike = first["groups"] is not None and all(run["groups"] == first["groups"] for run in runs)
    methods = {name: _combine_method([run["methods"][name] for run in runs], alike) for name in names}
    sizes = [run.get("examples") for run in runs]
    return {
        **first,
        "examples": sizes[0] if all(size == sizes[0] for size in sizes) else None,
        "ids": first.get("ids") if all(run.get("ids") == first.get("ids") for run in runs) else None,
        "settings": {**first["settings"], "seed": None, "seeds": list(seeds)},
        "groups": first["groups"] if alike else None,
        "chance_in_group_weight": first["chance_in_group_weight"] if alike else None,
        "methods": methods,
        "wilcoxon": p_values(methods),
    }


def _combine_method(runs: Sequence[Mapping[str, Any]], alike: bool) -> MethodResults:
    """One method's entry from those of several seeds."""
    method: dict[str, Any] = dict(runs[0])
    for key in (*_NUMBERS, *_CURVES, *_CLIENTS):
        values = [run[key] for run in runs]
        # Where one value is unknown (None, in JSON null), so is the mean.
        known = None not in values
        method[key] = np.mean(_numbers(values), axis=0).tolist() if known else None
    for key in ("bmta", "final", *_CURVES):
        values = [run[key] for run in runs]
        method[f"{key}_std"] = None if None in values else np.std(_numbers(values), axis=0, ddof=1).tolist()
    method["best_rounds"] = [run["best_round"] for run in runs]
    method["best_round"] = int(np.median(method["best_rounds"]))
    if method.get("new_clients"):
        found = [run["new_clients"] for run in runs]
        method["new_clients"] = {key: [value for one in found for value in one[key]] for key in found[0]}
    method["seconds"] = sum(run["seconds"] for run in runs)
    method["xi"] = np.mean([run["xi"] for run in runs], axis=0).tolist() if alike and method["xi"] is not None else None
    method["attention"] = attention_history.mean([run.get("attention") for run in runs]) if alike else None
    counts = [(client, n) for run in runs for client, n in run["rejected"].items()]
    method["rejected"] = {c: sum(n for other, n in counts if other == c) for c, _ in counts}
    if "last_rounds" in method:
        tails = [run["last_rounds"] for run in runs]
        mean, ci = (float(np.mean([tail[key] for tail in tails])) for key in ("mean", "ci95"))
        method["last_rounds"] = {**tails[0], "mean": mean, "ci95": ci}
        method["last_rounds"]["std"] = float(np.std([tail["mean"] for tail in tails], ddof=1))
    return cast(MethodResults, method)


def _numbers(values: Any) -> np.ndarray:
    return np.array(values, np.float64)  # None becomes NaN


def _settings(variants: Sequence[Variant], seeds: Sequence[int]) -> dict[str, Any]:
    """The settings of all variants in one dictionary: lists where they differ."""
    each = [run_folder.settings_of(v.options) for v in variants]
    same = {key: value for key, value in each[0].items() if all(one[key] == value for one in each)}
    varied = {key: [one[key] for one in each] for key in each[0] if key not in same}
    return {**same, **varied, **({"seed": None, "seeds": list(seeds)} if seeds else {})}


def summarize(
    experiment: str, variants: Sequence[Variant], seeds: Sequence[int], results: Mapping[str, RunResults]
) -> GridResults:
    """The results of several variants, each without attention weights."""
    head = run_folder.describe_run(experiment, variants[0].options)
    parts: dict[str, Part] = {
        heading: {
            "folder": _slug(heading),
            "settings": part["settings"],
            "clients": part["clients"],
            "methods": {name: {**method, "xi": None, "attention": None} for name, method in part["methods"].items()},
            "wilcoxon": part["wilcoxon"],
        }
        for heading, part in results.items()
    }
    return {**head, "settings": _settings(variants, seeds), "parts": parts}


def write_summary_report(summary: GridResults, results: Mapping[str, RunResults], folder: Path) -> None:
    """Write `report.html` and the figure `panels` of several variants, and print their table."""
    first = next(iter(results.values()))
    rows = {f"{n} ({heading})": m for heading, part in results.items() for n, m in part["methods"].items()}
    files = {path.name: path.name for path in plotting.save_all(plotting.panels(summary), folder / "panels")}
    record = result_files.Record(summary["experiment"], summary)
    runs = [
        comparison.Shown(heading, record, part, f"{part['folder']}/report.html")
        for heading, part in summary["parts"].items()
    ]
    page = comparison.html(title(summary), runs, summary["command"], {"results.json": "results.json", **files})
    plotting.replace(folder / "report.html", page.encode("utf-8", "backslashreplace"))
    run_folder.console.print(method_table.table({**first, "settings": summary["settings"], "methods": rows}))
    text = f"Report: {folder / 'report.html'}; every setting has a report of its own."
    run_folder.console.print(text, highlight=False, soft_wrap=True)


def _slug(title: str) -> str:
    """`10% dropped` as the name of a folder: `10-dropped`."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
