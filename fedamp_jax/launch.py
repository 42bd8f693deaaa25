"""Runs a script in several processes that form one JAX cluster.

All processes on this machine:
    python -m fedamp_jax.launch --processes 2 experiments/practical.py --quick
Once per process, on a TPU pod or under SLURM, where jax.distributed detects the cluster:
    python -m fedamp_jax.launch experiments/practical.py --quick
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

from fedamp_jax.files import local_path
from fedamp_jax.placement import split_cpu

GRACE = 10.0
"""Seconds that the other processes have to exit by themselves after one has failed."""

FAREWELL = 5.0
"""Seconds that a process which has failed waits for the others to fail too, before it exits."""


def free_port() -> int:
    """Returns a TCP port of this machine that is not in use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def end_with(parent: int) -> None:
    """Ends this process once its parent is gone, since a launcher killed by SIGKILL cannot end its processes."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def join(script: str, arguments: list[str], heartbeat: int, **cluster: Any) -> None:
    """Joins the cluster, then runs the script like `python script arguments`.

    Args:
        script: path of the script.
        arguments: its command-line arguments.
        heartbeat: seconds without a heartbeat after which a process is considered dead and all others end.
        **cluster: arguments of `jax.distributed.initialize`; it detects those that are missing.
    """
    try:
        jax.distributed.initialize(**cluster, heartbeat_timeout_seconds=heartbeat)
    except ValueError as error:
        print(f"no cluster found ({error}) Start all processes on this machine with --processes, or describe the "
              "cluster with --coordinator, --of and --process-id", file=sys.stderr)  # fmt: skip
        sys.exit(2)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    status = 1
    try:
        runpy.run_path(script, run_name="__main__")
        return
    except SystemExit as end:
        if end.code in (None, 0):
            return
        if isinstance(end.code, int):
            status = end.code
        else:
            print(end.code, file=sys.stderr)
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    except BaseException:
        traceback.print_exc()
    # Most errors are those of all processes, a moment apart. Shutting down waits for the others: with the coordinator
    # gone they would end in JAX's errors and a stack trace instead. If they have not failed, they wait for this one,
    # hence the time limit, and not sys.exit, where JAX's exit handler would wait without one.
    leave = threading.Thread(target=jax.distributed.shutdown, daemon=True)
    leave.start()
    leave.join(FAREWELL)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def spawn(processes: int, command: list[str]) -> int:
    """Starts the processes on this machine, waits for them, and ends the others if one fails.

    Args:
        processes: number of processes.
        command: arguments of `python -m fedamp_jax.launch`, without those that describe the cluster.

    Returns:
        0, or the exit status of the first process that failed; 128 plus the signal's number if it was ended by a
        signal, or if Ctrl-C ended all processes.
    """
    place = ["--coordinator", f"127.0.0.1:{free_port()}", "--of", str(processes), "--parent", str(os.getpid())]
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "fedamp_jax.launch", *place, "--process-id", str(i), *command],
            stdout=None if i == 0 else subprocess.DEVNULL,  # all processes print the same
            start_new_session=True,  # Ctrl-C reaches only the launcher, which ends them
        )
        for i in range(processes)
    ]
    try:
        status = wait(children)
        return status if status >= 0 else 128 - status
    except KeyboardInterrupt:
        print(f"\nstopped all {processes} processes; an experiment can be continued from its last checkpoint with "
              "--resume", file=sys.stderr)  # fmt: skip
        return 128 + signal.SIGINT
    finally:
        for child in reversed(children):  # the coordinator last: the others log errors once it is gone
            if child.poll() is None:
                child.kill()
        for child in children:
            child.wait()


def wait(children: list[subprocess.Popen]) -> int:
    """Waits until all processes have ended, at most `GRACE` seconds after the first failure.

    Returns:
        0, or the status of the first process that failed; the signal's number, negated, if it was ended by a signal.
    """
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
    """Parses the command line; starts the processes, or joins a cluster and runs the script."""
    parser = argparse.ArgumentParser("python -m fedamp_jax.launch", description=__doc__, allow_abbrev=False,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--processes", type=int, help="number of processes to start here; default: be one of a cluster")
    parser.add_argument("--cpu-devices", type=int, help="number of CPU devices of each process (default 1)")
    parser.add_argument("--heartbeat", type=int, default=30,
                        help="seconds without a heartbeat after which a process is considered dead")  # fmt: skip
    parser.add_argument("--coordinator", help="address:port of process 0, if it cannot be detected")
    parser.add_argument("--of", type=int, help="number of processes in the cluster, if it cannot be detected")
    parser.add_argument("--process-id", type=int, help="index of this process, from 0, if it cannot be detected")
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    try:
        options.script = str(local_path(options.script, "the script"))
    except ValueError as error:
        parser.error(str(error))
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
        split_cpu(options.cpu_devices)
    given = {"coordinator_address": options.coordinator, "num_processes": options.of, "process_id": options.process_id}
    cluster = {name: value for name, value in given.items() if value is not None}
    join(options.script, options.arguments, options.heartbeat, **cluster)


if __name__ == "__main__":
    main()
