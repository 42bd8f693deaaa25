"""A run's folder: whose it is, and the files that are written into it."""

import datetime
import json
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
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


def refuse_other(folder: Path, mine: Mapping[str, Any]) -> dict[str, Any] | None:
    """What `results.json` in the folder holds of this run, None if there is none.

    Raises:
        ValueError: if it is of another run than `mine`, the experiment's name and settings.
    """
    path = folder / "results.json"
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    theirs = {"experiment": found["experiment"], **found["settings"]}
    other = [f"{k}: {theirs.get(k)!r} there, {mine.get(k)!r} now" for k in mine if theirs.get(k) != mine.get(k)]
    if other:
        raise ValueError(f"--out {folder} holds another run ({'; '.join(other)}); give another folder, or remove it")
    return found


def open_folder(folder: Path, options: Any, experiment: str) -> dict[str, Any]:
    """Claim the folder for this run; with --resume, what it holds of it already.

    Raises:
        ValueError: if it holds another run, or files of something else.
    """
    found = refuse_other(folder, {"experiment": experiment, **settings_of(options)})
    if found is None and folder.exists() and any(folder.iterdir()) and not (folder / "checkpoints").exists():
        raise ValueError(f"--out {folder} holds other files; give an empty or new folder")
    if not options.resume:
        remove(folder / "checkpoints")
    return found["methods"] if found and options.resume else {}


def remove(folder: Path) -> None:
    """Remove a folder, if it is there; of several processes the first does, once all of them have come here."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"before removing {folder}")
    if jax.process_index() == 0:
        shutil.rmtree(folder, ignore_errors=True)
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(f"after removing {folder}")


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
