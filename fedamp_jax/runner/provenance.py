"""What results say of their origin: command, settings, versions, device."""

import datetime
import json
import os
import platform
import shlex
import sys
from typing import Any

import jax
import numpy as np
import optax

import fedamp_jax
from fedamp_jax.report.schema import Head

# Where a run writes and how it is spread over a machine do not change what it computes.
NOT_SETTINGS = (
    "out", "resume", "data_dir", "chunk", "checkpoint_every", "methods", "devices", "offload", "dry_run",
    "keep_checkpoints", "save_models", "log",
)  # fmt: skip


def settings_of(options: Any) -> dict[str, Any]:
    """The settings that identify a run: two runs with equal settings compute the same."""
    return json.loads(json.dumps({k: v for k, v in vars(options).items() if k not in NOT_SETTINGS}))


def words() -> list[str]:
    """The words of the command that started this process: `python SCRIPT ...` or `fedamp EXPERIMENT ...`."""
    first = sys.argv[0]
    return [*(first.split() if first.startswith("fedamp ") else ["python", first]), *sys.argv[1:]]


def describe_device() -> str:
    """Such as `cpu: cpu x1, 2 cores, x86_64`."""
    device = jax.devices()[0]
    cores = f"{os.cpu_count()} cores, {platform.machine()}"
    return f"{device.platform}: {device.device_kind} x{jax.device_count()}, {cores}"


def versions() -> dict[str, str]:
    """Versions of the packages that can change a result."""
    import flax
    from jaxlib.version import __version__ as jaxlib

    return {
        "fedamp_jax": fedamp_jax.__version__, "python": platform.python_version(), "jax": jax.__version__,
        "jaxlib": jaxlib, "flax": flax.__version__, "optax": optax.__version__, "numpy": np.__version__,
    }  # fmt: skip


def describe_run(experiment: str, options: Any) -> Head:
    """The head of `results.json`: what was run, on what, when."""
    return {
        "experiment": experiment,
        "dataset": getattr(options, "dataset", "made up"),
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(words()),
        "settings": settings_of(options),
        "versions": versions(),
        "device": describe_device(),
        "rounds": options.rounds,
    }
