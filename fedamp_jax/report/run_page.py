"""The page of one run, `report.html`: its methods, curves, attention weights and clients."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from fedamp_jax import analysis
from fedamp_jax.report import attention_charts, charts, method_table
from fedamp_jax.report.attention_history import history
from fedamp_jax.report.figures import FORMATS
from fedamp_jax.report.method_table import number, p_text
from fedamp_jax.report.page import Page
from fedamp_jax.report.schema import MethodResults, RunResults, judged_by, plain, title

_MESSAGES = """What a round would send between a server and each client that takes part, if clients kept their data:
    messages to the client and back, in models of the size of this one. Without evaluation."""
_METHODS = """BMTA: best mean test accuracy, the highest mean over clients in any evaluated round. final: the mean
    in the last round. s / round: seconds per round, without the first one; on a CPU, where the next methods are
    compiled meanwhile, the first methods' rounds are longer for it. rejected: number of clients that kept their
    previous model in some round because their update was not finite. new clients: mean accuracy of clients that did
    not train, of the models that they get when they join; adapted: after local training of these. ±: standard
    deviation over seeds; for the last rounds, PFLEGO's score, the 95% confidence interval over clients."""
_TESTS = """Columns with a reference method: the points by which the row's mean accuracy is above the reference's in the
    last round, and the two-sided p of the Wilcoxon signed-rank test over the clients' accuracies in the same round,
    corrected for the number of comparisons by Holm's method. Click on the name of a column to sort by it."""
_CURVES = """Mean over clients after each evaluated round. Click on a name in the legend to switch a line off or on,
    double-click to see it alone; drag to zoom, double-click in the chart to see all."""
_BAND = " Bands: one standard deviation over the seeds."
_WEIGHTS = """How much of another client's model goes into the cloud model of the client in the row. The diagonal, a
    client's own weight, is left out. All rounds of a method have one colour scale, which ends at the 99.5th percentile
    of its weights."""
_GROUPS = """Red lines separate the true groups of the data, which no method knows. Share of the weight given to others
    that stays in the client's own group; and agreement of the groups found from the weights with the true groups
    (adjusted Rand index, 1: perfect). Dashed: chance."""
_SORTED = "Without groups, clients are sorted so that those with large weights for each other are side by side."
_COLLABORATORS = """The exponential of the entropy of the weights that a client gives to others: k others with equal
    weights count as k. A thin line is a client."""
_DISTANCES = """Squared distances between the models from which the round's weights follow. A client at a squared
    distance of several sigma gets hardly any weight, those much nearer than sigma get equal weights. Distances of 0,
    such as between equal initial models, are in the first bar."""
_CLIENTS = "best: accuracy in the best round of the method. final: in the last round. Percent. Click on a name to sort."


def html(results: RunResults, figures: Sequence[str] = ()) -> str:
    """The report: a single page that loads nothing else.

    Args:
        results: of the run.
        figures: names of the figures beside the page, without their endings.

    Returns:
        HTML. All text from `results` is escaped.
    """
    results = cast(RunResults, plain(results, "results"))
    page = Page(title(results))
    _head(page, results, figures)
    _methods(page, results)
    _messages(page, results)
    _curves(page, results)
    _attention(page, results)
    _clients(page, results)
    _settings(page, results)
    return page.html()


def _head(page: Page, results: RunResults, figures: Sequence[str]) -> None:
    """The main result, what was run, and the files beside the page."""
    page.text(method_table.headline(results), "headline")
    groups, seeds = results.get("groups"), results["settings"].get("seeds")
    size = f"{results['clients']} clients" + (f" in {len(set(groups))} groups" if groups else "")
    of_seeds = f"mean of {len(seeds)} seeds ({', '.join(map(str, seeds))})" if seeds else "one seed"
    page.text(f"{size}; {results['rounds']} rounds; {of_seeds}; {results['device']}; {results['created']}", "note")
    if figures:
        page.links("Files beside this page", {name: name for name in ("results.json", "history.csv")})
        for name in figures:
            page.links(f"Figure {name}", {kind.upper(): f"{name}.{kind}" for kind in FORMATS})


def _methods(page: Page, results: RunResults) -> None:
    """The table of methods, and lines on rejected clients."""
    methods = results["methods"]
    head, rows, best = method_table.cells(results)
    found, references = method_table.comparisons(results), method_table.compared_with(methods)
    if results.get("wilcoxon") and len(methods) > 1:
        for name in references:
            head += [f"points above {name}", f"p against {name}"]
        for row in rows:
            for name in references:
                points, p = found.get((name, row[0]), (None, None))
                row += [number(points, "+.2f"), p_text(p)]
    page.heading("Methods")
    page.table(head, rows, best=best)
    page.text(_METHODS, "note")
    if results.get("wilcoxon") and len(methods) > 1:
        least = 2.0 ** (1 - results["clients"])
        limit = f" Before the correction, p of {results['clients']} clients cannot be below {least:.2g}."
        page.text(_TESTS + limit if least >= 1e-4 else _TESTS, "note")
    for sentence in method_table.rejections(results):
        page.text(sentence)


def _messages(page: Page, results: RunResults) -> None:
    """What each method sends."""
    every = {name: method.get("sent") for name, method in results["methods"].items()}
    found = {name: one for name, one in every.items() if one}
    if not found:
        return
    rows = [
        [name, str(one["exchanges"]), *(number(one[way] / one["model"]) for way in ("down", "up"))]
        for name, one in found.items()
    ]
    page.heading("Messages")
    page.text(_MESSAGES, "note")
    page.table(["method", "exchanges", "models down", "models up"], rows)


def _curves(page: Page, results: RunResults) -> None:
    methods = results["methods"]
    page.heading("Accuracy and loss")
    page.text(_CURVES + (_BAND if results["settings"].get("seeds") else ""), "note")
    kind = judged_by(results["settings"])
    page.charts(
        {
            f"Mean {kind} accuracy": charts.curves(methods, "mean_accuracy", f"mean {kind} accuracy (%)"),
            "Training loss": charts.curves(methods, "loss", "mean training loss", log=True),
        }
    )
    page.heading("Accuracy of the clients", 3)
    page.text("A dot is a client, in the best round of the method. Line: median; dashed: mean.", "note")
    page.charts({"": charts.accuracies(methods, kind)})


def _attention(page: Page, results: RunResults) -> None:
    """Attention: weights, the number of collaborators, and the distances that decide both."""
    methods, groups = results["methods"], results.get("groups")
    drawn = attention_charts.attention(methods, groups)
    if not drawn:
        return
    kinds = {"weights": "weights", "collaborators": "effective collaborators", "distances": "squared distances"}
    notes = {"weights": _WEIGHTS, "collaborators": _COLLABORATORS, "distances": _DISTANCES}
    page.heading("Attention weights")
    page.rounds(sorted({k for method in methods.values() for k in (history(method) or {"rounds": []})["rounds"]}))
    for kind, heading in kinds.items():
        figures = {f"{name}: {heading}": figure[kind] for name, figure in drawn.items()}
        if any(figure is not None for figure in figures.values()):
            page.text(notes[kind] + (f" {_SORTED}" if kind == "weights" and groups is None else ""), "note")
            page.charts(figures)
    if groups is None:
        return
    page.text(_GROUPS, "note")
    chance = results.get("chance_in_group_weight")
    page.charts(
        {
            "Weight inside the client's group": charts.curves(
                methods, "in_group_weight", "share of weight in own group", chance=chance
            ),
            "Groups found from the weights": charts.curves(methods, "ari", "adjusted Rand index", chance=0.0),
        }
    )


def _ids(results: RunResults) -> Sequence[int]:
    """What the clients are called."""
    return results.get("ids") or range(results["clients"])


def _clients(page: Page, results: RunResults) -> None:
    """A row per client."""
    methods, groups, examples = results["methods"], results.get("groups"), results.get("examples")
    columns: dict[str, list[str]] = {"client": list(map(str, _ids(results)))}
    columns |= {"group": list(map(str, groups))} if groups else {}
    columns |= {"examples": list(map(str, examples))} if examples else {}
    for name, method in methods.items():
        columns[f"{name} best"] = [number(value) for value in method["best_accuracy"]]
        columns[f"{name} final"] = [number(value) for value in method["accuracy"]]
    for name, method in methods.items():
        columns |= {f"{name} in-group weight": own} if groups and (own := _in_group(method, groups)) else {}
    rows = [list(row) for row in zip(*columns.values(), strict=False)]
    page.heading("Clients")
    page.text(_CLIENTS, "note")
    page.table(list(columns), rows)


def _in_group(method: MethodResults, groups: list[Any]) -> list[str]:
    """Each client's share of the weight given to others that stays in its group, in the last round."""
    xi = method.get("xi")
    if xi is None or len(xi) != len(groups) or not np.isfinite(np.asarray(xi, np.float64)).all():
        return []
    return ["–" if np.isnan(share) else f"{share:.2f}" for share in analysis.in_group_weights(xi, groups)]


def _settings(page: Page, results: RunResults) -> None:
    methods = results["methods"]
    own = {name: ", ".join(f"{k} = {v}" for k, v in (m.get("settings") or {}).items()) for name, m in methods.items()}
    page.heading("Settings and versions")
    page.pairs("setting", results["settings"])
    page.pairs("method", {name: settings for name, settings in own.items() if settings})
    page.pairs("package", results["versions"])
    page.code(str(results["command"]))
