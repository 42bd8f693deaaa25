"""What result files hold, as types; `check` refuses a file that lacks something.

A key that is not `NotRequired` is in every result file. In a file, NaN is null.
"""

import dataclasses
import math
import os
from collections.abc import Mapping
from typing import Any, NotRequired, TypeAlias, TypedDict, TypeGuard, get_args, get_origin, get_type_hints, is_typeddict

import numpy as np


class LastRounds(TypedDict):
    """PFLEGO's score: means over the last evaluated rounds, in percent.

    Keys: mean: over rounds and clients. ci95: half the 95 % confidence interval over clients. rounds: their number.
    std: standard deviation of the mean over seeds.
    """

    mean: float
    ci95: float
    rounds: int
    std: NotRequired[float]


class AttentionHistory(TypedDict):
    """The attention weights of a few rounds, and what they follow from, in four significant digits.

    Keys: rounds: `[S]`. xi: `[S, M, M]`. distances: `[S, M (M - 1) / 2]`, the squared distances between the models that
    the weights of the round follow from, of the pairs of clients (0, 1), (0, 2), ...; None if they were not measured.
    """

    rounds: list[int]
    xi: list[list[list[float]]]
    distances: list[list[float]] | None


class NewClients(TypedDict):
    """Clients that did not train, and the test accuracy of the models that they got afterwards, in percent.

    Keys: clients: `[K]`, their ids. start: `[K]`, of the model that the method has for a client that joins. adapted:
    `[K]`, after local training of that model for as many epochs as in a round.
    """

    clients: list[int]
    start: list[float | None]
    adapted: list[float | None]


class Sent(TypedDict):
    """What a round of a method sends for one client that takes part, if clients keep their data.

    Keys: exchanges: messages to the client, each with an answer. down, up: bytes to the client and from it. model:
    bytes of one model.
    """

    exchanges: int
    down: int
    up: int
    model: int


class MethodNumbers(TypedDict):
    """What every method's entry has, but for PFLEGO's score.

    Keys: bmta: highest mean test accuracy of any evaluated round, in percent. best_round: that round. final: mean test
    accuracy of the last round. accuracy, best_accuracy: `[M]`, of each client in the last and in the best round.
    rounds, mean_accuracy: `[R]`, the evaluated rounds and their means. loss: `[R]`. seconds: of the whole run.
    first_round_seconds: of the first round of each start, which compiles. seconds_per_round: of the other rounds; None
    if there are none. rejected: how many updates of a client were rejected, by client. paper: the paper's accuracy.
    in_group_weight, ari: `[R]`, how far attention has found the groups. xi: `[M, M]`, the last round's collaboration
    weights. attention: those of earlier rounds, too. settings: of this method alone. sent: what a round sends.
    new_clients: those that joined after training. With several seeds, standard deviations over them: bmta_std,
    final_std, and `[R]` mean_accuracy_std, loss_std, in_group_weight_std, ari_std; best_rounds: of each seed.
    """

    bmta: float
    best_round: int
    final: float
    accuracy: list[float]
    best_accuracy: list[float]
    rounds: list[int]
    mean_accuracy: list[float]
    seconds: float
    first_round_seconds: float
    seconds_per_round: float | None
    rejected: dict[str, int]
    paper: float | None
    in_group_weight: list[float | None] | None
    ari: list[float | None] | None
    loss: NotRequired[list[float] | None]
    xi: NotRequired[list[list[float]] | None]
    attention: NotRequired[AttentionHistory | None]
    settings: NotRequired[dict[str, Any]]
    new_clients: NotRequired[NewClients | None]
    sent: NotRequired[Sent]
    bmta_std: NotRequired[float]
    final_std: NotRequired[float]
    best_rounds: NotRequired[list[int]]
    mean_accuracy_std: NotRequired[list[float] | None]
    loss_std: NotRequired[list[float] | None]
    in_group_weight_std: NotRequired[list[float | None] | None]
    ari_std: NotRequired[list[float | None] | None]


class MethodResults(MethodNumbers):
    """One method's entry."""

    last_rounds: NotRequired[LastRounds]


class ScoredMethodResults(MethodNumbers):
    """One method's entry in an experiment of the PFLEGO paper."""

    last_rounds: LastRounds


PValues: TypeAlias = dict[str, dict[str, float | None]]
"""`table[method][other]`: two-sided p of Wilcoxon's signed-rank test over the clients' accuracies."""


class Head(TypedDict):
    """What was run, on what, and when: the head of every result file.

    Keys: command: as it was typed. settings: the options that decide the numbers. versions: by package.
    rounds: their number; of the convergence experiment, a list. note: what a reader should know of the run.
    """

    experiment: str
    dataset: str
    created: str
    command: str
    settings: dict[str, Any]
    versions: dict[str, str]
    device: str
    rounds: Any
    note: NotRequired[str]


class RunResults(Head):
    """The results of one run, or of several seeds of it.

    Keys: methods: by name. clients: their number. ids: `[M]`, of the clients, in the order of all lists.
    examples: `[M]`, each client's number of training examples. groups: `[M]`, each client's group, if the data has
    groups. chance_in_group_weight: the in-group weight if all weights are equal.
    """

    methods: dict[str, MethodResults]
    clients: int
    groups: list[int] | None
    chance_in_group_weight: float | None
    wilcoxon: PValues
    ids: NotRequired[list[int] | None]
    examples: NotRequired[list[int] | None]


class Part(TypedDict):
    """The results of one of several settings; `folder` is the name of its folder."""

    settings: dict[str, Any]
    methods: dict[str, MethodResults]
    folder: str
    clients: int
    wilcoxon: PValues


class GridResults(Head):
    """The results of several settings, by title. In `settings`, a value that differs is a list."""

    parts: dict[str, Part]


Results: TypeAlias = RunResults | GridResults


def is_grid(results: Results) -> TypeGuard[GridResults]:
    """Whether these are the results of several settings."""
    return "parts" in results


def title(results: Head | Mapping[str, Any]) -> str:
    """What was run on which data set.

    >>> title({"experiment": "practical", "dataset": "mnist"}), title({"experiment": "omniglot", "dataset": "omniglot"})
    ('practical on mnist', 'omniglot')
    """
    experiment, dataset = results["experiment"], results["dataset"]
    return (experiment if experiment == dataset else f"{experiment} on {dataset}") + judge(results.get("settings", {}))


def judge(settings: Mapping[str, Any]) -> str:
    """What a title adds if models were not judged by test data.

    >>> judge({"validation_fraction": 0.2}), judge({"validation_fraction": 0.0}), judge({})
    (', judged by validation data', '', '')
    """
    return ", judged by validation data" if judged_by(settings) == "validation" else ""


def judged_by(settings: Mapping[str, Any]) -> str:
    """Which data accuracies are of, test or validation data.

    >>> judged_by({"validation_fraction": 0.2}), judged_by({"validation_fraction": 0.0}), judged_by({})
    ('validation', 'test', 'test')
    """
    return "validation" if settings.get("validation_fraction") else "test"


class Settings(TypedDict):
    """Settings that the tables need from every run."""

    participation: float
    drop_rate: float


class ModelSettings(Settings):
    """Settings that the tables need from a run of the FedAMP paper."""

    model: str


@dataclasses.dataclass(frozen=True)
class Kind:
    """What the results of an experiment hold besides what every result file holds.

    Attributes:
        content: of the whole file; None: those of one run, or of several settings.
        settings: of each run.
        method: one method's entry.
    """

    content: Any = None
    settings: Any = Settings
    method: Any = MethodResults


Kinds: TypeAlias = Mapping[str, Kind]

KINDS: Kinds = {
    **dict.fromkeys(("iid", "pathological", "practical"), Kind(settings=ModelSettings)),
    **dict.fromkeys(("degrees", "omniglot"), Kind(method=ScoredMethodResults)),
    **dict.fromkeys(("dirichlet", "concept"), Kind()),
}
"""By experiment; of others, such as a program's own runs, the settings may be any."""


def check_results(content: Any, kinds: Kinds = KINDS) -> Results:
    """`content` of a result file, once nothing is missing.

    Args:
        content: as read from JSON.
        kinds: by experiment, what its results hold.

    Raises:
        ValueError: something is missing, or is not an object where it should be one.
    """
    check(Head, content, "it")
    kind = kinds.get(str(content["experiment"]), Kind(settings=dict))
    if kind.content is not None:
        check(kind.content, content, "it")
        check(kind.settings, content["settings"], "settings")
        return content
    if content["experiment"] not in kinds and not content.keys() & {"methods", "parts"}:
        raise ValueError(f"it is of the experiment {content['experiment']}, whose results have no curves by method")
    check(GridResults if "parts" in content else RunResults, content, "it")
    parts = content.get("parts", {"it": content})
    if not parts:
        raise ValueError("it has no parts")
    for part in parts.values():
        check(kind.settings, part["settings"], "settings")
        check(dict[str, kind.method], part["methods"], "methods")
    return content


def check(schema: Any, value: Any, name: str) -> None:
    """Check that `value`, called `name`, has every required key of `schema`, and so on in what it holds.

    Numbers and texts are not looked at.

    Raises:
        ValueError: a key is missing, or something is not an object where it should be one.

    >>> check(LastRounds, {"mean": 1.0, "ci95": 0.1}, "last_rounds")
    Traceback (most recent call last):
    ValueError: last_rounds has no 'rounds'
    """
    hints: Mapping[str, Any]
    if is_typeddict(schema):
        hints, required = get_type_hints(schema), schema.__required_keys__
    elif get_origin(schema) is dict:
        hints, required = {}, frozenset()
    else:
        return
    if not isinstance(value, dict):
        raise ValueError(f"{name} must be an object, with names and values")
    missing = [key for key in hints if key in required and key not in value]
    if missing:
        raise ValueError(f"{name} has no {missing[0]!r}")
    for key, item in value.items():
        check(hints.get(key) if is_typeddict(schema) else get_args(schema)[1], item, str(key))


def plain(value: Any, where: str) -> Any:
    """`value`, called `where`, in JSON's types: NaN and infinities become None, arrays lists, keys strings.

    Raises:
        TypeError: JSON cannot represent a value; the message says which.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(item, f"{where}[{str(key)!r}]") for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, where) for item in value]
    if value is None or isinstance(value, (str, int, float)):
        return None if isinstance(value, float) and not math.isfinite(value) else value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "__array__"):
        return plain(np.asarray(value).tolist(), where)
    raise TypeError(f"{where} holds a {type(value).__name__}, which JSON cannot hold: {value!r}")
