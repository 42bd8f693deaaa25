"""The figures of an experiment, drawn from its results (what `results.json` holds).

Every function returns a `matplotlib.figure.Figure` made without pyplot, which needs no display and has no global state;
or None where the figure would be empty. A method looks the same in every figure, whichever others are shown.
"""

import io
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fedamp_jax.report import styles
from fedamp_jax.report.files import replace
from fedamp_jax.report.schema import GridResults, RunResults, judged_by, title
from fedamp_jax.report.sweeps import Sweep

_BLACK, _RED = "#000000", styles.RED
FORMATS = ("png", "svg", "pdf")
_PANELS = {  # Title and label of the value axis.
    "bmta": ("Best mean test accuracy", "BMTA (%)"),
    "in_group_weight": ("Weight inside the client's group", "share of weight in own group"),
    "ari": ("Groups found from the weights", "adjusted Rand index"),
}
_UNFILLED = "1234+x|_"  # markers that are all edge


class Curve(NamedTuple):
    """A line of a panel. Attributes: x, y: `[R]`."""

    x: Sequence[float]
    y: Sequence[float] | np.ndarray


def convergence(results: RunResults) -> Figure:
    """Mean test accuracy after each round, with a line per method (Fig. 4 of the FedAMP paper).

    More than `styles.MANY` methods have a panel each, in which the others' lines are grey. The value axis then starts
    where most methods are after a fifth of the rounds; what lies below is not shown.
    Uses each method's `rounds` (`[R]`) and `mean_accuracy` (`[R]`, percent).

    >>> run = {"rounds": [1, 2], "mean_accuracy": [50.0, 60.0]}
    >>> figure = convergence({"experiment": "practical", "dataset": "digits", "methods": {"FedAMP": run}})
    >>> figure.axes[0].get_xlabel()
    'communication round'
    """
    methods = results["methods"]
    if len(methods) > styles.MANY:
        figure = _a_panel_each({name: Curve(run["rounds"], run["mean_accuracy"]) for name, run in methods.items()})
        figure.supxlabel("communication round")
        figure.supylabel(_accuracy(results))
    else:
        figure, (axes,) = _figure(9.0, 4.8, 1, 1)
        for name, method in methods.items():
            _line(axes, name, method["rounds"], method["mean_accuracy"], methods)
        axes.set(xlabel="communication round", ylabel=_accuracy(results))
        axes.locator_params(axis="x", integer=True)
        _legend(figure)
    figure.suptitle(f"Convergence: {_text(results)}")
    return figure


def _a_panel_each(curves: Mapping[str, Curve]) -> Figure:
    """A panel per line, on common axes: the line over all the others', and its last value."""
    rows = -(-len(curves) // 4)
    figure, axes = _figure(11.0, 0.9 + 1.75 * rows, rows, 4)
    looks, every = styles.styles(curves), [_numbers(curve.y) for curve in curves.values()]
    limits = styles.late_limits(every)
    # All in one line, interrupted where there is no number; of some 30 points each, as every panel draws them.
    thin = [slice(None, None, max(1, len(y) // 30)) for y in every]
    x_of_all = np.concatenate([[*curve.x[some], np.nan] for curve, some in zip(curves.values(), thin, strict=True)])
    y_of_all = np.concatenate([[*y[some], np.nan] for y, some in zip(every, thin, strict=True)])
    for panel, (name, curve), y in zip(axes, curves.items(), every, strict=False):
        panel.plot(x_of_all, y_of_all, color="0.85", linewidth=0.8)
        panel.plot(curve.x, y, color=looks[name].colour, linewidth=2.2)
        known = y[np.isfinite(y)]
        panel.set_title(f"{_text(name)}  {known[-1]:.1f}" if known.size else _text(name), fontsize=10.5)
        panel.locator_params(axis="x", integer=True)
        if limits:
            panel.set_ylim(*limits)
    for place, panel in enumerate(axes):
        panel.tick_params(labelleft=place % 4 == 0, labelbottom=place + 4 >= len(curves))
        if place >= len(curves):
            panel.remove()
    return figure


def accuracy_distribution(results: RunResults) -> Figure:
    """Test accuracy of every client in the best round of each method, with a row per method (Fig. 2 of FedAMP).

    A dot is a client; the box spans the middle half of the clients with the median as its line; the white diamond is
    the mean over clients, which in the best round is the BMTA. Uses each method's `best_accuracy` (`[M]`, percent).
    """
    methods = results["methods"]
    figure, (axes,) = _figure(9.0, 1.6 + 0.42 * len(methods), 1, 1)
    noise, looks = np.random.default_rng(0), styles.styles(methods)
    for row, (name, method) in enumerate(methods.items()):
        values = _numbers(method["best_accuracy"])
        values = values[np.isfinite(values)]
        if not values.size:
            continue
        colour = looks[name].colour
        height = row + noise.uniform(-0.3, 0.3, values.size)
        axes.scatter(values, height, s=np.clip(1500 / values.size, 4, 22), color=colour, alpha=0.6, linewidths=0)
        low, middle, high = np.percentile(values, [25, 50, 75])
        axes.barh(row, high - low, left=low, height=0.66, facecolor="none", edgecolor=_BLACK, linewidth=0.9)
        axes.vlines(middle, row - 0.33, row + 0.33, color=_BLACK, linewidth=2.0)
        axes.plot(values.mean(), row, "D", color="white", markeredgecolor=_BLACK, markersize=5.5, zorder=5)
    axes.set_yticks(range(len(methods)), [_text(name) for name in methods])
    kind = judged_by(results.get("settings", {}))
    axes.set(ylim=(len(methods) - 0.4, -0.6), xlabel=f"{kind} accuracy of a client (%), best round of each method")
    axes.grid(visible=False, axis="y")
    figure.suptitle(f"Accuracy of the {results['clients']} clients: {_text(results)}")
    return figure


def xi_heatmap(results: RunResults) -> Figure | None:
    """Collaboration weights of the last round, with a panel per method that has them (Fig. 3 of the FedAMP paper).

    The diagonal (a client's weight for its own model) is light blue and left out of the colour scale, which ends at the
    99.5th percentile so that one strong pair does not hide the rest. Clients are ordered by group, and
    lines separate the groups.
    Uses `groups` (`[M]` or None) and each method's `xi` (`[M, M]` or None).
    """
    weights = {name: _numbers(method.get("xi")) for name, method in results["methods"].items()}
    panels = {name: xi for name, xi in weights.items() if xi.size > 1}
    if not panels:
        return None
    rows, columns = -(-len(panels) // 2), min(2, len(panels))
    figure, axes = _figure(4.9 * columns, 0.4 + 4.0 * rows, rows, columns)
    for panel, (name, xi) in zip(axes, panels.items(), strict=False):
        _weights(panel, name, xi, results.get("groups"))
    for panel in axes[len(panels) :]:
        panel.remove()
    figure.suptitle(f"Collaboration weights between clients: {_text(results)}")
    return figure


def group_discovery(results: RunResults) -> Figure | None:
    """How well the collaboration weights show the true groups, after each round.

    The share of off-diagonal weight inside the client's own group, and the adjusted Rand index of the groups found from
    the weights (1: all found). Dashed: what uniform weights and chance give.
    Uses `chance_in_group_weight` and each method's `in_group_weight` and `ari` (`[R]` or None).
    """
    figure = value_panels(
        results["methods"], "rounds", ["in_group_weight", "ari"], results.get("chance_in_group_weight")
    )
    if figure is not None:
        for panel in figure.axes:
            panel.set(xlabel="communication round", ylim=(None, 1.04))
            panel.locator_params(axis="x", integer=True)
        figure.suptitle(f"Discovery of the groups: {_text(results)}")
    return figure


def panels(summary: GridResults) -> Figure:
    """Mean test accuracy after each round, with a panel per setting (Figs. 6 to 9 of the FedAMP paper, 2 and 6 of
    PFLEGO's).
    """
    parts = {
        heading: {name: Curve(method["rounds"], method["mean_accuracy"]) for name, method in part["methods"].items()}
        for heading, part in summary["parts"].items()
    }
    figure = curve_panels(parts, _accuracy(summary))
    figure.suptitle(_text(summary))
    return figure


def sweep(summary: GridResults, over: Sweep) -> Figure:
    """Mean accuracy after the last round over an option that has several values, with a line per method."""
    parts = {heading: {name: Curve(line.x, line.y) for name, line in part.items()}
             for heading, part in over.panels.items()}  # fmt: skip
    figure = curve_panels(parts, _accuracy(summary), over.option)
    figure.suptitle(_text(summary))
    return figure


def curve_panels(
    parts: Mapping[str, Mapping[str, Curve]], label: str = "mean test accuracy (%)", over: str = "communication round"
) -> Figure:
    """Accuracy curves with a panel per title and a line per method; the labels are those of the two axes."""
    columns = 2 if len(parts) == 4 else min(3, len(parts))
    rows = -(-len(parts) // columns)
    # The legend, of four columns, needs the width of two panels.
    figure, axes = _figure(max(7.0, 1.0 + 3.6 * columns), 0.9 + 3.4 * rows, rows, columns)
    for panel, (heading, part) in zip(axes, parts.items(), strict=False):
        for name, curve in part.items():
            _line(panel, name, curve.x, curve.y, part)
        panel.set(title=_text(heading) if heading else "", xlabel=over)
        panel.locator_params(axis="x", integer=over == "communication round")
    for panel in axes[len(parts) :]:
        panel.remove()
    low, high = (pick(panel.get_ylim()[end] for panel in figure.axes) for end, pick in enumerate((min, max)))
    for number, panel in enumerate(figure.axes):  # The same scale for all panels.
        panel.set(
            ylim=(low - 0.03 * (high - low), high + 0.03 * (high - low)),
            ylabel="" if number % columns else label,
        )
    _legend(figure, below=True)
    return figure


def _accuracy(results: RunResults | GridResults) -> str:
    """The label of mean accuracies."""
    return f"mean {judged_by(results.get('settings', {}))} accuracy (%)"


def save(figure: Figure, path: str | os.PathLike[str], dpi: int = 150) -> Path:
    """Write a figure to `path` (.png, .pdf, .svg) atomically, creating its folder; returns the path."""
    drawn, kind = io.BytesIO(), Path(path).suffix.removeprefix(".") or "png"
    undated: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    with rc_context({"svg.hashsalt": "fedamp_jax"}):  # the same figure is the same file
        figure.savefig(drawn, format=kind, dpi=dpi, facecolor="white", metadata=undated)
    return replace(path, drawn.getvalue())


def save_all(figure: Figure, stem: str | os.PathLike[str]) -> list[Path]:
    """Write a figure as PNG, SVG and PDF; returns their paths."""
    return [save(figure, f"{os.fspath(stem)}.{kind}") for kind in FORMATS]


def _figure(width: float, height: float, rows: int, columns: int) -> tuple[Figure, list[Axes]]:
    """An empty figure (inches) and its panels, row by row."""
    figure = Figure(figsize=(width, height), layout="constrained")
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for panel in panels:
        panel.grid(visible=True, color="0.9", linewidth=0.8)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, panels


def value_panels(rows: Mapping[str, Any], x: str, kinds: list[str], chance: float | None) -> Figure | None:
    """A panel for each kind of value that any row has, over the values of `x`; None if there is nothing to show."""
    kinds = [kind for kind in kinds if any(_any(row.get(kind)) for row in rows.values())]
    if not kinds:
        return None
    figure, axes = _figure(max(6.0, 4.5 * len(kinds)), 4.1, 1, len(kinds))
    for panel, kind in zip(axes, kinds, strict=True):
        for name, row in rows.items():
            if _any(row.get(kind)):
                order = np.argsort(row[x])
                _line(panel, name, _numbers(row[x])[order], _numbers(row[kind])[order], rows)
        level = {"in_group_weight": chance, "ari": 0.0}.get(kind)
        if level is not None and np.isfinite(level):
            panel.axhline(level, color=_BLACK, linestyle=(0, (5, 3)), linewidth=1.2, label="chance")
        panel.set(title=_PANELS[kind][0], ylabel=_PANELS[kind][1])
    _legend(figure, below=True)
    return figure


def _line(axes: Axes, name: str, x: Any, y: Any, methods: Iterable[str]) -> None:
    """One method's line with about six markers, staggered so that they do not cover those of nearby lines."""
    names = list(methods)
    style = styles.styles(names)[name]
    colour, line, marker = style
    every = max(1, len(x) // 6) if len(x) > 12 else 1
    start = names.index(name) * every // len(names)
    (drawn,) = axes.plot(x, _numbers(y), line, color=colour, marker=marker, markevery=(start, every), label=_text(name))
    drawn.set(linewidth=style.width, markersize=8 if marker == "*" else 6, zorder=2 + 0.1 * style.rank)
    edge = (colour, 1.4) if marker in _UNFILLED else ("white", 0.6)
    drawn.set(markeredgecolor=edge[0], markeredgewidth=edge[1])


def _weights(axes: Axes, name: str, xi: np.ndarray, groups: list[Any] | None) -> None:
    """One panel of `xi_heatmap`."""
    clients, ticks = np.arange(len(xi)), np.arange(0, len(xi), -(-len(xi) // 6))
    if groups is not None:  # By group, in order of first appearance; the paper's partitions are in this order.
        _, first, inverse = np.unique(np.asarray(groups), return_index=True, return_inverse=True)
        clients = np.argsort(first[inverse], kind="stable")
        starts = np.flatnonzero(np.diff(first[inverse][clients], prepend=-1))
        ticks = starts[:: -(-len(starts) // 10)] if len(starts) > 2 else ticks
        for border in starts[1:] - 0.5:
            axes.axhline(border, color=_RED, linewidth=0.9)
            axes.axvline(border, color=_RED, linewidth=0.9)
    shown = xi[np.ix_(clients, clients)]
    own = np.eye(len(xi), dtype=bool)
    others = shown[~own & np.isfinite(shown)]
    top = (np.percentile(others, 99.5) or others.max()) if others.size else 0.0
    image = axes.imshow(np.ma.array(shown, mask=own), vmin=0.0, vmax=top or 1.0, cmap="Greys", interpolation="none")
    axes.set_facecolor("#C9DDF0")  # The colour of the masked diagonal.
    end = "max" if others.size and others.max() > top * (1 + 1e-6) else "neither"
    axes.figure.colorbar(image, ax=axes, shrink=0.85, extend=end, label="weight of client j for client i")
    axes.set_xticks(ticks, [str(clients[t]) for t in ticks])
    axes.set_yticks(ticks, [str(clients[t]) for t in ticks])
    axes.set(xlabel="client j (sends its model)", ylabel="client i (receives)")
    axes.set_title(f"{_text(name)} (mean own weight {np.diag(xi).mean():.3g})", fontsize=10.5)
    axes.grid(visible=False)


def _legend(figure: Figure, below: bool = False) -> None:
    """One legend for all panels, at their right side or below them."""
    entries = {str(line.get_label()): line for panel in figure.axes for line in panel.get_lines()}
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": 4} if below else {"loc": "outside right center"}
    figure.legend(list(entries.values()), list(entries), frameon=False, handlelength=3.2, **place)


def _text(name: str | Mapping[str, Any]) -> str:
    """Text for matplotlib, of results a title: $ starts no formula, and no leading _ hides a legend entry."""
    name = name if isinstance(name, str) else title(name)
    return name.replace("$", r"\$").removeprefix("_") or "_"


def _numbers(values: Any) -> np.ndarray:
    return np.asarray(values, dtype=np.float64)  # None, a null in JSON, becomes NaN.


def _any(values: Any) -> bool:
    return bool(np.isfinite(_numbers(values)).any())
