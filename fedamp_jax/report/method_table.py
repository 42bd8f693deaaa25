"""The table of methods, in the terminal and on pages: cells as text, p-values, and the main result in a sentence.

All of it takes results as JSON holds them, where what is not finite is null.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, cast

import numpy as np
from rich import box
from rich.table import Table
from rich.text import Text

from fedamp_jax import analysis
from fedamp_jax.report.schema import MethodResults, RunResults, plain, title

_REFERENCES = (("FedAMP", "HeurFedAMP"), ("PFLEGO",), ("base",))  # methods that the others are compared with

_NAMED = 5  # rejected clients that the table names, by method


class Cells(NamedTuple):
    """A table. Attributes: head: names of the columns. rows: their cells. best: index of the best row."""

    head: list[str]
    rows: list[list[str]]
    best: int


def cells(results: RunResults) -> Cells:
    """BMTA, accuracy in the last round, and seconds of every method; with the paper's values, if there are any."""
    methods = results["methods"]
    paper = any(method.get("paper") is not None for method in methods.values())
    scored = any(method.get("last_rounds") for method in methods.values())
    joined = any(method.get("new_clients") for method in methods.values())
    some_rejected = any(method.get("rejected") for method in methods.values())
    rows = []
    for name, method in methods.items():
        score, theirs = method.get("last_rounds") or {}, method.get("paper")
        shown = [spread(method[key], method.get(f"{key}_std")) for key in ("bmta", "final")]
        last = [spread(score.get("mean"), score.get("ci95"))] * scored
        beside = [number(theirs), gap(score.get("mean", method["bmta"]), theirs)] * paper
        rejected = [str(len(method.get("rejected") or {}))] * some_rejected
        later = method.get("new_clients") or {}
        new = [number(_mean(later.get(key, []))) for key in ("start", "adapted")] * joined
        time = number(method.get("seconds_per_round"), ".3g")
        rows.append([name, *shown, *last, *beside, *new, str(method["best_round"]), time, *rejected])
    between = ["last rounds (%)"] * scored + ["paper (%)", "ours - paper"] * paper
    between += ["new clients (%)", "adapted (%)"] * joined
    head = ["method", "BMTA (%)", "final (%)", *between, "best round", "s / round", *["rejected"] * some_rejected]
    return Cells(head, rows, [*methods, best(methods)].index(best(methods)))


def compared_with(methods: Mapping[str, MethodResults]) -> list[str]:
    """The methods that all others are compared with; the first one if none of them is a usual choice."""
    for names in _REFERENCES:
        if found := [name for name in names if name in methods]:
            return found
    return list(methods)[:1]


def comparisons(results: RunResults) -> dict[tuple[str, str], tuple[float | None, float | None]]:
    """`(points, p)` of the last round by `(reference, other method)`.

    The points are those by which the other method's mean accuracy is higher, p is Wilcoxon's over the clients,
    corrected by Holm's method for the number of pairs; None where unknown.
    """
    methods, tests = results["methods"], results.get("wilcoxon") or {}
    pairs = [(a, b) for a in compared_with(methods) for b in methods if a != b]
    raw = {pair: _p_value(tests, *pair) for pair in pairs}
    # FedAMP with HeurFedAMP and HeurFedAMP with FedAMP are one comparison.
    single = {frozenset(pair): p for pair, p in raw.items() if p is not None}
    corrected = dict(zip(single, analysis.holm(list(single.values())), strict=True))
    mean = {name: _mean(method["accuracy"]) for name, method in methods.items()}
    found = {}
    for a, b in pairs:
        x, y = mean[a], mean[b]
        found[a, b] = (None if x is None or y is None else y - x, corrected.get(frozenset((a, b))))
    return found


def _p_value(tests: Mapping[str, Mapping[str, float | None]], a: str, b: str) -> float | None:
    p = (tests.get(a) or {}).get(b)
    return (tests.get(b) or {}).get(a) if p is None else p


def _mean(values: Sequence[float | None]) -> float | None:
    """The mean over the clients that have test data; None if it is not known."""
    found = analysis.mean_over_clients(np.asarray(values, np.float64))
    return found if np.isfinite(found) else None


def p_text(p: float | None) -> str:
    """A p-value as text.

    >>> p_text(0.03125), p_text(1e-5), p_text(None)
    ('0.0312', '< 0.0001', '–')
    """
    return "–" if p is None else "< 0.0001" if p < 1e-4 else f"{p:.4f}"


def headline(results: RunResults) -> str:
    """The main result in one or two sentences.

    >>> headline({"methods": {"FedAMP": {"bmta": 97.5, "best_round": 3}, "Separate": {"bmta": 86.25}}})
    'FedAMP has the highest BMTA, 97.50% (round 3); Separate: 86.25%.'
    """
    methods, first, chance = results["methods"], best(results["methods"]), results.get("chance_in_group_weight")
    if first is None:
        return "No method has a finite accuracy."
    text = f"{first} has the highest BMTA, {number(methods[first]['bmta'])}% (round {methods[first]['best_round']})"
    others = [name for name in ("FedAMP", "HeurFedAMP", "Separate", "FedAvg") if name in methods and name != first]
    text = "; ".join([text, *(f"{name}: {number(methods[name]['bmta'])}%" for name in others)]) + "."
    shares = {name: [w for w in m.get("in_group_weight") or [] if w is not None] for name, m in methods.items()}
    found = [f"{share[-1]:.0%} in {name}" for name, share in shares.items() if share]
    found = " and ".join([*([", ".join(found[:-1])] if found[1:] else []), *found[-1:]])
    stays = f" Of the weight given to others, {found} stays in the client's own group (chance: {chance or 0:.0%})."
    return text + stays if found and chance is not None else text


def rejections(results: RunResults, most: int | None = None) -> list[str]:
    """A sentence for each method with clients whose updates were rejected: which, and in how many rounds.

    Args:
        results: as JSON holds them.
        most: clients that a sentence names; None: all.

    >>> rejections({"clients": 9, "ids": range(10, 19), "methods": {"FedAMP": {"rejected": {"0": 5, "3": 1}}}}, most=1)
    ['Rejected in FedAMP: client 10 (5 rounds), and 1 more.']
    """
    ids = {str(row): client for row, client in enumerate(results.get("ids") or range(results["clients"]))}
    said = []
    for name, method in results["methods"].items():
        counts = sorted((method.get("rejected") or {}).items(), key=lambda item: (len(str(item[0])), str(item[0])))
        if not counts:
            continue
        named = [f"client {ids.get(str(i), i)} ({n} {'round' if n == 1 else 'rounds'})" for i, n in counts[:most]]
        if len(counts) > len(named):
            named.append(f"and {len(counts) - len(named)} more")
        said.append(f"Rejected in {name}: {', '.join(named)}.")
    return said


def table(results: RunResults) -> Table:
    """The table of results for the terminal; print it with `rich.print(table(results))`."""
    results = cast(RunResults, plain(results, "results"))
    head, rows, first = cells(results)
    lost = "\n".join(rejections(results, most=_NAMED))
    shown = Table(title=Text(title(results)), box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False,
                  caption=Text(lost) if lost else None, caption_justify="left")  # fmt: skip
    for place, column in enumerate(head):
        # Heads of two lines: in a narrow terminal rich would otherwise cut off numbers.
        words = "\n".join(column.rsplit(" ", 1))
        shown.add_column(words, justify="right" if place else "left", no_wrap=not place)
    for place, row in enumerate(rows):
        shown.add_row(*map(Text, row), style="bold" if place == first else None)
    return shown


def best(methods: Mapping[str, MethodResults]) -> str | None:
    """The method with the highest BMTA; None if none is known."""
    finite = [name for name, method in methods.items() if method["bmta"] is not None]
    return max(finite, key=lambda name: methods[name]["bmta"], default=None)


def number(value: float | None, form: str = ".2f") -> str:
    """A number as text."""
    return "–" if value is None else format(value, form)


def spread(value: float | None, deviation: float | None) -> str:
    """A number and its deviation as text."""
    return number(value) + (f"±{deviation:.2f}" if deviation is not None else "")


def gap(ours: float | None, theirs: float | None) -> str:
    """A difference as text."""
    return number(None if ours is None or theirs is None else ours - theirs, "+.2f")
