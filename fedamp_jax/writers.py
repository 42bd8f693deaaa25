"""Observers that write the curves of a run while it trains: to a CSV file, for TensorBoard, to Weights & Biases.

Each writes the numbers of every evaluation at once (`Evaluation.numbers`): the mean of each metric over the clients
that have test data, the mean training loss, and what the observers before it returned. Of several processes the first
one writes.

>>> import optax, fedamp_jax
>>> train, test, groups = fedamp_jax.data.federation("digits")
>>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
>>> algorithm = fedamp_jax.separate(task, fedamp_jax.Solver(optax.adam(1e-3), epochs=1))
>>> import tempfile, pathlib
>>> path = pathlib.Path(tempfile.mkdtemp(), "history.csv")
>>> result = fedamp_jax.run(task, algorithm, train, test, rounds=2, observe=csv(path), progress=False)
>>> path.read_text().splitlines()[0]
'round,accuracy,loss'
"""

import csv as _csv
import importlib
import io
import math
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jax

from fedamp_jax.driver.history import Evaluation
from fedamp_jax.files import local_file, local_path, replace_file

__all__ = ["Writer", "csv", "tensorboard", "wandb"]


class Writer:
    """An observer for `run(observe=...)`, and a context manager that closes what it has opened.

    A writer may watch several runs, one after the other, such as those that continue each other.

    Args:
        write: called with each `Evaluation`, in the first of several processes.
        close: called by `close`.
    """

    def __init__(self, write: Callable[[Evaluation], None], close: Callable[[], None] = lambda: None):
        self._write, self._close = write, close

    def __call__(self, evaluation: Evaluation) -> None:
        """Write the numbers of one evaluation."""
        if jax.process_index() == 0:
            self._write(evaluation)

    def close(self) -> None:
        """Write what is left, and let go of files and connections."""
        self._close()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *error: Any) -> None:
        self.close()


def csv(path: str | os.PathLike[str], labels: Mapping[str, Any] | None = None) -> Writer:
    """Append a line to a CSV file for each evaluation: labels, round, metrics, loss, and what else was observed.

    An existing file is continued. Its rows with these labels, of the round that comes first and of later ones, are
    dropped: a run that starts over replaces its curve, and one that resumes from a checkpoint has each round once.
    NaN is an empty cell.

    Args:
        path: of the file; its folder is made if needed.
        labels: columns that are the same in every row, such as `{"method": "FedAMP", "seed": 0}`: runs with other
            labels may share the file.

    Raises:
        ValueError: the file holds something else, or the path is none of this machine (see `files.local_path`); in a
            run, an observer returned a new name after the first evaluation, or the name of a label.
    """
    labels = dict(labels or {})
    table = Table(path, labels)

    def write(seen: Evaluation) -> None:
        numbers = {"round": seen.round, **seen.numbers()}
        if taken := [name for name in labels if name in numbers]:
            raise ValueError(f"the label {taken[0]!r} is the name of a number of the run: call it something else")
        table.add({**labels, **numbers})

    return Writer(write)


def tensorboard(folder: str | os.PathLike[str]) -> Writer:
    """Write scalars for TensorBoard, which shows the folders below its `--logdir` as one run each.

    They are in the file within two seconds. A run that resumes from a checkpoint hides the rounds after it that the
    folder holds already. Needs tensorboardX: `pip install 'fedamp_jax[tensorboard]'`.

    Args:
        folder: made if needed; one for each run.

    Raises:
        ValueError: tensorboardX is not installed, or the folder is none of this machine (see `files.local_path`).
    """
    module, opened = package("tensorboard"), []
    place = local_path(folder, "the folder for TensorBoard").absolute()

    def write(seen: Evaluation) -> None:
        if not opened:
            # Named by the second in which it starts; without the round, a restart in the same one would overwrite it.
            own = {"purge_step": seen.round, "filename_suffix": f".{seen.round}"}
            opened.append(module.SummaryWriter(os.fspath(place), flush_secs=1, **own))
        for name, value in seen.numbers().items():
            opened[0].add_scalar(name, value, seen.round)

    def close() -> None:
        while opened:
            opened.pop().close()

    return Writer(write, close)


def wandb(**settings: Any) -> Writer:
    """Log to a run of Weights & Biases, which begins at once and ends with `close`; a step is a round.

    Needs wandb: `pip install 'fedamp_jax[wandb]'`, and `wandb login` or `WANDB_MODE=offline`.

    Args:
        **settings: of `wandb.init`, such as `project` and `name`. With `id` and `resume="allow"`, a run that resumes
            from a checkpoint continues its curve.

    Raises:
        ValueError: wandb is not installed.
    """
    module = package("wandb")
    opened = [module.init(**settings)] if jax.process_index() == 0 else []

    def close() -> None:
        while opened:
            opened.pop().finish()

    return Writer(lambda seen: opened[0].log(seen.numbers(), step=seen.round), close)


def package(extra: str) -> Any:
    """The module that an extra of fedamp_jax installs.

    Raises:
        ValueError: it is not installed.
    """
    name = {"tensorboard": "tensorboardX"}.get(extra, extra)
    try:
        return importlib.import_module(name)
    except ImportError:
        raise ValueError(f"{name} is not installed: pip install 'fedamp_jax[{extra}]'") from None


class Table:
    """A CSV file to which rows are added while others read it.

    Args:
        path: of the file.
        labels: columns that tell the rows of this table from others in the file.

    Raises:
        ValueError: the file holds something else.
    """

    def __init__(self, path: str | os.PathLike[str], labels: Mapping[str, Any]):
        self._path, self._columns = local_file(path, "the path of the CSV file"), []
        # As they are read back: text.
        self._labels = {name: _cells(_line([_cell(value)]))[0][0] for name, value in labels.items()}
        if (rows := self._rows()) and not {*labels, "round"} <= {*rows[0]}:
            names = ", ".join([*labels, "round"])
            raise ValueError(f"{path} is there and has no columns {names}: give the path of a new file")

    def add(self, row: Mapping[str, Any]) -> None:
        """Append a row with the table's labels and a `round`; the first one decides which columns there are.

        Raises:
            ValueError: a column is new.
        """
        if not self._columns:
            self._begin(row)
        if new := [name for name in row if name not in self._columns]:
            raise ValueError(
                f"{new[0]!r} is no column of {self._path}: return the same names at each evaluation, or give the path "
                "of a new file"
            )
        with self._path.open("a", newline="", encoding="utf-8") as file:
            file.write(_line([_cell(row.get(name)) for name in self._columns]))

    def _begin(self, row: Mapping[str, Any]) -> None:
        """Write the header, and below it what an earlier run left of other labels and of earlier rounds."""
        header, *rows = self._rows() or [[]]
        named = [dict(zip(header, cells, strict=True)) for cells in rows]
        kept = [old.values() for old in named if self._other(old) or int(old["round"]) < row["round"]]
        self._columns = header if kept else [*row]
        replace_file(self._path, "".join(map(_line, [self._columns, *kept])).encode())

    def _other(self, row: Mapping[str, str]) -> bool:
        return any(row[name] != value for name, value in self._labels.items())

    def _rows(self) -> list[list[str]]:
        """The cells of the file, its header first, but for a row that a killed process has not finished."""
        text = self._path.read_bytes().decode("utf-8", "replace") if self._path.exists() else ""
        rows = _cells(text[: text.rfind("\n") + 1])
        return [row for row in rows if len(row) == len(rows[0])]  # an unfinished cell may hold an end of line


def _cells(text: str) -> list[list[str]]:
    return list(_csv.reader(io.StringIO(text, newline="")))


def _line(cells: Iterable[Any]) -> str:
    text = io.StringIO()
    _csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue()


def _cell(value: Any) -> Any:
    """An empty cell for what is not known."""
    return "" if value is None or (isinstance(value, float) and not math.isfinite(value)) else value
