"""The files of a run: reading and writing `results.json` and `history.csv`, and the single runs that a file holds."""

import csv
import io
import json
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import jax

from fedamp_jax import analysis
from fedamp_jax.files import local_path, replace_file
from fedamp_jax.report.schema import (
    KINDS,
    Head,
    Kinds,
    MethodResults,
    Part,
    Results,
    RunResults,
    check_results,
    is_grid,
    plain,
)

_OF_CLIENTS = (
    "seed", "seeds", "setting", "split", "alpha", "balanced", "clients", "degree", "labels", "rotations", "train_share",
    "lead", "validation_fraction", "holdout_clients", "quick",
)  # fmt: skip
"""The settings on which the clients and their data depend."""


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


def load(file: Path, kinds: Kinds = KINDS) -> Results:
    """What a result file holds, checked against the schema; `kinds` as of `schema.check_results`.

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
        return check_results(content, kinds)
    except ValueError as error:
        raise ValueError(f"{file} is not one of our result files: {error}") from None


def read(paths: Sequence[str | Path], kinds: Kinds = KINDS) -> list[Record]:
    """The records in files, or in the `results.json` of folders. Arguments and errors as of `load`."""
    records = []
    for path in (local_path(path, "the result file") for path in paths):
        file = path / "results.json" if path.is_dir() else path
        records.append(Record(file.parent.name if file.name == "results.json" else file.stem, load(file, kinds)))
    return records


def single_runs(content: Results) -> list[RunResults | Part]:
    """The runs in a file of one or several settings."""
    return list(content["parts"].values()) if is_grid(content) else [cast(RunResults, content)]


def methods_in(content: Results) -> list[str]:
    """The names of a file's methods; of several settings, those of the first."""
    return [name for run in single_runs(content)[:1] for name in run["methods"]]


def p_value(a: Row, b: Row) -> float | None:
    """Wilcoxon's p between two methods; None unless both were run on the same clients for as many rounds."""
    # Files may be older than an option, whose default is then None, 0 or False in others.
    same = all((a.settings.get(key) or None) == (b.settings.get(key) or None) for key in _OF_CLIENTS)
    same &= a.clients == b.clients
    same &= all(a.head[k] == b.head[k] for k in ("experiment", "dataset", "rounds"))
    return analysis.wilcoxon(a.entry["accuracy"], b.entry["accuracy"]) if same else None


def replace(path: str | os.PathLike[str], content: bytes) -> Path:
    """Write a file atomically, creating its folder; returns the path. Of several processes, only the first writes."""
    if jax.distributed.is_initialized() and jax.process_index() > 0:
        return Path(path)
    return replace_file(path, content)


COLUMNS = ["method", "round", "mean_accuracy", "loss", "in_group_weight", "ari"]
"""Of `history.csv`."""


def history_rows(results: RunResults) -> list[dict[str, Any]]:
    """A row per method and round: method, round, mean_accuracy, loss, in_group_weight, ari (None: unknown)."""
    rows = []
    methods = cast(Mapping[str, Mapping[str, Any]], plain(results["methods"], "methods"))
    for name, method in methods.items():
        curves = [method["rounds"], *(method.get(key) or [None] * len(method["rounds"]) for key in COLUMNS[2:])]
        rows += [dict(zip(COLUMNS, [name, *values])) for values in zip(*curves, strict=True)]
    return rows


def write_history(results: RunResults, path: str | os.PathLike[str]) -> Path:
    """Write `history_rows` as CSV with a header; unknown and non-finite values are empty cells."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(history_rows(results))
    return write_text(path, text.getvalue())


def write_json(results: Mapping[str, Any], path: str | os.PathLike[str]) -> Path:
    """Write results as standard JSON: NaN and infinities become null, arrays become lists, keys become strings.

    Raises:
        TypeError: JSON cannot represent a value; the message says which.
    """
    text = json.dumps(plain(results, "results"), indent=1, allow_nan=False, ensure_ascii=False)
    # Put a list of numbers on one line. Strings are not changed: a line break inside a JSON string is written \n.
    text = re.sub(r"\[\n\s*([^\[\]{}\"]*?)\n\s*\]", lambda m: "[" + re.sub(r"\s+", " ", m[1]) + "]", text)
    return write_text(path, text + "\n")


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file as `replace` does."""
    # A command line may hold bytes that are not valid text.
    return replace(path, text.encode("utf-8", "backslashreplace"))
