"""Accuracy over an option of which a run has several values, such as the strength of a shift or the drop rate."""

import itertools
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fedamp_jax.report.schema import GridResults, MethodResults, Part

LEAST = 3  # values that make a line


class Line(NamedTuple):
    """A line of a chart.

    Attributes:
        x, y: `[R]`.
        deviation: `[R]`, of y over seeds; empty if there is one seed.
    """

    x: Any
    y: np.ndarray
    deviation: np.ndarray = np.zeros(0)


class Sweep(NamedTuple):
    """Mean accuracy after the last round over one option.

    Attributes:
        option: its name, with blanks.
        panels: the lines of all methods, by the values of the other options of which the run has several.
    """

    option: str
    panels: Mapping[str, Mapping[str, Line]]


def sweeps(results: GridResults) -> list[Sweep]:
    """What can be drawn over an option: one entry for each that has at least three values, all of them numbers.

    >>> def part(strength):
    ...     return {"settings": {"strength": strength}, "methods": {"FedAMP": {"final": 90 + strength}}}
    >>> (one,) = sweeps({"parts": {f"strength {s}": part(s) for s in (1.0, 0.0, 0.5)}})
    >>> one.option, list(one.panels[""]["FedAMP"].x), one.panels[""]["FedAMP"].y.tolist()
    ('strength', [0.0, 0.5, 1.0], [90.0, 90.5, 91.0])
    """
    parts = list(results["parts"].values())
    varied = [key for key in parts[0]["settings"] if any(_value(a, key) != _value(parts[0], key) for a in parts)]
    found = []
    for option in varied:
        others = [key for key in varied if key != option]
        values = {_value(part, option) for part in parts}
        if len(values) < LEAST or not all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in values):
            continue

        def rest(part: Part, others: list[str] = others) -> str:
            return ", ".join(f"{key.replace('_', ' ')} {_value(part, key)}" for key in others)

        panels = {
            heading: lines
            for heading, some in itertools.groupby(sorted(parts, key=rest), rest)
            if (lines := _lines(list(some), option))
        }
        if panels:
            found.append(Sweep(option.replace("_", " "), panels))
    return found


def _value(part: Part, key: str) -> Any:
    """A setting; a list, as of JSON, as a tuple."""
    value = part["settings"].get(key)
    return tuple(value) if isinstance(value, list) else value


def _lines(parts: list[Part], option: str) -> dict[str, Line]:
    """A line for each method that has at least three of the values."""
    parts = sorted(parts, key=lambda part: part["settings"][option])
    names = dict.fromkeys(name for part in parts for name in part["methods"])
    lines = {}
    for name in names:
        mine = [(part["settings"][option], part["methods"][name]) for part in parts if name in part["methods"]]
        x, entries = zip(*mine, strict=True)
        if len(set(x)) >= LEAST:
            lines[name] = Line(x, _numbers(entries, "final"), _numbers(entries, "final_std"))
    return lines


def _numbers(entries: tuple[MethodResults, ...], key: str) -> np.ndarray:
    """`[R]` float64 with NaN for null; empty if an entry lacks the key."""
    if not all(key in entry for entry in entries):
        return np.zeros(0)
    return np.array([entry.get(key) for entry in entries], np.float64)
