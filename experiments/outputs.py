"""A run's folder: whose it is, and the files that are written into it."""

import datetime
import json
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import records
from jax.experimental import multihost_utils
from matplotlib.figure import Figure
from rich.console import Console

import fedamp_jax
from fedamp_jax import report

console = Console()

# Neither where a run writes nor how it is cut up belongs to what it computes.
NOT_SETTINGS = ("out", "resume", "data_dir", "chunk", "checkpoint_every", "methods", "devices", "offload")


def settings_of(options: Any) -> dict[str, Any]:
    """What identifies a run: two runs with equal settings compute the same."""
    return json.loads(json.dumps({k: v for k, v in vars(options).items() if k not in NOT_SETTINGS}))


def default_folder(experiment: str, options: Any) -> Path:
    """`results/practical-mnist`, followed by every setting that is not its default."""
    plain = type(options)()
    changed = [
        f"{name}={'-'.join(map(str, value)) if isinstance(value, (tuple, list)) else value}"
        for name, value in vars(options).items()
        if name not in (*NOT_SETTINGS, "dataset") and value != getattr(plain, name)
    ]
    return Path("results") / "-".join([experiment, options.dataset, *changed])


def percent(share: float) -> str:
    """A share in percent, with as many decimals as it has.

    >>> percent(0.1), percent(0.104)
    ('10%', '10.4%')
    """
    return f"{100 * share:.10g}%"


def refuse_other(folder: Path, mine: Mapping[str, Any]) -> dict[str, Any] | None:
    """What `results.json` in the folder holds of this run, None if there is none.

    Raises:
        ValueError: if the folder is a file, or holds another run than `mine`, the experiment's name and settings.
    """
    file = next((path for path in (folder, *folder.parents) if path.is_file()), None)
    if file is not None:
        raise ValueError(f"--out {file} is a file; give a folder")
    path = folder / "results.json"
    if not path.exists():
        return None
    found = records.load(path)
    theirs = {"experiment": found["experiment"], **found["settings"]}
    other = [f"{k}: {theirs.get(k)!r} there, {mine.get(k)!r} now" for k in mine if theirs.get(k) != mine.get(k)]
    if other:
        raise ValueError(f"--out {folder} holds another run ({'; '.join(other)}); give another folder, or remove it")
    return found


def claim(
    folder: Path, mine: Mapping[str, Any], resume: bool, inside: Sequence[str] = ("checkpoints",)
) -> dict[str, Any] | None:
    """Make sure that the folder is this run's to write to; what `results.json` holds there, None if there is none.

    Args:
        folder: need not exist yet.
        mine: the experiment's name and settings.
        resume: whether to go on with what is there. Nothing of it is ever made anew without being asked.
        inside: what a run that has no results yet leaves there.

    Raises:
        ValueError: if it holds another run, files of something else, or, without `resume`, this run.
    """
    found = refuse_other(folder, mine)
    begun = found is not None or any((folder / name).exists() for name in inside)
    if begun and not resume:
        raise ValueError(
            f"--out {folder} holds results or checkpoints already: go on with --resume, which keeps what is there, "
            "or remove the folder"
        )
    if not begun and folder.exists() and any(folder.iterdir()):
        raise ValueError(f"--out {folder} holds other files; give an empty or new folder")
    meet(f"looked into {folder}")  # before the first of several processes writes what the others would find
    return found


def open_folder(folder: Path, options: Any, experiment: str) -> dict[str, Any]:
    """Claim the folder for one run; the methods that it holds already. Raises as `claim`."""
    found = claim(folder, {"experiment": experiment, **settings_of(options)}, options.resume)
    return found["methods"] if found else {}


def remove(folder: Path) -> None:
    """Remove a folder, if it is there; of several processes the first does, once all of them have come here."""
    meet(f"before removing {folder}")
    if jax.process_index() == 0:
        shutil.rmtree(folder, ignore_errors=True)
    meet(f"after removing {folder}")


def meet(place: str) -> None:
    """Wait until all of several processes have come here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(place)


def describe_device() -> str:
    """Such as `cpu: cpu x1, 2 cores, x86_64`."""
    device = jax.devices()[0]
    cores = f"{os.cpu_count()} cores, {platform.machine()}"
    return f"{device.platform}: {device.device_kind} x{jax.device_count()}, {cores}"


def versions() -> dict[str, str]:
    """Versions of everything that can change a number."""
    import flax
    import jaxlib

    return {
        "fedamp_jax": fedamp_jax.__version__, "python": platform.python_version(), "jax": jax.__version__,
        "jaxlib": jaxlib.__version__, "flax": flax.__version__, "optax": optax.__version__, "numpy": np.__version__,
    }  # fmt: skip


def describe_run(experiment: str, options: Any) -> dict[str, Any]:
    """The head of `results.json`: what was run, on what, when."""
    return {
        "experiment": experiment,
        "dataset": getattr(options, "dataset", "made up"),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["python", *sys.argv]),
        "settings": settings_of(options),
        "versions": versions(),
        "device": describe_device(),
        "rounds": options.rounds,
    }


def write_files(results: dict[str, Any], folder: Path, figures: Mapping[str, Figure | None] | None = None) -> None:
    """What is made from the results: `results.json`, `history.csv`, figures, `report.html`, and the table."""
    if jax.process_index() > 0:  # the first of several processes does it
        return
    report.write_json(results, folder / "results.json")
    report.write_history(results, folder / "history.csv")
    report.write(results, folder, figures or {})
    console.print(report.table(results))
