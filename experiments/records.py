"""Result files as the tables need them: read, cut up into single runs, slimmed to be kept beside the documents."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import settings

from fedamp_jax import metrics, report

Method = dict[str, Any]
_DIGITS = 4  # decimals of an accuracy in percent, and of a weight, that a slimmed file keeps
_LARGE = 32  # clients from which on a slimmed file does without xi, which would be nearly all of it

# What every result file has, and what its readers need of settings and of a method's entry, by experiment.
_HEAD = ("experiment", "dataset", "created", "command", "settings", "versions", "device", "rounds")
_SETTINGS = {
    "iid": ("model",), "pathological": ("model",), "practical": ("model",), "ablation": ("model", "sigma"),
    "faulty": ("shares", "attacks"),
}  # fmt: skip
_NUMBERS = ("bmta", "best_round", "accuracy", "seconds")
_ENTRY = {
    "faulty": ("clean", "attacks"), "degrees": (*_NUMBERS, "last_rounds"), "omniglot": (*_NUMBERS, "last_rounds"),
}  # fmt: skip
_THEOREM = ("K", "gap", "bound", "B", "gap_eq5", "slope")


class Record(NamedTuple):
    """A result file.

    Attributes:
        name: of the file, or of its folder if that says more.
        content: what it holds.
    """

    name: str
    content: dict[str, Any]


class Row(NamedTuple):
    """One method in one single run.

    Attributes:
        method: its name.
        record: where it is from.
        run: the run: the record's head, with the settings of the part if it has parts.
        entry: the method's entry.
    """

    method: str
    record: Record
    run: dict[str, Any]
    entry: Method

    def rank(self) -> tuple:
        """Greater is nearer to the paper: no hyper-parameter of our own, more rounds, more seeds, newer."""
        own, dataset = self.run["settings"], self.run["dataset"]
        sigma = own.get({"FedAMP": "sigma", "HeurFedAMP": "heur_sigma"}.get(self.method))
        theirs = sigma is None or sigma == settings.sigma(self.run["experiment"], dataset, self.method)
        return theirs, self.run["rounds"], len(own.get("seeds") or [1]), self.run["created"]


def load(file: Path) -> dict[str, Any]:
    """What a result file holds, once it is sure that nothing is missing that its readers need.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is none of ours.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist; give results.json files, or the folders they are in")
    try:
        content = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is no JSON: {error}") from None
    try:
        _check(content)
    except ValueError as error:
        raise ValueError(f"{file} is not one of our result files: {error}") from None
    return content


def _check(content: Any) -> None:
    """Refuse what lacks something."""
    _need("it", content, _HEAD)
    experiment = str(content["experiment"])
    for key in ("settings", "versions"):
        _need(key, content[key], ())
    if experiment == "convergence":
        for key in ("theorem1", "theorem2"):
            _need(key, content.get(key), _THEOREM)
        return
    parts = content.get("parts", {"it": content})
    _need("parts", parts, ())
    if not parts:
        raise ValueError("it has no parts")
    for title, part in parts.items():
        _need(title, part, ("settings", "methods"))
        _need("settings", part["settings"], ("participation", "drop_rate", *_SETTINGS.get(experiment, ())))
        _need("methods", part["methods"], ())
        for name, entry in part["methods"].items():
            _need(name, entry, _ENTRY.get(experiment, _NUMBERS))


def _need(what: str, found: Any, keys: Sequence[str]) -> None:
    if not isinstance(found, dict):
        raise ValueError(f"{what} must be an object, with names and values")
    for key in keys:
        if key not in found:
            raise ValueError(f"{what} has no {key!r}")


def read(paths: Sequence[str | Path]) -> list[Record]:
    """The records in files, or in the `results.json` of folders. Raises as `load`."""
    records = []
    for path in map(Path, paths):
        file = path / "results.json" if path.is_dir() else path
        records.append(Record(file.parent.name if file.name == "results.json" else file.stem, load(file)))
    return records


def rows(records: Sequence[Record]) -> Iterator[Row]:
    """Every method of every single run, but for faulty clients, who have a table of their own."""
    for record in records:
        content = record.content
        for part in content.get("parts", {"": content}).values():
            run = {**content, "settings": part["settings"], "clients": part.get("clients")}
            methods = part.get("methods", {}) if content["experiment"] != "faulty" else {}
            for name, entry in methods.items():
                yield Row(name, record, run, entry)


def best(found: Sequence[Row]) -> dict[str, Row]:
    """By method, the row of the highest rank."""
    return {row.method: row for row in sorted(found, key=Row.rank)}


def in_tables(row: Row) -> bool:
    """Whether a run has a place in its paper's tables."""
    pflego = row.run["experiment"] in ("degrees", "omniglot")
    return (settings.as_in_pflego_tables if pflego else settings.as_in_tables)(row.run["settings"])


def p_value(a: Row, b: Row) -> float | None:
    """Wilcoxon's p between two methods; None unless both were run on the same clients for as many rounds."""
    keys = ("seed", "seeds", "degree", "clients", "labels", "rotations")
    same = all(a.run["settings"].get(k) == b.run["settings"].get(k) for k in keys)
    same &= all(a.run[k] == b.run[k] for k in ("experiment", "dataset", "clients", "rounds"))
    return metrics.wilcoxon(a.entry["accuracy"], b.entry["accuracy"]) if same else None


def slim(record: Record, folder: Path, note: str | None) -> Path:
    """Write what the tables need of a record as `<name>.json` into `folder`; returns the path.

    Large xi matrices are left out, accuracies rounded, folders of this machine taken out of the command.

    Args:
        record: the record.
        folder: where to.
        note: what a reader should know of this run, such as a split of the data that is not the official one.
    """
    content = json.loads(json.dumps(record.content))
    for part in content.get("parts", {"": content}).values():
        for name, entry in part.get("methods", {}).items():
            unwanted = ("loss",) if len(entry.get("xi") or []) < _LARGE else ("loss", "xi")
            part["methods"][name] = {key: _rounded(value) for key, value in entry.items() if key not in unwanted}
    command = re.sub(r" --out(=| )(\"[^\"]*\"|'[^']*'|\S+)", "", content["command"])
    content["command"] = re.sub(r"(--data-dir(?:=| ))(\"[^\"]*\"|'[^']*'|\S+)", r"\1DIR", command)
    content["command"] = re.sub(r"^python \S*/experiments/", "python experiments/", content["command"])
    if note is not None:
        content["note"] = note.rstrip(".")
    return report.write_json(content, folder / f"{record.name}.json")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, _DIGITS)
    return [_rounded(item) for item in value] if isinstance(value, list) else value
