"""Interactive charts of attention: who gives weight to whom, to how many, and at which distances, as Plotly figures.

A trace whose `meta` is a number belongs to that round: the page shows one round at a time.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from fedamp_jax import analysis
from fedamp_jax.report.attention_history import history
from fedamp_jax.report.charts import LEGEND, numbers, plain_text
from fedamp_jax.report.schema import AttentionHistory, MethodResults
from fedamp_jax.report.styles import BLUE, COLOURS, GREY, RED


def heat_map(name: str, entry: AttentionHistory, order: np.ndarray, borders: Sequence[float]) -> go.Figure:
    """The weights that clients give to others, a layer for each round.

    Args:
        name: of the method.
        entry: its weights.
        order: `[M]`, the clients in the order in which they are shown.
        borders: of the groups, as positions.
    """
    figure, names, top = go.Figure(), [str(client) for client in order], _top(numbers(entry["xi"]))
    for k, xi in zip(entry["rounds"], entry["xi"], strict=True):
        shown = numbers(xi)[np.ix_(order, order)]
        np.fill_diagonal(shown, np.nan)
        figure.add_heatmap(
            z=shown.astype(np.float32), x=names, y=names, zmin=0.0, zmax=top, colorscale="Viridis", meta=k,
            visible=k == entry["rounds"][-1], hoverongaps=False, colorbar={"thickness": 10, "title": "weight"},
            hovertemplate=f"{plain_text(name)}, round {k}<br>%{{y}} gives %{{x}} %{{z:.3~g}}<extra></extra>",
        )  # fmt: skip
    for border in borders:
        figure.add_hline(border, line={"color": RED, "width": 1})
        figure.add_vline(border, line={"color": RED, "width": 1})
    return figure.update_layout(
        height=400, margin={"l": 45, "r": 10, "t": 10, "b": 45},
        xaxis={"title": "client that sends its model", "type": "category", "constrain": "domain", "showgrid": False},
        yaxis={"title": "client that receives", "type": "category", "autorange": "reversed", "scaleanchor": "x",
               "constrain": "domain", "showgrid": False},
    )  # fmt: skip


def _top(xi: np.ndarray) -> float:
    """The upper end of the colour scale: above it are the few largest of the weights `[S, M, M]` for others."""
    others = xi[:, ~np.eye(xi.shape[1], dtype=bool)]
    others = others[np.isfinite(others)]
    return float(np.percentile(others, 99.5) or others.max() or 1.0) if others.size else 1.0


def collaborators(entry: AttentionHistory, groups: Sequence[Any] | None) -> go.Figure | None:
    """To how many others each client gives weight: over the rounds, a thin line per client and the median."""
    counts = np.array([analysis.collaborators(numbers(xi)) for xi in entry["xi"]])  # [S, M]
    if not np.isfinite(counts).any():
        return None
    figure, rounds, clients = go.Figure(), entry["rounds"], range(counts.shape[1])
    labels = [None] * len(clients) if groups is None else list(groups)
    for number, group in enumerate(dict.fromkeys(labels)):
        members = [i for i in clients if labels[i] == group]
        gap: list[Any] = [None]  # between the lines of two clients
        figure.add_scatter(
            x=[k for _ in members for k in [*rounds, *gap]], y=[v for i in members for v in [*counts[:, i], *gap]],
            text=[f"client {i}" for i in members for _ in [*rounds, *gap]], mode="lines+markers", marker={"size": 4},
            line={"color": COLOURS[number % len(COLOURS)], "width": 1}, opacity=0.7,
            name="a client" if group is None else escape(f"group {group}"),
            hovertemplate="%{text}, round %{x}: %{y:.1f} others<extra></extra>",
        )  # fmt: skip
    middle = [float(np.nanmedian(row)) if np.isfinite(row).any() else None for row in counts]
    figure.add_scatter(x=rounds, y=middle, mode="lines", name="median", line={"color": GREY, "width": 4})
    return figure.update_layout(
        height=400, margin={"l": 50, "r": 10, "t": 10, "b": 45}, legend=LEGEND, hovermode="closest",
        xaxis={"title": "communication round"}, yaxis={"title": "effective collaborators", "rangemode": "tozero"},
    )  # fmt: skip


def distances(entry: AttentionHistory, groups: Sequence[Any] | None, sigma: float | None) -> go.Figure | None:
    """A histogram of the squared distances between clients for each round, with sigma, within and between groups."""
    measured = numbers(entry["distances"])
    positive = measured[np.isfinite(measured) & (measured > 0)]
    if not positive.size:
        return None
    m = len(entry["xi"][0])
    ends = [positive.min(), positive.max(), *([sigma] if sigma else [])]
    edges = np.geomspace(0.9 * min(ends), 1.1 * max(ends), 31)
    kinds: dict[str, tuple[Any, str]] = {"pairs": (slice(None), BLUE)}
    if groups is not None:
        first, second = (np.asarray(groups)[clients] for clients in np.triu_indices(m, 1))
        kinds = {"same group": (np.equal(first, second), RED), "other group": (np.not_equal(first, second), BLUE)}
    figure = go.Figure()
    for k, row in zip(entry["rounds"], measured, strict=True):
        for name, (pairs, colour) in kinds.items():
            counts, _ = np.histogram(np.maximum(row[pairs], edges[0]), edges)
            figure.add_bar(
                x=(edges[1:] + edges[:-1]) / 2, width=np.diff(edges), y=counts, name=name, legendgroup=name, meta=k,
                marker={"color": colour, "line": {"width": 0}}, visible=k == entry["rounds"][-1],
                hovertemplate="%{y} pairs at %{x:.3~g}<extra>%{fullData.name}</extra>",
            )  # fmt: skip
    if sigma:
        figure.add_vline(sigma, line={"color": GREY, "dash": "dash", "width": 2})
        place = {"x": float(np.log10(sigma)), "y": 1, "yref": "paper", "yanchor": "bottom"}
        figure.add_annotation(**place, text=f"sigma = {sigma:g}", showarrow=False)
    return figure.update_layout(
        height=400, margin={"l": 50, "r": 10, "t": 25, "b": 45}, barmode="stack", legend=LEGEND,
        xaxis={"title": "squared distance", "type": "log"}, yaxis={"title": "pairs of clients"},
    )  # fmt: skip


def attention(
    methods: Mapping[str, MethodResults], groups: Sequence[Any] | None
) -> dict[str, dict[str, go.Figure | None]]:
    """`weights`, `collaborators` and `distances` of every method with weights, with clients in one order."""
    entries = {name: history(method) for name, method in methods.items()}
    known = {name: entry for name, entry in entries.items() if entry is not None}
    if not known:
        return {}
    order, borders = sorted_clients(next(iter(known.values()))["xi"][-1], groups)
    return {
        name: {
            "weights": heat_map(name, entry, order, borders),
            "collaborators": collaborators(entry, groups),
            "distances": distances(entry, groups, (methods[name].get("settings") or {}).get("sigma")),
        }
        for name, entry in known.items()
    }


def sorted_clients(xi: Any, groups: Sequence[Any] | None) -> tuple[np.ndarray, list[float]]:
    """The order in which clients are shown: by group, or without groups similar ones side by side.

    Returns:
        The clients `[M]`, and the positions of the borders between groups.
    """
    if groups is None:
        from scipy.cluster import hierarchy

        share = np.nan_to_num(numbers(xi))
        similarity = (share + share.T) / 2
        first, second = np.triu_indices(len(share), 1)
        apart = similarity.max() - similarity[first, second]
        return (hierarchy.leaves_list(hierarchy.linkage(apart, "average")) if len(apart) else np.arange(1)), []
    _, first, inverse = np.unique(np.asarray(groups), return_index=True, return_inverse=True)
    order = np.argsort(first[inverse], kind="stable")
    return order, (np.flatnonzero(np.diff(first[inverse][order])) + 0.5).tolist()
