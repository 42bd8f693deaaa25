"""Run a script as one of several processes that compute together.

On one machine, all of them:     python -m fedamp_jax.launch --processes 2 experiments/practical.py --quick
On a TPU pod or under SLURM, in each process:    python -m fedamp_jax.launch experiments/practical.py --quick

The second form lets `jax.distributed` find the peers by itself.
"""

import argparse
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import jax

from fedamp_jax import sharding

GRACE = 10.0
"""Seconds that the others have to notice by themselves that a process died."""


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def end_with(parent: int) -> None:
    """End this process when its parent is gone: a launcher that is killed outright can end nobody."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def join(script: str, arguments: list[str], heartbeat: int, **cluster: Any) -> None:
    """Be one of the processes: find the others, then run the script as `python script arguments` would.

    Args:
        script: its path.
        arguments: its command line.
        heartbeat: seconds of silence after which a process counts as dead and all others end.
        **cluster: for `jax.distributed.initialize`; nothing lets it find out.
    """
    try:
        jax.distributed.initialize(**cluster, heartbeat_timeout_seconds=heartbeat)
    except ValueError as error:
        print(f"no cluster found ({error}) Start all processes on this machine with --processes, or tell where this "
              "one belongs with --coordinator, --of and --process-id", file=sys.stderr)  # fmt: skip
        sys.exit(2)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    status = 1
    try:
        runpy.run_path(script, run_name="__main__")
        return
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
        if status == 0:
            return
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except BaseException:
        traceback.print_exc()
    # Not by the way of `sys.exit`: there jax waits until all processes are done, and they wait for this one.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def spawn(processes: int, command: list[str]) -> int:
    """Start the processes on this machine, wait for them, and end the rest if one fails.

    Args:
        processes: how many.
        command: what to run after `python -m fedamp_jax.launch`, less the place in the cluster.

    Returns:
        0, or the status of the first process that failed; 128 and the signal's number if a signal ended it, or if
        Ctrl-C ended all.
    """
    place = ["--coordinator", f"127.0.0.1:{free_port()}", "--of", str(processes), "--parent", str(os.getpid())]
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "fedamp_jax.launch", *place, "--process-id", str(i), *command],
            stdout=None if i == 0 else subprocess.DEVNULL,  # what all of them say is said once
            start_new_session=True,  # Ctrl-C is for the launcher alone, which ends them
        )
        for i in range(processes)
    ]
    try:
        status = wait(children)
        return status if status >= 0 else 128 - status
    except KeyboardInterrupt:
        print(f"\nstopped, and all {processes} processes with it; an experiment goes on from its last checkpoint with "
              "--resume", file=sys.stderr)  # fmt: skip
        return 128 + signal.SIGINT
    finally:
        for child in reversed(children):  # the first is the coordinator, whose end the others would complain of
            if child.poll() is None:
                child.kill()
        for child in children:
            child.wait()


def wait(children: list[subprocess.Popen]) -> int:
    """Wait until all have ended, or until `GRACE` seconds after the first failure; returns that one's status."""
    failed, deadline = 0, float("inf")
    while None in [child.poll() for child in children] and time.monotonic() < deadline:
        time.sleep(0.05)
        status = next((child.returncode for child in children if child.returncode), 0)
        if status and not failed:
            failed, deadline = status, time.monotonic() + GRACE
            number = next(i for i, child in enumerate(children) if child.returncode)
            what = signal.Signals(-status).name if status < 0 else f"status {status}"
            print(f"process {number} ended with {what}; ending the others", file=sys.stderr, flush=True)
    return failed or next((child.returncode for child in children if child.returncode), 0)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser("python -m fedamp_jax.launch", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--processes", type=int, help="start that many here; without it, be one of a cluster's")
    parser.add_argument("--cpu-devices", type=int, help="devices that each process makes of its CPU (default 1)")
    parser.add_argument("--heartbeat", type=int, default=30, help="seconds of silence after which a process is dead")
    parser.add_argument("--coordinator", help="address:port of process 0, where a cluster does not tell")
    parser.add_argument("--of", type=int, help="number of processes of the cluster, where it does not tell")
    parser.add_argument("--process-id", type=int, help="which of them this is, where the cluster does not tell")
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    if not Path(options.script).is_file():
        parser.error(f"{options.script}: there is no such script")
    if options.processes is not None:
        if options.processes < 1:
            parser.error(f"--processes must be at least 1, got {options.processes}")
        settings = ["--heartbeat", str(options.heartbeat)]
        if options.cpu_devices:
            settings += ["--cpu-devices", str(options.cpu_devices)]
        sys.exit(spawn(options.processes, [*settings, options.script, *options.arguments]))
    if options.parent is not None:
        threading.Thread(target=end_with, args=(options.parent,), daemon=True).start()
    if options.cpu_devices:
        sharding.cut_cpu(options.cpu_devices)
    given = {"coordinator_address": options.coordinator, "num_processes": options.of, "process_id": options.process_id}
    cluster = {name: value for name, value in given.items() if value is not None}
    join(options.script, options.arguments, options.heartbeat, **cluster)


if __name__ == "__main__":
    main()
