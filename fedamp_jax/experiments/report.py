"""What an experiment writes: `report.html`, figures, `results.json`, `history.csv`, and the table in the terminal.

All of it is made from the results alone, whether they come from memory or from `results.json` (where NaN is null and
keys are strings). Files are written atomically.
"""

import base64
import csv
import io
import json
import math
import os
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np
from matplotlib.figure import Figure
from rich import box
from rich.table import Table
from rich.text import Text

from fedamp_jax.experiments import plotting
from fedamp_jax.experiments.schema import MethodResults, RunResults

Picture: TypeAlias = Figure | str | os.PathLike[str]
"""A figure, or the path of a PNG file."""

_FIGURES = {  # Title: file name and function.
    "Convergence": ("convergence.png", plotting.convergence),
    "Client accuracy": ("accuracy.png", plotting.accuracy_distribution),
    "Collaboration weights": ("xi.png", plotting.xi_heatmap),
    "Group discovery": ("groups.png", plotting.group_discovery),
}
_NOTES = {
    "Convergence": "Mean test accuracy over clients after each round.",
    "Client accuracy": """Test accuracy of every client (dots) in the best round of each method. Box: the middle half of
        the clients; line: median; diamond: mean.""",
    "Collaboration weights": """How much of client j's model goes into the cloud model of client i after the last round.
        The diagonal, a client's own weight, is left out. Lines separate the true groups of the data.""",
    "Group discovery": """Share of the weight given to others that stays in the client's own group, and agreement of the
        groups found from the weights with the true groups (adjusted Rand index, 1: perfect). Dashed: chance.""",
    "Sensitivity to sigma": "The effect of sigma, the scale of the attention.",
    "results": """BMTA: best mean test accuracy, the highest mean over clients in any evaluated round. final: the mean
        in the last round. s / round: seconds per round. rejected: number of clients that kept their previous model in
        some round because their update was not finite. ±: standard deviation over seeds; for the last rounds, PFLEGO's
        score, the 95% confidence interval over clients.""",
    "wilcoxon": """Two-sided p of the Wilcoxon signed-rank test over the clients' accuracies in the last round; in
        brackets, the difference in BMTA between the method of the column and that of the row, in points. * p below
        0.0001, the level that the paper reports. Not corrected for the number of comparisons.""",
}
_COLUMNS = ["method", "round", "mean_accuracy", "loss", "in_group_weight", "ari"]
_CSS = """
:root { color-scheme: light dark }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem }
h1 { font-size: 1.5rem; line-height: 1.25 } h2 { font-size: 1.15rem; margin-top: 2.2rem }
.headline { font-size: 1.1rem } .note, figcaption { font-size: .875rem; opacity: .85 } .scroll { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: .5rem 0 }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #8885; text-align: right; white-space: nowrap }
th:first-child, .text td, .text th { text-align: left } .text td { white-space: normal } .best { background: #8882 }
figure { margin: 1.5rem 0 } img { display: block; width: 100%; min-width: 34rem } code, td { overflow-wrap: anywhere }
@media print { body { max-width: none; font-size: 11pt } figure, tr { break-inside: avoid } img { min-width: 0 } }
"""


def html(results: RunResults, figures: Mapping[str, Picture]) -> str:
    """The report: a single page that loads nothing else.

    Args:
        results: of the run.
        figures: by title.

    Returns:
        HTML. All text from `results` and titles is escaped.

    Raises:
        FileNotFoundError: a PNG file is missing.
    """
    results = _plain_results(results)
    methods, title = results["methods"], f"{results['experiment']} on {results['dataset']}"
    known = results.get("groups")
    groups = f" in {len(set(known))} groups" if known else ""
    size = f"{results['clients']} clients{groups}; {results['rounds']} rounds"
    own = {name: ", ".join(f"{k} = {v}" for k, v in (m.get("settings") or {}).items()) for name, m in methods.items()}
    body = [
        f"<h1>{escape(title)}</h1>",
        _paragraph(headline(results), "headline"),
        _paragraph(f"{size}; {results['device']}; {results['created']}", "note"),
        "<h2>Results</h2>",
        _table(*_results_rows(results)),
        _paragraph(_NOTES["results"], "note"),
        *_rejected(methods),
        *_wilcoxon(results),
        *(_figure(name, figure) for name, figure in figures.items()),
        "<h2>Settings and versions</h2>",
        _pairs("setting", results["settings"]),
        _pairs("method", {name: settings for name, settings in own.items() if settings}),
        _pairs("package", results["versions"]),
        f"<p><code>{escape(str(results['command']))}</code></p>",
    ]
    return (
        f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_CSS}</style></head>'
        f"<body>{''.join(body)}</body></html>\n"
    )


def headline(results: RunResults) -> str:
    """The main result in one or two sentences.

    >>> headline({"methods": {"FedAMP": {"bmta": 97.5, "best_round": 3}, "Separate": {"bmta": 86.25}}})
    'FedAMP has the highest BMTA, 97.50% (round 3); Separate: 86.25%.'
    """
    results = _plain_results(results)
    methods, best, chance = results["methods"], _best(results["methods"]), results.get("chance_in_group_weight")
    if best is None:
        return "No method has a finite accuracy."
    text = f"{best} has the highest BMTA, {_number(methods[best]['bmta'])}% (round {methods[best]['best_round']})"
    others = [name for name in ("FedAMP", "HeurFedAMP", "Separate", "FedAvg") if name in methods and name != best]
    text = "; ".join([text, *(f"{name}: {_number(methods[name]['bmta'])}%" for name in others)]) + "."
    shares = {name: [w for w in m.get("in_group_weight") or [] if w is not None] for name, m in methods.items()}
    found = [f"{share[-1]:.0%} in {name}" for name, share in shares.items() if share]
    found = " and ".join([*([", ".join(found[:-1])] if found[1:] else []), *found[-1:]])
    stays = f" Of the weight given to others, {found} stays in the client's own group (chance: {chance or 0:.0%})."
    return text + stays * bool(found and chance is not None)


def write(
    results: RunResults,
    out_dir: str | os.PathLike[str],
    extra_figures: Mapping[str, Picture | None] | None = None,
) -> Path:
    """Write `report.html` and its figures as PNG into `out_dir`, creating it if needed; returns the report's path.

    Args:
        results: of the run.
        out_dir: the folder.
        extra_figures: more figures by title. A figure is saved under a name made from its title; a PNG file stays
            where it is; None is left out.
    """
    out, files = Path(out_dir), {}
    own = {title: draw(results) for title, (_, draw) in _FIGURES.items()}
    for title, figure in {**own, **(extra_figures or {})}.items():
        if isinstance(figure, Figure):
            stem = re.sub(r"[^a-z0-9]+", "_", title.lower()).strip("_") or "figure"
            name = _FIGURES[title][0] if title in _FIGURES else f"{stem}.png"
            taken = {path.name for path in files.values()}
            figure = plotting.save(figure, out / (f"{stem}_{len(files)}.png" if name in taken else name))
        if figure is not None:
            files[title] = Path(figure)
    return _write_text(out / "report.html", html(results, files))


def table(results: RunResults) -> Table:
    """The table of results for the terminal; print it with `rich.print(table(results))`."""
    head, rows, best = _results_rows(results)
    title = Text(f"{results['experiment']} on {results['dataset']}")
    shown = Table(title=title, box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
    for number, column in enumerate(head):
        # Heads of two lines: in a narrow terminal rich would otherwise cut off numbers.
        words = "\n".join(column.rsplit(" ", 1))
        shown.add_column(words, justify="right" if number else "left", no_wrap=not number)
    for number, row in enumerate(rows):
        shown.add_row(*map(Text, row), style="bold" if number == best else None)
    return shown


def history_rows(results: RunResults) -> list[dict[str, Any]]:
    """A row per method and round: method, round, mean_accuracy, loss, in_group_weight, ari (None: unknown)."""
    rows = []
    methods = cast(Mapping[str, Mapping[str, Any]], _plain(results["methods"], "methods"))
    for name, method in methods.items():
        curves = [method["rounds"], *(method.get(key) or [None] * len(method["rounds"]) for key in _COLUMNS[2:])]
        rows += [dict(zip(_COLUMNS, [name, *values])) for values in zip(*curves, strict=True)]
    return rows


def write_history(results: RunResults, path: str | os.PathLike[str]) -> Path:
    """Write `history_rows` as CSV with a header; unknown and non-finite values are empty cells."""
    text = io.StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(history_rows(results))
    return _write_text(path, text.getvalue())


def write_json(results: Mapping[str, Any], path: str | os.PathLike[str]) -> Path:
    """Write results as standard JSON: NaN and infinities become null, arrays become lists, keys become strings.

    Raises:
        TypeError: JSON cannot represent a value; the message says which.
    """
    text = json.dumps(_plain(results, "results"), indent=1, allow_nan=False, ensure_ascii=False)
    # Put a list of numbers on one line. Strings are not changed: a line break inside a JSON string is written \n.
    text = re.sub(r"\[\n\s*([^\[\]{}\"]*?)\n\s*\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text)
    return _write_text(path, text + "\n")


def _plain_results(results: RunResults) -> RunResults:
    return cast(RunResults, _plain(results, "results"))


def _plain(value: Any, where: str) -> Any:
    """`value` in JSON's types."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item, f"{where}[{str(key)!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, where) for item in value]
    if value is None or isinstance(value, (str, int, float)):
        return None if isinstance(value, float) and not math.isfinite(value) else value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "__array__"):
        return _plain(np.asarray(value).tolist(), where)
    raise TypeError(f"{where} holds a {type(value).__name__}, which JSON cannot hold: {value!r}")


def _results_rows(results: RunResults) -> tuple[list[str], list[list[str]], int]:
    """Head and cells of the table of results, and the index of the best row."""
    methods = _plain_results(results)["methods"]
    paper = any(method.get("paper") is not None for method in methods.values())
    scored = any(method.get("last_rounds") for method in methods.values())
    some_rejected = any(method.get("rejected") for method in methods.values())
    rows = []
    for name, method in methods.items():
        score, theirs = method.get("last_rounds") or {}, method.get("paper")
        shown = [_spread(method[key], method.get(f"{key}_std")) for key in ("bmta", "final")]
        last = [_spread(score.get("mean"), score.get("ci95"))] * scored
        beside = [_number(theirs), _gap(score.get("mean", method["bmta"]), theirs)] * paper
        rejected = [str(len(method.get("rejected") or {}))] * some_rejected
        time = _number(method.get("seconds_per_round"), ".3g")
        rows.append([name, *shown, *last, *beside, str(method["best_round"]), time, *rejected])
    between = ["last rounds (%)"] * scored + ["paper (%)", "ours - paper"] * paper
    head = ["method", "BMTA (%)", "final (%)", *between, "best round", "s / round", *["rejected"] * some_rejected]
    return head, rows, [*methods, _best(methods)].index(_best(methods))


def _wilcoxon(results: RunResults) -> list[str]:
    """The section of p-values: against FedAMP and HeurFedAMP if they were trained, else against every method."""
    tests, methods = results.get("wilcoxon") or {}, results["methods"]
    of = [name for name in tests if name in methods]
    of = [name for name in of if name.startswith(("FedAMP", "HeurFedAMP"))] or of
    if not of or len(methods) < 2:
        return []
    rows = [[other] for other in methods]
    for row, name in ((row, name) for row in rows for name in of):
        p, gap = tests[name].get(row[0]), _gap(methods[name]["bmta"], methods[row[0]]["bmta"])
        row.append("–" if p is None else f"{'< 0.0001 *' if p < 1e-4 else format(p, '.4f')} ({gap})")
    least = 2.0 ** (1 - results["clients"])
    limit = f" With {results['clients']} clients p cannot be below {least:.2g}." if least >= 1e-4 else ""
    head = "<h2>Are the differences significant?</h2>"
    return [head, _table(["p against", *of], rows), _paragraph(_NOTES["wilcoxon"] + limit, "note")]


def _rejected(methods: Mapping[str, MethodResults]) -> list[str]:
    """A line for every method that rejected clients, with their ids."""
    lines = []
    for name, method in methods.items():
        counts = sorted((method.get("rejected") or {}).items(), key=lambda item: (len(str(item[0])), str(item[0])))
        clients = ", ".join(f"client {client} ({count} round{'s' * (count != 1)})" for client, count in counts)
        lines += [_paragraph(f"Rejected in {name}: {clients}.")] * bool(counts)
    return lines


def _figure(title: str, figure: Picture) -> str:
    png = io.BytesIO()
    if isinstance(figure, Figure):
        figure.savefig(png, format="png", dpi=150, facecolor="white")
    else:
        png.write(Path(figure).read_bytes())
    image = f'<img alt="{escape(title)}" src="data:image/png;base64,{base64.b64encode(png.getvalue()).decode()}">'
    caption = f"<b>{escape(title)}.</b> {escape(_NOTES.get(title, ''))}"
    return f'<figure><div class="scroll">{image}</div><figcaption>{caption}</figcaption></figure>'


def _paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>'


def _table(head: list[str], rows: list[list[str]], best: int = -1, kind: str = "") -> str:
    top = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in head)
    body = ""
    for number, (first, *cells) in enumerate(rows):
        inner = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
        body += f'<tr class="{"best" * (number == best)}"><th scope="row">{escape(first)}</th>{inner}</tr>'
    table = f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>' if rows else ""


def _pairs(kind: str, values: Mapping[str, Any]) -> str:
    return _table([kind, ""], [[key, str(value)] for key, value in values.items()], kind="text")


def _best(methods: Mapping[str, MethodResults]) -> str | None:
    finite = [name for name, method in methods.items() if method["bmta"] is not None]
    return max(finite, key=lambda name: methods[name]["bmta"], default=None)


def _number(value: float | None, form: str = ".2f") -> str:
    return "–" if value is None else format(value, form)


def _spread(value: float | None, spread: float | None) -> str:
    return _number(value) + (f"±{spread:.2f}" if spread is not None else "")


def _gap(ours: float | None, theirs: float | None) -> str:
    return _number(None if ours is None or theirs is None else ours - theirs, "+.2f")


def _write_text(path: str | os.PathLike[str], text: str) -> Path:
    # A command line may hold bytes that are not valid text.
    return plotting.replace(path, text.encode("utf-8", "backslashreplace"))
