"""The methods of result files as rows of tables, and small copies of the files to keep."""

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from result_types import is_convergence, is_faulty

from fedamp_jax.experiments import paper_values
from fedamp_jax.report.files import Record, Row, single_runs, write_json

_DIGITS = 4  # decimals of an accuracy in percent, and of a weight, that a small copy keeps


_LARGE = 32  # from this number of clients on, a small copy leaves out xi, which would be most of it


def rows(records: Sequence[Record]) -> Iterator[Row]:
    """Every method of every single run, except those with faulty clients, which have a table of their own."""
    for record in records:
        for run in () if is_convergence(record.content) or is_faulty(record.content) else single_runs(record.content):
            for name, entry in run["methods"].items():
                yield Row(name, record, record.content, run["settings"], run["clients"], entry)


def best(found: Sequence[Row]) -> dict[str, Row]:
    """By method, the row of the highest rank."""
    return {row.method: row for row in sorted(found, key=rank)}


def rank(row: Row) -> tuple:
    """Greater is closer to the paper: the paper's sigma first, then more rounds, more seeds, and the newer run."""
    sigma = row.settings.get({"FedAMP": "sigma", "HeurFedAMP": "heur_sigma"}.get(row.method, ""))
    as_paper = sigma is None or sigma == paper_values.sigma(row.head["experiment"], row.head["dataset"], row.method)
    return as_paper, row.head["rounds"], len(row.settings.get("seeds") or [1]), row.head["created"]


def in_tables(row: Row) -> bool:
    """Whether a run has a place in its paper's tables."""
    if row.head["experiment"] in ("degrees", "omniglot"):
        return paper_values.as_in_pflego_tables(row.settings)
    return row.head["experiment"] in paper_values.PAPER_SIGMA and paper_values.as_in_tables(row.settings)


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
    return write_json(content, folder / f"{record.name}.json")


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, _DIGITS)
    return [_rounded(item) for item in value] if isinstance(value, list) else value
