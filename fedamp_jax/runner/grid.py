"""Several runs by one command: over seeds, mean and standard deviation; over settings, a figure with a panel each.

Every run has a folder of its own, so that `--resume` continues the one that was interrupted.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

from fedamp_jax.checks import check_integer
from fedamp_jax.report import compare_page, figures, files, method_table
from fedamp_jax.report.combine import combine
from fedamp_jax.report.schema import GridResults, Part, RunResults, title
from fedamp_jax.report.sweeps import sweeps
from fedamp_jax.runner import messages, provenance, run_folder
from fedamp_jax.runner.options import Options


class Variant(NamedTuple):
    """One of several settings.

    Attributes:
        title: the title of its panel, from which the name of its folder is made; empty if there is only one setting.
        options: of its run.
    """

    title: str
    options: Options


Train = Callable[[Options, Path], RunResults]
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
        found = run_folder.claim(folder, mine, variants[0].options.output.resume, [_slug(v.title) for v in variants])
    results = {}
    for heading, options in variants:
        inside = folder / _slug(heading) if several else folder
        results[heading] = _all_seeds(experiment, options, seeds, inside, train)
    if not several:
        messages.say(f"Report: {folder / 'report.html'}")
        return results[variants[0].title]
    summary = summarize(experiment, variants, seeds, results)
    if found and json.loads(json.dumps(summary["parts"])) == cast(GridResults, found)["parts"]:
        summary = cast(GridResults, found)  # nothing was trained: it says which command and versions it is of
    files.write_json(summary, folder / "results.json")
    write_summary_report(summary, results, folder)
    return summary


def _all_seeds(experiment: str, options: Options, seeds: Sequence[int], folder: Path, train: Train) -> RunResults:
    """One variant with every seed; several seeds are combined."""
    if len(seeds) < 2:
        return train(options.replace(seed=seeds[0]) if seeds else options, folder)
    mine = {"experiment": experiment, **provenance.settings_of(options), "seed": None, "seeds": list(seeds)}
    run_folder.claim(folder, mine, options.output.resume, [f"seed={s}" for s in seeds])
    runs = [train(options.replace(seed=s), folder / f"seed={s}") for s in seeds]
    combined = combine(runs, seeds)
    run_folder.write_files(combined, folder)
    return combined


def _settings(variants: Sequence[Variant], seeds: Sequence[int]) -> dict[str, Any]:
    """The settings of all variants in one dictionary: lists where they differ."""
    each = [provenance.settings_of(v.options) for v in variants]
    same = {key: value for key, value in each[0].items() if all(one[key] == value for one in each)}
    varied = {key: [one[key] for one in each] for key in each[0] if key not in same}
    return {**same, **varied, **({"seed": None, "seeds": list(seeds)} if seeds else {})}


def summarize(
    experiment: str, variants: Sequence[Variant], seeds: Sequence[int], results: Mapping[str, RunResults]
) -> GridResults:
    """The results of several variants, each without attention weights."""
    head = provenance.describe(experiment, variants[0].options)
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
    """Write `report.html` and the figures of several variants, and print their table.

    The figures are `panels`, and `accuracy-over-OPTION` for each option with at least three values that are numbers.
    """
    first, over = next(iter(results.values())), sweeps(summary)
    rows = {f"{n} ({heading})": m for heading, part in results.items() for n, m in part["methods"].items()}
    every = {f"accuracy-over-{_slug(one.option)}": figures.sweep(summary, one) for one in over}
    every["panels"] = figures.panels(summary)
    paths = [path for name, figure in every.items() for path in figures.save_all(figure, folder / name)]
    drawn = {path.name: path.name for path in paths}
    record = files.Record(summary["experiment"], summary)
    runs = [
        compare_page.Shown(heading, record, part, f"{part['folder']}/report.html")
        for heading, part in summary["parts"].items()
    ]
    page = compare_page.html(title(summary), runs, summary["command"], {"results.json": "results.json", **drawn}, over)
    files.replace(folder / "report.html", page.encode("utf-8", "backslashreplace"))
    messages.console.print(method_table.table({**first, "settings": summary["settings"], "methods": rows}))
    messages.say(f"Report: {folder / 'report.html'}; every setting has a report of its own.")


def _slug(title: str) -> str:
    """`10% dropped` as the name of a folder: `10-dropped`."""
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
