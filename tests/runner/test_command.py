"""The command `fedamp`."""

import dataclasses
import os
import re
import runpy
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import fedamp_jax
from fedamp_jax import __main__ as fedamp
from fedamp_jax.algorithms.registry import METHODS
from fedamp_jax.experiments import fedamp_paper
from fedamp_jax.report.provenance import words
from fedamp_jax.runner import command_line, run_folder
from tests.small_experiments import command, parsed, practical, read


def test_version_list_and_help(capsys):
    """Failed with an experiment or a method left out."""
    fedamp.main(["--version"])
    assert capsys.readouterr().out.strip() == f"fedamp_jax {fedamp_jax.__version__}"
    fedamp.main(["list"])
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in (*METHODS, *fedamp.EXPERIMENTS))
    assert "cifar100" in out and "resnet18" in out
    fedamp.main([])
    assert len(capsys.readouterr().out.splitlines()) <= 25  # one screen
    scripts = {p.stem for p in (Path(__file__).parents[2] / "experiments").glob("*.py")}
    assert scripts <= {*fedamp.EXPERIMENTS, *fedamp.TOOLS}


@pytest.mark.slow
def test_list_of_what_is_sent(capsys):
    """Failed with a method that cannot be cut, and with bytes in place of models."""
    fedamp.main(["list", "--traffic"])
    rows = {words[0]: words[1:] for words in map(str.split, capsys.readouterr().out.splitlines()[2:])}
    assert list(rows) == [name for name, method in METHODS.items() if method.any_model]
    assert rows["FedAMP"] == ["1", "1.00", "1.00"]
    assert rows["Separate"] == ["1", "0.00", "0.00"]


@pytest.mark.parametrize("name", fedamp.EXPERIMENTS)
def test_help_is_one_screen(name, capsys):
    """Every option that the experiment takes and does not hide, and commands that it takes.

    Failed with an option of another experiment, and with an example of old options.
    """
    with pytest.raises(SystemExit) as stopped:
        fedamp.main([name, "--help"])
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert not stopped.value.code and lines[0] == f"usage: fedamp {name} [options]"
    assert len(lines) <= 62 and max(map(len, lines)) <= 100
    experiment = fedamp.EXPERIMENTS[name]
    fields = [field for _, group in experiment.options.groups() for field in dataclasses.fields(group)]
    options = {f"--{field.name.replace('_', '-')}" for field in fields if not field.metadata.get("hidden")}
    assert set(re.findall(r"^  (--[a-z-]+)", shown, re.MULTILINE)) == options | {"--seeds", "--from"}
    examples = [shlex.split(line, comments=True) for line in shown.partition("examples:\n")[2].splitlines()]
    assert 2 <= len(examples) <= 4
    for program, which, *rest in examples:
        assert (program, which) == ("fedamp", name) and parsed(name, *rest).variants


@pytest.mark.parametrize("name", fedamp.EXPERIMENTS)
def test_scripts_spell_out_the_experiments(name):
    """What `experiments/NAME.py` says is what `fedamp NAME` does. Failed with another learning rate in the script."""
    script = runpy.run_path(str(Path(__file__).parents[2] / "experiments" / f"{name}.py"))
    assert script["EXPERIMENT"] == fedamp.EXPERIMENTS[name]


def test_hyperparameters_are_listed(capsys):
    """Of every method, those of --set. Failed with a method left out."""
    fedamp.main(["list", "--methods"])
    out = capsys.readouterr().out
    assert all(f"  {name} " in out for name in METHODS) and "lam=15.0 eta=0.05" in out


def test_quick_methods():
    """--quick trains four methods unless others are named. Failed with all 18."""
    assert parsed("practical", "--quick").variants[0].options.schedule.methods == fedamp_paper.QUICK_METHODS
    assert parsed("practical", "--quick", "--methods", "Ditto").variants[0].options.schedule.methods == ("Ditto",)


def test_an_unknown_experiment(capsys):
    """Exit code 2, and the nearest name. Failed with a traceback."""
    with pytest.raises(SystemExit) as stopped:
        fedamp.main(["practicl"])
    assert stopped.value.code == 2 and "Did you mean practical?" in capsys.readouterr().err


def test_an_experiment_runs_as_its_script(tmp_path, monkeypatch):
    """The same results, and a command that repeats them. Failed with `python fedamp practical` as the command."""
    arguments = ("--quick", "--methods", "separate", "--dataset", "DIGITS")
    command(monkeypatch, practical, *arguments, "--out", tmp_path / "script")
    words = ["practical", *arguments, "--out", str(tmp_path / "command")]
    command(monkeypatch, lambda: fedamp.main(words))
    script, found = read(tmp_path / "script"), read(tmp_path / "command")
    assert found["methods"]["Separate"]["accuracy"] == script["methods"]["Separate"]["accuracy"]
    assert found["command"].split()[:4] == ["fedamp", "practical", *arguments[:2]]
    assert script["command"].startswith("python experiment.py --quick")


def test_it_is_installed():
    """As a script and as a module. Failed without the entry point."""
    assert any(e.value == "fedamp_jax.__main__:main" for e in entry_points(group="console_scripts", name="fedamp"))
    shown = subprocess.run(
        [sys.executable, "-m", "fedamp_jax", "--version"], capture_output=True, text=True, check=True
    )
    assert fedamp_jax.__version__ in shown.stdout


@pytest.mark.parametrize(("words", "expected"), [
    (["--dataset", "MNIST", "--model", "Auto"], ["--dataset", "mnist", "--model", "auto"]),
    (["--dataset=Fashion-MNIST"], ["--dataset=fashion_mnist"]),
    (["--dataset", "fashionmnist", "--out", "MNIST"], ["--dataset", "fashion_mnist", "--out", "MNIST"]),
    (["--sigma", "AUTO", "--seed", "3"], ["--sigma", "auto", "--seed", "3"]),
])  # fmt: skip
def test_choices_in_any_case(words, expected):
    """Only values of options that have choices. Failed with the name of a folder changed."""
    hints = command_line.hints_of(command_line.class_of(fedamp.EXPERIMENTS["practical"]))
    assert command_line.in_their_case(words, hints) == expected


def test_settings_from_toml(tmp_path):
    """Options of the command line override them; what is no option is refused. Failed with dashes in names."""
    path = tmp_path / "mine.toml"
    path.write_text(
        'rounds = 7\nmethods = ["FedAMP"]\nlearning-rate = 0.1\nseeds = [1, 2]\n'
        '[set]\nDitto.lam = 0.5\n"pFedMe.eta" = 0.01\n'
    )
    found = parsed("practical", "--from", path, "--rounds", 9)
    options = found.variants[0].options
    assert (options.schedule.rounds, options.schedule.methods) == (9, ("FedAMP",))
    assert options.training.learning_rate == 0.1 and found.seeds == (1, 2)
    assert options.schedule.set == ("Ditto.lam=0.5", "pFedMe.eta=0.01")
    for text, message in (("turns = 7", "has the setting 'turns', which"), ("rounds = ", "is no TOML file")):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            parsed("practical", "--from", path)


@pytest.mark.slow
def test_one_process_writes_to_a_folder(tmp_path):
    """A second one is refused while the first lives, and this process may go on. Failed without the lock."""
    code = "import pathlib, sys, fedamp_jax.runner.run_folder as r; r.lock(pathlib.Path(sys.argv[1])); print('ok')"

    def other():
        return subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)

    assert other().stdout == "ok\n"
    run_folder.lock(tmp_path)
    run_folder.lock(tmp_path)
    assert "another process is writing to --out" in other().stderr
    os.close(run_folder._locked.popitem()[1])
    assert other().stdout == "ok\n" and not list(tmp_path.iterdir())


def test_a_folder_without_permission(tmp_path, monkeypatch):
    """Failed with the number of an error from the first write, after the training."""
    monkeypatch.setattr("os.access", lambda path, mode: False)
    with pytest.raises(OSError, match=f"there is no permission to write to {tmp_path}; give another"):
        run_folder.claim(tmp_path / "new" / "folder", {}, resume=False)


def test_words(monkeypatch):
    """Of the command that started the process. Failed with `python` before `fedamp`."""
    monkeypatch.setattr(sys, "argv", ["fedamp practical", "--quick"])
    assert words() == ["fedamp", "practical", "--quick"]
    monkeypatch.setattr(sys, "argv", ["experiments/practical.py", "--quick"])
    assert words() == ["python", "experiments/practical.py", "--quick"]
