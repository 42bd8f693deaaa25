"""Attention weights of a few rounds, and the distances that they follow from: which rounds, and how they are kept."""

import functools
from collections.abc import Sequence
from typing import Any, cast

import jax
import numpy as np

from fedamp_jax import Data, Placement, Run, Snapshots, server
from fedamp_jax.algorithms.fedamp import FedAMPState
from fedamp_jax.experiments.schema import AttentionHistory, MethodResults

_ROUNDS, _CLIENTS = 12, 100  # so many rounds with up to so many clients; of more clients fewer rounds, for size's sake
_DIGITS = 4


def snapshots(rounds: int, evaluate_every: int, clients: int, by_distance: bool) -> Snapshots:
    """The rounds to keep: evaluated ones, the first and the last, and geometrically spaced ones between them.

    Weights change most in the first rounds.

    Args:
        rounds: of the run.
        evaluate_every: rounds from one evaluation to the next.
        clients: their number.
        by_distance: whether the method is FedAMP, whose weights follow from squared distances: these are kept, too.

    >>> sorted(snapshots(90, 1, 20, False).rounds), sorted(snapshots(90, 20, 1000, False).rounds)
    ([1, 2, 3, 5, 8, 12, 18, 26, 40, 60, 90], [20, 90])
    """
    evaluated = sorted({*range(evaluate_every, rounds + 1, evaluate_every), rounds})
    number = max(2, min(_ROUNDS, int(_ROUNDS * (_CLIENTS / clients) ** 2)))
    places = np.geomspace(1, len(evaluated), number).round().astype(int)
    return Snapshots(frozenset(evaluated[place - 1] for place in places), distances if by_distance else None)


def distances(state: FedAMPState, data: Data) -> jax.Array:
    """Squared distances between the clients' models, `[M, M]`."""
    return data.placement.call(_distances, (data.placement,), state.clients.variables.params)


@functools.partial(jax.jit, static_argnums=0)
def _distances(place: Placement, params: Any) -> jax.Array:
    return place.replicate(place.program(lambda params: server.sq_dists(place.by_parameters(params)))(params))


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
