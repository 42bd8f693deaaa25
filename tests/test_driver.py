"""The loop: what it records, what decides who takes part, and that 2,000 rounds leave nothing behind."""

import functools
import gc
import logging
import os
import threading
import time

import jax
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import driver
from tests.registry import federation, find, make

EARLY, LATE = slice(4, 10), slice(-5, None)


def test_run_is_the_loop_written_out():
    """State, accuracies and losses are those of `round` and `evaluate` called by hand with the same keys.

    Failed with the round's key used for who takes part as well.
    """
    task, algorithm = make(find("fedamp"), epochs=(1, 3))
    clients = federation()
    result = fedamp_jax.run(task, algorithm, clients, clients, rounds=3, seed=5, participation=0.5, progress=False)
    key = jax.random.key(5)
    state = algorithm.init(key, clients)
    for k in range(3):
        key_online, key_round, key_use = jax.random.split(jax.random.fold_in(key, k), 3)
        online = fedamp_jax.sample_online(key_online, 8, 0.5)
        assert int(online.sum()) == 4
        state, info = fedamp_jax.round(algorithm, state, clients._replace(online=online), key_round)
        models = jax.jit(algorithm.personalize)(key_use, state, clients)
        np.testing.assert_array_equal(result.accuracy[k], fedamp_jax.evaluate(task, models, clients))
        assert result.loss[k] == pytest.approx(float(info.loss[online].mean()), rel=1e-6)
    for a, b in zip(jax.tree.leaves(result.state), jax.tree.leaves(state)):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(result.xi, info.xi)


def test_the_order_of_the_clients_changes_nothing():
    """Clients in another order take part in the same rounds and end where they did.

    Failed when who takes part followed the rows and not `id`.
    """
    task, algorithm = make(find("fedamp"), epochs=(1, 3))
    clients, order = federation(), np.array([3, 0, 7, 5, 1, 6, 2, 4])
    moved = jax.tree.map(lambda a: a[order], clients)
    a, b = (
        fedamp_jax.run(task, algorithm, some, some, rounds=3, participation=0.5, drop_rate=0.25, progress=False)
        for some in (clients, moved)
    )
    np.testing.assert_allclose(a.xi[np.ix_(order, order)], b.xi, atol=1e-5)
    for x, y in zip(jax.tree.leaves(a.state.clients), jax.tree.leaves(b.state.clients)):
        np.testing.assert_allclose(x[order], y, atol=1e-5)


def test_same_seed_same_run():
    """Bit for bit; another seed is another run. Failed with keys drawn from the time."""
    task, algorithm = make(find("fedavg"), epochs=(1, 3))
    clients = federation()
    a, b, c = (
        fedamp_jax.run(task, algorithm, clients, clients, rounds=3, seed=s, drop_rate=0.25, progress=False)
        for s in (1, 1, 2)
    )
    for x, y in zip(jax.tree.leaves(a.state), jax.tree.leaves(b.state)):
        np.testing.assert_array_equal(x, y)
    assert a.loss == b.loss != c.loss
    np.testing.assert_array_equal(a.accuracy, b.accuracy)


def test_evaluations_are_recorded_when_asked_for():
    """Every third round and the last; Failed without the last round."""
    task, algorithm = make(find("separate"))
    clients = federation()
    seen = lambda info: {"online": float((info.epochs > 0).sum())}  # noqa: E731
    result = fedamp_jax.run(task, algorithm, clients, clients, rounds=7, evaluate_every=3, observe=seen, progress=False)
    assert result.rounds == [3, 6, 7] and result.accuracy.shape == (3, 8) and len(result.loss) == 3
    assert result.observed == {"online": [8.0, 8.0, 8.0]} and result.xi is None
    assert 0 < result.first_seconds <= result.seconds


@pytest.mark.parametrize(
    ("change", "kind", "message"),
    [
        ({"rounds": 0}, ValueError, "rounds must be at least 1"),
        ({"rounds": 1.5}, TypeError, "rounds must be a whole number"),
        ({"evaluate_every": 0}, ValueError, "evaluate_every"),
        ({"checkpoint_every": 0}, ValueError, "checkpoint_every"),
        ({"participation": 0.0}, ValueError, "participation"),
        ({"drop_rate": 1.0}, ValueError, "drop_rate"),
        ({"fingerprint": {"x": {1, 2}}, "checkpoint_dir": "here"}, TypeError, "fingerprint must hold what JSON"),
    ],
)
def test_bad_arguments_are_named_before_anything_compiles(change, kind, message, tmp_path, monkeypatch):
    """Failed for `checkpoint_every` with a ZeroDivisionError after the first round."""
    monkeypatch.chdir(tmp_path)
    task, algorithm = make(find("separate"))
    clients = federation()
    with pytest.raises(kind, match=message):
        fedamp_jax.run(task, algorithm, clients, clients, **{"rounds": 2, "progress": False, **change})


@pytest.mark.parametrize("share", [0.01, 0.5, 1.0])
def test_shares_are_whole_numbers_of_clients(share):
    """At least one is invited, and everybody is in the long run. Failed with independent coin tosses."""
    drawn = np.stack([fedamp_jax.sample_online(jax.random.key(k), 10, share) for k in range(60)])
    assert set(drawn.sum(axis=1)) == {max(1, round(10 * share))}
    assert drawn.any(axis=0).all()


# --- long runs -------------------------------------------------------------------------------------------------------


def resident():
    """Megabytes of memory that this process holds."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads /proc")
def test_two_thousand_rounds_leave_nothing_behind(tmp_path):
    """Memory, arrays, open files and threads are as after 500 rounds, and nothing compiles after the first ones.

    Checkpoints are part of it. Failed with all rounds' infos kept (arrays), and with a new jitted function per round
    (compilations).
    """
    task, algorithm = make(find("fedamp"), epochs=1)
    clients = federation()
    compiled, seen, began = [], [], time.monotonic()

    def on_event(event, duration, **_):
        compiled.extend([event] * event.endswith("backend_compile_duration"))

    def observe(info):
        gc.collect()
        files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        seen.append((resident(), len(jax.live_arrays()), files, threads, len(compiled)))
        return {}

    jax.monitoring.register_event_duration_secs_listener(on_event)
    before = driver._round._cache_size()
    try:
        fedamp_jax.run(task, algorithm, clients, clients, rounds=2000, evaluate_every=100, observe=observe,
                       progress=False, drop_rate=0.25, checkpoint_dir=tmp_path / "checkpoints",
                       checkpoint_every=250)  # fmt: skip
    finally:
        jax.monitoring.unregister_event_duration_listener(on_event)
    memory, arrays, files, threads, compilations = np.array(seen).T
    assert driver._round._cache_size() == before + 1
    assert compilations[-1] == compilations[1], "something compiled after 200 rounds"
    # The lowest of rounds 500 to 1000 and of the last 500: what a save in the background holds comes and goes.
    early, late = (np.array([a[part].min() for a in (memory, arrays, files, threads)]) for part in (EARLY, LATE))
    assert (late <= early + [10, 2, 2, 2]).all(), f"{early} in rounds 500 to 1000, {late} in the last 500"
    print(f"{time.monotonic() - began:.0f} s; megabytes, arrays, files, threads: {early}, {late}")


def test_a_model_with_too_few_outputs_is_refused():
    """Its labels beyond the outputs counted as a loss of 0, and nobody was told."""
    task, algorithm = make(find("separate"))
    data = federation()
    more = data._replace(classes=data.classes.at[2].set(4))
    with pytest.raises(ValueError, match="the model has 3 outputs, but the data have 4 classes"):
        fedamp_jax.run(task, algorithm, more, more, rounds=1, progress=False)
    with pytest.raises(ValueError, match="the model has 3 outputs, but the data have 4 classes"):
        fedamp_jax.evaluate(task, algorithm.init(jax.random.key(0), data).clients.variables, more)


def test_arrays_of_the_user_stay_theirs():
    """A task whose `init` returns weights that it holds, run twice. Failed when a round gave them away."""
    task, _ = make(find("fedavg"))
    pretrained = task.init(jax.random.key(1))
    task = task._replace(init=lambda key: pretrained)
    solver = fedamp_jax.Solver(optax.sgd(0.1), epochs=1)
    for factory in (fedamp_jax.fedavg, fedamp_jax.scaffold, fedamp_jax.apfl, fedamp_jax.ditto, fedamp_jax.separate):
        fedamp_jax.run(task, factory(task, solver), federation(), federation(), rounds=1, progress=False)
    assert not any(a.is_deleted() for a in jax.tree.leaves(pretrained))


def test_numpy_data_and_traced_rounds():
    """`online` as NumPy makes it, and a round within `jit`. Failed with "no attribute 'committed'" on devices that tell
    their memory, and with "is_fully_addressable"; of FedAMP, when the weights of a trace were looked at.
    """
    task, algorithm = make(find("fedamp"))
    data = jax.tree.map(np.asarray, federation())
    fedamp_jax.run(task, algorithm, data, data, rounds=1, progress=False)
    state, key = algorithm.init(jax.random.key(0), federation()), jax.random.key(1)
    plain, _ = jax.jit(lambda s: fedamp_jax.round(algorithm, s, federation(), key))(state)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver.memory, "room", lambda: 1 << 40)
        again, _ = fedamp_jax.round(algorithm, state, federation()._replace(online=np.ones(8, bool)), key)
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_second_run_compiles_nothing(caplog):
    """Failed with functions that were jitted within `run`: 0.8 s of compilation, for every method."""
    task, algorithm = make(find("fedamp"))

    def run():
        fedamp_jax.run(task, algorithm, federation(), federation(), rounds=1, progress=False)

    run()
    with caplog.at_level(logging.WARNING), jax.log_compiles():
        run()
    assert not [line for line in caplog.messages if "Finished XLA compilation" in line]


def test_an_old_state_is_refused():
    """As when a cell of a notebook runs again. Failed with XLA's "Invalid buffer passed to Execute()"."""
    _, algorithm = make(find("separate"))
    state = algorithm.init(jax.random.key(0), federation())
    fedamp_jax.round(algorithm, state, federation(), jax.random.key(0))
    with pytest.raises(ValueError, match="given away to an earlier round: use the one that it returned"):
        fedamp_jax.round(algorithm, state, federation(), jax.random.key(0))


TASK, SEPARATE = make(find("separate"))
REFUSED = {
    "algorithm": ({"algorithm": fedamp_jax.separate}, "algorithm must be of type Algorithm .*got a function"),
    "mesh": ({"mesh": 2}, "mesh must be of type Mesh .*client_mesh.*got 2"),
    "offload_to": ({"offload_to": "cpu"}, r"offload_to must be of type Device .*jax.devices\(\).*got cpu"),
    "train": ({"train": [1]}, "train must be of type Data .*got a list"),
    "labels": ({"train": federation()._replace(y=federation().y + 2)}, "client 0 has labels .* to 4 in train, and 3"),
    "float labels": ({"test": federation()._replace(y=federation().y.astype(float))}, "test.y must be int32"),
    "size": ({"train": federation()._replace(size=federation().size + 1)}, r"train.size\[2\] is 11.*room for 10"),
    "online": ({"train": federation()._replace(online=federation().online[:4])}, "of the same clients"),
    "checkpoint": ({"checkpoint_dir": __file__}, "is a file: give a folder"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_run_refuses(case):
    """Each was accepted, or ended in an error that named nothing the user wrote."""
    changed, message = REFUSED[case]
    given = {"task": TASK, "algorithm": SEPARATE, "train": federation(), "test": federation(), "rounds": 1}
    with pytest.raises((TypeError, ValueError), match=message):
        fedamp_jax.run(**{**given, "progress": False, **changed})


def test_what_evaluate_refuses():
    """A state in place of its models, and one model in place of one for each client."""
    state = SEPARATE.init(jax.random.key(0), federation())
    with pytest.raises(TypeError, match=r"what algorithm.personalize.*gives, got a SeparateState"):
        fedamp_jax.evaluate(TASK, state, federation())
    with pytest.raises(ValueError, match=r"one model for each of 8 clients, leaves \[8, ...\]"):
        fedamp_jax.evaluate(TASK, TASK.init(jax.random.key(0)), federation())


def test_a_finished_checkpoint_is_not_taken_for_a_new_run(tmp_path):
    """Nothing tells the settings of another algorithm apart but a fingerprint. Failed when the old result came back in
    silence.
    """
    run = functools.partial(fedamp_jax.run, TASK, SEPARATE, federation(), federation(), rounds=1, progress=False)
    run(checkpoint_dir=tmp_path)
    with pytest.warns(UserWarning, match="has 1 rounds already: it is returned, and nothing is trained"):
        run(checkpoint_dir=tmp_path)


def test_parameters_other_than_float32_are_refused():
    """In bfloat16 a state came back as float32, or not, as the chunk was."""
    task, algorithm = make(find("separate"))
    half = task._replace(init=lambda key: jax.tree.map(lambda a: a.astype("bfloat16"), task.init(key)))
    with pytest.raises(TypeError, match=r"must be float32, got bfloat16.*compute_dtype"):
        fedamp_jax.run(half, algorithm, federation(), federation(), rounds=1, progress=False)


def test_training_that_all_diverges_is_told():
    """Failed when a run in which every update was thrown away was as silent as any."""
    task, algorithm = make(find("separate"), optimizer=optax.scale(float("nan")))
    with pytest.warns(RuntimeWarning, match="every client of a round.*lower the learning rate"):
        fedamp_jax.run(task, algorithm, federation(), federation(), rounds=1, progress=False)
