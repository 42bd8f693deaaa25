"""Clients that keep their data: what crosses, what happens if a client or the server is lost, what is refused."""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Checkpoint, silos
from fedamp_jax.placement.divided import RemoteState
from fedamp_jax.placement.messages import Answer, Away, read, written
from tests import registry
from tests.registry import find, made

SIZES = (7, 3, 7, 1)
SEED = 3


def data():
    return tuple(registry.federation(sizes=SIZES, seed=seed) for seed in (0, 1))


def clients(task, algorithm, folder=None):
    train, test = data()
    return [
        silos.Silo(task, algorithm, train.select([i]), test.select([i]), folder=folder and folder / str(i))
        for i in range(len(SIZES))
    ]


def run(task, algorithm, train, test, rounds=3, **other):
    return fedamp_jax.run(task, algorithm, train, test, rounds=rounds, seed=SEED, progress=False, **other)


class Watched(silos.InProcess):
    """Counts what crosses, and may change answers."""

    def __init__(self, silos, change=lambda i, message, answer: answer):
        super().__init__(silos)
        self.change, self.crossed = change, []

    def __call__(self, messages):
        answers = super().__call__(messages)
        for i, message in messages.items():
            down = sum(a.nbytes for group in (message.rows, message.whole) for a in group.values())
            up = sum(a.nbytes for a in answers[i].rows.values()) if isinstance(answers[i], Answer) else 0
            self.crossed.append((message.program, i, down, up))
        changed = {i: self.change(i, messages[i], answer) for i, answer in answers.items()}
        return {i: answer for i, answer in changed.items() if answer is not None}


@pytest.mark.parametrize(
    "name", ["fedamp", *(pytest.param(n, marks=pytest.mark.slow) for n in ("fedavg", "scaffold", "pflego"))]
)
def test_what_crosses_is_what_traffic_says(name):
    """To the byte, for each client and round. Failed when a global model was sent once for each of its uses."""
    task, algorithm = made(find(name))
    there = Watched(clients(task, algorithm))
    train, test = there.connect(seed=SEED)
    run(task, algorithm, train, test, rounds=2)
    sent = fedamp_jax.traffic(algorithm, data()[0])
    assert there.silos[1].sends == sent
    for i in range(len(SIZES)):
        down, up = (sum(c[k] for c in there.crossed if c[:2] == ("compiled_round", i)) for k in (2, 3))
        assert (down, up) == (2 * sent.down, 2 * sent.up)


def test_the_server_holds_no_example_and_no_private_leaf():
    """Failed with blanks [M, ...] in their places, which take the memory of all clients."""
    task, algorithm = made(find("fedper"))
    train, test = silos.InProcess(clients(task, algorithm)).connect(seed=SEED)
    result = run(task, algorithm, train, test, rounds=1)
    assert isinstance(result.state, RemoteState)
    assert len(train.y) == len(jax.tree.leaves(train.x)[0]) == 0
    assert {a.shape[0] for a in jax.tree.leaves(result.state.own)} == {0}
    assert int(result.state.round) == 1


def absent_in(number, i):
    """A simulation's fault: client i's update of a round is NaN."""

    def lost(key, client, update):
        return jax.tree.map(
            lambda a: jnp.where(client.id == i, jnp.nan, a) if jnp.issubdtype(a.dtype, jnp.floating) else a, update
        )

    return lost


@pytest.mark.parametrize(
    "name",
    ["fedamp", *(pytest.param(n, marks=pytest.mark.slow) for n in ("fedavg", "ditto", "scaffold", "fedper"))],
)  # fmt: skip
def test_a_lost_answer_counts_as_rejected(name, tmp_path):
    """Client 1's answer of round 2 is lost, then the server and all clients are started anew: as in the simulation in
    which that client's update was rejected.

    Failed when a client went on from its newest state, and not from that which the server has of it.
    """
    task, algorithm = made(find(name))
    train, test = data()
    state = run(task, algorithm, train, test, rounds=1).state
    faulty = fedamp_jax.Placement(transmit=absent_in(2, 1))
    with pytest.warns(RuntimeWarning, match="client 1"):
        state = run(task, algorithm, train, test, rounds=2, state=state, placement=faulty).state
    expected = run(task, algorithm, train, test, rounds=3, state=state, placement=fedamp_jax.Placement())

    def lose(i, message, answer):
        return None if (i, message.made) == (1, 2) else answer

    check = Checkpoint(tmp_path / "server", every=1)
    there = Watched(clients(task, algorithm, tmp_path), lose)
    lost = pytest.warns(RuntimeWarning, match="client 1 does not count in round 2: its answer did not come")
    with pytest.warns(RuntimeWarning, match="Run.rejected"), lost:
        run(task, algorithm, *there.connect(seed=SEED), rounds=2, checkpoint=check)
    again = silos.InProcess(clients(task, algorithm, tmp_path))
    found = run(task, algorithm, *again.connect(seed=SEED), rounds=3, checkpoint=check)
    assert found.rejected.tolist() == [0, 1, 0, 0]
    np.testing.assert_allclose(found.accuracy[-1], expected.accuracy[-1], atol=1e-6)
    np.testing.assert_allclose(found.loss[-1], expected.loss[-1], rtol=1e-5)


BAD = {
    "a wrong shape": (lambda a: a[:, :-1], "in place of float32"),
    "a wrong dtype": (lambda a: a.astype(np.float64), "is float64"),
    "a number that is not finite": (lambda a: np.full_like(a, np.nan), "not finite"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_answer_is_discarded_by_name(kind):
    """The others go on. Failed when an answer was used as it came."""
    change, match = BAD[kind]
    task, algorithm = made(find("fedavg"))

    def bad(i, message, answer):
        if (i, message.made) != (2, 1):
            return answer
        large = max(answer.rows, key=lambda v: answer.rows[v].size)
        return Answer({**answer.rows, large: change(answer.rows[large])})

    there = Watched(clients(task, algorithm), bad)
    named = pytest.warns(RuntimeWarning, match=f"client 2 does not count in round 1: .*{match}")
    with pytest.warns(RuntimeWarning, match="Run.rejected"), named:
        result = run(task, algorithm, *there.connect(seed=SEED), rounds=2)
    assert result.rejected.tolist() == [0, 0, 1, 0]
    assert np.isfinite(np.asarray(result.state.params["body"]["kernel"])).all()


def test_another_program_is_refused():
    """A client with another learning rate. Failed when a fingerprint was of the shapes alone."""
    task, algorithm = made(find("fedavg"))
    _, other = made(find("fedavg"), optimizer=optax.adam(0.06))
    there = silos.InProcess([*clients(task, algorithm)[:3], clients(task, other)[3]])
    with pytest.raises(RuntimeError, match="client 3 refuses: the server's compiled_round has the fingerprint"):
        run(task, algorithm, *there.connect(seed=SEED), rounds=1)


def test_a_state_that_is_not_kept_is_refused(tmp_path):
    """The server goes back two rounds, to an older checkpoint. Failed when a client went on from its newest state."""
    task, algorithm = made(find("ditto"))
    there = silos.InProcess(clients(task, algorithm, tmp_path))
    train, test = there.connect(seed=SEED)
    early = run(task, algorithm, train, test, rounds=1).state
    early = jax.tree.map(jnp.copy, early)
    run(task, algorithm, train, test, rounds=4, state=early)
    with pytest.raises(RuntimeError, match=r"after round 1, but it keeps those after \[2, 3, 4\]"):
        run(task, algorithm, train, test, rounds=4, state=early)


def test_a_folder_of_another_run_is_refused(tmp_path):
    task, algorithm = made(find("fedavg"))
    run(task, algorithm, *silos.InProcess(clients(task, algorithm, tmp_path)).connect(seed=SEED), rounds=1)
    with pytest.raises(silos.Refused, match="another run, method or place"):
        silos.InProcess(clients(task, algorithm, tmp_path)).connect(seed=4)


def test_nobody_answers():
    """A round without any answer ends the run and is not one of a method. Failed when it counted as all rejected."""
    task, algorithm = made(find("fedavg"))
    there = Watched(clients(task, algorithm), lambda i, message, answer: TimeoutError("no answer in 300 s"))
    with pytest.raises(RuntimeError, match="no client answers in round 1; client 0: TimeoutError: no answer in 300 s"):
        run(task, algorithm, *there.connect(seed=SEED), rounds=1)


def test_who_is_away_needs_no_warning():
    """A client that the transport knows to be away, in two rounds. Failed with a warning in each."""
    task, algorithm = made(find("fedavg"))
    there = Watched(clients(task, algorithm), lambda i, message, answer: Away() if i == 1 else answer)
    train, test = there.connect(seed=SEED)
    online = jnp.array([i != 1 for i in range(train.clients)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = run(task, algorithm, train._replace(online=online), test, rounds=2)
    assert np.isnan(result.accuracy[:, 1]).all()
    assert np.isfinite(np.delete(result.accuracy, 1, axis=1)).all()


def test_distances_of_models_that_the_server_has():
    """FedAMP's, for a snapshot. Failed when whatever had no state was refused."""
    task, algorithm = made(find("fedamp"))
    train, test = data()
    snapshots = fedamp_jax.Snapshots([2], fedamp_jax.algorithms.fedamp.distances)
    whole = run(task, algorithm, train, test, rounds=2, snapshots=snapshots)
    there = silos.InProcess(clients(task, algorithm))
    found = run(task, algorithm, *there.connect(seed=SEED), rounds=2, snapshots=snapshots)
    np.testing.assert_allclose(found.snapshot_distances, whole.snapshot_distances, rtol=1e-5, atol=1e-6)
    models = jax.tree.map(jnp.asarray, algorithm.personalize(jax.random.key(0), whole.state, train))
    with pytest.raises(ValueError, match="evaluate their own models"):
        fedamp_jax.evaluate(task, models, there.connect(seed=SEED)[0])


def test_what_the_server_refuses():
    task, algorithm = made(find("fedavg"))
    train, test = silos.InProcess(clients(task, algorithm)).connect(seed=SEED)
    with pytest.raises(ValueError, match="run with the same seed"):
        fedamp_jax.run(task, algorithm, train, test, rounds=1, seed=4, progress=False)
    with pytest.raises(ValueError, match="must not have"):
        train.placement.place(data()[0])
    key = jax.random.key(SEED)
    state = train.placement.init(algorithm, key, train)
    with pytest.raises(TypeError, match="cannot be part of a compiled program"):
        jax.jit(lambda s: fedamp_jax.round(algorithm, s, train, key))(state)
    first = clients(task, algorithm)[0].kind
    with pytest.raises(ValueError, match="an example of client 1 is"):
        silos.connect([first, first._replace(x=["float32", [4]])], lambda messages: {})


def test_what_a_silo_refuses(tmp_path):
    task, algorithm = made(find("fedavg"))
    train, test = data()
    with pytest.raises(ValueError, match="must be the data of one client, got 4"):
        silos.Silo(task, algorithm, train, test)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="is a file"):
        silos.Silo(task, algorithm, train.select([0]), test.select([0]), folder=tmp_path / "file")
    silo = clients(task, algorithm)[0]
    message = silos.Message("compiled_round", 1, 1, "", 0, 1, {}, {})
    with pytest.raises(silos.Refused, match="not admitted"):
        silo.answer(message)
    silos.InProcess([silo]).connect()
    with pytest.raises(silos.Refused, match=r"no program 'os\.system'"):
        silo.answer(message._replace(program="os.system"))
    with pytest.raises(silos.Refused, match="fingerprint"):
        silo.answer(message)
    fingerprint = silo._cut("compiled_round")[0].fingerprint
    with pytest.raises(ValueError, match="1 exchanges, but this is number 2"):
        silo.answer(message._replace(fingerprint=fingerprint, exchange=2))
    with pytest.raises(ValueError, match="came in place of"):
        silo.answer(message._replace(fingerprint=fingerprint))


def test_bfloat16_on_the_way():
    """Half of the bytes, and nearly the same losses. Accuracies are not rounded.

    Failed with float16's bits read as bfloat16's, and with accuracies in bfloat16.
    """
    task, algorithm = made(find("fedamp"))
    train, test = data()
    whole = run(task, algorithm, train, test)
    found = run(task, algorithm, *silos.InProcess(clients(task, algorithm)).connect(seed=SEED, dtype="bfloat16"))
    np.testing.assert_allclose(found.loss, whole.loss, rtol=0.02)
    assert not np.array_equal(found.loss, whole.loss)
    right = found.accuracy * np.array(SIZES)
    np.testing.assert_allclose(right, np.round(right), atol=1e-5)


@pytest.mark.parametrize(
    "array",
    [jnp.arange(6.0).reshape(2, 3), jnp.ones((2, 3), jnp.bfloat16), jnp.float32(3), jnp.array([True]),
     jax.random.split(jax.random.key(3))],
    ids=["float32", "bfloat16", "0-d", "bool", "keys"],
)  # fmt: skip
@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_arrays_arrive_as_they_were(array, dtype):
    """Failed for bfloat16, which NumPy cannot write, and for arrays without axes, which became vectors."""
    sent = written(array, dtype)
    assert sent.dtype.kind in "fiub"
    found = read(sent, array, dtype)
    assert (found.shape, found.dtype) == (array.shape, array.dtype)
    assert bool(jnp.all(found == array))


def test_adapters_of_a_pretrained_model():
    """The base is on both sides and is never sent; another base is another program.

    Failed when constants of a program were no part of its fingerprint.
    """
    whole = fedamp_jax.models.mlp(registry.CLASSES, shape=(registry.FEATURES,), hidden=(40,))
    task, other = (fedamp_jax.models.adapted(whole, whole.init(jax.random.key(i)), rank=2) for i in (0, 1))
    solver = fedamp_jax.Solver(optax.sgd(0.1), epochs=2, batch_size=4)
    algorithm = fedamp_jax.fedamp(task, solver, sigma=1.0, self_weight=0.5)
    train, test = data()
    whole_run = run(task, algorithm, train, test)
    there = Watched(clients(task, algorithm))
    found = run(task, algorithm, *there.connect(seed=SEED))
    np.testing.assert_allclose(found.loss, whole_run.loss, rtol=1e-5)
    own = sum(4 * a.size for a in jax.tree.leaves(task.init(jax.random.key(0)).params))
    assert max(down for program, _, down, _ in there.crossed if program == "compiled_round") < own + 200
    elsewhere = fedamp_jax.fedamp(other, solver, sigma=1.0, self_weight=0.5)
    mixed = silos.InProcess([*clients(task, algorithm)[:3], clients(other, elsewhere)[3]])
    with pytest.raises(RuntimeError, match="client 3 refuses"):
        run(task, algorithm, *mixed.connect(seed=SEED), rounds=1)
