"""Checkpoints: what is refused and with which message, other placements, and a disk that is full."""

import contextlib
import errno
import functools
import json
import os
import resource
import shutil
import subprocess
import sys
import threading
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Checkpoint, Participation, Placement, Run
from fedamp_jax.driver import checkpoint
from fedamp_jax.placement import InHostMemory, OnMesh, client_mesh
from fedamp_jax.report import files
from tests.registry import federation, find, make, tiny_task

SLOW = pytest.mark.slow


@functools.cache
def made(name, **solver):
    """The same algorithm for the same name, which compiles once."""
    return make(find(name), **solver)


def train(folder, rounds, data=None, every=1, share=0.75, drop_rate=0.2, fingerprint=None, **options):
    """A run that everything matters to: schedules of the round, kept optimizers, attention, clients that drop out."""
    task, algorithm = made("fedamp, schedules", keep_optimizer=True, epochs=(1, 3))
    data = federation() if data is None else data
    settings = {"sigma": 2.0} if fingerprint is None else fingerprint
    saving = None if folder is None else Checkpoint(folder, every, settings)
    return fedamp_jax.run(task, algorithm, data, data, rounds=rounds, evaluate_every=2, progress=False,
                          observe=lambda seen: {"own": float(seen.info.xi[0, 0])}, checkpoint=saving,
                          participation=Participation(share, drop_rate), **options)  # fmt: skip


def outcome(result):
    """Everything that a `Run` says but the time it took, as bytes and numbers."""
    leaves = [np.asarray(a) for a in jax.tree.leaves(result.state)] + [result.accuracy, result.rejected, result.xi]
    history = [result.rounds, result.loss, result.observed]
    return json.dumps([[f"{a.dtype}{a.shape}{a.tobytes().hex()}" for a in leaves], history])


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A run of four rounds, the last three of them saved."""
    folder = tmp_path_factory.mktemp("saved") / "checkpoints"
    train(folder, rounds=4)
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"fingerprint": {"sigma": 3.0}}, r"sigma: 2\.0 there, 3\.0 now"),
        ({"fingerprint": {}}, r"sigma: 2\.0 there, None now"),
        ({"seed": 5}, "seed: 0 there, 5 now"),
        ({"share": 0.5}, r"share: 0\.75 there, 0\.5 now"),
        ({"drop_rate": 0.0}, r"drop_rate: 0\.2 there, 0\.0 now"),
        ({"data": {"seed": 3}}, "train: '8 clients, 46 examples, digest .*' there"),
        ({"data": {"sizes": (7, 3, 10, 1, 5, 10)}}, "'6 clients, 36 examples, digest .*' now"),
    ],
)
@pytest.mark.slow_variants
def test_another_run_is_refused(change, message, saved):
    """It says what differs. Failed for `seed` and the data when the caller's fingerprint was all that was compared."""
    change = {**change, "data": federation(**change["data"])} if "data" in change else change
    with pytest.raises(ValueError, match=message):
        train(saved, rounds=4, **change)


def test_another_state_is_refused(saved, monkeypatch):
    """Another method, another kept optimizer, another format. Failed with shapes compared but not the state's type."""
    data = federation()
    m = len(data.size)

    def restore(name, **solver):
        _, algorithm = made(name, **solver)
        empty = Run(algorithm.init(jax.random.key(0), data), rejected=np.zeros(m, int))
        described = checkpoint.describe(data, m)
        own = {"seed": 0, "share": 0.75, "drop_rate": 0.2, "evaluate_every": 2}
        own |= {"metrics": ["accuracy"], "train": described, "test": described}
        with checkpoint.opened(Checkpoint(saved, 1, {"sigma": 2.0}), own, rows=m) as opened:
            return opened.restore(empty)

    assert restore("fedamp", keep_optimizer=True) == 4
    with pytest.raises(ValueError, match="state: 'FedAMPState' there, 'SeparateState' now"):
        restore("separate", keep_optimizer=True)
    with pytest.raises(ValueError, match=r"state\.clients\.optimizer\[0\]\.count: \['int32', 8\] there, None now"):
        restore("fedamp")
    monkeypatch.setattr(checkpoint, "FORMAT", 99)
    with pytest.raises(ValueError, match="has format 4, this version of fedamp_jax reads 99"):
        restore("fedamp", keep_optimizer=True)


@pytest.mark.slow
def test_a_truncated_checkpoint_is_refused(saved, tmp_path):
    """Each file cut in half or taken away: refused with its name and the way out, or not needed and the end is alike.

    Failed when orbax's errors came out as they are: a dozen kinds, none of which names the checkpoint.
    """
    expected = outcome(train(None, rounds=6))
    refused = []
    files = sorted(p.relative_to(saved) for p in (saved / "4").rglob("*") if p.is_file())
    cases = [(p, "cut") for p in files] + [(p, "gone") for p in files if p.name == "metadata" or p.parent.name == "d"]
    for number, (path, how) in enumerate(cases):
        folder = tmp_path / str(number)
        shutil.copytree(saved, folder)
        content = (folder / path).read_bytes()
        (folder / path).unlink() if how == "gone" else (folder / path).write_bytes(content[: len(content) // 2])
        try:
            assert outcome(train(folder, rounds=6, every=10)) == expected
        except ValueError as error:
            assert f"checkpoint {folder / '4'} is damaged" in str(error) and "Remove this folder" in str(error)  # noqa: PT017
            refused.append((how, str(path)))
    assert all(
        any(how == h and part in p for h, p in refused) for how in ("cut", "gone") for part in ("history", "/d/")
    )
    shutil.rmtree(folder / "4")  # the way out
    assert outcome(train(folder, rounds=6, every=10)) == expected


def test_the_last_three_are_kept_and_more_rounds_may_follow(tmp_path):
    """Failed without `max_to_keep`; and when a longer run of the same settings was refused."""
    folder = tmp_path / "checkpoints"
    train(folder, rounds=5)
    assert sorted(os.listdir(folder)) == ["3", "4", "5"]
    longer = train(folder, rounds=8)
    assert longer.rounds == [2, 4, 5, 6, 8]  # what was the last round stays evaluated
    np.testing.assert_array_equal(longer.accuracy[-1], train(None, rounds=8).accuracy[-1])
    assert train(folder, rounds=5).rounds == longer.rounds


def test_what_is_saved_is_what_was_there(tmp_path, monkeypatch):
    """The run adds to its history while it is still being written. Failed without the copy of lists and arrays."""
    going_on = threading.Event()
    dumps = json.dumps
    monkeypatch.setattr(json, "dumps", lambda *args, **kwargs: going_on.wait(10) and dumps(*args, **kwargs))
    result = Run(
        {"w": jnp.ones(3)}, [2], {"accuracy": np.zeros((1, 4), np.float32)}, [0.5], np.zeros(4, int), {"own": [0.25]}
    )
    going_on.set()
    saved = checkpoint.Checkpoints(tmp_path, {}, rows=4)
    going_on.clear()
    saved.save(2, result)
    result.rounds.append(4)
    result.loss.append(0.1)
    result.observed["own"].append(0.1)
    result.rejected += 1
    going_on.set()
    saved.close()
    found = Run({"w": jnp.zeros(3)}, rejected=np.zeros(4, int))
    with checkpoint.opened(Checkpoint(tmp_path), {}, rows=4) as saved:
        assert saved.restore(found) == 2
    assert (found.rounds, found.loss, found.observed) == ([2], [0.5], {"own": [0.25]})
    assert not found.rejected.any()


# --- other devices ---------------------------------------------------------------------------------------------------


def place(name):
    """One device, the host's memory, or a mesh of so many devices."""
    if name in (1, "host"):
        return Placement() if name == 1 else InHostMemory(device=jax.devices()[5], chunk=3)
    return OnMesh(mesh=client_mesh(name))


OTHERS = [(8, 1, 8), (1, 8, 6), (8, 8, 6), ("host", 4, 6), (4, "host", 6)]


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after", "clients"), [(8, 1, 6), *(pytest.param(*o, marks=SLOW) for o in OTHERS)])
def test_restored_on_another_placement(before, after, clients, tmp_path):
    """Saved on some devices, continued on others, also where padding rows come and go; bit for bit on as many.

    Failed for (8, 1) when arrays were restored to where they had been, and for 6 clients when shapes had to be equal.
    """
    data = federation(sizes=(7, 3, 10, 1, 5, 10, 4, 6)[:clients])
    train(tmp_path, 2, data, placement=place(before), share=1.0)
    moved = train(tmp_path, 4, data, placement=place(after), share=1.0)
    stayed = train(None, 4, data, placement=place(after), share=1.0)
    if before == after:
        assert outcome(moved) == outcome(stayed)
    rows = [np.asarray(jax.tree.leaves(r.state.clients.variables.params)[0])[:clients] for r in (moved, stayed)]
    np.testing.assert_allclose(*rows, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(moved.loss, stayed.loss, rtol=1e-4)


# --- a disk that is full ---------------------------------------------------------------------------------------------


@contextlib.contextmanager
def full_disk():
    """No file of this process may grow beyond 300 bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_full_disk_leaves_checkpoints_whole(tmp_path, caplog):
    """The run ends with one error that says so, not with a hole; it goes on when there is room.

    Failed when errors of saving were swallowed, so that the run returned as if all were saved, and with the tracebacks
    of orbax's threads before the message.
    """
    folder = tmp_path / "checkpoints"
    train(folder, rounds=2)
    with full_disk(), pytest.raises(OSError, match=r"a checkpoint cannot be written to .*The last ones are whole"):
        train(folder, rounds=4)
    assert "Traceback" not in caplog.text
    assert outcome(train(folder, rounds=4)) == outcome(train(None, rounds=4))


def no_room(monkeypatch):
    """Only 1000 bytes are free."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(total=10**9, free=1000))


def no_folders(monkeypatch):
    """No folder can be made in a folder of checkpoints."""
    mkdir = os.mkdir

    def refuse(path, *mode, **where):
        if "checkpoints/" in str(path):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        mkdir(path, *mode, **where)

    monkeypatch.setattr(os, "mkdir", refuse)


@pytest.mark.parametrize(("full", "said"), [(no_room, "bytes, and 1,000 are free"), (no_folders, "No space left")])
def test_a_full_disk_does_not_keep_the_process(full, said, tmp_path, monkeypatch):
    """No thread is left to wait for a folder. Failed with six, which wait five minutes before the process can end."""
    folder = tmp_path / "checkpoints"
    train(folder, rounds=2)
    with monkeypatch.context() as patched:
        full(patched)
        with pytest.raises(OSError, match=said):
            train(folder, rounds=4)
    assert not [thread for thread in threading.enumerate() if type(thread).__module__.startswith("orbax.")]
    assert outcome(train(folder, rounds=4)) == outcome(train(None, rounds=4))


@pytest.mark.parametrize(("number", "way"), [
    (errno.ENOSPC, "make room and go on"),
    (errno.EACCES, "make the folder writable and go on"),
    (errno.EROFS, "make the folder writable and go on"),
    (errno.EIO, "put that right and go on"),
])  # fmt: skip
def test_what_to_do_about_a_folder_that_cannot_be_written(number, way, tmp_path, monkeypatch):
    """Said before the first round. Failed with "make room" for every error, after the rounds of one checkpoint."""
    mkdir, rounds = os.mkdir, []

    def refuse(path, *mode, **where):
        if str(tmp_path) in str(path) and "orbax" in str(path):
            raise OSError(number, os.strerror(number), str(path))
        mkdir(path, *mode, **where)

    monkeypatch.setattr(os, "mkdir", refuse)
    monkeypatch.setattr(fedamp_jax.driver.loop, "round", lambda *given: rounds.append(given))
    with pytest.raises(OSError, match=f"{os.strerror(number)}.*{way}"):
        train(tmp_path / "a", rounds=2)
    assert not rounds


def test_a_name_that_is_too_long(tmp_path):
    """Failed with the bare error of the operating system."""
    with pytest.raises(OSError, match=r"a checkpoint cannot be written to .*: give a shorter path"):
        train(tmp_path / ("n" * 256), rounds=1)


def test_odd_names_in_several_processes(tmp_path, monkeypatch):
    """Their folders would have different names. Failed without a word, until the run was to go on."""
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(ValueError, match=r"give a folder whose path has none of \* \? \[ \]"):
        checkpoint.Checkpoints(tmp_path / "[a]", None, 2)


def test_a_folder_that_is_still_written_to(tmp_path, monkeypatch):
    """What an unfinished save left is removed, even if a file is added meanwhile. Failed with "Directory not empty"."""
    unfinished = tmp_path / "3.orbax-checkpoint-tmp"
    unfinished.mkdir()
    late, rmdir = ["manifest.ocdbt"], os.rmdir

    def rmdir_too_early(path, **where):
        if late and "3.orbax" in str(path):
            (unfinished / late.pop()).touch()
        rmdir(path, **where)

    monkeypatch.setattr(os, "rmdir", rmdir_too_early)
    with checkpoint.opened(Checkpoint(tmp_path), {}, rows=4) as saved:
        saved.save(4, Run({"w": jnp.zeros(3)}, rejected=np.zeros(4, int)))
    assert not late and os.listdir(tmp_path) == ["4"]


def test_generators_of_an_optimizer_are_saved(tmp_path):
    """Gradient noise: a resumed run equals one that was not. Failed with "Cannot interpret 'key<fry>'"."""
    task = tiny_task()
    noisy = optax.chain(optax.add_noise(0.1, 0.5, 0), optax.sgd(0.1))
    algorithm = fedamp_jax.separate(task, fedamp_jax.Solver(noisy, epochs=1, batch_size=4, keep_optimizer=True))
    data = federation()

    def run(rounds, folder):
        return fedamp_jax.run(task, algorithm, data, data, rounds=rounds, progress=False,
                              checkpoint=Checkpoint(folder))  # fmt: skip

    run(1, tmp_path / "a")
    resumed, whole = run(2, tmp_path / "a"), run(2, tmp_path / "b")
    for a, b in zip(*(jax.tree.leaves(r.state.clients.variables) for r in (resumed, whole)), strict=True):
        np.testing.assert_array_equal(a, b)


# --- result files of the experiments ----------------------------------------------------------------------------------


def test_a_full_disk_leaves_results_whole(tmp_path):
    """The old file stays, nothing else does. Failed when the file itself was written to."""
    path = files.write_json({"methods": [1, 2]}, tmp_path / "results.json")
    before = path.read_bytes()
    with full_disk(), pytest.raises(OSError, match="File too large"):
        files.write_json({"methods": list(range(1000))}, path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["results.json"]


@pytest.mark.slow
def test_what_a_killed_process_left_is_written_over(tmp_path):
    """A process killed between writing and renaming leaves a file; the next to write `results.json` takes it away.

    Failed when the unfinished file was named after the process.
    """
    path, die = tmp_path / "results.json", "import os; os.replace = lambda *names: os._exit(9);"
    program = f"{die} from fedamp_jax.report import files; files.write_json(dict(a=1), {str(path)!r})"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    assert len(os.listdir(tmp_path)) == 1 and not path.exists()
    files.write_json({"a": 2}, path)
    assert os.listdir(tmp_path) == ["results.json"]
