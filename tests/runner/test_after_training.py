"""What a person does when a run has ended: train on, use the personal models, bring new clients."""

import json

import jax
import numpy as np
import pytest

import fedamp_jax
from fedamp_jax.placement import OnMesh, client_mesh
from fedamp_jax.runner import newcomers, run_folder
from fedamp_jax.runner.options import Training
from tests.small_experiments import command, practical, read, tiny

SHORT = ("--epochs", "1", "--methods", "FedAvg", "FedAMP")


def numbers(folder):
    """All that does not depend on time."""
    keys = ("accuracy", "best_accuracy", "rounds", "mean_accuracy", "loss", "in_group_weight", "xi")
    return {name: [entry[key] for key in keys] for name, entry in read(folder)["methods"].items()}


@pytest.mark.slow
def test_more_rounds_go_on_from_the_last(tmp_path, monkeypatch, capsys):
    """As if they had been asked for at once; the earlier results stay, and one checkpoint of each method.

    Failed with checkpoints that were removed, with rounds in their fingerprint, and when results were overwritten.
    """
    out = tmp_path / "out"
    command(monkeypatch, tiny, "--rounds", 2, *SHORT, "--save-models", "--out", out)
    first = numbers(out)
    trained = []
    monkeypatch.setattr("fedamp_jax.driver.loop.round", counted(trained))
    command(monkeypatch, tiny, "--rounds", 3, *SHORT, "--out", out, "--resume")
    assert len(trained) == 2 and "The results of 2 rounds stay in" in capsys.readouterr().out
    straight = tmp_path / "straight"
    command(monkeypatch, tiny, "--rounds", 3, *SHORT, "--out", straight, "--keep-checkpoints", "never")
    assert numbers(out) == numbers(straight) and read(out)["rounds"] == 3
    earlier = json.loads((out / "results-2-rounds.json").read_text())
    assert earlier["methods"]["FedAMP"]["accuracy"] == first["FedAMP"][0]
    assert (out / "models-2-rounds" / "FedAMP.npz").exists() and not (out / "models").exists()
    assert [path.name for path in (out / "checkpoints" / "FedAMP").iterdir()] == ["3"]
    assert not (straight / "checkpoints" / "FedAMP").exists()
    with pytest.raises(SystemExit):
        command(monkeypatch, tiny, "--rounds", 2, *SHORT, "--out", out, "--resume")
    assert "rounds: 3 there, 2 now" in capsys.readouterr().err
    # Without its checkpoint a method is trained from the beginning, and comes out the same.
    run_folder.remove(out / "checkpoints" / "FedAMP")
    (out / "results.json").rename(out / "elsewhere")
    command(monkeypatch, tiny, "--rounds", 3, *SHORT, "--out", out, "--resume")
    assert numbers(out) == numbers(straight) and len(trained) == 2 + 3 + 3 + 3


def counted(calls):
    from fedamp_jax.driver.loop import round

    def wrapper(*args):
        calls.append(1)
        return round(*args)

    return wrapper


@pytest.mark.slow
def test_a_checkpoint_of_more_rounds_is_refused(tmp_path, monkeypatch, capsys):
    """It would be taken for a result of fewer. Failed without the check, with 3 rounds in results of 2."""
    out = tmp_path / "out"
    command(monkeypatch, tiny, "--rounds", 3, *SHORT, "--out", out)
    (out / "results.json").unlink()
    with pytest.raises(SystemExit):
        command(monkeypatch, tiny, "--rounds", 2, *SHORT, "--out", out, "--resume")
    assert "has 3 rounds, more than --rounds 2" in capsys.readouterr().err


@pytest.mark.slow
def test_no_finished_method_is_lost(tmp_path, monkeypatch):
    """When another one, earlier in the tables, is trained and the process then dies.

    Failed when results.json held only the methods up to the one just trained.
    """
    from fedamp_jax.runner import train

    out = tmp_path / "out"
    command(monkeypatch, tiny, "--rounds", 1, "--epochs", 1, "--methods", "FedAMP", "--out", out)
    one, seen = train.train_one, []

    def dies(run, name, *args, **kwargs):
        seen.append(name)
        if len(seen) == 2:
            raise KeyboardInterrupt
        return one(run, name, *args, **kwargs)

    monkeypatch.setattr(train, "train_one", dies)
    with pytest.raises(SystemExit):
        command(monkeypatch, tiny, "--rounds", 1, "--epochs", 1, "--methods", "FedAvg", "Separate", "FedAMP",
                "--resume", "--out", out)  # fmt: skip
    assert seen == ["Separate", "FedAvg"] and set(read(out)["methods"]) == {"Separate", "FedAMP"}


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 3])
def test_saved_models_are_those_that_were_judged(devices, tmp_path, monkeypatch):
    """Loaded anew, each has its client's accuracy; on three devices there are rows of padding.

    Failed with the models' rows in the order of the clients' ids, and with another key, which tunes another model.
    """
    out = tmp_path / "out"
    arguments = ("--rounds", 2, "--epochs", 1, "--batch-size", 10, "--methods", "FedAvg-FT", "--devices", devices)
    arguments += ("--out", out)
    command(monkeypatch, practical, *arguments, "--save-models")
    task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    saved = fedamp_jax.load_models(out / "models" / "FedAvg-FT.npz", task)
    clients = fedamp_jax.data.federation("digits", "practical")
    models = jax.tree.map(lambda *a: np.stack(a), *(saved.of(i) for i in range(20)))
    again = 100 * np.asarray(fedamp_jax.evaluate(task, models, clients.test))
    np.testing.assert_allclose(again, read(out)["methods"]["FedAvg-FT"]["accuracy"], atol=1e-4)
    assert saved.classes.tolist() == clients.train.classes.tolist()
    assert saved.about["rounds"] == 2 and saved.about["classes"] == 10 and saved.about["shape"] == [8, 8]
    assert 100 * saved.about["accuracy"]["7"] == pytest.approx(again[7])
    # Asked for later, they come from the checkpoint, and nothing is trained.
    monkeypatch.setattr("fedamp_jax.driver.loop.round", None)
    (out / "models" / "FedAvg-FT.npz").rename(out / "first.npz")
    command(monkeypatch, practical, *arguments, "--save-models", "--resume")
    second = fedamp_jax.load_models(out / "models" / "FedAvg-FT.npz", task)
    jax.tree.map(np.testing.assert_array_equal, second.models, saved.models)


@pytest.mark.slow
@pytest.mark.parametrize("devices", [1, 3])
def test_clients_held_out(devices, tmp_path, monkeypatch):
    """They do not train, and get the global model; after tuning, the same as those of the fine-tuned method.

    Failed when everybody trained, with newcomers' rows taken from the front, and with rows of padding among them.
    """
    out = tmp_path / "out"
    arguments = ("--rounds", 2, "--epochs", 1, "--devices", devices, "--out", out)
    command(monkeypatch, practical, *arguments, "--methods", "FedAvg", "FedAvg-FT", "--holdout-clients", 3)
    results = read(out)
    found = {name: entry["new_clients"] for name, entry in results["methods"].items()}
    new = found["FedAvg"]["clients"]
    assert len(new) == 3 and results["clients"] == 17 and sorted(new + results["ids"]) == list(range(20))
    everybody = fedamp_jax.data.federation("digits", "practical")
    trained = newcomers.part(everybody, np.array(results["ids"]))
    task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    solver = Training(epochs=1).solver()
    place = OnMesh(mesh=client_mesh(devices))
    run = fedamp_jax.run(task, fedamp_jax.fedavg(task, solver), trained.train, trained.test, rounds=2, progress=False,
                         placement=place)  # fmt: skip
    model = jax.tree.map(lambda a: np.stack([a] * 3), fedamp_jax.Variables(run.state.params))
    wanted = 100 * np.asarray(fedamp_jax.evaluate(task, model, newcomers.part(everybody, np.array(new)).test))
    np.testing.assert_allclose(found["FedAvg"]["start"], wanted, atol=4.1)  # an example of 25 by another order of sums
    assert found["FedAvg"]["adapted"] == found["FedAvg-FT"]["start"] != found["FedAvg"]["start"]
    page = (out / "report.html").read_text()
    assert "new clients (%)" in page


def test_holding_out_too_many_is_refused(tmp_path, monkeypatch, capsys):
    """Nobody would train. Failed with a division by zero further on."""
    for number in (20, 21):
        with pytest.raises(SystemExit):
            command(monkeypatch, practical, "--holdout-clients", number, "--out", tmp_path / "out")
        assert "must leave a client that trains: there are 20" in capsys.readouterr().err
