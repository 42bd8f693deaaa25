"""Runs an experiment from the command line."""

import functools
import sys
from pathlib import Path

from fedamp_jax.report.schema import RunResults
from fedamp_jax.runner import command_line, cost, grid, machine, run_folder
from fedamp_jax.runner.experiment import Experiment, prepare
from fedamp_jax.runner.options import Options
from fedamp_jax.runner.train import train_methods


def main(experiment: Experiment) -> None:
    """Read the command line, train, and write the results; errors are shown as `readable_errors` does."""
    sys.unraisablehook = command_line.report_unraisable
    with command_line.readable_errors(resumable=True):
        command = command_line.parse(experiment)
        first = command.variants[0].options
        folder = command_line.folder_of(command, experiment.name)
        machine.use_devices(first.machine)
        if first.machine.dry_run is not None:
            names = experiment.chosen(first)
            if first.schedule.methods == ("all",):  # one is enough to see whether a round fits
                names = [name for name in names if name in ("FedAMP", "base")] or names
            there = cost.place(first.machine, first.machine.dry_run)
            cost.show(first, prepare(experiment, first, names), there)
            return
        grid.run(experiment.name, command.variants, command.seeds, folder, functools.partial(execute, experiment))


def execute(experiment: Experiment, options: Options, folder: Path) -> RunResults:
    """Train every chosen method of one run, writing results into `folder` after each one; returns the results."""
    results = train_methods(experiment, options, folder)
    run_folder.write_files(results, folder)
    return results
