"""The `gpu` column as measurements would have it, and the change to `platforms.py` that says so."""

import difflib
import inspect
import math
import textwrap
from typing import Any, NamedTuple

from fedamp_jax import platforms
from on_gpu.column import PACKAGE
from on_gpu.record import Results

CLOSE = 0.95
"""A change has to save a twentieth: less is what two measurements of the same program differ by."""

EXACT = 1e-3
"""Largest error of a distance, relative to it, that leaves the attention weights as they are."""


class Decision(NamedTuple):
    """The column, and for each line why.

    Attributes:
        choices: as in `platforms.CHOICES`.
        reasons: by field of `Choices`.
        notes: what else was seen, such as a faster way that the package does not have.
    """

    choices: platforms.Choices
    reasons: dict[str, str]
    notes: list[str]


def decide(results: Results) -> Decision:
    """What the measurements say; a line that was not measured stays as it is, and its reason says so."""
    now = platforms.CHOICES["gpu"]
    rows = [row for row in results.rows("rounds ") if row.get("round") and row["precision"] == "tf32"]
    reasons, notes = {}, []
    lowering = _lowering(rows, now, reasons, notes)
    pooling = _pooling(rows, lowering, now, reasons)
    together = _together(rows, now, reasons)
    distances = _distances(results.rows("server"), now, reasons, notes)
    notes += [*_graphs(results), *_others(results)]
    return Decision(platforms.Choices(lowering, pooling, distances, together), reasons, notes)


def _said(row: dict[str, Any]) -> str:
    return f"`{row['lowering']}` with {row['together']} side by side {row['round']:.3g} s"


def _lowering(rows: list, now: platforms.Choices, reasons: dict, notes: list) -> str:
    """The lowering with the least product of the models' times, one client at a time, as clients that convolve are."""
    rows = [row for row in rows if row["lowering"] != "-" and row["pooling"] in (now.pooling, "-")]
    models = sorted({row["part"] for row in rows})
    seconds: dict[str, list[float]] = {}
    for model in models:
        own = sorted((row for row in rows if row["part"] == model), key=lambda row: row["round"])
        own_package = [row for row in own if row["lowering"] in PACKAGE]
        for lowering in PACKAGE:
            seconds.setdefault(lowering, []).extend(
                row["round"] for row in own_package if row["lowering"] == lowering and row["together"] == 1
            )
        usual = next((r for r in own if r["lowering"] == now.convolution and r["together"] == 1), None)
        if usual is not None and own[0]["round"] < CLOSE * usual["round"]:
            ratio = usual["round"] / own[0]["round"]
            notes.append(f"{model}: {_said(own[0])} is {ratio:.2f} times as fast as the default, {_said(usual)}")
    everywhere = {name: math.prod(times) for name, times in seconds.items() if models and len(times) == len(models)}
    if now.convolution not in everywhere:
        reasons["convolution"] = "not measured"
        return now.convolution
    chosen = min(everywhere, key=lambda name: everywhere[name])
    chosen = chosen if everywhere[chosen] < CLOSE * everywhere[now.convolution] else now.convolution
    each = "; ".join(f"`{n}` {', '.join(f'{t:.3g}' for t in seconds[n])} s" for n in everywhere)
    reasons["convolution"] = f"rounds of {', '.join(m.removeprefix('rounds ') for m in models)}, one by one: {each}"
    return chosen


def _pooling(rows: list, lowering: str, now: platforms.Choices, reasons: dict) -> str:
    fair = [row for row in rows if row["pooling"] in ("slices", "window")]
    pairs: dict[Any, dict[str, float]] = {}
    for row in fair:
        pairs.setdefault((row["part"], row["lowering"], row["together"]), {})[row["pooling"]] = row["round"]
    both = {key: found for key, found in pairs.items() if len(found) == 2}
    if not both:
        reasons["pooling"] = "not measured"
        return now.pooling
    key = min(both, key=lambda key: (key[1] != lowering, key[2]))  # the column's own lowering if it is among them
    found, other = both[key], "window" if now.pooling == "slices" else "slices"
    reasons["pooling"] = (
        f"the CNN's round by `{key[1]}`: slices {found['slices']:.3g} s, window {found['window']:.3g} s"
    )
    return other if found[other] < CLOSE * found[now.pooling] else now.pooling


def _together(rows: list, now: platforms.Choices, reasons: dict) -> bool:
    """Whether models without convolutions are trained side by side."""
    ratio, said = 1.0, []
    for model in sorted({row["part"] for row in rows if row["lowering"] == "-"}):
        own = {row["together"]: row["round"] for row in rows if row["part"] == model}
        if 1 in own and max(own) > 1:
            ratio *= own[1] / own[max(own)]
            said.append(f"{model.removeprefix('rounds ')}: one {own[1]:.3g} s, {max(own)} {own[max(own)]:.3g} s")
    reasons["together"] = "; ".join(said) or "not measured"
    return now.together if not said else ratio > (CLOSE if now.together else 1 / CLOSE)


def _distances(rows: list, now: platforms.Choices, reasons: dict, notes: list) -> str:
    found: dict[str, list[dict]] = {}
    for row in rows:
        if "error_of_nearest" in row:
            found.setdefault(row["name"].partition(" ")[2], []).append(row)
    said = {}
    for name, of in found.items():
        seconds, error = ", ".join(f"{row['seconds']:.3g}" for row in of), max(row["error_of_nearest"] for row in of)
        said[name] = f"{name} {seconds} s, error {error:.1g}"
    total = {name: sum(r["seconds"] for r in of) for name, of in found.items()}
    fine = [name for name, of in found.items() if max(r["error_of_nearest"] for r in of) < EXACT]
    reasons["distances"] = "; ".join(said.values()) or "not measured"
    if now.distances not in total:
        return now.distances
    notes += [f"distances: {said[n]}" for n in fine if total[n] < CLOSE * total[now.distances]]
    ours = [name for name in ("gram", "differences") if name in fine]
    chosen = min(ours, key=lambda name: total[name], default=now.distances)
    return chosen if total[chosen] < CLOSE * total[now.distances] or now.distances not in fine else now.distances


def _graphs(results: Results) -> list[str]:
    """Flags for command buffers under which the same round was faster."""
    usual = {f"{row['part'].removeprefix('rounds ')} {row['name']}": row["round"] for row in results.rows("rounds ")}
    return [
        f"{row['part']}: {row['name']} {row['round']:.3g} s in place of {usual[row['name']]:.3g}"
        for row in results.rows("graphs")
        if row["name"] in usual and row["round"] < CLOSE * usual[row["name"]]
    ]


def _others(results: Results) -> list[str]:
    """PyTorch's best beside the default."""
    notes = []
    for row in results.rows("torch"):
        us = row["us_per_client_step"]
        theirs = {name: time for name, time in us.items() if name.startswith("torch")}
        if theirs and "default" in us:
            name = min(theirs, key=lambda name: theirs[name])
            notes.append(f"{row['name']}: {name} takes {theirs[name] / us['default']:.2f} times as long as the default")
    return notes


def change(decision: Decision, head: dict[str, Any]) -> str:
    """The change to `platforms.py`, as a unified diff.

    Args:
        decision: of `decide`.
        head: the machine.
    """
    old = inspect.getsource(platforms)
    choices = decision.choices
    line = (
        f'    "gpu": Choices("{choices.convolution}", "{choices.pooling}", "{choices.distances}", '
        f"together={choices.together}),"
    )
    new = "\n".join(line if text.startswith('    "gpu": Choices(') else text for text in old.split("\n"))
    said = [f"measured (docs/performance.md), {head.get('device', 'a GPU')}."]
    said += [f"{field}: {why}." for field, why in decision.reasons.items()]
    start, end = new.index("- gpu: "), new.index('"""\n', new.index("- gpu: "))
    new = new[:start] + _wrapped("- gpu: " + " ".join(said)) + "\n" + new[end:]
    side = "one if they convolve, else all" if choices.together else "one"
    row = {
        "convolution": f"`{choices.convolution}`", "max pooling": f"`{choices.pooling}`",
        "clients side by side": side, "distances": _named(choices.distances),
    }  # fmt: skip
    lines = new.split("\n")
    for i, text in enumerate(lines):
        name = text[2:].split(" |")[0] if text.startswith("| ") else ""
        if name in row:
            lines[i] = " | ".join([*text.rstrip(" |").split(" | ")[:-1], row[name]]) + " |"
    parts = difflib.unified_diff(old.split("\n"), lines, "a/fedamp_jax/platforms.py", "b/fedamp_jax/platforms.py",
                                 lineterm="")  # fmt: skip
    return "\n".join(parts)


def _named(distances: str) -> str:
    return "`gram`, in float64" if distances == "gram" else "`differences`, in float32"


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
