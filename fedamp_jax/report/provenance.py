"""What results say of their origin: command, versions, device."""

import datetime
import os
import platform
import shlex
import sys
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np
import optax

import fedamp_jax
from fedamp_jax.report.schema import Head


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


def describe_run(experiment: str, dataset: str, settings: Mapping[str, Any], rounds: Any) -> Head:
    """The head of `results.json`: what was run, on what, when."""
    return {
        "experiment": experiment,
        "dataset": dataset,
        "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": shlex.join(words()),
        "settings": dict(settings),
        "versions": versions(),
        "device": describe_device(),
        "rounds": rounds,
    }
