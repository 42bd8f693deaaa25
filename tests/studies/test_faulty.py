"""Faulty clients in experiments: what they send, whom it reaches, and what the results say of them."""

import json

import faulty
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedamp_jax
from fedamp_jax.report import run_page
from tests.registry import rows
from tests.small_experiments import command, method_entry, options_of, read, small_federation


def tiny_task():
    return fedamp_jax.models.mlp(2, hidden=(4,), shape=(3,))


def options(**changes):
    words = ("--rounds", 3, "--epochs", 1, "--sigma", 1, "--heur-sigma", 1)
    return options_of(faulty.EXPERIMENT, *words).replace(**changes)


def test_the_run_and_its_report_name_the_client():
    """`Run.rejected` counts rounds, results.json and report.html name the client. Failed when only a total was kept."""
    train, test, _ = small_federation()
    bad = train._replace(x=train.x.at[rows(train, 2)].set(jnp.nan))
    own = options()
    algorithm = fedamp_jax.fedavg(tiny_task(), own.training.solver())
    with pytest.warns(RuntimeWarning, match="of client 2 in 3 "):
        result = fedamp_jax.run(tiny_task(), algorithm, bad, test, rounds=3, progress=False)
    assert result.rejected.tolist() == [0, 0, 3, 0]
    rejected = {str(i): int(n) for i, n in enumerate(result.rejected) if n}
    entry = method_entry(100.0 * result.accuracy[-1], rejected=rejected, loss=result.loss, rounds=3)
    results = {"experiment": "x", "dataset": "y", "created": "", "command": "", "settings": {}, "versions": {},
               "device": "", "clients": 4, "rounds": 3, "methods": {"FedAvg": entry}}  # fmt: skip
    assert "Rejected in FedAvg: client 2 (3 rounds)." in run_page.html(results)


def test_what_faulty_clients_send():
    """Sign, scale and noise reach only faulty clients; integers stay. Failed with the sign of everybody flipped."""
    trained = {"w": jnp.array([1.0, -2.0]), "k": jnp.array([3])}
    client = small_federation().train

    def sent(kind, i):
        fault = faulty.Fault(jnp.array([False, True, False, False]), jnp.int32(kind))
        one = client.client(i)
        return faulty.corruption(fault)(jax.random.key(0), one, trained)

    for kind, wanted in ((0, [-1.0, 2.0]), (1, [10.0, -20.0]), (3, [1.0, -2.0])):
        np.testing.assert_allclose(sent(kind, 1)["w"], wanted)
        np.testing.assert_allclose(sent(kind, 0)["w"], trained["w"])
        assert sent(kind, 1)["k"].tolist() == [3]
    assert np.abs(np.asarray(sent(2, 1)["w"]) - trained["w"]).max() > 1e-3


@pytest.mark.slow
def test_absent_clients_are_offline_ones():
    """As in `fedamp_jax.run` on data in which the absent clients are offline, with others that drop out by chance.

    Failed with absent clients that stayed online, and with other keys than those of `run`.
    """
    own, task = options(participation=0.75, drop_rate=0.3, learning_rate=0.1), tiny_task()
    train, test, _ = federation = small_federation()
    algorithm = fedamp_jax.fedamp(task, own.training.solver(), sigma=1.0, self_weight=0.25)
    measure = faulty.trainer(algorithm, own, federation, task)
    share = fedamp_jax.Participation(0.75, 0.3)
    for absent in ([], [1]):
        gone = jnp.isin(jnp.arange(4), jnp.array(absent, int))
        accuracy, xi, rejected = measure(faulty.Fault(gone, jnp.int32(3)))
        rest = train._replace(online=~gone)
        plain = fedamp_jax.run(task, algorithm, rest, test, rounds=3, participation=share, progress=False)
        np.testing.assert_allclose(accuracy, plain.accuracy[-1], rtol=1e-6)
        np.testing.assert_allclose(xi, plain.xi, rtol=1e-4)
        assert not rejected.any()


def test_weight_to_faulty_clients():
    """Of what honest clients give to others, without what they keep. Failed with the diagonal counted."""
    xi = np.array([[0.6, 0.3, 0.1], [0.0, 1.0, 0.0], [0.2, 0.6, 0.2]])
    assert faulty.weight_to_bad(xi, np.array([False, True, False])) == pytest.approx(0.75)
    assert faulty.weight_to_bad(xi, np.array([True, False, False])) == pytest.approx(0.25)
    assert np.isnan(faulty.weight_to_bad(np.eye(3), np.array([True, False, False])))


def test_resuming_keeps_every_finished_method(tmp_path, monkeypatch):
    """Also those that come later in the tables than the one at which a resumed run stops. Failed when they were lost.

    Where nothing is left to measure, the results keep the time at which they were made.
    """
    entry = {
        "clean": 90.0, "attacks": {"sign": {"shares": [0.1], "accuracy": [80.0], "worst_client": [70.0],
        "weight_to_faulty": None, "rejected": [0]}}, "honest": [0], "seconds": 1.0,
    }  # fmt: skip
    words = ("--attacks", "sign", "--shares", "0.1", "--out", tmp_path)
    monkeypatch.setattr(faulty, "measure", lambda *_: entry)
    command(monkeypatch, faulty.main, *words, "--methods", "FedAMP", "FedAvg")

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(faulty, "measure", interrupted)
    with pytest.raises(SystemExit):
        command(monkeypatch, faulty.main, *words, "--methods", "APFL", "--resume")
    assert list(read(tmp_path)["methods"]) == ["FedAvg", "FedAMP"]
    written = {**read(tmp_path), "created": "2020"}
    (tmp_path / "results.json").write_text(json.dumps(written))
    command(monkeypatch, faulty.main, *words, "--methods", "FedAMP", "--resume")
    assert read(tmp_path) == written
