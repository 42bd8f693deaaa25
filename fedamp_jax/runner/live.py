"""What an experiment's folder shows of a method while it trains: `history.csv`, TensorBoard's files, a run of W&B."""

import contextlib
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

from fedamp_jax import writers
from fedamp_jax.driver.history import Evaluation
from fedamp_jax.report import files
from fedamp_jax.runner import provenance
from fedamp_jax.runner.options import Options


@contextlib.contextmanager
def writers_for(options: Options, folder: Path, method: str) -> Iterator[list[writers.Writer]]:
    """The observers that write a method's curves; closed afterwards.

    Args:
        options: of the run; `options.output.log` names what is written besides `history.csv`.
        folder: of the run.
        method: its name.
    """
    with contextlib.ExitStack() as stack:
        made = [history(folder / "history.csv", method)]
        if "tensorboard" in options.output.log:
            made.append(writers.tensorboard(folder / "tensorboard" / method))
        if "wandb" in options.output.log:
            made.append(wandb_run(options, folder, method))
        yield [stack.enter_context(writer) for writer in made]


def history(path: str | os.PathLike[str], method: str) -> writers.Writer:
    """Appends the rows of one method to the file that `report.write_history` writes at the end."""
    table = writers.Table(path, {"method": method})

    def write(seen: Evaluation) -> None:
        known = {"method": method, "round": seen.round, **seen.numbers()}
        known["mean_accuracy"] = 100.0 * known.pop("accuracy")
        table.add({name: known.get(name) for name in files.COLUMNS})

    return writers.Writer(write)


def wandb_run(options: Options, folder: Path, method: str) -> writers.Writer:
    """A run of W&B, which a run that is resumed in the same folder continues."""
    path = folder / "wandb" / f"{method}.id"
    if not path.exists():
        files.replace(path, uuid.uuid4().hex[:12].encode())
    settings = {"method": method, **provenance.settings_of(options)}
    return writers.wandb(
        project="fedamp_jax", group=folder.name, name=f"{folder.name} {method}", config=settings, dir=folder,
        id=path.read_text(), resume="allow",
    )  # fmt: skip
