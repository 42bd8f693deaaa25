"""Faulty clients harm nobody else and are named; files that nobody vouches for are refused."""

import os
import pickle
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Solver, data, report
from fedamp_jax.data import from_lists
from tests.registry import CLASSES, ENTRIES, FEATURES, federation, find, made, make, one_after_the_other, run_rounds

KEY = jax.random.key(7)
BAD = 4
# One of each kind of server; with NIGHTLY=1 all. (What NaN does to others, `test_algorithms.py` asks of all anyway.)
KINDS = [
    e for e in ENTRIES if os.environ.get("NIGHTLY") or e.name in {"fedavg", "fedamp", "scaffold", "apfl", "pflego"}
]


entry = one_after_the_other(KINDS)


def others(algorithm, state, clients):
    """Parameters of all but the faulty client, `[M - 1, D]`."""
    params = jax.jit(algorithm.personalize)(KEY, state, clients).params
    flat = np.concatenate([np.asarray(a).reshape(a.shape[0], -1) for a in jax.tree.leaves(params)], axis=1)
    return np.delete(flat, BAD, axis=0)


def exploding(clients):
    """Features of 1e20: the first step is finite, the loss is not for long, and in the end neither is the model."""
    return clients._replace(x=clients.x.at[BAD].mul(1e20))


def infinite(clients):
    return clients._replace(x=clients.x.at[BAD, 0, 0].set(jnp.inf))


def not_a_number(clients):
    return clients._replace(x=clients.x.at[BAD].set(jnp.nan))


@pytest.mark.parametrize("fault", [not_a_number, infinite])
def test_an_update_that_is_not_finite_is_as_good_as_none(entry, fault):
    """It is named, and the rest end where they end while that client is offline.

    Where the mean divides by all clients or weights see a client's last model (not `rejected_is_offline`) that is no
    equality: there the rest stay within what one absent client can do. Failed without the selection in
    `for_each_client`.
    """
    _, algorithm = made(entry)
    clients = federation()
    state, infos = run_rounds(algorithm, fault(clients))
    assert all(np.flatnonzero(info.rejected).tolist() == [BAD] for info in infos)
    got = others(algorithm, state, clients)
    absent = clients._replace(online=clients.online.at[BAD].set(False))
    wanted = others(algorithm, run_rounds(algorithm, absent)[0], absent)
    if entry.rejected_is_offline:
        np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)
    else:
        assert np.isfinite(got).all() and np.abs(got - wanted).max() < 1.0


def test_a_loss_that_explodes_stays_at_home(entry):
    """Features of 1e20: all others' models stay finite and learn. Failed when `all_finite` looked at the loss only."""
    _, algorithm = made(entry)
    clients = exploding(federation())
    state, infos = run_rounds(algorithm, clients, 4)
    assert np.isfinite(others(algorithm, state, clients)).all()
    losses = [np.delete(np.asarray(info.loss), BAD).mean() for info in infos]
    assert np.isfinite(losses).all()


def test_never_online_is_not_there(entry):
    """A client that is offline for the whole run has no influence: whatever its data are, the rest end alike.

    Failed when means were taken over all clients with weights by size, online or not.
    """
    _, algorithm = made(entry)
    clients = federation()
    absent = clients._replace(online=clients.online.at[BAD].set(False))
    garbage = absent._replace(x=absent.x.at[BAD].set(jnp.nan), y=absent.y.at[BAD].set(99))
    a, b = (others(algorithm, run_rounds(algorithm, c)[0], c) for c in (absent, garbage))
    np.testing.assert_array_equal(a, b)


def test_nobody_online_changes_nothing(entry):
    """All offline in the second of three rounds: as if there had been two rounds, with the keys of the first and third.

    Failed when a mean over nobody was zero and became the global model.
    """
    _, algorithm = made(entry)
    clients = federation()
    nobody = clients._replace(online=jnp.zeros_like(clients.online))
    state, _ = run_rounds(algorithm, clients, 1)
    state, (info,) = run_rounds(algorithm, nobody, 1, state=state, first=1)
    assert not np.asarray(info.rejected).any() and not np.asarray(info.epochs).any()
    before = others(algorithm, run_rounds(algorithm, clients, 1)[0], clients)
    np.testing.assert_array_equal(others(algorithm, state, clients), before)
    state, _ = run_rounds(algorithm, clients, 1, state=state, first=2)
    assert np.abs(others(algorithm, state, clients) - before).max() > 1e-4


def test_odd_clients_train_like_any_other(entry):
    """One sample, and all labels equal: nobody is rejected, everything is finite. Failed with statistics of a batch
    that divide by the number of examples less one.
    """
    _, algorithm = made(entry)
    clients = federation(sizes=(7, 3, 10, 1, 5, 10, 4, 6))
    clients = clients._replace(y=clients.y.at[2].set(1))
    state, infos = run_rounds(algorithm, clients)
    assert not any(np.asarray(info.rejected).any() for info in infos)
    assert np.isfinite(others(algorithm, state, clients)).all()


def test_without_the_client_is_as_without_its_row():
    """FedAvg with a client that is rejected in every round ends where the federation without that client ends.

    The others keep their ids, so they draw the same. Failed when keys followed positions.
    """
    _, algorithm = make(find("fedavg"))
    clients = federation()
    rest = np.delete(np.arange(8), BAD)
    fewer = jax.tree.map(lambda a: a[rest], clients)
    state, _ = run_rounds(algorithm, not_a_number(clients))
    alone, _ = run_rounds(algorithm, fewer)
    for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(alone.params)):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


def test_the_run_and_its_report_name_the_client():
    """`Run.rejected` counts rounds, results.json and report.html say who. Failed when only a total was kept."""
    task, algorithm = make(find("fedavg"))
    clients = federation()
    result = fedamp_jax.run(task, algorithm, not_a_number(clients), clients, rounds=3, progress=False)
    assert result.rejected.tolist() == [0, 0, 0, 0, 3, 0, 0, 0]
    entry = {**fedamp_jax.metrics.accuracy_summary(100.0 * result.accuracy.astype(np.float64), result.rounds),
             "rejected": {str(i): int(n) for i, n in enumerate(result.rejected) if n}, "loss": result.loss}  # fmt: skip
    results = {"experiment": "x", "dataset": "y", "created": "", "command": "", "settings": {}, "versions": {},
               "device": "", "clients": 8, "rounds": 3, "methods": {"FedAvg": entry}}  # fmt: skip
    assert "Rejected in FedAvg: client 4 (3 rounds)." in report.html(results, {})


# --- poisoned updates ------------------------------------------------------------------------------------------------


def liar(key, client, trained):
    noise = lambda a: 100 * jax.random.normal(key, a.shape, a.dtype)  # noqa: E731
    return jax.tree.map(lambda a: jnp.where(client.id == BAD, noise(a), a), trained)


def lying(name):
    """The task and the method with one client that lies."""
    return make(find(name), corrupt=liar)


@pytest.mark.parametrize("name", ["separate", "scaffold", "apfl"])
def test_what_is_corrupted_is_what_is_sent(name):
    """`Solver.corrupt` reaches the others of a method that averages, and of none that trains alone.

    Failed for SCAFFOLD and APFL while they built a solver of their own and dropped it.
    """
    clients = federation()
    results = [
        others(method, run_rounds(method, clients, 2)[0], clients) for _, method in (made(find(name)), lying(name))
    ]
    assert (np.abs(results[0] - results[1]).max() > 1e-3) == (name != "separate")


def test_attention_isolates_who_sends_noise():
    """FedAMP gives noise no weight at all; FedAvg's model is lost. Failed with all weights alike."""
    clients = federation()
    _, amp = lying("fedamp")
    _, infos = run_rounds(amp, clients, 3)
    xi = np.asarray(infos[-1].xi)
    assert np.delete(xi[:, BAD], BAD).max() < 1e-6 and xi[BAD, BAD] == pytest.approx(0.25)
    _, averaged = lying("fedavg")
    state, _ = run_rounds(averaged, clients, 3)
    assert np.abs(others(averaged, state, clients)).max() > 5


def test_infinite_weights_are_rejected():
    """Inf without any NaN, which training seldom leaves but a client may send. Failed when only NaN was looked for."""

    def infinite_sender(key, client, trained):
        return jax.tree.map(lambda a: jnp.where(client.id == BAD, jnp.inf, a), trained)

    _, averaged = make(find("fedavg"), corrupt=infinite_sender)
    state, (info,) = run_rounds(averaged, federation(), 1)
    assert np.flatnonzero(info.rejected).tolist() == [BAD]
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(state))


def test_corrupt_must_be_a_function():
    """Failed without the check: the error came from inside of a compiled round."""
    with pytest.raises(TypeError, match="corrupt must be a function"):
        Solver(optax.sgd(0.1), corrupt="sign")


# --- files that nobody vouches for -----------------------------------------------------------------------------------


class Bomb:
    """A pickle that leaves a mark when it is opened."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return (open, (str(self.mark), "w"))


@pytest.mark.parametrize("key", ["x_train", "extra"])
def test_a_pickle_in_an_npz_is_never_opened(key, tmp_path):
    """Neither as an array that is needed, nor as one that is not. Failed with `allow_pickle=True`."""
    arrays = {"x_train": np.zeros((2, 28, 28), np.uint8), "y_train": np.array([0, 1]),
              "x_test": np.zeros((2, 28, 28), np.uint8), "y_test": np.array([0, 1])}  # fmt: skip
    bomb = np.empty(1, object)
    bomb[0] = Bomb(tmp_path / "mark")
    np.savez(tmp_path / "mnist.npz", **{**arrays, key: bomb})
    if key == "extra":
        assert len(data.load("mnist", tmp_path).y_train) == 2
    else:
        with pytest.raises(ValueError, match="no npz file of plain arrays"):
            data.load("mnist", tmp_path)
    assert not (tmp_path / "mark").exists()


def test_a_pickle_under_the_name_of_an_npz_is_never_opened(tmp_path):
    """The whole file is a pickle. Failed with `allow_pickle=True`, which np.load then falls back to."""
    (tmp_path / "mnist.npz").write_bytes(pickle.dumps(Bomb(tmp_path / "mark")))
    with pytest.raises(ValueError, match="no npz file of plain arrays"):
        data.load("mnist", tmp_path)
    assert not (tmp_path / "mark").exists()


def test_members_of_an_npz_write_nowhere(tmp_path):
    """`../outside.npy` and `/tmp/...` in an npz: read by key, never unpacked. Failed with `ZipFile.extractall`."""
    folder = tmp_path / "in"
    folder.mkdir()
    np.savez(folder / "mnist.npz", x_train=np.zeros((1, 28, 28), np.uint8), y_train=[0],
             x_test=np.zeros((1, 28, 28), np.uint8), y_test=[0])  # fmt: skip
    with zipfile.ZipFile(folder / "mnist.npz", "a") as archive:
        archive.writestr("../outside.npy", b"x")
        archive.writestr(str(tmp_path / "absolute.npy"), b"x")
    before = sorted(tmp_path.rglob("*"))
    data.load("mnist", folder)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.9, 0.999])
def test_a_file_that_breaks_off_is_refused(cut, tmp_path):
    """Wherever it breaks off. Failed when zipfile's own error came out as it is."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "mnist.npz", x_train=rng.integers(0, 255, (9, 28, 28)).astype(np.uint8), y_train=np.arange(9),
             x_test=np.zeros((1, 28, 28), np.uint8), y_test=[0])  # fmt: skip
    content = (tmp_path / "mnist.npz").read_bytes()
    (tmp_path / "mnist.npz").write_bytes(content[: int(cut * len(content))])
    with pytest.raises(ValueError, match="no npz file of plain arrays"):
        data.load("mnist", tmp_path)


def test_a_changed_byte_is_noticed(tmp_path):
    """zip's own checksum guards the pixels. Failed when zipfile's own error came out as it is."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "mnist.npz", x_train=rng.integers(0, 255, (9, 28, 28)).astype(np.uint8), y_train=np.arange(9),
             x_test=np.zeros((1, 28, 28), np.uint8), y_test=[0])  # fmt: skip
    content = bytearray((tmp_path / "mnist.npz").read_bytes())
    content[3000] ^= 1
    (tmp_path / "mnist.npz").write_bytes(content)
    with pytest.raises(ValueError, match="Bad CRC-32"):
        data.load("mnist", tmp_path)


def test_clients_of_nan_are_refused_before_they_are_clients():
    """The front door: `from_lists` names the client and the place. Failed without the check for NaN and Inf."""
    xs = [np.zeros((2, FEATURES)), np.full((2, FEATURES), np.nan)]
    with pytest.raises(ValueError, match=r"x of client 1 holds NaN.*\[0, 0\]"):
        from_lists(xs, [[0, 1], [1, 0]], classes=CLASSES)
