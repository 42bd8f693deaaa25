"""The curves of a run, written while it goes on."""

import csv
import functools
import struct
import sys
import time

import jax
import numpy as np
import pytest

import fedamp_jax
from fedamp_jax import Checkpoint, writers
from fedamp_jax.report import files
from fedamp_jax.runner import live, options, provenance, train
from tests.registry import federation, find, made
from tests.small_experiments import command, practical, read


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def start(**given):
    """A run of FedAMP on eight clients."""
    task, algorithm = made(find("fedamp"))
    return fedamp_jax.run(task, algorithm, federation(), federation(), progress=False, **given)


class Fails:
    """An observer that fails once, in this round."""

    def __init__(self, k):
        self.k = k

    def __call__(self, evaluation):
        if evaluation.round == self.k:
            self.k = None
            raise KeyboardInterrupt


def scalars(folder):
    """What TensorBoard reads of a folder, `{(name, round): value}`: a start hides older ones from its round on."""
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    found = {}
    for path in sorted(folder.iterdir()):
        content, at = path.read_bytes(), 0
        while at < len(content):
            (size,) = struct.unpack("<Q", content[at : at + 8])
            event = Event.FromString(content[at + 12 : at + 12 + size])
            at += 16 + size
            if event.session_log.status == SessionLog.START:
                found = {(name, k): value for (name, k), value in found.items() if k < event.step}
            for value in event.summary.value:
                assert (value.tag, event.step) not in found
                found[value.tag, event.step] = value.simple_value
    return found


# --- CSV --------------------------------------------------------------------------------------------------------------


def test_a_line_for_each_evaluation_at_once(tmp_path):
    """With what was observed before it; not known is empty. Failed with lines that waited for the end of the run."""
    path = tmp_path / "new" / "history.csv"
    lines = []

    def first(seen):
        return {"own": float("nan") if seen.round == 2 else seen.round}

    result = start(rounds=3, observe=[first, writers.csv(path), lambda seen: lines.append(len(rows(path)))])
    assert lines == [1, 2, 3]
    found = rows(path)
    assert list(found[0]) == ["round", "accuracy", "loss", "own"] and [row["own"] for row in found] == [
        "1.0",
        "",
        "3.0",
    ]
    assert [int(row["round"]) for row in found] == result.rounds
    assert [float(row["loss"]) for row in found] == result.loss
    np.testing.assert_allclose([float(row["accuracy"]) for row in found], result.accuracy.mean(axis=1), rtol=1e-6)


@pytest.mark.slow
def test_a_run_that_goes_on(tmp_path):
    """No round twice, none missing, and none that a killed process wrote in part. Failed with a second header."""
    start(rounds=6, observe=writers.csv(tmp_path / "whole.csv"))
    path, saving = tmp_path / "history.csv", Checkpoint(tmp_path / "there", every=2, fingerprint={})
    with pytest.raises(KeyboardInterrupt):
        start(rounds=6, checkpoint=saving, observe=[writers.csv(path), Fails(5)])
    assert [row["round"] for row in rows(path)] == ["1", "2", "3", "4", "5"]
    path.write_text(path.read_text() + "1")
    start(rounds=6, checkpoint=saving, observe=writers.csv(path))
    assert path.read_bytes() == (tmp_path / "whole.csv").read_bytes()


def test_a_row_that_another_run_has_not_finished_is_dropped(tmp_path):
    """Also if it has as many cells as the others. Failed when a number was kept of which the end was missing."""
    path = tmp_path / "history.csv"
    with writers.csv(path, {"name": "killed"}) as curve:
        start(rounds=1, observe=curve)
    text = path.read_text()
    path.write_text(text + text.splitlines()[-1][:-3])
    with writers.csv(path, {"name": "other"}) as curve:
        start(rounds=1, observe=curve)
    assert [row["name"] for row in rows(path)] == ["killed", "other"]


@pytest.mark.parametrize(
    "label",
    [0, 1.0, 0.1, np.int64(3), np.float32(0.1), True, None, np.nan, "", "a\nb", "a\r\nb", 'a,"b"', " a "],
    ids=ascii,
)
def test_a_label_is_what_is_read_of_it(label, tmp_path):
    """A run that starts over replaces its curve, whatever its label. Failed with every row twice for labels that are
    numbers or None, and with errors of the second run for those of several lines.
    """
    path = tmp_path / "history.csv"
    with writers.csv(path, {"label": "other", "b": 1}) as other:
        start(rounds=1, observe=other)
    for _ in range(2):
        with writers.csv(path, {"label": label, "b": 1}) as curve:
            start(rounds=2, observe=curve)
    found = rows(path)
    assert [row["round"] for row in found] == ["1", "1", "2"] and found[0]["label"] == "other"
    assert found[1]["label"] == found[2]["label"] != "other"


@pytest.mark.parametrize("name", ["round", "loss", "accuracy"])
def test_a_label_is_no_number_of_the_run(name, tmp_path):
    """Failed with the run's numbers in place of the label, and then every row twice."""
    with pytest.raises(ValueError, match=f"the label '{name}' is the name of a number of the run"):
        start(rounds=1, observe=writers.csv(tmp_path / "history.csv", {name: "a"}))


def test_a_cell_that_was_not_finished(tmp_path):
    """A process that is killed inside a cell of several lines. Failed with rows without their cells."""
    path = tmp_path / "history.csv"
    with writers.csv(path, {"label": "a\nb"}) as curve:
        start(rounds=2, observe=curve)
    whole = path.read_text()
    path.write_text(whole + '"a\nb')
    with writers.csv(path, {"label": "c"}) as curve:
        start(rounds=1, observe=curve)
    assert path.read_text().startswith(whole) and [row["label"] for row in rows(path)] == ["a\nb", "a\nb", "c"]


@pytest.mark.slow
def test_runs_that_share_a_file(tmp_path):
    """By their labels; a run that begins anew replaces its own rows alone. Failed with the rows of all removed."""
    path = tmp_path / "history.csv"
    for method, rounds in (("a", 3), ("b", 2), ("a", 1)):
        start(rounds=rounds, observe=writers.csv(path, {"method": method}))
    assert [(row["method"], row["round"]) for row in rows(path)] == [("b", "1"), ("b", "2"), ("a", "1")]


def test_other_files_stay_as_they_are(tmp_path):
    """Failed with the first line of a person's own file read as a header, and the rest removed."""
    path = tmp_path / "data.csv"
    path.write_text("x,y\n1,2\n")
    with pytest.raises(ValueError, match="has no columns round: give the path of a new file"):
        writers.csv(path)
    assert path.read_text() == "x,y\n1,2\n"

    def late(seen):
        return {"late": 1.0} if seen.round == 2 else {}

    with pytest.raises(ValueError, match=r"'late' is no column of .*: return the same names at each evaluation"):
        start(rounds=2, observe=[late, writers.csv(tmp_path / "history.csv")])


def test_one_of_several_processes_writes(tmp_path, monkeypatch):
    """Failed when every process did."""
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    observe = writers.csv(tmp_path / "history.csv")
    observe(None)
    assert not list(tmp_path.iterdir())


# --- TensorBoard and W&B ----------------------------------------------------------------------------------------------


def test_tensorboard(tmp_path):
    """The files as TensorBoard reads them, of a run that goes on, too. Failed without the round that is purged."""
    saving = Checkpoint(tmp_path / "there", every=2, fingerprint={})
    run = functools.partial(start, rounds=4, checkpoint=saving)
    with writers.tensorboard(tmp_path / "logs") as log, pytest.raises(KeyboardInterrupt):
        run(observe=[log, Fails(3)])
    assert max(k for _, k in scalars(tmp_path / "logs")) == 3

    def soon(evaluation):
        """Another thread writes."""
        began = time.monotonic()
        while ("loss", evaluation.round) not in scalars(tmp_path / "logs"):
            assert time.monotonic() < began + 20
            time.sleep(0.1)

    with writers.tensorboard(tmp_path / "logs") as log:
        result = run(observe=[log, soon])
    found = scalars(tmp_path / "logs")
    assert set(found) == {(name, k) for name in ("accuracy", "loss") for k in (1, 2, 3, 4)}
    np.testing.assert_allclose([found["loss", k] for k in result.rounds], result.loss, rtol=1e-6)


def logged(folder):
    """The values that offline runs of W&B in a folder hold, by run: [{name: JSON}]."""
    from wandb.proto.wandb_internal_pb2 import Record

    found = {}
    for path in folder.glob("wandb/offline-run-*/*.wandb"):
        content, at = path.read_bytes(), 7
        while at + 7 <= len(content):
            size = int.from_bytes(content[at + 4 : at + 6], "little")
            record = Record.FromString(content[at + 7 : at + 7 + size])
            at += 7 + size
            if record.HasField("history"):
                items = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
                found.setdefault(path.stem, []).append(items)
    return found


def test_wandb(tmp_path, monkeypatch):
    """An offline run. Failed with steps counted from 0, and with a run that was left open."""
    module = pytest.importorskip("wandb", reason="needs wandb: pip install 'fedamp_jax[wandb]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with writers.wandb(project="test", dir=tmp_path, id="abc") as log:
        result = start(rounds=4, evaluate_every=2, observe=log)
    assert module.run is None
    module.teardown()  # its service may write the file a moment after the run has finished
    found = logged(tmp_path)["run-abc"]
    assert [int(row["_step"]) for row in found] == [2, 4]
    np.testing.assert_allclose([float(row["loss"]) for row in found], result.loss, rtol=1e-6)


@pytest.mark.parametrize(("extra", "name"), [("tensorboard", "tensorboardX"), ("wandb", "wandb")])
def test_a_package_that_is_missing(extra, name, tmp_path, monkeypatch):
    """Before anything is trained, with what to install. Failed with an ImportError after the first round."""
    monkeypatch.setitem(sys.modules, name, None)
    message = rf"{name} is not installed: pip install 'fedamp_jax\[{extra}\]'"
    with pytest.raises(ValueError, match=message):
        writers.package(extra)
    with pytest.raises(ValueError, match=message):
        options.check(options.Options().replace(rounds=1, log=(extra,)))


# --- experiments ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_experiment_writes_while_it_trains(tmp_path, monkeypatch):
    """history.csv grows to what is written at the end, also if the run is interrupted between two checkpoints.

    Failed with another order of columns, with accuracies of 0 to 1, and with rounds that were there twice.
    """
    fails, observer = Fails(3), train.observer
    monkeypatch.setattr(train, "observer", lambda groups: lambda seen: fails(seen) or observer(groups)(seen))
    written = files.write_history
    grown = []
    monkeypatch.setattr(files, "write_history", lambda *given: grown.append(rows(given[1])) or written(*given))
    given = ["--quick", "--methods", "Separate", "FedAMP", "--log", "tensorboard", "--checkpoint-every", 1]
    with pytest.raises(SystemExit):
        command(monkeypatch, practical, *given, "--out", tmp_path / "out")
    assert [row["round"] for row in rows(tmp_path / "out" / "history.csv")] == ["1", "2"]
    command(monkeypatch, practical, *given, "--out", tmp_path / "out", "--resume")
    final = rows(tmp_path / "out" / "history.csv")
    assert [(row["method"], row["round"]) for row in final] == [(n, k) for n in ("Separate", "FedAMP") for k in "123"]
    for was, row in zip(*grown, final, strict=True):
        assert list(was) == list(row)
        for name in list(row)[1:]:
            assert was[name] == row[name] or float(was[name]) == pytest.approx(float(row[name]), rel=1e-12)
    found = scalars(tmp_path / "out" / "tensorboard" / "FedAMP")
    assert found["accuracy", 3] == pytest.approx(read(tmp_path / "out")["methods"]["FedAMP"]["final"] / 100)
    assert ("in_group_weight", 1) in found
    assert "log" not in read(tmp_path / "out")["settings"]


def test_a_wandb_run_of_an_experiment(tmp_path, monkeypatch):
    """One for each method, the same one after --resume, with the settings. Failed with an id drawn at each start."""
    asked = []
    monkeypatch.setattr(writers, "wandb", lambda **settings: asked.append(settings) or writers.Writer(print))
    own = options.Options().replace(rounds=1, log=("wandb",))
    for method in ("FedAMP", "FedAMP", "Separate"):
        with live.writers_for(own, tmp_path, method) as made:
            assert len(made) == 2
    one, again, other = asked
    assert one == again and one["id"] != other["id"] and one["resume"] == "allow"
    assert other["name"] == f"{tmp_path.name} Separate" and other["config"]["method"] == "Separate"
    assert one["config"].keys() == {"method", *provenance.settings_of(own)}
