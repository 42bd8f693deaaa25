"""The command `fedamp`."""

import os
import re
import shlex
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest
import tyro

import fedamp_jax
from fedamp_jax import __main__ as fedamp
from fedamp_jax.algorithms.registry import METHODS
from fedamp_jax.experiments import degrees, dirichlet, fedamp_paper, omniglot
from fedamp_jax.runner import command_line, provenance, run_folder
from tests.small_experiments import command, read


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


@pytest.mark.parametrize(("name", "kind"), [
    ("practical", fedamp_paper.Command), ("dirichlet", dirichlet.Command), ("degrees", degrees.Command),
    ("omniglot", omniglot.Command),
])  # fmt: skip
def test_help_is_one_screen(name, kind, capsys, monkeypatch):
    """Every option that the experiment takes, in a group, and commands that it takes.

    Failed with an inherited option that has no meaning, with one that had no group, and with an example of old options.
    """
    with pytest.raises(SystemExit) as stopped:
        fedamp.main([name, "--help"])
    shown = capsys.readouterr().out
    lines = shown.splitlines()
    assert not stopped.value.code and lines[0] == f"usage: fedamp {name} [options]"
    assert len(lines) <= 55 and max(map(len, lines)) <= 100
    with pytest.raises(SystemExit):
        tyro.cli(kind, args=["--help"])
    options = set(re.findall(r"^[^\w-]*(--[a-z][a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    options |= set() if name == "convergence" else {"--from"}
    assert set(re.findall(r"^  (--[a-z-]+)", shown, re.MULTILINE)) == options
    assert not re.search(r"^other:", shown, re.MULTILINE)
    examples = [shlex.split(line, comments=True) for line in shown.partition("examples:\n")[2].splitlines()]
    assert 2 <= len(examples) <= 4
    for program, which, *words in examples:
        assert (program, which) == ("fedamp", name)
        monkeypatch.setattr(sys, "argv", [program, *words])
        assert tyro.cli(kind, args=words) if name == "convergence" else command_line.parse(kind, "", name)


def test_an_unknown_experiment(capsys):
    """Exit code 2, and the nearest name. Failed with a traceback."""
    with pytest.raises(SystemExit) as stopped:
        fedamp.main(["practicl"])
    assert stopped.value.code == 2 and "Did you mean practical?" in capsys.readouterr().err


def test_an_experiment_runs_as_its_script(tmp_path, monkeypatch):
    """The same results, and a command that repeats them. Failed with `python fedamp practical` as the command."""
    arguments = ("--quick", "--methods", "separate", "--dataset", "DIGITS")
    command(monkeypatch, lambda: fedamp_paper.main("practical"), *arguments, "--out", tmp_path / "script")
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
    assert command_line.in_their_case(words, fedamp_paper.Command) == expected


def test_settings_from_toml(tmp_path, monkeypatch, capsys):
    """Options of the command line override them; what is no option is refused. Failed with dashes in names."""
    path = tmp_path / "mine.toml"
    path.write_text('rounds = 7\nmethods = ["FedAMP"]\nlearning-rate = 0.1\nseeds = [1, 2]\n')
    monkeypatch.setattr(sys, "argv", ["experiment.py", "--from", str(path), "--rounds", "9"])
    options = command_line.parse(fedamp_paper.Command, "", "practical")
    assert (options.rounds, options.methods, options.learning_rate, options.seeds) == (9, ("FedAMP",), 0.1, (1, 2))
    for text, message in (("turns = 7", "has the setting 'turns', which"), ("rounds = ", "is no TOML file")):
        path.write_text(text)
        with pytest.raises(SystemExit):
            command_line.parse(fedamp_paper.Command, "", "practical")
        assert message in " ".join(capsys.readouterr().err.split())


def test_one_process_writes_to_a_folder(tmp_path):
    """A second one is refused while the first lives, and this process may go on. Failed without the lock."""
    code = "import pathlib, sys, fedamp_jax.runner.run_folder as r; r.lock(pathlib.Path(sys.argv[1])); print('ok')"
    other = lambda: subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)  # noqa: E731
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
    assert provenance.words() == ["fedamp", "practical", "--quick"]
    monkeypatch.setattr(sys, "argv", ["experiments/practical.py", "--quick"])
    assert provenance.words() == ["python", "experiments/practical.py", "--quick"]
