"""Several processes that compute together, started for real: the same results, and an end when one of them dies."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import fedamp_jax
from fedamp_jax import launch
from tests import process_worker

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow

WORKER = [str(ROOT / "tests" / "process_worker.py")]
LAUNCH = [sys.executable, "-m", "fedamp_jax.launch"]


def run(*command, timeout=500):
    """The finished process, with its output."""
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout, check=False)


@pytest.fixture(scope="module")
def alone():
    """Three rounds in this process, on one device."""
    train, test = (process_worker.clients(seed, range(process_worker.CLIENTS)) for seed in (0, 1))
    return fedamp_jax.run(*process_worker.method(), train, test, rounds=3,
                          participation=process_worker.MOST, progress=False)  # fmt: skip


def same(folder, alone):
    with np.load(folder / "result.npz") as result:
        np.testing.assert_allclose(result["accuracy"], alone.accuracy, atol=1e-6)
        np.testing.assert_allclose(result["loss"], alone.loss, rtol=1e-5)
        np.testing.assert_allclose(result["xi"], alone.xi, rtol=1e-4, atol=1e-6)


def test_four_processes_with_their_own_data_equal_one(tmp_path, alone):
    """Each loads its own clients only, seven over four; results and output come once, checkpoints are whole.

    Failed when every process brought the first clients, and when padding came before the clients.
    """
    done = run(*LAUNCH, "--processes", "4", *WORKER, str(tmp_path), "3", "0")
    assert done.returncode == 0, done.stderr[-3000:]
    assert [(tmp_path / f"owned-{i}").read_text() for i in range(4)] == ["0 1", "2 3", "4 5", "6"]
    assert done.stdout.count("said once") == 1
    assert {p.name for p in (tmp_path / "checkpoints").iterdir()} == {"1", "2", "3"}
    same(tmp_path, alone)


def test_a_dead_process_ends_the_others_and_the_run_goes_on_later(tmp_path, alone):
    """Process 1 is killed in round 3. Process 0, which no launcher watches, ends with an error.

    Started again, both continue from the last whole checkpoint to the uninterrupted result.

    Failed without the heartbeat: process 0 was still waiting after 80 seconds.
    """
    place = ["--coordinator", f"127.0.0.1:{launch.free_port()}", "--of", "2", "--heartbeat", "10"]
    commands = [[*LAUNCH, *place, "--process-id", str(i), *WORKER, str(tmp_path), "3", "3"] for i in range(2)]
    both = [subprocess.Popen(c, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) for c in commands]
    try:
        assert both[1].wait(timeout=300) == -9
        died = time.monotonic()
        assert both[0].wait(timeout=60) != 0
        assert time.monotonic() - died < 45
    finally:
        for process in both:
            process.kill()
            process.wait()
    whole = {p.name for p in (tmp_path / "checkpoints").iterdir() if p.name.isdigit()}
    assert whole in ({"1"}, {"1", "2"}) and not (tmp_path / "result.npz").exists()
    done = run(*LAUNCH, "--processes", "2", *WORKER, str(tmp_path), "3", "0")
    assert done.returncode == 0, done.stderr[-3000:]
    same(tmp_path, alone)


def test_the_launcher_ends_what_is_left(tmp_path, monkeypatch, capfd):
    """One process raises, the other would sleep for ever. Failed when only the first process was watched."""
    script = tmp_path / "script.py"
    script.write_text("import jax, time\nif jax.process_index() == 1:\n    raise SystemExit(3)\ntime.sleep(1000)\n")
    monkeypatch.setattr(launch, "GRACE", 1.0)
    began = time.monotonic()
    assert launch.spawn(2, [str(script)]) == 3
    assert time.monotonic() - began < 60
    assert "process 1 ended with status 3" in capfd.readouterr().err


def test_processes_that_fail_a_moment_apart_report_the_error_alone(tmp_path):
    """Failed with JAX's errors and a stack trace of the later process, whose coordinator had gone."""
    script = tmp_path / "script.py"
    script.write_text(
        "import jax, sys, time\n"
        "if jax.process_index() == 0:\n    sys.exit('wrong')\n"
        "time.sleep(1)\n"
        "sys.exit(1)\n"
    )  # fmt: skip
    done = run(*LAUNCH, "--processes", "2", str(script))
    assert done.returncode == 1
    assert [line for line in done.stderr.splitlines() if not line.startswith("process ")] == ["wrong"]


def test_an_experiment_in_two_processes(tmp_path):
    """The whole command: as on one device, files written by the first alone. Failed when both removed checkpoints."""
    command = ["experiments/practical.py", "--quick", "--methods", "FedAMP", "--out"]
    done = run(*LAUNCH, "--processes", "2", *command, str(tmp_path / "two"))
    assert done.returncode == 0, done.stderr[-3000:]
    one = run(sys.executable, *command, str(tmp_path / "one"))
    assert one.returncode == 0, one.stderr[-3000:]
    files = [tmp_path / name / "results.json" for name in ("two", "one")]
    two, one = (json.loads(file.read_text())["methods"]["FedAMP"] for file in files)
    np.testing.assert_allclose(two["loss"], one["loss"], rtol=1e-5)
    # Rounding may turn two of 500 examples.
    np.testing.assert_allclose(two["mean_accuracy"], one["mean_accuracy"], atol=0.41)
    assert {p.name for p in (tmp_path / "two").iterdir()} == {p.name for p in (tmp_path / "one").iterdir()}


def test_ctrl_c_ends_all_processes(tmp_path):
    """Like any other command: exit code 130 and a line that says so.

    Failed with the tracebacks of all processes and that of the launcher.
    """
    script = tmp_path / "script.py"
    script.write_text(
        "import jax, pathlib, time\n"
        f"pathlib.Path(r'{tmp_path}', str(jax.process_index())).touch()\n"
        "time.sleep(1000)\n"
    )  # fmt: skip
    # As a terminal does it: the signal goes to all processes of the foreground.
    launcher = subprocess.Popen([*LAUNCH, "--processes", "2", str(script)], cwd=ROOT, stderr=subprocess.PIPE, text=True,
                                start_new_session=True)  # fmt: skip
    try:
        until = time.monotonic() + 120
        while not all((tmp_path / str(i)).exists() for i in range(2)) and time.monotonic() < until:
            time.sleep(0.1)
        os.killpg(launcher.pid, signal.SIGINT)
        _, said = launcher.communicate(timeout=60)
    finally:
        launcher.kill()
    assert launcher.returncode == 130
    assert "--resume" in said and len(said.strip().splitlines()) == 1, said


@pytest.mark.parametrize("arguments", [["--processes", "0", *WORKER], []])
def test_bad_command_lines(arguments, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["launch", *arguments])
    with pytest.raises(SystemExit) as error:
        launch.main()
    assert error.value.code == 2
    assert capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "message"), [
    (["--processes", "2", "experiments/practicle.py"], "experiments/practicle.py: there is no such script"),
    (["experiments/practical.py"], "--processes"),
    (["--coordinator", "127.0.0.1:1", "experiments/practical.py"], "--process-id"),
    (["--processes", "2", "experiments/practical.py", "--quick", "--offload"], "--offload is for a single process"),
], ids=["no script", "no cluster", "half a cluster", "offload"])  # fmt: skip
def test_errors_are_reported_once_in_words(arguments, message):
    """Failed with a traceback, in the last case with that of every process."""
    done = run(*LAUNCH, *arguments)
    assert done.returncode == 2 and done.stderr.count(message) == 1, done.stderr
    assert "Traceback" not in done.stderr
