"""The command lines: `--from results.json` repeats an earlier run, options without meaning, small runs."""

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
from fedamp_jax.algorithms import registry
from fedamp_jax.experiments import fedamp_paper, paper_values
from fedamp_jax.experiments.catalogue import EXPERIMENTS
from fedamp_jax.report import figures, files
from fedamp_jax.runner import command_line, compare, grid, machine, provenance
from fedamp_jax.runner.experiment import prepare
from tests.small_experiments import command, main_of, method_entry, options_of, parsed, practical, read, tiny


def written(path, experiment, variants, methods=("FedAMP", "Separate"), seeds=()):
    """A results.json as `grid.run` writes it, with numbers that mean nothing."""
    entry = {
        "methods": {name: method_entry([1.0]) for name in methods}, "wilcoxon": {}, "clients": 1,
        "settings": provenance.settings_of(variants[0].options),
    }  # fmt: skip
    head = {**provenance.describe(experiment, variants[0].options), "versions": {"jax": "0.0.1"}}
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


def test_one_run(tmp_path, monkeypatch, capsys):
    """Every setting comes back, tuples as tuples; the command line has priority; other versions are reported.

    Failed when JSON's lists stayed lists (an epochs range that no `Solver` takes), and when `methods` was left out.
    """
    words = ("--rounds", 7, "--epochs-range", 1, 3, "--participation", 0.5, "--sigma", 3, "--seed", 4, "--quick")
    variants = parsed("practical", *words, "--set", "FedAMP.start=personal", "Ditto.lam=0.3").variants
    path = written(tmp_path / "results.json", "practical", variants)
    again = options_of("practical", "--from", path, "--out", "elsewhere", "--sigma", 5)
    assert "jax 0.0.1 then" in capsys.readouterr().err
    assert again.schedule.methods == ("FedAMP", "Separate") and again.output.out == "elsewhere"
    assert again.attention.sigma == 5.0 and again.schedule.set == ("FedAMP.start=personal", "Ditto.lam=0.3")
    assert provenance.settings_of(again.replace(sigma=3.0)) == provenance.settings_of(variants[0].options)


def test_several_parts_and_seeds(tmp_path, monkeypatch):
    """All combinations of settings become the lists they were made from. Failed with a list of every part's value."""
    words = ("--participation", 0.5, 1, "--drop-rate", 0, 0.1, "--seeds", 3, 5, "--rounds", 2)
    wanted = parsed("practical", *words)
    path = written(tmp_path / "results.json", "practical", wanted.variants, seeds=wanted.seeds)
    again = parsed("practical", "--from", path)
    settings, expected = (
        [(v.title, provenance.settings_of(v.options)) for v in found.variants] for found in (again, wanted)
    )
    assert settings == expected and len(settings) == 4 and again.seeds == (3, 5)
    wanted = parsed("degrees", "--degree", "medium", "none", "--rounds", 2)
    path = written(tmp_path / "degrees.json", "degrees", wanted.variants, methods=("FedPer",))
    assert [v.options.setting.degree for v in parsed("degrees", "--from", path).variants] == ["medium", "none"]


def refused(monkeypatch, capsys, path):
    """The message of `--from` about a file that it refuses."""
    with pytest.raises(SystemExit) as stopped:
        command(monkeypatch, practical, "--from", path)
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
    path = written(tmp_path / "results.json", "practical", parsed("practical").variants)
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
    iid = written(tmp_path / "iid.json", "iid", parsed("iid").variants)
    assert "is of iid: run fedamp iid" in refused(monkeypatch, capsys, iid)
    path = written(tmp_path / "results.json", "practical", parsed("practical", "--drop-rate", 0, 0.1).variants)
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
    path = written(tmp_path / "none.json", "practical", parsed("practical").variants, methods=())
    with pytest.raises(ValueError, match="--methods needs at least one value"):
        parsed("practical", "--from", path)


def test_settings_of_earlier_versions(tmp_path):
    """One that is no longer an option is taken where it had no effect. Failed when such files were refused."""
    path = written(tmp_path / "results.json", "practical", parsed("practical").variants)
    assert parsed("practical", "--from", changed(path, sigma_sweep=False)).variants
    with pytest.raises(ValueError, match="has the setting 'sigma_sweep', which this version does not know"):
        parsed("practical", "--from", changed(path, sigma_sweep=True))


@pytest.mark.parametrize(("main", "option"), [
    (main_of(ablation.EXPERIMENT), "--heur-sigma"), (main_of("degrees"), "--batch-size"),
    (faulty.main, "--devices"), (faulty.main, "--evaluate-every"),
])  # fmt: skip
def test_options_without_meaning_are_refused(main, option, tmp_path, monkeypatch, capsys):
    """Failed when the ablation, which has no HeurFedAMP, accepted its sigma."""
    with pytest.raises(SystemExit) as stopped:
        command(monkeypatch, main, option, 3, "--out", tmp_path / "out")
    assert stopped.value.code == 2 and option in capsys.readouterr().err


@pytest.mark.parametrize(("words", "message"), [
    (("Ditto.lamda=1",), "Ditto has no hyper-parameter lamda; it has lam, stats"), (("Dito.lam=1",), "no method Dito"),
    (("Ditto.lam",), "needs METHOD.NAME=VALUE"), (("Ditto.lam=-1",), "lam must be at least 0"),
    (("FedAMP.slope=1",), "FedAMP has no hyper-parameter slope"),
])  # fmt: skip
def test_wrong_hyperparameters_are_refused(words, message, tmp_path, monkeypatch, capsys):
    """By name before data are read, by value before anything compiles. Failed with a TypeError of the factory."""
    with pytest.raises(SystemExit) as stopped:
        command(monkeypatch, practical, "--methods", "Ditto", "FedAMP", "--set", *words, "--out", tmp_path / "out")
    assert stopped.value.code == 2 and message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_hyperparameters_reach_the_methods(tmp_path, monkeypatch):
    """FedProx with mu = 0 is FedAvg, and the results say so. Failed when only the settings had the value."""
    short = ("--quick", "--rounds", 2, "--methods", "FedAvg", "FedProx", "--out")
    command(monkeypatch, tiny, *short, tmp_path / "a", "--set", "fedprox.mu=0")
    found = read(tmp_path / "a")
    assert found["methods"]["FedProx"]["loss"] == found["methods"]["FedAvg"]["loss"]
    assert found["settings"]["set"] == ["fedprox.mu=0"] and found["methods"]["FedProx"]["settings"] == {"mu": 0}
    command(monkeypatch, tiny, *short, tmp_path / "b", "--set", "FedProx.mu=900")
    assert read(tmp_path / "b")["methods"]["FedProx"]["loss"] != found["methods"]["FedAvg"]["loss"]
    assert "set" not in provenance.settings_of(options_of("practical"))


def test_unknown_methods_are_refused_before_data_are_read(tmp_path, monkeypatch, capsys):
    """And before anything else is done. Failed when the data set was loaded and 18 methods made first."""
    monkeypatch.setattr("fedamp_jax.runner.experiment.load", lambda *given: pytest.fail("loaded"))
    with pytest.raises(SystemExit):
        command(monkeypatch, practical, "--methods", "FedAPM", "--out", tmp_path / "out")
    assert "there is no FedAPM (did you mean FedAMP?)" in capsys.readouterr().err
    with pytest.raises(ValueError, match="there is no FedAPM"):
        parsed("practical", "--methods", "FedAPM")


def test_many_seeds_have_a_folder():
    """Its name is not longer than a file system allows, and differs with the seeds. Failed with 255 bytes and more."""
    first, second = (
        command_line.folder_of(parsed("practical", "--seeds", *range(i, 200)), "practical") for i in (0, 1)
    )
    assert first != second and len(first.name.encode()) <= 200 and first.name.startswith("practical-digits-seeds=0-1-")


def test_only_chosen_methods_are_made(monkeypatch):
    """And those that they wrap. Failed when all were."""
    made = []
    for name, method in registry.METHODS.items():

        def factory(task, name=name, **given):
            made.append(name)

        monkeypatch.setitem(registry.METHODS, name, method._replace(factory=factory))
    options = options_of("practical", "--methods", "FedAvg-FT")
    prepare(EXPERIMENTS["practical"], options, ["FedAvg-FT"])
    assert made == ["FedAvg", "FedAvg-FT"]


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
    command(
        monkeypatch, main_of(ablation.EXPERIMENT), *short, "--methods", "base", "self-half", "--out", tmp_path / "a"
    )
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
    options = options_of("dirichlet", "--clients", 6, *arguments)
    asked = {}
    monkeypatch.setattr(fedamp_jax.data, "federation", lambda name, where, **k: asked.update(k, where=where))
    monkeypatch.setattr(fedamp_jax.data, "balanced", lambda clients: clients)
    fedamp_paper.clients(options)
    assert (asked["where"], asked["clients"], asked["alpha"]) == (setting, 6, options.setting.alpha)
    assert options.attention.sigma == options.attention.heur_sigma == "auto"


def test_balanced_shards_are_refused():
    """Failed when --balanced was ignored."""
    with pytest.raises(ValueError, match="--balanced is for --split dirichlet, not for shards"):
        parsed("dirichlet", "--split", "shards", "--balanced")


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


@pytest.mark.slow
def test_sigma_auto_and_dtype_reach_the_methods(tmp_path, monkeypatch):
    """Equal weights in the first round, and other numbers. Failed with the paper's self weight."""
    short = ("--rounds", 1, "--epochs", 1, "--methods", "FedAMP", "--sigma")
    command(monkeypatch, practical, *short, "auto", "--out", tmp_path / "a")
    command(monkeypatch, practical, *short, "auto", "--dtype", "bfloat16", "--out", tmp_path / "b")
    auto, half = (read(tmp_path / name)["methods"]["FedAMP"] for name in "ab")
    assert np.allclose(auto["xi"], 1 / 20) and auto["loss"] != half["loss"]
    assert len(auto["attention"]["distances"][0]) == 190  # of 20 clients, although they have no sigma in common
    assert np.allclose(auto["loss"], half["loss"], rtol=0.02)
    command(monkeypatch, practical, "--from", tmp_path / "a" / "results.json", "--out", tmp_path / "c")
    assert read(tmp_path / "c")["methods"]["FedAMP"]["loss"] == auto["loss"]


def rows_of(data):
    """The examples of each client, as a set of bytes."""
    return [{np.asarray(x).tobytes() for x in data.examples(i)[0]} for i in range(data.clients)]


@pytest.mark.parametrize("experiment", [EXPERIMENTS["practical"], ablation.EXPERIMENT], ids=lambda one: one.name)
def test_validation_data_in_place_of_test_data(experiment):
    """A quarter of every client's training examples, which is not trained on. Failed with test data that were kept."""
    plain, held = (
        prepare(experiment, options_of(experiment, "--quick", "--validation-fraction", share), ()).federation
        for share in (0.0, 0.25)
    )
    for whole, kept, judged in zip(rows_of(plain.train), rows_of(held.train), rows_of(held.test), strict=True):
        assert not kept & judged and kept | judged == whole
        assert len(judged) == round(len(whole) / 4)
    np.testing.assert_array_equal(held.train.id, held.test.id)


@pytest.mark.slow
def test_validation_is_said(tmp_path, monkeypatch, capsys):
    """In the title of table and page and at the axes; the paper's numbers are not beside it.

    Failed with a title that was as ever, and with axes that were.
    """
    given = ("--quick", "--rounds", 1, "--methods", "Separate", "FedAvg", "--validation-fraction", 0.2)
    command(monkeypatch, tiny, *given, "--out", tmp_path / "a")
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


def test_validation_of_nothing_or_everything():
    """Refused, or test data. Failed with an error of `hold_out` that names no option."""
    for share in (-0.1, 1.0):
        with pytest.raises(ValueError, match=rf"--validation-fraction must be in \[0, 1\), got {share:g}"):
            parsed("practical", "--validation-fraction", share)
    assert options_of(attention_variants.EXPERIMENT).data.validation_fraction == 0.2
    assert options_of("practical").data.validation_fraction == 0.0


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
