"""Interactive charts of curves and accuracies, as Plotly figures. A page gives text and axes their colours."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedamp_jax.report.schema import MethodResults
from fedamp_jax.report.styles import GREY, MANY, Style, late_limits, styles
from fedamp_jax.report.sweeps import Line

LEGEND = {"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top", "traceorder": "normal"}  # the page sets its columns
_HEIGHT, _LABEL = 400, 14  # pixels of a plot, and of a label beside it
_LONGEST = 20  # characters of a label
_BESIDE = 0.025  # of the axis between a line and its label
_DASHES = {"-": "solid", "-.": "dashdot", "--": "dash", ":": "dot"}
_SYMBOLS = {
    "s": "square", "o": "circle", "D": "diamond", "v": "triangle-down", "^": "triangle-up", "<": "triangle-left",
    ">": "triangle-right", "P": "cross", "X": "x", "p": "pentagon", "h": "hexagon", "d": "diamond-tall", "8": "octagon",
    "H": "hexagon2", "*": "star", "x": "x-thin-open", "+": "cross-thin-open", "1": "y-down-open", "2": "y-up-open",
    "3": "y-left-open", "4": "y-right-open", "|": "line-ns-open", "_": "line-ew-open",
}  # fmt: skip


def curves(
    methods: Mapping[str, MethodResults],
    key: str,
    label: str,
    *,
    log: bool = False,
    chance: float | None = None,
    limits: tuple[float, float] | None = None,
) -> go.Figure | None:
    """A line per method over its rounds, with its name at its end, and a band of its standard deviation over seeds.

    Args:
        methods: entries by name.
        key: `mean_accuracy`, `loss`, ... `[R]`; methods without it are left out.
        label: of the value axis.
        log: whether this axis is logarithmic, if all values are positive.
        chance: where to draw a line.
        limits: of the value axis; None: all values are shown, but of many lines over the rounds only how they end.

    Returns:
        The figure, or None if no method has a value.
    """
    return lines({name: _curve(method, key) for name, method in methods.items()}, label, log=log, chance=chance,
                 limits=limits)  # fmt: skip


def lines(
    every: Mapping[str, Line],
    label: str,
    *,
    over: str = "round",
    log: bool = False,
    chance: float | None = None,
    limits: tuple[float, float] | None = None,
) -> go.Figure | None:
    """A line per method, as `curves`, over the round or any other number.

    Args:
        every: lines by name; those without any value are left out.
        label: of the value axis.
        over: what x is.
        log, chance, limits: as in `curves`.

    Returns:
        The figure, or None if no line has a value.
    """
    shown = {name: line for name, line in every.items() if np.isfinite(line.y).any()}
    if not shown:
        return None
    values = np.concatenate([_with_band(line) for line in shown.values()])
    log = log and bool(np.nanmin(values) > 0)
    if over == "round" and len(shown) > MANY and not log:
        limits = limits or late_limits([line.y for line in shown.values()])
    limits = limits or _limits(values, log)
    looks, figure = styles(every), go.Figure()
    ends = dict(zip(shown, np.clip([y[np.isfinite(y)][-1] for _, y, _ in shown.values()], *limits).tolist()))
    heights = dict(zip(shown, spread(list(ends.values()), limits, log)))
    for name in sorted(shown, key=lambda name: looks[name].rank):
        x, y, deviation = shown[name]
        _band(figure, name, x, y, deviation, looks[name], log)
        _line(figure, name, x, y, over, looks[name], list(shown).index(name))
        _end_label(figure, name, x, y, ends[name], heights[name], looks[name])
    if chance is not None:
        figure.add_hline(chance, line={"color": GREY, "dash": "dash", "width": 1.5}, annotation_text="chance")
    places = [k for x, _, _ in shown.values() for k in x]
    length = max(places) - min(places) or 1
    first, last = min(places) - min(0.3, _BESIDE * length), max(places) + _BESIDE * length
    right = 16 + 7 * min(_LONGEST, max(map(len, shown)))
    low, high = np.log10(limits) if log else limits
    figure.update_layout(
        height=_HEIGHT + 100, margin={"l": 55, "r": right, "t": 10, "b": 50}, legend=LEGEND, hovermode="closest",
        xaxis={"title": "communication round" if over == "round" else over, "range": [first, last]},
        yaxis={"title": label, "range": [low, high], "type": "log" if log else "linear",
               "exponentformat": "power", "nticks": 10},
    )  # fmt: skip
    return figure


def _curve(method: MethodResults, key: str) -> Line:
    """One method's values over its rounds."""
    return Line(method["rounds"], numbers(method.get(key)), numbers(method.get(f"{key}_std")))


def _line(figure: go.Figure, name: str, x: Sequence[float], y: np.ndarray, over: str, style: Style, place: int) -> None:
    marker = {"symbol": _SYMBOLS[style.marker], "size": 8, "maxdisplayed": 8, "line": {"color": style.colour}}
    figure.add_scatter(
        x=list(x), y=y, name=escape(name), legendgroup=name, legendrank=place, mode="lines+markers", marker=marker,
        line={"color": style.colour, "dash": _DASHES[style.line], "width": style.width},
        hovertemplate=f"<b>{plain_text(name)}</b><br>{plain_text(over)} %{{x}}: %{{y:.4~g}}<extra></extra>",
    )  # fmt: skip


def _band(
    figure: go.Figure, name: str, x: Sequence[float], y: np.ndarray, deviation: np.ndarray, style: Style, log: bool
) -> None:
    """One standard deviation around a line; on a logarithmic axis it ends at a hundredth of the line."""
    if deviation.size != y.size:
        return
    known = np.isfinite(y + deviation)
    rounds, low, high = np.asarray(x)[known], (y - deviation)[known], (y + deviation)[known]
    low = np.maximum(low, 0.01 * y[known]) if log else low
    red, green, blue = (int(style.colour[i : i + 2], 16) for i in (1, 3, 5))
    figure.add_scatter(
        x=np.concatenate([rounds, rounds[::-1]]), y=np.concatenate([high, low[::-1]]), legendgroup=name, fill="toself",
        fillcolor=f"rgba({red},{green},{blue},0.12)", mode="lines", line={"width": 0}, hoverinfo="skip",
        showlegend=False, name=f"{escape(name)} band",
    )  # fmt: skip


def _end_label(
    figure: go.Figure, name: str, x: Sequence[float], y: np.ndarray, end: float, height: float, style: Style
) -> None:
    """The name beside the last value, or the end of the axis nearest to it, at a height where it covers no other."""
    last = np.flatnonzero(np.isfinite(y))[-1]
    beyond = x[last] + _BESIDE * (x[-1] - x[0] or 1)
    short = name if len(name) <= _LONGEST else f"{name[: _LONGEST - 1]}…"
    figure.add_scatter(
        x=[x[last], beyond], y=[end, height], text=["", escape(short)], textposition="middle right",
        mode="lines+text", line={"color": style.colour, "width": 0.7}, textfont={"color": style.colour, "size": 12},
        legendgroup=name, showlegend=False, hoverinfo="skip", cliponaxis=False, name=f"{escape(name)} label",
    )  # fmt: skip


def spread(values: Sequence[float], limits: tuple[float, float], log: bool = False) -> list[float]:
    """Heights near the values at which labels do not cover each other.

    Args:
        values: where the labels should be.
        limits: of the axis, which has room for some 28 labels; more are closer together.
        log: whether it is logarithmic.

    >>> spread([50.0, 50.0, 90.0], (0.0, 100.0))
    [48.25, 51.75, 90.0]
    """
    wanted, (low, high) = (np.log(values), np.log(limits)) if log else (np.asarray(values, float), limits)
    gap = (high - low) * min(_LABEL / _HEIGHT, 1 / max(1, len(values)))
    order = np.argsort(wanted, kind="stable")
    blocks: list[list[float]] = []  # of labels that touch: their number, and the mean of where the first should be
    for value in wanted[order]:
        blocks.append([1, value])
        while len(blocks) > 1 and blocks[-2][1] + blocks[-2][0] * gap > blocks[-1][1]:
            (n, first), (m, second) = blocks[-2:]
            blocks[-2:] = [[n + m, (n * first + m * (second - n * gap)) / (n + m)]]
    placed = np.concatenate([start + gap * np.arange(n) for n, start in blocks])
    heights = np.empty(len(placed))
    heights[order] = placed - max(0.0, placed[-1] - high) + max(0.0, low - placed[0])
    return (np.exp(heights) if log else heights).tolist()


def common_limits(methods: Iterable[MethodResults], key: str) -> tuple[float, float] | None:
    """Limits of an axis that holds the curves of all these methods; None if there is no value."""
    values = np.concatenate([_with_band(_curve(method, key)) for method in methods])
    return _limits(values, False) if np.isfinite(values).any() else None


def _with_band(line: Line) -> np.ndarray:
    """The values of a line, and the edges of its band."""
    _, y, deviation = line
    return np.concatenate([y, y - deviation, y + deviation]) if deviation.size == y.size else y


def _limits(values: np.ndarray, log: bool) -> tuple[float, float]:
    low, high = np.nanmin(values), np.nanmax(values)
    if log:
        return float(low / 1.2), float(high * 1.2)
    room = 0.04 * (high - low) or 1.0
    return float(low - room), float(high + room)


def accuracies(methods: Mapping[str, MethodResults], kind: str = "test") -> go.Figure | None:
    """Every client's accuracy in the best round of each method, as a box with a dot per client; of which data."""
    looks, figure = styles(methods), go.Figure()
    for name, method in methods.items():
        y = numbers(method["best_accuracy"])
        if np.isfinite(y).any():
            figure.add_box(
                x=y, name=escape(name), boxpoints="all", jitter=0.6, pointpos=0, boxmean=True, line={"width": 1.5},
                fillcolor="rgba(0,0,0,0)", marker={"color": looks[name].colour, "size": 4, "opacity": 0.6},
                showlegend=False, text=[f"client {i}" for i in range(len(y))],
                hovertemplate="%{text}: %{x:.2f} %<extra></extra>",
            )  # fmt: skip
    drawn = len(list(figure.data))
    if not drawn:
        return None
    return figure.update_layout(
        height=90 + 34 * drawn, margin={"l": 10, "r": 10, "t": 10, "b": 45}, hovermode="closest",
        xaxis={"title": f"{kind} accuracy of a client (%)"}, yaxis={"autorange": "reversed", "automargin": True},
    )  # fmt: skip


def numbers(values: Any) -> np.ndarray:
    """As an array of float64."""
    return np.asarray([] if values is None else values, np.float64)  # None, a null in JSON, becomes NaN


def plain_text(name: str) -> str:
    """A name inside a template, where braces after % would be replaced."""
    return escape(name).replace("%", "&#37;")
