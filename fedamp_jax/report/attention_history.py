"""Attention weights of a few rounds, and the distances that they follow from: which rounds, and how they are kept."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from fedamp_jax import Run
from fedamp_jax.report.schema import AttentionHistory, MethodResults

_DIGITS = 4


def entry(result: Run) -> AttentionHistory | None:
    """What results.json holds of a run's snapshots; None if there are none."""
    if result.snapshot_xi is None:
        return None
    pairs = np.triu_indices(result.snapshot_xi.shape[1], 1)
    measured = result.snapshot_distances
    return {
        "rounds": list(result.snapshot_rounds),
        "xi": rounded(result.snapshot_xi),
        "distances": None if measured is None else rounded(measured[:, *pairs]),
    }


def mean(histories: Sequence[AttentionHistory | None]) -> AttentionHistory | None:
    """The mean over runs of the same rounds; None if one of them has none."""
    known = [history for history in histories if history is not None]
    if not known or len(known) < len(histories):
        return None
    first = known[0]
    measured = [history["distances"] for history in known]
    return {
        "rounds": first["rounds"],
        "xi": rounded(np.mean([history["xi"] for history in known], axis=0)),
        "distances": None if None in measured else rounded(np.mean(cast(Any, measured), axis=0)),
    }


def rounded(values: np.ndarray) -> list[Any]:
    """Lists of numbers in four significant digits.

    >>> rounded(np.array([[123456.0, 0.000123456]], np.float32))
    [[123500.0, 0.0001235]]
    """
    flat = [float(f"{value:.{_DIGITS}g}") for value in np.asarray(values, np.float64).flat]
    return np.array(flat).reshape(np.shape(values)).tolist()


def history(method: MethodResults) -> AttentionHistory | None:
    """The weights that a method's entry holds: of several rounds, or of the last one; None if there are none."""
    kept = method.get("attention")
    last = method.get("xi")
    if kept:
        return kept
    if last is None or len(last) < 2:
        return None
    return {"rounds": [method["rounds"][-1]], "xi": [last], "distances": None}
