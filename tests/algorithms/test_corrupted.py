"""Faulty clients are named and harm no other; files of unknown origin are refused."""

import os
import pickle
import zipfile

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Solver, corrupted, data
from fedamp_jax.data import from_lists
from fedamp_jax.placement import InHostMemory, OnMesh, Placement, client_mesh
from tests.registry import (
    CLASSES,
    ENTRIES,
    FEATURES,
    federation,
    find,
    made,
    make,
    one_after_the_other,
    rows,
    run_rounds,
    tiny_task,
)

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
    return clients._replace(x=clients.x.at[rows(clients, BAD)].mul(1e20))


def infinite(clients):
    return clients._replace(x=clients.x.at[clients.start[BAD], 0].set(jnp.inf))


def not_a_number(clients):
    return clients._replace(x=clients.x.at[rows(clients, BAD)].set(jnp.nan))


def sent_by_bad(number):
    """A fault: the client `BAD` sends nothing but this number."""
    return lambda key, client, sent: jax.tree.map(lambda a: jnp.where(client.id == BAD, number, a), sent)


@pytest.mark.parametrize("fault", [not_a_number, infinite])
@pytest.mark.slow_variants
def test_an_update_that_is_not_finite_is_as_good_as_none(entry, fault):
    """It is named, and the rest end where they end while that client is offline.

    Where others received its last model in the same round (not `rejected_is_offline`) that is no equality: there the
    rest end where they end if the same client trains on sound data and its update is lost. Failed without the selection
    in `for_each_client`.
    """
    _, algorithm = made(entry)
    clients = federation()
    state, infos = run_rounds(algorithm, fault(clients))
    assert all(np.flatnonzero(info.rejected).tolist() == [BAD] for info in infos)
    got = others(algorithm, state, clients)
    if entry.rejected_is_offline:
        absent = clients._replace(online=clients.online.at[BAD].set(False))
        wanted = others(algorithm, run_rounds(algorithm, absent)[0], absent)
    else:
        wanted = others(algorithm, run_rounds(corrupted(algorithm, sent_by_bad(jnp.nan)), clients)[0], clients)
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("server", [{}, {"server_optimizer": optax.adam(0.05)}])
@pytest.mark.parametrize("kind", [not_a_number, infinite])
def test_a_rejected_client_is_offline_to_the_server_of_pflego(server, kind):
    """I / r of its steps counts the updates that are used, and a round without any takes no step.

    Failed with r as the number of clients online, and with a step of Adam's momentum in a round without updates.
    """
    algorithm = fedamp_jax.pflego(
        tiny_task(), Solver(optax.sgd(0.1), epochs=2, batch_size=4), beta=0.5, rho=0.2, **server
    )
    clients = federation()
    absent = clients._replace(online=clients.online.at[BAD].set(False))
    (a, _), (b, _) = run_rounds(algorithm, kind(clients)), run_rounds(algorithm, absent)
    chex.assert_trees_all_close(a, b, rtol=2e-5, atol=2e-6)
    lost = clients._replace(x=jnp.full_like(clients.x, jnp.nan))
    c, (info,) = run_rounds(algorithm, lost, 1, state=jax.tree.map(jnp.copy, b), first=3)
    assert info.rejected.all()
    chex.assert_trees_all_equal((c.model.shared, c.model.own, c.server), (b.model.shared, b.model.own, b.server))


def test_a_loss_that_explodes_harms_no_other(entry):
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
    own = rows(clients, BAD)
    garbage = absent._replace(x=absent.x.at[own].set(jnp.nan), y=absent.y.at[own].set(99))
    a, b = (others(algorithm, run_rounds(algorithm, c)[0], c) for c in (absent, garbage))
    np.testing.assert_array_equal(a, b)


def test_a_round_without_clients_changes_nothing(entry):
    """All offline in the second of three rounds: as if there had been two rounds, with the keys of the first and third.

    Failed when a mean over no client was zero and became the global model.
    """
    _, algorithm = made(entry)
    clients = federation()
    none = clients._replace(online=jnp.zeros_like(clients.online))
    state, _ = run_rounds(algorithm, clients, 1)
    state, (info,) = run_rounds(algorithm, none, 1, state=state, first=1)
    assert not np.asarray(info.rejected).any() and not np.asarray(info.epochs).any()
    before = others(algorithm, run_rounds(algorithm, clients, 1)[0], clients)
    np.testing.assert_array_equal(others(algorithm, state, clients), before)
    state, _ = run_rounds(algorithm, clients, 1, state=state, first=2)
    assert np.abs(others(algorithm, state, clients) - before).max() > 1e-4


def test_odd_clients_train_like_any_other(entry):
    """One sample, and all labels equal: no update is rejected, everything is finite. Failed with statistics of a batch
    that divide by the number of examples less one.
    """
    _, algorithm = made(entry)
    clients = federation(sizes=(7, 3, 10, 1, 5, 10, 4, 6))
    clients = clients._replace(y=clients.y.at[rows(clients, 2)].set(1))
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
    fewer = clients.select(rest)
    state, _ = run_rounds(algorithm, not_a_number(clients))
    alone, _ = run_rounds(algorithm, fewer)
    for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(alone.params)):
        np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-6)


# --- poisoned updates ------------------------------------------------------------------------------------------------


def liar(key, client, trained):
    def noise(a):
        return 100 * jax.random.normal(key, a.shape, a.dtype)

    return jax.tree.map(lambda a: jnp.where(client.id == BAD, noise(a), a), trained)


def lying(name):
    """The method with one client that lies."""
    return corrupted(made(find(name))[1], liar)


@pytest.mark.parametrize(
    "name", ["scaffold", *(pytest.param(n, marks=pytest.mark.slow) for n in ("separate", "apfl", "pflego", "fedrep"))]
)
def test_what_is_corrupted_is_what_is_sent(name):
    """It reaches the others of a method that averages, and of none that trains alone.

    Failed for SCAFFOLD and APFL when a solver carried the fault, and they built a solver of their own without it.
    """
    clients = federation()
    honest, dishonest = (
        others(method, run_rounds(method, clients, 2)[0], clients) for method in (made(find(name))[1], lying(name))
    )
    assert (np.abs(honest - dishonest).max() > 1e-3) == (name != "separate")


def test_what_honest_clients_send_arrives_as_it_is():
    """A fault that changes nothing leaves results bit for bit. Failed when it drew from the round's own key."""
    _, algorithm = made(find("fedavg"))
    same = corrupted(algorithm, lambda key, client, sent: sent)
    (a, _), (b, _) = run_rounds(algorithm, federation()), run_rounds(same, federation())
    chex.assert_trees_all_equal(a, b)


@pytest.mark.slow
def test_fine_tuning_is_not_corrupted():
    """A client that sends poison keeps a model for itself; a rate that is 0 after the first round leaves the models.

    Failed when every fine-tuning was that of round 0, and when the fault was applied to it.
    """
    data = federation()

    def tuned(corrupt=None, **solver):
        solver = Solver(**{"optimizer": optax.sgd(0.1), "epochs": 1, **solver})
        base = fedamp_jax.ditto(tiny_task(), solver)  # its round lies within another state
        state, _ = run_rounds(base, data, 1)
        wrapped = fedamp_jax.fine_tuned(tiny_task(), solver, base=base)
        wrapped = wrapped if corrupt is None else corrupted(wrapped, corrupt)
        before, after = (jax.jit(a.personalize)(KEY, state, data).params["head"]["kernel"] for a in (base, wrapped))
        return np.abs(after - before).max(axis=(1, 2))

    assert (tuned() > 1e-3).all()
    assert (tuned(optimizer=lambda k: optax.sgd(jnp.where(k == 0, 0.1, 0.0))) == 0).all()

    def poison(key, client, sent):
        return jax.tree.map(lambda a: a + 1e3, sent)

    np.testing.assert_array_equal(tuned(poison), tuned())


def test_attention_isolates_a_client_that_sends_noise():
    """FedAMP gives noise no weight at all; FedAvg's model is lost. Failed with all weights alike."""
    clients = federation()
    amp = lying("fedamp")
    _, infos = run_rounds(amp, clients, 3)
    xi = np.asarray(infos[-1].xi)
    assert np.delete(xi[:, BAD], BAD).max() < 1e-6 and xi[BAD, BAD] == pytest.approx(0.25)
    averaged = lying("fedavg")
    state, _ = run_rounds(averaged, clients, 3)
    assert np.abs(others(averaged, state, clients)).max() > 5


@pytest.mark.parametrize(
    "placement", ["one device", *(pytest.param(p, marks=pytest.mark.slow) for p in ("mesh", "host"))]
)
def test_infinite_weights_are_rejected(placement):
    """Inf without any NaN, which training seldom leaves but a client may send, wherever the clients are.

    Failed when only NaN was looked for.
    """
    places = {"one device": lambda: Placement(), "mesh": lambda: OnMesh(mesh=client_mesh(3)),
              "host": lambda: InHostMemory(device=jax.devices()[5], chunk=3)}  # fmt: skip
    data = places[placement]().place(federation())
    averaged = corrupted(made(find("fedavg"))[1], sent_by_bad(jnp.inf))
    state = data.placement.init(averaged, KEY, data)
    state, info = fedamp_jax.round(averaged, state, data, KEY)
    assert np.flatnonzero(info.rejected).tolist() == [BAD]
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(state))


# --- files of unknown origin ----------------------------------------------------------------------------------------


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
        with pytest.raises(ValueError, match="not an npz file of plain arrays"):
            data.load("mnist", tmp_path)
    assert not (tmp_path / "mark").exists()


def test_a_pickle_under_the_name_of_an_npz_is_never_opened(tmp_path):
    """The whole file is a pickle. Failed with `allow_pickle=True`, which np.load then falls back to."""
    (tmp_path / "mnist.npz").write_bytes(pickle.dumps(Bomb(tmp_path / "mark")))
    with pytest.raises(ValueError, match="not an npz file of plain arrays"):
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
    with pytest.raises(ValueError, match="not an npz file of plain arrays"):
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
    """`from_lists` names the client and the place. Failed without the check for NaN and Inf."""
    xs = [np.zeros((2, FEATURES)), np.full((2, FEATURES), np.nan)]
    with pytest.raises(ValueError, match=r"x of client 1 has NaN.*\[0, 0\]"):
        from_lists(xs, [[0, 1], [1, 0]], classes=CLASSES)


def test_a_client_without_examples_counts_for_nothing(entry):
    """Though it says that it is online: the others end as if it were offline, and it is not counted as trained.

    Failed when its initial model was mixed into those of others.
    """
    _, algorithm = made(entry)
    clients = federation()
    empty = clients._replace(size=clients.size.at[BAD].set(0))
    absent = empty._replace(online=clients.online.at[BAD].set(False))

    def copied():
        return algorithm.init(KEY, empty)

    (a, info), (b, _) = (fedamp_jax.round(algorithm, copied(), c, KEY) for c in (empty, absent))
    chex.assert_trees_all_equal(a, b)
    assert info.epochs[BAD] == 0 and not info.rejected.any()


@pytest.mark.slow
def test_a_candidate_without_a_loss_harms_no_other():
    """FedFomo: one model's validation loss is NaN everywhere, and the others are weighed as without it.

    Failed when NaN reached the sums of all rows, so that everybody stayed alone.
    """
    task = tiny_task()
    worst = task._replace(
        loss=lambda v, b, k: (
            task.loss(v, b, k)[0] + jnp.where(v.params["head"]["bias"][0] > 50, jnp.nan, 0.0),
            v.stats,
        )
    )
    algorithm = fedamp_jax.fedfomo(worst, Solver(optax.sgd(0.1), epochs=1), validation=0.3)
    clients = federation()
    state, _ = run_rounds(algorithm, clients, 2)
    bias = state.clients.variables.params["head"]["bias"].at[BAD].set(100.0)
    params = {**state.clients.variables.params, "head": {**state.clients.variables.params["head"], "bias": bias}}
    variables = state.clients.variables._replace(params=params)
    state = state._replace(clients=state.clients._replace(variables=variables))
    _, info = algorithm.round(KEY, state, clients)
    rest = np.delete(np.asarray(info.xi), BAD, axis=0)
    assert np.isfinite(np.asarray(info.xi)).all() and (rest[:, BAD] == 0).all()
    assert (np.delete(rest, BAD, axis=1) * ~np.eye(len(rest), dtype=bool) > 0).any()


def test_noise_on_the_way_does_not_reach_what_stays_at_home():
    """`Placement(transmit=...)` is for updates that are sent. Failed when fine-tuned models were noisy, too."""
    base = made(find("fedavg"))[1]
    tuned = fedamp_jax.fine_tuned(tiny_task(), Solver(optax.sgd(0.1), epochs=1), base=base)
    data = federation()
    state, _ = run_rounds(base, data, 1)
    noisy = data._replace(
        placement=fedamp_jax.Placement(transmit=lambda key, client, sent: jax.tree.map(jnp.zeros_like, sent))
    )
    chex.assert_trees_all_equal(*(tuned.personalize(KEY, state, d) for d in (data, noisy)))
