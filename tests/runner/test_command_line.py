"""The command lines: `--from results.json` repeats an earlier run, options without meaning, small runs."""

import dataclasses
import errno
import json
import os
import shutil
import sys
import types

import ablation
import attention_variants
import faulty
import jax
import numpy as np
import pytest
import rows

import fedamp_jax
from fedamp_jax.experiments import degrees, dirichlet, fedamp_paper, paper_values
from fedamp_jax.report import figures, files
from fedamp_jax.runner import command_line, compare, grid, machine, provenance
from tests.small_experiments import command, method_entry, read


def written(path, experiment, variants, methods=("FedAMP", "Separate"), seeds=()):
    """A results.json as `grid.run` writes it, with numbers that mean nothing."""
    entry = {
        "methods": {name: method_entry([1.0]) for name in methods}, "wilcoxon": {}, "clients": 1,
        "settings": provenance.settings_of(variants[0].options),
    }  # fmt: skip
    head = {**provenance.describe_run(experiment, variants[0].options), "versions": {"jax": "0.0.1"}}
    if len(variants) == 1:
        results = {**head, **entry, "groups": None, "chance_in_group_weight": None}
    else:
        settings = grid._settings(variants, seeds)
        results = {**head, "settings": settings, "parts": {v.title: {**entry, "folder": v.title} for v in variants}}
    path.write_text(json.dumps(results))
    return path


def changed(path, **settings):
    """The same file with other settings."""
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "settings": {**content["settings"], **settings}}))
    return path


def parsed(monkeypatch, kind, experiment, *arguments):
    monkeypatch.setattr(sys, "argv", ["experiment.py", *map(str, arguments)])
    return command_line.parse(kind, "", experiment)


def test_one_run(tmp_path, monkeypatch, capsys):
    """Every setting comes back, tuples as tuples; the command line has priority; other versions are reported.

    Failed when JSON's lists stayed lists (an epochs range that no `Solver` takes), and when `methods` was left out.
    """
    options = fedamp_paper.Options(rounds=7, epochs_range=(1, 3), participation=0.5, sigma=3.0, seed=4, quick=True)
    variants = fedamp_paper.variants_of(
        fedamp_paper.Command(**{**vars(options), "participation": (0.5,), "drop_rate": (0.0,)}), "practical"
    )
    path = written(tmp_path / "results.json", "practical", variants)
    again = parsed(monkeypatch, fedamp_paper.Command, "practical", "--from", path, "--out", "elsewhere", "--sigma", 5)
    assert "jax 0.0.1 then" in capsys.readouterr().err
    assert again.methods == ("FedAMP", "Separate") and again.out == "elsewhere" and again.sigma == 5.0
    (variant,) = fedamp_paper.variants_of(dataclasses.replace(again, sigma=3.0), "practical")
    assert provenance.settings_of(variant.options) == provenance.settings_of(variants[0].options)


def test_several_parts_and_seeds(tmp_path, monkeypatch):
    """All combinations of settings become the lists they were made from. Failed with a list of every part's value."""
    wanted = fedamp_paper.Command(participation=(0.5, 1.0), drop_rate=(0.0, 0.1), seeds=(3, 5), rounds=2)
    path = written(
        tmp_path / "results.json", "practical", fedamp_paper.variants_of(wanted, "practical"), seeds=wanted.seeds
    )
    again = parsed(monkeypatch, fedamp_paper.Command, "practical", "--from", path)
    assert (again.participation, again.drop_rate, again.seeds) == ((0.5, 1.0), (0.0, 0.1), (3, 5))
    wanted = degrees.Command(degrees=("medium", "none"), rounds=2)
    path = written(tmp_path / "degrees.json", "degrees", degrees.variants_of(wanted))
    assert parsed(monkeypatch, degrees.Command, "degrees", "--from", path).degrees == ("medium", "none")


def refused(monkeypatch, capsys, path, kind=fedamp_paper.Command, experiment="practical"):
    """The message of `--from` about a file that it refuses."""
    with pytest.raises(SystemExit) as stopped:
        parsed(monkeypatch, kind, experiment, "--from", path)
    error = " ".join(capsys.readouterr().err.split())
    assert stopped.value.code == 2 and path.name in error
    return error


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "does not exist"),
        ("{", "is not valid JSON"),
        ("\xff", "is not valid JSON"),
        ("[]", "is not one of our result files"),
        ('{"rows": []}', "it has no 'experiment'"),
    ],
)
def test_other_files_are_refused(text, message, tmp_path, monkeypatch, capsys):
    """With a message that names the file, and exit code 2.

    Failed for a missing file with a traceback, and for broken JSON with a message that did not say of which file.
    """
    path = tmp_path / "results.json"
    if text is not None:
        path.write_text(text, encoding="latin-1")
    assert message in refused(monkeypatch, capsys, path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"colour": 1}, "has the setting 'colour', which this version does not know"),
        ({"model": "foo"}, "has the setting model = 'foo', which --model does not take"),
        ({"rounds": "many"}, "has the setting rounds = 'many'"),
        ({"sigma": [1.0]}, "has the setting sigma = [1.0]"),
        ({"epochs_range": [1, 2, 3]}, "has the setting epochs_range = [1, 2, 3]"),
        ({"drop_rate": ["a"]}, "has the setting drop_rate = ['a'], which --drop-rate does not take"),
        ({"quick": 1}, "has the setting quick = 1"),
    ],
)
def test_settings_that_no_option_takes_are_refused(settings, message, tmp_path, monkeypatch, capsys):
    """Failed when the option took any value from the file: a model "foo" became a ResNet."""
    path = written(
        tmp_path / "results.json", "practical", fedamp_paper.variants_of(fedamp_paper.Command(), "practical")
    )
    assert message in refused(monkeypatch, capsys, changed(path, **settings))


def without(content, *keys):
    """The content without what is at the path `keys`."""
    content = json.loads(json.dumps(content))
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    del inner[keys[-1]]
    return content


def test_incomplete_files_are_refused(tmp_path, monkeypatch, capsys):
    """The message says what. Failed with a KeyError."""
    iid = written(tmp_path / "iid.json", "iid", fedamp_paper.variants_of(fedamp_paper.Command(), "iid"))
    assert "is of iid: run fedamp iid" in refused(monkeypatch, capsys, iid)
    wanted = fedamp_paper.Command(drop_rate=(0.0, 0.1))
    path = written(tmp_path / "results.json", "practical", fedamp_paper.variants_of(wanted, "practical"))
    whole = json.loads(path.read_text())
    part = ("parts", "10% dropped")
    for keys in (("versions",), ("parts",), (*part, "methods"), (*part, "settings", "drop_rate"),
                 (*part, "methods", "FedAMP", "bmta")):  # fmt: skip
        path.write_text(json.dumps(without(whole, *keys)))
        missing = "methods" if keys == ("parts",) else keys[-1]
        assert f"has no '{missing}'" in refused(monkeypatch, capsys, path)
    for wrong in ({"parts": []}, {"parts": {}}, {"settings": 3}, {"parts": {"a": {"settings": {}, "methods": {}}}}):
        path.write_text(json.dumps({**whole, **wrong}))
        refused(monkeypatch, capsys, path)
    path = written(
        tmp_path / "none.json", "practical", fedamp_paper.variants_of(fedamp_paper.Command(), "practical"), methods=()
    )
    with pytest.raises(SystemExit):
        parsed(monkeypatch, fedamp_paper.Command, "practical", "--from", path)
    assert "--methods needs at least one value" in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "experiment", "option"), [
    (ablation.Options, "ablation", "--sgd-learning-rate"), (ablation.Options, "ablation", "--heur-sigma"),
    (faulty.Options, "faulty", "--devices"), (faulty.Options, "faulty", "--evaluate-every"),
])  # fmt: skip
def test_options_without_meaning_are_refused(kind, experiment, option, monkeypatch, capsys):
    """Failed when the ablation, which has neither SCAFFOLD nor APFL, accepted their learning rate."""
    with pytest.raises(SystemExit) as stopped:
        parsed(monkeypatch, kind, experiment, option, 1)
    assert stopped.value.code == 2 and option in capsys.readouterr().err


@pytest.mark.slow
def test_faulty_measures_the_honest(tmp_path, monkeypatch):
    """A small run with faulty clients, repeated from its results, and resumed without training again.

    Failed when `corrupt` was not passed on, so that all attacks were none, and when `--precision` did nothing.
    """
    short = ("--rounds", 2, "--epochs", 1, "--attacks", "random", "absent", "--shares", 0.2, "--precision", "high")
    command(monkeypatch, faulty.main, "--methods", "FedAvg", "FedAMP", *short, "--out", tmp_path / "a")
    assert jax.config.jax_default_matmul_precision == "high"
    jax.config.update("jax_default_matmul_precision", None)
    first = read(tmp_path / "a")
    for method in first["methods"].values():
        assert len(method["honest"]) == 16 and set(method["attacks"]) == {"random", "absent"}
    assert first["methods"]["FedAMP"]["attacks"]["absent"]["weight_to_faulty"] == [0.0]
    assert first["methods"]["FedAMP"]["attacks"]["random"]["weight_to_faulty"][0] < 4 / 19
    averaged = first["methods"]["FedAvg"]
    assert averaged["attacks"]["absent"]["weight_to_faulty"] is None
    assert averaged["attacks"]["random"]["accuracy"] != averaged["attacks"]["absent"]["accuracy"]
    assert averaged["attacks"]["random"]["accuracy"] != [averaged["clean"]]
    command(monkeypatch, faulty.main, "--from", tmp_path / "a" / "results.json", "--resume", "--out", tmp_path / "a")
    assert read(tmp_path / "a")["methods"] == first["methods"]
    assert (tmp_path / "a" / "faulty.png").stat().st_size > 10_000
    jax.config.update("jax_default_matmul_precision", None)


@pytest.mark.slow
def test_ablation_changes_one_decision(tmp_path, monkeypatch):
    """`base` is the FedAMP of practical.py, and each variant differs from it as it says.

    Failed with every variant trained as `base`.
    """
    short = ("--rounds", 2, "--epochs", 1)
    command(monkeypatch, ablation.main, *short, "--methods", "base", "self-half", "--out", tmp_path / "a")
    practical = lambda: fedamp_paper.main("practical")  # noqa: E731
    command(monkeypatch, practical, *short, "--methods", "FedAMP", "--out", tmp_path / "b")
    found, fedamp = read(tmp_path / "a")["methods"], read(tmp_path / "b")["methods"]["FedAMP"]
    assert found["base"]["accuracy"] == fedamp["accuracy"] and found["base"]["xi"] == fedamp["xi"]
    assert np.allclose(np.diag(found["self-half"]["xi"]), 0.5) and not np.allclose(np.diag(fedamp["xi"]), 0.5)


@pytest.mark.parametrize(("text", "known"), [
    ("flags\t\t: fpu avx512f avx512_bf16 amx_tile", True), ("flags\t\t: fpu avx512f", False), (None, True),
])  # fmt: skip
def test_bfloat16_instructions(text, known, tmp_path, monkeypatch, capsys):
    """A person is told where a CPU has none. Failed with a flag that begins like one of these, and told regardless."""
    path = tmp_path / "cpuinfo"
    if text is not None:
        path.write_text(text)
    assert machine.bfloat16_instructions(path) == known
    monkeypatch.setattr(machine, "bfloat16_instructions", lambda: known)
    monkeypatch.setattr(machine, "cache_compilations", lambda: None)
    machine.configure("default", "float32")
    assert capsys.readouterr().out == ""
    machine.configure("default", "bfloat16")
    assert ("slower than float32" in capsys.readouterr().out) != known


@pytest.mark.parametrize(("arguments", "setting"), [
    ((), "dirichlet"), (("--balanced",), "dirichlet-balanced"), (("--split", "shards"), "shards"),
    (("--split", "quantity", "--alpha", 2), "quantity"),
])  # fmt: skip
def test_dirichlet_settings(arguments, setting, monkeypatch):
    """Each way to divide the data, and that its options reach it. Failed with alpha left at its default."""
    options = parsed(monkeypatch, dirichlet.Command, "dirichlet", "--clients", 6, *arguments)
    assert dirichlet.setting_of(options) == setting
    asked = {}
    monkeypatch.setattr(fedamp_jax.data, "federation", lambda name, where, **k: asked.update(k, where=where))
    monkeypatch.setattr(fedamp_jax.data, "balanced", lambda clients: clients)
    chosen = fedamp_paper.variants_of(options, setting, dirichlet.Options)[0].options
    fedamp_paper.load(chosen, setting)
    assert (asked["where"], asked["clients"], asked["alpha"]) == (setting, 6, options.alpha)
    assert chosen.sigma == chosen.heur_sigma == "auto"


def test_balanced_shards_are_refused(monkeypatch):
    """Failed when --balanced was ignored."""
    options = parsed(monkeypatch, dirichlet.Command, "dirichlet", "--split", "shards", "--balanced")
    with pytest.raises(ValueError, match="--balanced is for --split dirichlet, not for shards"):
        dirichlet.setting_of(options)


def test_a_full_disk(capsys):
    """The message says what to do. Failed with the bare errno."""
    with pytest.raises(SystemExit), command_line.readable_errors():
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "results/a")
    said = capsys.readouterr().err
    assert "No space left on device: 'results/a': make room, and run the same command with --resume" in said


def test_closed_loops_are_not_reported(monkeypatch):
    """What TensorStore's threads find after a failed checkpoint; everything else that nobody can catch is.

    Failed without the hook, and with one that left out every RuntimeError.
    """
    shown = []
    monkeypatch.setattr(sys, "__unraisablehook__", lambda what: shown.append(str(what.exc_value)))
    for text in ("Event loop is closed", "another"):
        command_line.report_unraisable(types.SimpleNamespace(exc_type=RuntimeError, exc_value=RuntimeError(text)))
    assert shown == ["another"]


def test_sigma_auto_and_dtype_reach_the_methods(tmp_path, monkeypatch):
    """Weights of perplexity 8 and a self weight of 1/9, and other numbers. Failed with the paper's self weight."""
    practical = lambda: fedamp_paper.main("practical")  # noqa: E731
    short = ("--rounds", 1, "--epochs", 1, "--methods", "FedAMP", "--sigma")
    command(monkeypatch, practical, *short, "auto", "--out", tmp_path / "a")
    command(monkeypatch, practical, *short, "auto", "--dtype", "bfloat16", "--out", tmp_path / "b")
    auto, half = (read(tmp_path / name)["methods"]["FedAMP"] for name in "ab")
    assert np.allclose(np.diag(auto["xi"]), 1 / 9) and auto["loss"] != half["loss"]
    assert len(auto["attention"]["distances"][0]) == 190  # of 20 clients, although they have no sigma in common
    assert np.allclose(auto["loss"], half["loss"], rtol=0.02)
    command(monkeypatch, practical, "--from", tmp_path / "a" / "results.json", "--out", tmp_path / "c")
    assert read(tmp_path / "c")["methods"]["FedAMP"]["loss"] == auto["loss"]


def rows_of(data):
    """The examples of each client, as a set of bytes."""
    return [{np.asarray(data.x[i, k]).tobytes() for k in range(n)} for i, n in enumerate(np.asarray(data.size))]


@pytest.mark.parametrize("load", [fedamp_paper.load, lambda options, _: ablation.prepare(options)[0]])
def test_validation_data_in_place_of_test_data(load):
    """A quarter of every client's training examples, which is not trained on. Failed with test data that were kept."""
    settings = {"quick": True, "validation_fraction": 0.25, "sigma": 1.0, "model": "mlp"}
    plain = load(fedamp_paper.Options(**{**settings, "validation_fraction": 0.0}), "practical")
    held = load(fedamp_paper.Options(**settings), "practical")
    for whole, kept, judged in zip(rows_of(plain.train), rows_of(held.train), rows_of(held.test), strict=True):
        assert not kept & judged and kept | judged == whole
        assert len(judged) == round(len(whole) / 4)
    np.testing.assert_array_equal(held.train.id, held.test.id)


def test_validation_is_said(tmp_path, monkeypatch, capsys):
    """In the title of table and page and at the axes; the paper's numbers are not beside it.

    Failed with a title that was as ever, and with axes that were.
    """
    practical = lambda: fedamp_paper.main("practical")  # noqa: E731
    given = ("--quick", "--rounds", 1, "--methods", "Separate", "FedAvg", "--validation-fraction", 0.2)
    command(monkeypatch, practical, *given, "--out", tmp_path / "a")
    said = "practical on digits, judged by validation data"
    assert said in " ".join(capsys.readouterr().out.split())
    assert f"<title>{said}" in (tmp_path / "a" / "report.html").read_text()
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    compare.execute(compare.Options((str(tmp_path / "a"), str(tmp_path / "b")), out=str(tmp_path / "both.html")))
    for page in (tmp_path / "a" / "report.html", tmp_path / "both.html"):
        assert "mean validation accuracy (%)" in page.read_text() and "test accuracy (%)" not in page.read_text()
    results = read(tmp_path / "a")
    assert figures.convergence(results).axes[0].get_ylabel() == "mean validation accuracy (%)"
    assert figures.accuracy_distribution(results).axes[0].get_xlabel().startswith("validation accuracy")
    settings = results["settings"]
    assert settings["validation_fraction"] == 0.2 and not paper_values.as_in_tables(
        {**settings, "epochs": 10, "quick": False}
    )
    (row,) = [r for r in rows.rows(files.read([str(tmp_path / "a")])) if r.method == "FedAvg"]
    other = row._replace(settings={**settings, "validation_fraction": 0.0})
    assert files.p_value(row, row) is not None and files.p_value(row, other) is None


def test_validation_of_nothing_or_everything(monkeypatch):
    """Refused, or test data. Failed with an error of `hold_out` that names no option."""
    for share in (-0.1, 1.0):
        with pytest.raises(ValueError, match=rf"--validation-fraction must be in \[0, 1\), got {share:g}"):
            fedamp_paper.finish(fedamp_paper.Options(validation_fraction=share), "practical")
    assert parsed(monkeypatch, attention_variants.Command, "attention").validation_fraction == 0.2
    assert parsed(monkeypatch, fedamp_paper.Command, "practical").validation_fraction == 0.0


@pytest.mark.parametrize(("backend", "version", "kept"), [
    ("cpu", (0, 10, 2), False), ("cpu", (0, 12, 0), True), ("tpu", (0, 10, 2), True),
])  # fmt: skip
def test_compiled_programs_are_kept(backend, version, kept, tmp_path, monkeypatch):
    """In the user's cache folder, where reading them back is safe. Failed with the condition inverted."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(jax, "default_backend", lambda: backend)
    monkeypatch.setattr(jax, "__version_info__", version)
    jax.config.update("jax_compilation_cache_dir", None)  # an experiment in this process may have set it
    found = {}
    monkeypatch.setattr(jax.config, "update", found.__setitem__)
    machine.cache_compilations()
    assert ("jax_compilation_cache_dir" in found) == kept
    assert all(str(tmp_path) in found[name] for name in found if name.endswith("dir"))
