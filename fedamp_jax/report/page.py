"""A page of charts and tables as one HTML file that loads nothing: Plotly, styles and numbers are inside."""

import functools
import json
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Any

import plotly.graph_objects as go
from plotly.offline import get_plotlyjs

# The browser refuses whatever is not in the file.
_ALLOWED = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data: blob:"


class Page:
    """The parts of a page, in their order.

    Args:
        title: also its first heading.
    """

    def __init__(self, title: str):
        self._title, self._body, self._charts = title, [f"<h1>{escape(title)}</h1>"], {}

    def heading(self, text: str, level: int = 2) -> None:
        """A heading."""
        self._body.append(f"<h{level}>{escape(text)}</h{level}>")

    def text(self, text: str, kind: str = "") -> None:
        """A paragraph; `kind` is `headline`, `note` or empty."""
        self._body.append(f'<p class="{kind}">{escape(text)}</p>')

    def code(self, text: str) -> None:
        """A paragraph of code."""
        self._body.append(f"<p><code>{escape(text)}</code></p>")

    def links(self, name: str, targets: Mapping[str, str]) -> None:
        """A paragraph of links, paths relative to the page by their texts."""
        links = ", ".join(f'<a href="{escape(path)}">{escape(text)}</a>' for text, path in targets.items())
        self._body.append(f"<p>{escape(name)}: {links}</p>")

    def table(
        self, head: Sequence[str], rows: Sequence[Sequence[str]], *, best: int = -1, kind: str = "sortable"
    ) -> None:
        """A table whose first column names the rows; nothing without rows.

        Args:
            head: names of the columns.
            rows: their cells.
            best: the row to mark; -1: none.
            kind: `sortable` by clicking on a name, or `text` for cells that are broken into lines.
        """
        wrapped = "<button>{}</button>" if kind == "sortable" else "{}"
        top = "".join(f'<th scope="col">{wrapped.format(escape(cell))}</th>' for cell in head)
        body = ""
        for number, (first, *cells) in enumerate(rows):
            inner = "".join(f"<td>{escape(cell)}</td>" for cell in cells)
            body += f'<tr class="{"best" if number == best else ""}"><th scope="row">{escape(first)}</th>{inner}</tr>'
        table = f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
        if rows:
            self._body.append(f'<div class="scroll">{table}</div>')

    def pairs(self, kind: str, values: Mapping[str, Any]) -> None:
        """A table of names and values."""
        self.table([kind, "value"], [[name, str(value)] for name, value in values.items()], kind="text")

    def charts(self, figures: Mapping[str, go.Figure | None]) -> None:
        """Charts side by side where there is room, by their titles; None is left out, and so is an empty title."""
        shown = []
        for title, figure in figures.items():
            if figure is not None:
                name = f"chart{len(self._charts)}"
                self._charts[name] = figure
                heading = f"<h3>{escape(title)}</h3>" if title else ""
                shown.append(f'<div>{heading}<div class="chart" id="{name}"></div></div>')
        if shown:
            self._body.append(f'<div class="charts">{"".join(shown)}</div>')

    def rounds(self, rounds: Sequence[int]) -> None:
        """A slider that chooses the round of the charts which have several; nothing for a single one."""
        last = len(rounds) - 1
        if last > 0:
            self._body.append(
                f'<label class="rounds">Round <input type="range" min="0" max="{last}" value="{last}" '
                f'data-rounds="{json.dumps(list(rounds))}"><output>round {rounds[-1]}</output></label>'
            )

    def html(self) -> str:
        """The whole page."""
        charts = ",".join(f'"{name}":{_json(figure)}' for name, figure in self._charts.items())
        scripts = [*([get_plotlyjs()] if self._charts else []), _file("page.js")]
        script = "".join(f"<script>{text}</script>" for text in scripts)
        return (
            f'<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>{escape(self._title)}</title>'
            f'<meta http-equiv="Content-Security-Policy" content="{_ALLOWED}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<style>{_file('page.css')}</style></head><body>{''.join(self._body)}"
            f'<script type="application/json" id="charts">{{{charts}}}</script>{script}</body></html>\n'
        )


def _json(figure: go.Figure) -> str:
    """A figure as JSON that cannot end the script it is in."""
    transparent = "rgba(0,0,0,0)"
    figure.update_layout(template="none", paper_bgcolor=transparent, plot_bgcolor=transparent)
    text = figure.to_json(engine="json")  # which escapes whatever is not ASCII
    assert text is not None
    return text.replace("<", "\\u003c")


@functools.cache
def _file(name: str) -> str:
    return (files("fedamp_jax.report") / name).read_text(encoding="utf-8")
