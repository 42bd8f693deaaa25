"""Paths of this machine: what a file system allows works everywhere, and what is no such path is refused at once."""

import io
import os
from pathlib import Path

import jax
import pytest
from rich.console import Console

import fedamp_jax
from fedamp_jax import Checkpoint, files, writers
from fedamp_jax.driver.checkpoint import Checkpoints
from fedamp_jax.report import files as report_files
from fedamp_jax.report import report
from fedamp_jax.runner import compare, messages
from tests.registry import federation, find, made, tiny_task
from tests.small_experiments import command, parsed, practical

ODD = [
    "lr=0.1,layers=[64]",
    "[!a]",
    "**",
    "a?b",
    "back\\slash",
    "a\nb",
    "a%20b #1",
    "日本",
    "{a}",
    ":key:",
    "\udcff",
    "n" * 255,
]
"""Names that a file system allows."""


@pytest.mark.parametrize("name", ODD, ids=ascii)
@pytest.mark.slow_variants
def test_names_that_a_file_system_allows(name, tmp_path):
    """A run goes on from its checkpoint, models and curves are read again, and nothing is written elsewhere.

    Failed for brackets ("damaged"), `**`, a backslash and what is not valid Unicode ("make room"), all in orbax or
    TensorStore; and for a file whose name is as long as a name may be, which an unfinished one exceeded.
    """
    task, algorithm = made(find("separate"))
    folder, data = tmp_path / name, federation()

    def run(rounds):
        with writers.csv(folder / name) as curve:
            saving = Checkpoint(folder, 1, {"a": 1})
            return fedamp_jax.run(task, algorithm, data, data, rounds=rounds, progress=False, checkpoint=saving,
                                  observe=curve)  # fmt: skip

    run(1)
    assert run(2).starts == 2
    assert (folder / name).read_text().count("\n") == 3
    models = jax.vmap(tiny_task().init)(jax.random.split(jax.random.key(0), 2))
    fedamp_jax.save_models(folder / "models" / name, tiny_task(), models)
    assert fedamp_jax.load_models(folder / "models" / name, tiny_task()).models.params.keys() == models.params.keys()
    assert os.listdir(tmp_path) == [name] and sorted(os.listdir(folder)) == sorted(["1", "2", "models", name])


@pytest.mark.parametrize("name", ["[a]", "a*b"])
def test_tensorboard_and_reports_in_odd_folders(name, tmp_path):
    """Fails if a folder is taken for a pattern."""
    task, algorithm = made(find("separate"))
    with writers.tensorboard(tmp_path / name) as curve:
        result = fedamp_jax.run(task, algorithm, federation(), federation(), rounds=1, progress=False, observe=curve)
    written = fedamp_jax.report.of_runs({"Separate": result}).write(tmp_path / name)
    assert written == tmp_path / name / "report.html" and written.exists() and os.listdir(tmp_path) == [name]
    assert report_files.read([tmp_path / name])[0].name == name


ADDRESSES = [
    "gs://bucket/run",
    "s3://bucket/run",
    "https://host/run",
    "file:///tmp/run",
    "dbfs:/run",
    Path("gs://bucket/run"),
]
TAKERS = {
    "checkpoint": lambda path: Checkpoints(path, None, 2),
    "save_models": lambda path: fedamp_jax.save_models(path, tiny_task(), None),  # pyright: ignore[reportArgumentType]
    "load_models": lambda path: fedamp_jax.load_models(path, tiny_task()),
    "load": lambda path: fedamp_jax.data.load("mnist", path),
    "csv": writers.csv,
    "tensorboard": writers.tensorboard,
    "report": lambda path: report.write({}, path),  # pyright: ignore[reportArgumentType]
    "read": lambda path: report_files.read([path]),
    "replace_file": lambda path: files.replace_file(path, b""),
    "compare": lambda path: compare.execute(compare.Options(("a",), f"{path}.html")),
}


@pytest.mark.parametrize("address", ADDRESSES, ids=str)
@pytest.mark.parametrize("taker", TAKERS)
def test_addresses_are_refused(taker, address, tmp_path, monkeypatch):
    """With what to do, and nothing is made. Failed with a folder `gs:` and success reported, for every one of them."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=r"is an address, and only this machine.*give a local path"):
        TAKERS[taker](address)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("words", [("--out", "gs://bucket/a"), ("--from", "s3://bucket/a/results.json"),
                                   ("--data-dir", "gs://bucket/data")])  # fmt: skip
def test_addresses_are_refused_on_the_command_line(words, tmp_path, monkeypatch, capsys):
    """Before data are read. Failed with a folder `gs:` in the current one, and with a file that is not there."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit):
        command(monkeypatch, practical, *words)
    said = " ".join(capsys.readouterr().err.split())
    assert words[0] in said and f"{words[1]!r} is an address" in said and not os.listdir(tmp_path)


def test_the_home_folder(tmp_path, monkeypatch):
    """`~` is the home folder wherever a path is taken; elsewhere in a name it is a character.

    Failed with a folder called `~` in the current one.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert files.local_path("~/a") == files.local_path(Path("~/a")) == tmp_path / "a"
    assert files.local_path("./~/a~") == Path("~/a~") and files.local_path("~nobody-of-this-name") == Path(
        "~nobody-of-this-name"
    )
    files.replace_file("~/b/c.txt", b"text")
    assert (tmp_path / "b" / "c.txt").read_bytes() == b"text"
    Checkpoints("~/checkpoints", None, 2).close()
    models = jax.vmap(tiny_task().init)(jax.random.split(jax.random.key(0), 2))
    fedamp_jax.save_models("~/models.npz", tiny_task(), models)
    fedamp_jax.load_models("~/models.npz", tiny_task())
    assert sorted(os.listdir(tmp_path)) == ["b", "checkpoints", "models.npz"]
    words = parsed("practical", "--out=~/runs")
    assert fedamp_jax.runner.command_line.folder_of(words, "practical") == tmp_path / "runs"


@pytest.mark.parametrize(("path", "error", "message"), [
    ("", ValueError, "the path '' is empty"),
    ("a\0b", ValueError, "is no path"),
    (b"a", TypeError, "must be the path of a file or a folder, got b'a'"),
    (3, TypeError, "must be the path of a file or a folder, got 3"),
])  # fmt: skip
def test_what_is_no_path(path, error, message):
    """Failed with errors of the operating system, of which some came after the training."""
    with pytest.raises(error, match=message):
        files.local_path(path)


@pytest.mark.parametrize("taker", ["save_models", "csv", "replace_file"])
def test_a_folder_is_no_file(taker, tmp_path):
    """Failed with the operating system's error, of which nobody knew what the unfinished file in it was."""
    models = jax.vmap(tiny_task().init)(jax.random.split(jax.random.key(0), 2))
    takers = {**TAKERS, "save_models": lambda path: fedamp_jax.save_models(path, tiny_task(), models)}
    with pytest.raises(ValueError, match="is a folder: give the name of a file in it"):
        takers[taker](tmp_path)
    assert not os.listdir(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
@pytest.mark.parametrize(
    "path", ["runs[a]/report.html", "runs[/a]", ":key:/[red]x", "日本", "\udcff", "a\\[b]"], ids=ascii
)
def test_what_is_printed_is_the_path(path, encoding, monkeypatch):
    """Failed with `runs/report.html`, a picture of a key, and UnicodeEncodeError after the training."""
    shown = io.TextIOWrapper(io.BytesIO(), encoding)
    messages.say(f"Report: {path}", Console(file=shown))
    shown.flush()
    assert shown.buffer.getvalue() == f"Report: {path}\n".encode(encoding, "backslashreplace")  # pyright: ignore[reportAttributeAccessIssue]
