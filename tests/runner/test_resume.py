"""Nothing is lost when processes are killed or stopped at any moment and resumed.

Real processes are killed. They are forked from one that has imported everything and started nothing, as importing takes
longer than all they do. `NIGHTLY=1` kills 200 instead of 20.
"""

import contextlib
import functools
import itertools
import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedamp_jax
from fedamp_jax import Algorithm, Info, Task, Variables
from tests.registry import CLASSES, FEATURES, federation, find, make

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FACTOR = 10 if os.environ.get("NIGHTLY") else 1
ROUNDS = 40


@functools.cache
def made(name, **solver):
    """The same algorithm for the same name, which compiles once."""
    return make(find(name), **solver)


def train(folder, rounds=ROUNDS, data=None, every=1, of=None):
    """A run with much to restore: schedules of the round, kept optimizers, attention, clients that drop out."""
    task, algorithm = of or made("fedamp, schedules", keep_optimizer=True, epochs=(1, 3))
    data = federation() if data is None else data
    checkpoint = fedamp_jax.Checkpoint(folder, every, {"sigma": 2.0})
    return fedamp_jax.run(task, algorithm, data, data, rounds=rounds, evaluate_every=2, progress=False,
                          participation=fedamp_jax.Participation(0.75, 0.2), checkpoint=checkpoint,
                          observe=lambda seen: {"own": float(seen.info.xi[0, 0])})  # fmt: skip


class GossipState(NamedTuple):
    """Attributes: models: `Variables [M]`. velocity: `[M, F, C]`. round: `[]` int32."""

    models: Variables
    velocity: jax.Array
    round: jax.Array


def gossip():
    """A task and a method by hand that compile quickly; each number depends on all numbers before it."""

    def scores(variables, x):
        return x @ variables.params["w"]

    def nothing(variables, batch, key):
        return (jnp.float32(0), variables.stats)

    task = Task(lambda key: Variables({"w": jnp.zeros((FEATURES, CLASSES))}), nothing, scores)

    def init(key, data):
        w = jax.random.normal(key, (len(data.size), FEATURES, CLASSES))
        return GossipState(Variables({"w": w}), jnp.zeros_like(w), jnp.zeros((), jnp.int32))

    def round(key, state, data):
        w = state.models.params["w"]
        push = jax.random.normal(key, w.shape) / (1.0 + state.round.astype(jnp.float32))
        velocity = jnp.where(data.online[:, None, None], 0.9 * state.velocity + push, state.velocity)
        w = 0.99 * w + 0.1 * velocity + 0.01 * jnp.mean(w, axis=0, keepdims=True)
        online = data.online.astype(jnp.int32)
        xi = jnp.broadcast_to(jnp.mean(w, axis=(1, 2))[None], (len(online), len(online))) ** 2
        info = Info(jnp.sum(w, axis=(1, 2)), online, ~data.online & (state.round % 3 == 0), xi)
        return GossipState(Variables({"w": w}), velocity, state.round + 1), info

    return task, Algorithm(init, round, lambda key, state, data: state.models)


def outcome(result):
    """All of a `Run` except its times, as bytes and numbers."""
    leaves = [np.asarray(a) for a in jax.tree.leaves(result.state)] + [result.accuracy, result.rejected, result.xi]
    history = [result.rounds, result.loss, result.observed]
    return json.dumps([[f"{a.dtype}{a.shape}{a.tobytes().hex()}" for a in leaves], history])


# --- the processes that are killed -----------------------------------------------------------------------------------


def life(kind, folder, die_at):
    """What a child does. It kills itself at file operation number `die_at` inside the folder, unless that is 0."""
    if die_at:
        count = itertools.count(1)

        def on_event(event, arguments):
            inside = arguments and str(folder) in str(arguments[0])
            if inside and event in ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir") and next(count) == die_at:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(on_event)
    if kind in ("run", "seldom"):  # saved after each round, or only when stopped
        every, rounds = (1, ROUNDS) if kind == "run" else (10**6, 10**5)
        text = outcome(train(folder / "checkpoints", rounds=rounds, every=every, of=gossip()))
        (folder / "outcome").write_text(text)
    else:
        os.chdir(ROOT)
        sys.argv = ["practical.py", "--methods", "Separate", "FedAMP", "--rounds", "4", "--epochs", "1"]
        sys.argv += ["--checkpoint-every", "1", "--resume", "--out", str(folder / "out")]
        runpy.run_path("experiments/practical.py", run_name="__main__")


def serve():
    """Fork a child for each line `kind folder die_at` of the input; print its process id, then its exit code."""
    import orbax.checkpoint  # noqa: F401
    import sklearn.datasets  # noqa: F401
    import tyro  # noqa: F401

    assert not jax._src.xla_bridge.backends_are_initialized(), "its threads would not exist in a child"
    for line in sys.stdin:
        kind, folder, die_at = line.split()
        child = os.fork()
        if child == 0:
            os.setsid()
            sys.stdout = open(f"{folder}/log", "a")  # noqa: SIM115
            os.dup2(sys.stdout.fileno(), 1)
            os.dup2(sys.stdout.fileno(), 2)
            code = 1
            try:
                life(kind, Path(folder), int(die_at))
                code = 0
            except SystemExit as error:
                code = error.code or 0
            except KeyboardInterrupt as error:
                print(type(error).__name__, error)
                code = 99
            except BaseException:
                import traceback

                traceback.print_exc(file=sys.stdout)
            sys.stdout.flush()
            os._exit(code)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


class Forks:
    """Starts children; `start` returns a child's process id, `end` its exit code (negative: the signal)."""

    def __init__(self):
        command = [sys.executable, "-c", "from tests.runner import test_resume; test_resume.serve()"]
        # One thread: a forked process must not wait for a thread that was not forked.
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.server = subprocess.Popen(command, cwd=ROOT, env=environment, text=True, **pipes)

    def start(self, kind, folder, die_at=0):
        self.server.stdin.write(f"{kind} {folder} {die_at}\n")
        self.server.stdin.flush()
        return int(self.server.stdout.readline())

    def end(self):
        return int(self.server.stdout.readline())

    def complete(self, kind, folder):
        """Run a child to its end."""
        self.start(kind, folder)
        assert self.end() == 0, (folder / "log").read_text()


@pytest.fixture(scope="module")
def forks():
    forks = Forks()
    yield forks
    forks.server.stdin.close()
    forks.server.wait()
    forks.server.stdout.close()


def names(folder):
    """Names of all files and folders inside, also while some of them come and go."""
    return {name for _, folders, files in os.walk(folder) for name in (*folders, *files)}


def wait_for_change(folder, before, limit=20.0):
    """Wait until something in the folder is created or renamed, so that some kills come after the first round."""
    end = time.monotonic() + limit
    while time.monotonic() < end and names(folder) == before:
        time.sleep(0.01)


def kill_once(forks, kind, folder, rng, spread):
    """Start a child and kill it at a random moment or file operation; False if it ended by itself."""
    before = names(folder)
    if rng.random() < 0.4:
        forks.start(kind, folder, die_at=int(rng.integers(1, 400)))
    else:
        child = forks.start(kind, folder)
        if rng.random() < 0.8:
            wait_for_change(folder, before)
        time.sleep(rng.uniform(0, spread))
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
    code = forks.end()
    assert code in (0, -signal.SIGKILL), (folder / "log").read_text()
    return code != 0


def test_killed_at_any_moment_ends_alike(forks, tmp_path):
    """18 kills, at most 9 of each run: parameters and history end bit for bit as without any kill.

    Moments are random, or random file operations, so that many fall into a save. Failed when a checkpoint left out the
    round counter, when the history was saved after the arrays in a separate file, and when `rejected` was not restored.
    """
    (tmp_path / "calm").mkdir()
    forks.complete("run", tmp_path / "calm")
    expected = (tmp_path / "calm" / "outcome").read_text()
    rng = np.random.default_rng(time.time_ns())
    kills, halfway, attempt = 0, 0, 0
    while kills < 18 * FACTOR:
        folder = tmp_path / f"attempt{attempt}"
        folder.mkdir()
        attempt += 1
        for _ in range(9):
            if not kill_once(forks, "run", folder, rng, spread=0.5):
                break
            kills += 1
            halfway += any("tmp" in name for name in names(folder))
        forks.complete("run", folder)
        assert (folder / "outcome").read_text() == expected
    print(f"{kills} kills in {attempt} runs, {halfway} of them left a half-written checkpoint")


def test_a_stopped_and_killed_experiment_ends_alike(forks, tmp_path):
    """SIGTERM and 2 kills of `practical.py --resume`: results.json (but for times) and history.csv end alike.

    Failed when the next method was started after the signal, and when a kill between the last method and the report
    lost the p-values.
    """
    (tmp_path / "calm").mkdir()
    forks.complete("experiment", tmp_path / "calm")
    rng = np.random.default_rng(time.time_ns())
    folder = tmp_path / "killed"
    folder.mkdir()
    child = forks.start("experiment", folder)
    while not (folder / "out/checkpoints/Separate/1").exists():
        time.sleep(0.01)
    os.kill(child, signal.SIGTERM)
    assert forks.end() == 128 + signal.SIGTERM, (folder / "log").read_text()
    assert "--resume" in (folder / "log").read_text() and "FedAMP" not in os.listdir(folder / "out" / "checkpoints")
    for _ in range(2 * FACTOR):
        if not kill_once(forks, "experiment", folder, rng, spread=1.5):
            shutil.rmtree(folder)
            folder.mkdir()
    forks.complete("experiment", folder)
    assert timeless(folder / "out") == timeless(tmp_path / "calm" / "out")
    assert (folder / "out" / "history.csv").read_bytes() == (tmp_path / "calm" / "out" / "history.csv").read_bytes()
    assert sorted(p.name for p in (folder / "out").iterdir()) == sorted(
        p.name for p in (tmp_path / "calm" / "out").iterdir()
    )


def timeless(folder):
    results = json.loads((folder / "results.json").read_text())
    for name in ("created", "command"):
        del results[name]
    for method in results["methods"].values():
        for name in [n for n in method if "seconds" in n]:
            del method[name]
    return results


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_round_and_saves(number, forks, tmp_path):
    """The first signal: saved, though no checkpoint was due, and reported; the exception is a `Stopped`.

    Failed when the handler raised at once, and when only the rounds that were due were saved.
    """
    child = forks.start("seldom", tmp_path)
    while not handles_sigterm(child):
        time.sleep(0.01)
    os.kill(child, number)
    assert forks.end() == 99
    log = (tmp_path / "log").read_text()
    assert f"stopped by {number.name} after round" in log and "A second signal stops at once" in log
    done = int(log.split("after round ")[1].split()[0])
    assert str(done) in os.listdir(tmp_path / "checkpoints")


def test_a_second_signal_ends_at_once(tmp_path):
    """In the middle of a round that would take minutes. Failed with two Python handlers, which C code keeps waiting."""
    script = (
        "from tests.runner import test_resume as t; import numpy as np, fedamp_jax, optax\n"
        "from tests.registry import tiny_task, federation\n"
        "slow = fedamp_jax.separate(tiny_task(), fedamp_jax.Solver(optax.sgd(0.1), epochs=10**4, batch_size=1))\n"
        "data = federation(sizes=(500,) * 8)\n"
        f"fedamp_jax.run(tiny_task(), slow, data, data, rounds=2, progress=False, "
        f"checkpoint=fedamp_jax.Checkpoint({str(tmp_path)!r}))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stderr=subprocess.PIPE, text=True)
    while not handles_sigterm(process.pid):
        time.sleep(0.05)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    assert "A second signal" in process.stderr.readline() + process.stderr.readline()
    assert process.poll() is None
    began = time.monotonic()
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 128 + signal.SIGTERM and time.monotonic() - began < 5
    process.stderr.close()


def handles_sigterm(pid):
    """Whether the process handles SIGTERM yet, which Python by itself does not."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("SigCgt:")[1].split()[0], 16) >> (signal.SIGTERM - 1) & 1
