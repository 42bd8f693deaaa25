"""Results of several seeds, combined into results of the same form."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np

from fedamp_jax import analysis
from fedamp_jax.report import attention_history
from fedamp_jax.report.schema import MethodResults, PValues, RunResults

_CURVES = ("mean_accuracy", "loss", "in_group_weight", "ari")


_CLIENTS = ("accuracy", "best_accuracy")


_NUMBERS = ("bmta", "final", "seconds_per_round", "first_round_seconds")


def combine(runs: Sequence[RunResults], seeds: Sequence[int]) -> RunResults:
    """The results of several seeds, combined into results of the same form.

    Numbers, curves and each client's accuracy are averaged over the seeds. `bmta_std` and `final_std` are the sample
    standard deviations over seeds (n - 1). The BMTA is the mean of the seeds' BMTAs, not the best of the mean curve.
    Curves have such deviations as well, in every round. `new_clients` are those of all seeds. p-values compare
    the clients' mean accuracies. xi and distances are averaged only if all seeds have the same groups.
    """
    first = runs[0]
    names = [name for name in first["methods"] if all(name in run["methods"] for run in runs)]
    alike = first["groups"] is not None and all(run["groups"] == first["groups"] for run in runs)
    methods = {name: _combine_method([run["methods"][name] for run in runs], alike) for name in names}
    sizes = [run.get("examples") for run in runs]
    return {
        **first,
        "examples": sizes[0] if all(size == sizes[0] for size in sizes) else None,
        "ids": first.get("ids") if all(run.get("ids") == first.get("ids") for run in runs) else None,
        "settings": {**first["settings"], "seed": None, "seeds": list(seeds)},
        "groups": first["groups"] if alike else None,
        "chance_in_group_weight": first["chance_in_group_weight"] if alike else None,
        "methods": methods,
        "wilcoxon": p_values(methods),
    }


def _combine_method(runs: Sequence[Mapping[str, Any]], alike: bool) -> MethodResults:
    """One method's entry from those of several seeds."""
    method: dict[str, Any] = dict(runs[0])
    for key in (*_NUMBERS, *_CURVES, *_CLIENTS):
        values = [run[key] for run in runs]
        # Where one value is unknown (None, in JSON null), so is the mean.
        known = None not in values
        method[key] = np.mean(_numbers(values), axis=0).tolist() if known else None
    for key in ("bmta", "final", *_CURVES):
        values = [run[key] for run in runs]
        method[f"{key}_std"] = None if None in values else np.std(_numbers(values), axis=0, ddof=1).tolist()
    method["best_rounds"] = [run["best_round"] for run in runs]
    method["best_round"] = int(np.median(method["best_rounds"]))
    if method.get("new_clients"):
        found = [run["new_clients"] for run in runs]
        method["new_clients"] = {key: [value for one in found for value in one[key]] for key in found[0]}
    method["seconds"] = sum(run["seconds"] for run in runs)
    method["xi"] = np.mean([run["xi"] for run in runs], axis=0).tolist() if alike and method["xi"] is not None else None
    method["attention"] = attention_history.mean([run.get("attention") for run in runs]) if alike else None
    counts = [(client, n) for run in runs for client, n in run["rejected"].items()]
    method["rejected"] = {c: sum(n for other, n in counts if other == c) for c, _ in counts}
    if "last_rounds" in method:
        tails = [run["last_rounds"] for run in runs]
        mean, ci = (float(np.mean([tail[key] for tail in tails])) for key in ("mean", "ci95"))
        method["last_rounds"] = {**tails[0], "mean": mean, "ci95": ci}
        method["last_rounds"]["std"] = float(np.std([tail["mean"] for tail in tails], ddof=1))
    return cast(MethodResults, method)


def _numbers(values: Any) -> np.ndarray:
    return np.array(values, np.float64)  # None becomes NaN


def p_values(methods: Mapping[str, MethodResults]) -> PValues:
    """Wilcoxon's p between all methods."""
    table = analysis.wilcoxon_table({name: entry["accuracy"] for name, entry in methods.items()})
    return {name: dict(row) for name, row in table.items()}
