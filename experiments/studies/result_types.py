"""What the result files of the studies hold, as types."""

from typing import Any, NotRequired, TypedDict, TypeGuard

from fedamp_jax.report import schema
from fedamp_jax.report.schema import Head, Kind, Kinds, ModelSettings, Settings


class AttackResults(TypedDict):
    """One method under one attack; the lists are by share of faulty clients, `[S]`.

    Keys: accuracy, worst_client: mean and lowest accuracy of the honest clients, in percent. weight_to_faulty: share of
    the weight given to others that faulty clients get; None without weights. rejected: number of clients rejected.
    """

    shares: list[float]
    accuracy: list[float]
    worst_client: list[float]
    weight_to_faulty: list[float | None] | None
    rejected: list[int]


class FaultyMethodResults(TypedDict):
    """One method with faulty clients.

    Keys: clean: accuracy of the honest clients while no client is faulty. attacks: by name. honest: the clients that
    are honest at every share.
    """

    clean: float
    attacks: dict[str, AttackResults]
    honest: list[int]
    seconds: float


class FaultyResults(Head):
    """The results of the experiment with faulty clients."""

    clients: int
    methods: dict[str, FaultyMethodResults]


class TheoremResults(TypedDict):
    """The measurements for one theorem; lists are by K.

    Keys: K: numbers of rounds. gap: what the theorem bounds. bound: its bound. B: of Assumption 1. gap_eq5: the gap
    with Eq. 5 as printed. slope: of log gap over log K. best: G*. eq5_floor: the gap that Eq. 5 as printed converges
    to. L: of Theorem 2.
    """

    K: list[int]
    gap: list[float]
    bound: list[float]
    B: list[float]
    gap_eq5: list[float]
    slope: float
    best: float
    eq5_floor: NotRequired[float]
    L: NotRequired[float]


class ConvergenceResults(Head):
    """The results of the convergence experiment."""

    theorem1: TheoremResults
    theorem2: TheoremResults


def is_convergence(results: Any) -> TypeGuard[ConvergenceResults]:
    """Whether these are the results of the convergence experiment."""
    return results["experiment"] == "convergence"


def is_faulty(results: Any) -> TypeGuard[FaultyResults]:
    """Whether these are the results of the experiment with faulty clients."""
    return results["experiment"] == "faulty"


class AblationSettings(ModelSettings):
    """Settings that the tables need from an ablation."""

    sigma: float


class LeadsSettings(ModelSettings):
    """Settings that the tables need from a run of one of the leads."""

    lead: str


class FaultySettings(Settings):
    """Settings that the tables need from a run with faulty clients."""

    shares: list[float]
    attacks: list[str]


KINDS: Kinds = {
    **schema.KINDS,
    "ablation": Kind(settings=AblationSettings),
    "attention": Kind(settings=ModelSettings),
    "leads": Kind(settings=LeadsSettings),
    "faulty": Kind(FaultyResults, FaultySettings),
    "convergence": Kind(ConvergenceResults, dict),
}
"""By experiment, those of the package included."""
