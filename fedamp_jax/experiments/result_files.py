"""Result files: reading them, the single runs in them, and small copies to keep beside the documentation."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fedamp_jax import metrics
from fedamp_jax.experiments import paper_values, report
from fedamp_jax.experiments.schema import (
    Head,
    MethodResults,
    Part,
    Results,
    RunResults,
    check_results,
    is_convergence,
    is_faulty,
    is_grid,
)

_DIGITS = 4  # decimals of an accuracy in percent, and of a weight, that a small copy keeps
_OF_CLIENTS = (
    "seed", "seeds", "setting", "split", "alpha", "balanced", "clients", "degree", "labels", "rotations", "train_share",
    "lead", "validation_fraction", "holdout_clients", "quick",
)  # fmt: skip
"""The settings on which the clients and their data depend."""
_LARGE = 32  # from this number of clients on, a small copy leaves out xi, which would be most of it


class Record(NamedTuple):
    """A result file.

    Attributes:
        name: of the file; of its folder if the file is called results.json.
        content: what it holds.
    """

    name: str
    content: Results


class Row(NamedTuple):
    """One method in one single run.

    Attributes:
        method: its name.
        record: the file.
        head: the head of the file. Of several settings, `settings` below are those of this run.
        settings: of the run.
        clients: their number.
        entry: the method's entry.
    """

    method: str
    record: Record
    head: Head
    settings: Mapping[str, Any]
    clients: int
    entry: MethodResults

    def rank(self) -> tuple:
        """Greater is closer to the paper: the paper's sigma first, then more rounds, more seeds, and the newer run."""
        experiment, dataset = self.head["experiment"], self.head["dataset"]
        sigma = self.settings.get({"FedAMP": "sigma", "HeurFedAMP": "heur_sigma"}.get(self.method, ""))
        as_paper = sigma is None or sigma == paper_values.sigma(experiment, dataset, self.method)
        return as_paper, self.head["rounds"], len(self.settings.get("seeds") or [1]), self.head["created"]


def load(file: Path) -> Results:
    """What a result file holds, checked against the schema.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not a result file, or lacks something.
    """
    if not file.is_file():
        raise FileNotFoundError(f"{file} does not exist; give results.json files, or the folders they are in")
    try:
        content = json.loads(file.read_text())
    except ValueError as error:
        raise ValueError(f"{file} is not valid JSON: {error}") from None
    try:
        return check_results(content)
    except ValueError as error:
        raise ValueError(f"{file} is not one of our result files: {error}") from None


def read(paths: Sequence[str | Path]) -> list[Record]:
    """The records in files, or in the `results.json` of folders. Raises as `load`."""
    records = []
    for path in map(Path, paths):
        file = path / "results.json" if path.is_dir() else path
        records.append(Record(file.parent.name if file.name == "results.json" else file.stem, load(file)))
    return records


def single_runs(content: Results) -> list[RunResults | Part]:
    """The runs in a file of one or several settings; none in one of another form."""
    if is_convergence(content) or is_faulty(content):
        return []
    return list(content["parts"].values()) if is_grid(content) else [content]  # pyright: ignore[reportReturnType]


def methods_in(content: Results) -> list[str]:
    """The names of a file's methods; of several settings, those of the first."""
    if is_faulty(content):
        return list(content["methods"])
    return [name for run in single_runs(content)[:1] for name in run["methods"]]


def rows(records: Sequence[Record]) -> Iterator[Row]:
    """Every method of every single run, except those with faulty clients, which have a table of their own."""
    for record in records:
        for run in single_runs(record.content):
            for name, entry in run["methods"].items():
                yield Row(name, record, record.content, run["settings"], run["clients"], entry)


def best(found: Sequence[Row]) -> dict[str, Row]:
    """By method, the row of the highest rank."""
    return {row.method: row for row in sorted(found, key=Row.rank)}


def in_tables(row: Row) -> bool:
    """Whether a run has a place in its paper's tables."""
    if row.head["experiment"] in ("degrees", "omniglot"):
        return paper_values.as_in_pflego_tables(row.settings)
    return row.head["experiment"] in paper_values.PAPER_SIGMA and paper_values.as_in_tables(row.settings)


def p_value(a: Row, b: Row) -> float | None:
    """Wilcoxon's p between two methods; None unless both were run on the same clients for as many rounds."""
    # Files may be older than an option, whose default is then None, 0 or False in others.
    same = all((a.settings.get(key) or None) == (b.settings.get(key) or None) for key in _OF_CLIENTS)
    same &= a.clients == b.clients
    same &= all(a.head[k] == b.head[k] for k in ("experiment", "dataset", "rounds"))
    return metrics.wilcoxon(a.entry["accuracy"], b.entry["accuracy"]) if same else None


def slim(record: Record, folder: Path, note: str | None) -> Path:
    """Write what the tables need of a record as `<name>.json` into `folder`; returns the path.

    Large xi matrices and those of earlier rounds are left out, accuracies rounded, and this machine's folders removed
    from the command.

    Args:
        record: the record.
        folder: where to write.
        note: what a reader should know of this run, such as a split of the data that is not the official one.
    """
    content: Any = json.loads(json.dumps(record.content))
    for part in content.get("parts", {"": content}).values():
        for name, entry in part.get("methods", {}).items():
            unwanted = ("loss", "loss_std", "attention", *(["xi"] if len(entry.get("xi") or []) >= _LARGE else []))
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
