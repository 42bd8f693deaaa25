"""Compilation: seconds of each method's first round, again with the persistent cache, and programs in a run.

python benchmarks/compile.py
python benchmarks/compile.py --dataset mnist --model cnn --methods FedAMP
python benchmarks/compile.py --whole

`first` is the first round and evaluation of a new process, less a later one. `cached` is the same in a second process
that finds the compiled programs on disk, but on a CPU with jax before 0.12: there the experiments keep no cache, as
reading a stored program back has crashed the process (jaxlib 0.10.2). `programs` is how many the run compiled in all,
`rounds` how many of them were rounds: one, however many rounds there are. `--whole` runs the whole experiment instead,
all methods in one process that compiles them side by side: seconds, and CPU seconds of all cores, from start to report.
"""

import dataclasses
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import bench
import tyro

from fedamp_jax.algorithms.registry import BY_NAME, METHODS

EXPERIMENT = Path(__file__).parents[1] / "experiments" / "practical.py"


@dataclasses.dataclass
class Command(bench.Common):
    """What to measure."""

    methods: tuple[str, ...] = tuple(name for name in METHODS if name not in BY_NAME)
    """Names as in the tables."""
    dataset: str = "digits"
    model: str = "auto"
    data_dir: str | None = None
    whole: bool = False
    """The whole experiment in one process, in place of each method in its own."""


def experiment(command: Command, cache: str, methods: Sequence[str], *more: str) -> tuple[dict[str, Any], str]:
    """The experiment in a process of its own: its results, and what it wrote to stderr."""
    with tempfile.TemporaryDirectory() as folder:
        out = ["--methods", *methods, "--out", folder, "--dataset", command.dataset, "--model", command.model, *more]
        out += ["--data-dir", command.data_dir] if command.data_dir else []
        settings = {**os.environ, "JAX_LOG_COMPILES": "1", "XDG_CACHE_HOME": cache}
        done = subprocess.run(
            [sys.executable, EXPERIMENT, *out], env=settings, capture_output=True, text=True, check=True
        )
        return json.loads((Path(folder) / "results.json").read_text())["methods"], done.stderr


def run(method: str, command: Command, cache: str) -> dict[str, Any]:
    """Three rounds in a process of its own: its results and what it compiled."""
    found, said = experiment(command, cache, [method], "--rounds", "3", "--epochs", "1")
    results = found[method]
    compiled = [line for line in said.splitlines() if "Finished XLA compilation of" in line]
    return {
        "seconds": results["first_round_seconds"] - results["seconds_per_round"], "programs": len(compiled),
        "rounds": sum("compiled_round" in line for line in compiled),
    }  # fmt: skip


def measure(method: str, command: Command) -> dict[str, Any]:
    """One row."""
    with tempfile.TemporaryDirectory() as cache:
        first = run(method, command, cache)
        kept = any(path.is_file() for path in Path(cache).rglob("compiled/*/*"))
        cached = run(method, command, cache)["seconds"] if kept else None
    return {"method": method, "first (s)": first["seconds"], "cached (s)": cached,
            "programs": first["programs"], "rounds": first["rounds"]}  # fmt: skip


def whole(command: Command) -> list[dict[str, Any]]:
    """The first process and the next one, which finds what the first has compiled if that is kept."""
    rows = []
    with tempfile.TemporaryDirectory() as cache:
        for name in ("first", "second"):
            began, used = time.perf_counter(), os.times()
            _, said = experiment(command, cache, command.methods)
            now = os.times()
            cpu = now.children_user + now.children_system - used.children_user - used.children_system
            programs = said.count("Finished XLA compilation of")
            rows.append({"process": name, "s": time.perf_counter() - began, "CPU s": cpu, "programs": programs})
    return rows


def main() -> None:
    """The command line."""
    command = tyro.cli(Command, description=__doc__)
    rows = whole(command) if command.whole else [measure(method, command) for method in command.methods]
    bench.show(__doc__.splitlines()[0], rows)
    bench.write(command.out, rows)


if __name__ == "__main__":
    main()
