"""Several runs on one page, as one HTML file: what differs, accuracies with p-values, curves by run and by method.

    python experiments/compare.py RUN RUN ... --out compare.html

RUN is a results.json file, or a folder that an experiment wrote. All must be of one data set.
"""

import dataclasses
import shlex
from pathlib import Path

import tyro

from fedamp_jax.files import local_path
from fedamp_jax.report import compare_page, files
from fedamp_jax.report.files import read
from fedamp_jax.report.schema import judge
from fedamp_jax.runner import command_line, messages


@dataclasses.dataclass(frozen=True)
class Options:
    """The options of the command."""

    runs: tyro.conf.Positional[tuple[str, ...]]
    """results.json files, or folders that hold one."""
    out: str = "compare.html"
    """The page to write; an existing one is replaced."""


def execute(options: Options) -> Path:
    """Write the page; returns its path."""
    path = local_path(options.out, "--out")
    if path.is_dir() or path.suffix != ".html":
        raise ValueError(f"--out {path} must be the name of an HTML file, such as compare.html")
    if file := next((parent for parent in path.parents if parent.is_file()), None):
        raise ValueError(f"--out {path}: {file} is a file, not a folder")
    runs = compare_page.runs_in(read(options.runs))
    compare_page.check(runs)
    judges = {judge(run.run["settings"]) for run in runs}  # where they differ, so does a setting, which the page shows
    title = f"Comparison of {len(runs)} runs on {runs[0].record.content['dataset']}"
    title += judges.pop() if len(judges) == 1 else ""
    command = shlex.join(["python", "experiments/compare.py", *options.runs, "--out", options.out])
    files.replace(path, compare_page.html(title, runs, command).encode("utf-8", "backslashreplace"))
    messages.say(str(path))
    return path


def main() -> None:
    """Run from the command line."""
    options = tyro.cli(Options, description=__doc__)
    with command_line.readable_errors():
        execute(options)


if __name__ == "__main__":
    main()
