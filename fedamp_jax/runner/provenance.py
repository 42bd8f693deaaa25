"""The settings of a run, and the folder that is named after them."""

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedamp_jax.report.provenance import describe_run
from fedamp_jax.report.schema import Head
from fedamp_jax.runner.options import Options

# Where a run writes and how it is spread over a machine do not change what it computes.
NOT_SETTINGS = (
    "out", "resume", "data_dir", "chunk", "checkpoint_every", "methods", "devices", "offload", "dry_run",
    "keep_checkpoints", "save_models", "log",
)  # fmt: skip
_LONGEST = 200  # bytes of a folder's name: file systems end at 255, and temporary names are a little longer


def settings_of(options: Options) -> dict[str, Any]:
    """The settings that identify a run: two runs with equal settings compute the same.

    Without --set there is no such setting, so that earlier runs can be resumed.
    """
    values = {name: value for name, value in options.flat().items() if name not in NOT_SETTINGS}
    if not values["set"]:
        del values["set"]
    return json.loads(json.dumps(values))


def default_folder(experiment: str, dataset: str, changed: Mapping[str, Any]) -> Path:
    """`results/practical-mnist`, followed by every setting that is not its default; a long name ends in a checksum.

    Except `rounds`: with more of them, a run goes on in its folder.

    >>> str(default_folder("practical", "mnist", {"drop_rate": (0.1, 0.3), "rounds": 7, "log": ("wandb",)}))
    'results/practical-mnist-drop_rate=0.1-0.3'
    """
    words = [
        f"{name}={'-'.join(map(str, value)) if isinstance(value, (tuple, list)) else value}"
        for name, value in changed.items()
        if name not in (*NOT_SETTINGS, "dataset", "rounds")
    ]
    name = "-".join([experiment, dataset, *words]).replace(os.sep, "_")
    if len(name.encode()) > _LONGEST:
        digest = hashlib.sha256(name.encode()).hexdigest()[:12]
        name = f"{name.encode()[: _LONGEST - 13].decode(errors='ignore')}-{digest}"
    return Path("results") / name


def describe(experiment: str, options: Options) -> Head:
    """The head of `results.json` of a run with these options."""
    return describe_run(experiment, options.data.dataset, settings_of(options), options.schedule.rounds)
