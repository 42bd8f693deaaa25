"""`run`: what it does in which order, what it records, and what it refuses."""

import functools
import gc
import itertools
import logging
import os
import re
import signal
import threading

import chex
import jax
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Checkpoint, Participation, Placement
from fedamp_jax.driver import history, progress
from fedamp_jax.driver.checkpoint import Checkpoints
from fedamp_jax.driver.rounds import compiled_round
from fedamp_jax.driver.signals import StopOnSignal
from fedamp_jax.placement import InHostMemory, OnMesh, client_mesh
from tests.registry import CLASSES, federation, find, made

HALF = Participation(0.5)


def test_run_is_the_loop_written_out():
    """State, accuracies and losses are those of `round` and `evaluate` called by hand with the same keys.

    Failed with the round's key used for who takes part as well.
    """
    task, algorithm = made(find("fedamp"), epochs=(1, 3))
    clients = federation()
    result = fedamp_jax.run(task, algorithm, clients, clients, rounds=3, seed=5, participation=HALF, progress=False)
    key = jax.random.key(5)
    state = algorithm.init(key, clients)
    for k in range(3):
        key_online, key_round, key_use = jax.random.split(jax.random.fold_in(key, k), 3)
        online = HALF.online(key_online, clients)
        assert int(online.sum()) == 4
        state, info = fedamp_jax.round(algorithm, state, clients._replace(online=online), key_round)
        models = jax.jit(algorithm.personalize)(key_use, state, clients)
        np.testing.assert_array_equal(result.accuracy[k], fedamp_jax.evaluate(task, models, clients))
        assert result.loss[k] == pytest.approx(float(info.loss[online].mean()), rel=1e-6)
    chex.assert_trees_all_equal(result.state, state)
    np.testing.assert_array_equal(result.xi, info.xi)


def test_the_order_of_the_clients_changes_nothing():
    """Clients in another order take part in the same rounds and end where they did.

    Failed when who takes part followed the rows and not `id`.
    """
    task, algorithm = made(find("fedamp"), epochs=(1, 3))
    clients, order = federation(), np.array([3, 0, 7, 5, 1, 6, 2, 4])
    moved = clients.select(order)
    settings = {"rounds": 3, "participation": Participation(0.5, drop_rate=0.25), "progress": False}
    a, b = (fedamp_jax.run(task, algorithm, some, some, **settings) for some in (clients, moved))
    np.testing.assert_allclose(a.xi[np.ix_(order, order)], b.xi, atol=1e-5)
    chex.assert_trees_all_close(jax.tree.map(lambda x: x[order], a.state.clients), b.state.clients, atol=1e-5)


def test_same_seed_same_run():
    """Bit for bit; another seed is another run. Failed with keys drawn from the time."""
    task, algorithm = made(find("fedavg"), epochs=(1, 3))
    clients = federation()
    some = Participation(drop_rate=0.25)
    a, b, c = (
        fedamp_jax.run(task, algorithm, clients, clients, rounds=3, seed=s, participation=some, progress=False)
        for s in (1, 1, 2)
    )
    chex.assert_trees_all_equal(a.state, b.state)
    assert a.loss == b.loss != c.loss
    np.testing.assert_array_equal(a.accuracy, b.accuracy)


def test_evaluations_are_recorded_when_asked_for():
    """Every third round and the last. Failed without the last round."""
    task, algorithm = made(find("separate"))
    clients = federation()

    def seen(one):
        return {"online": float((one.info.epochs > 0).sum())}

    result = fedamp_jax.run(task, algorithm, clients, clients, rounds=7, evaluate_every=3, observe=seen, progress=False)
    assert result.rounds == [3, 6, 7] and result.accuracy.shape == (3, 8) and len(result.loss) == 3
    assert result.observed == {"online": [8.0, 8.0, 8.0]} and result.xi is None
    assert 0 < result.first_seconds <= result.seconds


def test_compiling_again_is_no_round(tmp_path, monkeypatch):
    """The first round of each start compiles, and is left out of the seconds per round.

    Failed with the first round of the first start alone.
    """
    task, algorithm = made(find("separate"))
    clients, clock = federation(), itertools.count()
    monkeypatch.setattr("fedamp_jax.driver.loop.time.perf_counter", lambda: float(next(clock)))
    for rounds in (3, 6):
        saving = Checkpoint(tmp_path / "there", 1)
        result = fedamp_jax.run(task, algorithm, clients, clients, rounds=rounds, checkpoint=saving, progress=False)
    assert (result.starts, result.seconds, result.first_seconds) == (2, 6.0, 2.0)
    assert result.seconds_per_round == 1.0
    single = fedamp_jax.run(task, algorithm, clients, clients, rounds=1, progress=False)
    assert single.seconds_per_round is None


def test_lines_where_there_is_no_terminal(capsys, monkeypatch):
    """In a pipe or a log: of evaluations, one every few seconds, and the last one.

    Failed with a bar, which is drawn once at the end there, with a line for every round, and with 1,800 lines for two
    minutes of work.
    """
    task, algorithm = made(find("separate"))
    clients = federation()
    for seconds, rounds in ((0.0, (2, 4, 5)), (60.0, (5,))):
        monkeypatch.setattr(progress, "SECONDS", seconds)
        fedamp_jax.run(task, algorithm, clients, clients, rounds=5, evaluate_every=2, progress="Separate")
        lines = capsys.readouterr().out.splitlines()
        assert [line.split(",")[0] for line in lines] == [f"Separate: round {k} of 5" for k in rounds]
        assert all(("left" in line) == (k < 5) for line, k in zip(lines, rounds, strict=True))


def test_the_placement_of_a_run():
    """The argument's, or else that of the data. Failed when data on a mesh were moved to one device."""
    task, algorithm = made(find("separate"))
    train = federation()
    spread = OnMesh(mesh=client_mesh(4)).place(train)
    run = functools.partial(fedamp_jax.run, task, algorithm, rounds=1, progress=False)

    def devices(result):
        return len(jax.tree.leaves(result.state.clients)[0].sharding.device_set)

    assert devices(run(train, train)) == 1
    assert devices(run(spread, spread)) == 4
    assert devices(run(train, train, placement=OnMesh(mesh=client_mesh(2)))) == 2


def test_a_second_run_compiles_nothing(caplog):
    """Failed with functions that were jitted within `run`: 0.8 s of compilation, for every method."""
    task, algorithm = made(find("fedamp"))

    def run():
        fedamp_jax.run(task, algorithm, federation(), federation(), rounds=1, progress=False)

    run()
    with caplog.at_level(logging.WARNING), jax.log_compiles():
        run()
    assert not [line for line in caplog.messages if "Finished XLA compilation" in line]


def test_a_label_of_the_progress_bar(capsys):
    """A string is the label; False draws nothing. Failed when a label switched the bar off."""
    task, algorithm = made(find("separate"))
    run = functools.partial(fedamp_jax.run, task, algorithm, federation(), federation(), rounds=1)
    run(progress=False)
    assert capsys.readouterr().out == ""
    run(progress="my method")
    assert "my method" in capsys.readouterr().out


# --- what is refused --------------------------------------------------------------------------------------------------

TASK, SEPARATE = made(find("separate"))
REFUSED = {
    "rounds": ({"rounds": 0}, ValueError, "rounds must be at least 1, got 0"),
    "half a round": ({"rounds": 1.5}, TypeError, "rounds must be a whole number, got 1.5"),
    "evaluate_every": ({"evaluate_every": 0}, ValueError, "evaluate_every must be at least 1"),
    "every": ({"checkpoint": Checkpoint("here", every=0)}, ValueError, "checkpoint.every must be at least 1"),
    "a path": ({"checkpoint": "here"}, TypeError, r"checkpoint must be of type Checkpoint .*Checkpoint\('folder'\)"),
    "a file": ({"checkpoint": Checkpoint(__file__)}, ValueError, "is a file: give a folder"),
    "fingerprint": (
        {"checkpoint": Checkpoint("here", fingerprint={"x": {1, 2}})}, TypeError, "fingerprint must hold what JSON"
    ),
    "participation": ({"participation": Participation(0.0)}, ValueError, "participation must be greater than 0"),
    "a share": ({"participation": 0.5}, TypeError, r"participation must be of type Participation .*ation\(0.5\)"),
    "drop_rate": ({"participation": Participation(1.0, 1.0)}, ValueError, r"drop_rate must be in \[0, 1\)"),
    "task": ({"task": SEPARATE}, TypeError, "task must be of type Task .*got a Algorithm"),
    "algorithm": ({"algorithm": fedamp_jax.separate}, TypeError, "algorithm must be of type Algorithm .*a function"),
    "placement": ({"placement": 2}, TypeError, "placement must be of type Placement .*OnMesh.*got 2"),
    "train": ({"train": [1]}, TypeError, "train must be of type Data .*got a list"),
    "snapshots": ({"snapshots": [1]}, TypeError, r"snapshots must be of type Snapshots .*Snapshots\(\[1, 10\]\)"),
    "labels": (
        {"train": federation()._replace(y=federation().y + 2)}, ValueError,
        "client 0 has labels .* to 4 in train, but 3 classes: labels must be in"
    ),
    "float labels": (
        {"test": federation()._replace(y=federation().y.astype(float))}, TypeError, "test.y must be int32"
    ),
    "size": (
        {"train": federation()._replace(size=federation().size + 1)}, ValueError,
        r"client 2 of train has start 10 and size 11.*longest is 10",
    ),
    "online": ({"train": federation()._replace(online=federation().online[:4])}, ValueError, "of the same clients"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_run_refuses(case, tmp_path, monkeypatch):
    """Before anything compiles. Each was accepted, or ended in an error that named nothing the user wrote.

    Failed for `checkpoint.every` with a ZeroDivisionError after the first round.
    """
    monkeypatch.chdir(tmp_path)
    changed, kind, message = REFUSED[case]
    given = {"task": TASK, "algorithm": SEPARATE, "train": federation(), "test": federation(), "rounds": 1}
    with pytest.raises(kind, match=message):
        fedamp_jax.run(**{**given, "progress": False, **changed})


def test_host_memory_is_for_a_single_device():
    """Data that are spread over several devices are refused. Failed with all of them gathered on the host."""
    train = OnMesh(mesh=client_mesh(8)).place(federation())
    with pytest.raises(ValueError, match="spread over several devices: InHostMemory is for a single one"):
        fedamp_jax.run(TASK, SEPARATE, train, train, rounds=1, placement=InHostMemory(device=jax.devices()[0]))


def test_a_finished_checkpoint_is_not_taken_for_a_new_run(tmp_path):
    """Only a fingerprint distinguishes the settings of an algorithm. Failed when the old result came back silently."""
    run = functools.partial(fedamp_jax.run, TASK, SEPARATE, federation(), federation(), rounds=1, progress=False)
    run(checkpoint=Checkpoint(tmp_path))
    with pytest.warns(UserWarning, match="has 1 rounds already: it is returned, and nothing is trained") as warned:
        run(checkpoint=Checkpoint(tmp_path))
    assert [w.filename for w in warned] == [__file__]


def test_training_that_diverges_everywhere_is_reported():
    """Failed when a run in which every update was discarded gave no warning."""
    task, algorithm = made(find("separate"), optimizer=optax.scale(float("nan")))
    with pytest.warns(RuntimeWarning) as warned:
        fedamp_jax.run(task, algorithm, federation(), federation(), rounds=1, progress=False)
    assert [w.filename for w in warned] == [__file__] * 2  # not a line of the package
    assert re.search("every client of a round.*lower the learning rate", str(warned[0].message))
    assert "of client 0 in 1, client 1 in 1" in str(warned[1].message)


@pytest.mark.parametrize("saves", [True, False])
def test_clients_that_are_rejected_are_named_once(saves, tmp_path):
    """By their ids, with the rounds of this call of `run`, most often rejected first; no warning without them.

    Failed without a word on a client that every round had rejected, with a warning in each round, with rows in place of
    ids, and when a run that goes on counted the rounds of the one before.
    """
    clients = federation()
    task = fedamp_jax.models.mlp(CLASSES, hidden=(4,), shape=clients.x.shape[1:])
    algorithm = fedamp_jax.separate(task, fedamp_jax.Solver(optax.sgd(0.1), epochs=1, batch_size=4))
    x, own = np.array(clients.x), slice(int(clients.start[2]), int(clients.start[3]))
    x[own] *= np.float32(1e25)
    clients = clients._replace(x=x, id=clients.id + 100)
    options = {"progress": False, "checkpoint": Checkpoint(tmp_path, 1, {"a": 1}) if saves else None}
    for rounds in (3, 5) if saves else (3,):
        with pytest.warns(RuntimeWarning, match="discarded") as warned:
            result = fedamp_jax.run(task, algorithm, clients, clients, rounds=rounds, **options)
        trained = rounds if rounds == 3 else 2
        assert [w.filename for w in warned] == [__file__]
        assert f"in {trained} rounds: of client 102 in {trained} (`Run.rejected`" in str(warned[0].message)
        assert np.isfinite(result.loss).all() and result.rejected.tolist() == [0, 0, rounds, 0, 0, 0, 0, 0]
    if saves:
        fedamp_jax.run(task, algorithm, clients, clients, rounds=5, **options)  # nothing is trained, nothing is said


def test_signals_on_windows_with_python_3_11(monkeypatch):
    """It has no `os.set_blocking`. Failed with an AttributeError at the start of every run."""
    monkeypatch.delattr(os, "set_blocking")
    monkeypatch.setattr(signal, "set_wakeup_fd", lambda fd, **options: -1)  # other systems insist on it
    with StopOnSignal() as asked:
        assert asked.signal == 0


def test_a_warning_names_a_few():
    """Fails if all clients are named, or those that were rejected least."""
    with pytest.warns(RuntimeWarning) as warned:
        history.warn_rejected(np.arange(10), 9, np.arange(10, 20))
    said = str(warned[0].message)
    assert (
        "of client 19 in 9, client 18 in 8, client 17 in 7, client 16 in 6, client 15 in 5, and 4 more clients ("
        in said
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("saves", [True, False])
def test_a_stopped_run_hands_over_what_it_did(number, saves, tmp_path):
    """Its history and a state that continues, bit for bit. Failed when only runs with a checkpoint heeded signals."""

    def stop(seen):
        if seen.round == 2:
            signal.raise_signal(number)

    clients = federation()
    start = functools.partial(fedamp_jax.run, TASK, SEPARATE, clients, clients, rounds=4, progress=False)
    handlers = {n: signal.signal(n, signal.default_int_handler) for n in (signal.SIGINT, signal.SIGTERM)}
    try:
        with pytest.raises(KeyboardInterrupt, match=f"stopped by {number.name} after round 2 of 4") as stopped:
            start(observe=stop, checkpoint=Checkpoint(tmp_path) if saves else None)
        assert signal.getsignal(number) is signal.default_int_handler
    finally:
        for n, handler in handlers.items():
            signal.signal(n, handler)
    error = stopped.value
    assert isinstance(error, fedamp_jax.Stopped) and (error.signal, error.done) == (number, 2)
    assert ("is saved" in str(error)) == saves
    whole, rest = start(), start(state=error.result.state)
    assert error.result.rounds == [1, 2] and rest.rounds == [3, 4]
    np.testing.assert_array_equal(np.concatenate([error.result.accuracy, rest.accuracy]), whole.accuracy)
    chex.assert_trees_all_equal(rest.state, whole.state)


# --- long runs --------------------------------------------------------------------------------------------------------


def resident():
    """Megabytes of memory that this process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads /proc")
@pytest.mark.slow
@pytest.mark.parametrize("rounds", [200, 2000])
def test_many_rounds_leave_nothing_behind(rounds, tmp_path, monkeypatch):
    """Memory, arrays, open files and threads are as after a quarter of the rounds, and nothing compiles after a tenth.

    Checkpoints are part of it. Failed with all rounds' infos kept (arrays), with a new jitted function per round
    (compilations), and with a thread left by each save.
    """
    save = Checkpoints.save

    def save_and_wait(self, done, result):  # a save in the background has threads and files of its own
        save(self, done, result)
        self._manager.wait_until_finished()

    monkeypatch.setattr(Checkpoints, "save", save_and_wait)
    task, algorithm = made(find("fedamp"), epochs=1)
    clients = federation()
    compiled, seen = [], []

    def on_event(event, duration, **_):
        compiled.extend([event] * event.endswith("backend_compile_duration"))

    def observe(evaluation):
        gc.collect()
        files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        seen.append((resident(), len(jax.live_arrays()), files, threads, len(compiled)))
        return {}

    jax.monitoring.register_event_duration_secs_listener(on_event)
    try:
        fedamp_jax.run(task, algorithm, clients, clients, rounds=rounds, evaluate_every=rounds // 20, observe=observe,
                       progress=False, participation=Participation(drop_rate=0.25),
                       checkpoint=Checkpoint(tmp_path / "checkpoints", every=rounds // 40))  # fmt: skip
    finally:
        jax.monitoring.unregister_event_duration_listener(on_event)
    memory, arrays, files, threads, compilations = np.array(seen).T
    assert compiled_round.count(algorithm.round) == 1
    assert compilations[-1] == compilations[1], "something compiled after a tenth of the rounds"
    # The lowest of the second quarter and of the last: there are enough saves before the first look for a pool of
    # threads to have its full size.
    parts = slice(4, 10), slice(-5, None)
    early, late = (np.array([a[part].min() for a in (memory, arrays, files, threads)]) for part in parts)
    assert (late <= early + [10, 2, 2, 2]).all(), f"{early} in the second quarter of the rounds, {late} in the last"


def test_placements_do_not_change_what_is_evaluated():
    """Accuracies on one device in chunks are those of all clients side by side."""
    task, algorithm = made(find("fedavg"))
    a, b = (
        fedamp_jax.run(task, algorithm, federation(), federation(), rounds=2, progress=False, placement=p)
        for p in (Placement(), Placement(chunk=3))
    )
    np.testing.assert_allclose(a.accuracy, b.accuracy, atol=1e-6)


def test_numbers_of_numpy_are_numbers(tmp_path):
    """With a checkpoint, whose settings are JSON. Failed with `fingerprint must hold what JSON can hold`."""
    fedamp_jax.run(TASK, SEPARATE, federation(), federation(), rounds=np.int64(1), seed=np.int64(3), progress=False,
                   evaluate_every=np.int32(1), participation=Participation(np.float32(0.5)),
                   checkpoint=Checkpoint(tmp_path))  # fmt: skip


def test_the_default_device_by_its_platform(monkeypatch):
    """`jax.default_device` also takes a name. Failed with an AttributeError."""
    with jax.default_device("cpu"):
        assert Placement().first_device.platform == "cpu"


def test_data_leave_the_host_memory():
    """For the device that trains. Failed when they stayed where they were, and every round with them."""
    device = jax.devices()[3]
    on_host = InHostMemory(device=device).place(federation())
    with jax.default_device(device):
        moved = Placement().place(on_host)
    assert {d for a in jax.tree.leaves(moved) for d in a.devices()} == {device}
