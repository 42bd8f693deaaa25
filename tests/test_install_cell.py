"""The notebooks' first cell: where it finds fedamp_jax, what it asks pip for, and what it says when it cannot go on.

`python notebooks/try_in_colab.py` executes it with the real pip in rebuilt runtimes; here pip is replaced.
"""

import configparser
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

ROOT = Path(__file__).parent.parent


def code_of(name):
    """The first code cell of a notebook."""
    cells = nbformat.read(ROOT / "notebooks" / name, as_version=4).cells
    return next(cell.source for cell in cells if cell.cell_type == "code")


CELL = code_of("sweep.ipynb")


class Session:
    """A kernel in an empty folder of a machine without accelerator. `wanted` is what the cell asked pip for."""

    def __init__(self, folder, monkeypatch):
        self.folder, self.monkeypatch = folder, monkeypatch
        self.content, self.dev, self.site = folder / "content", folder / "dev", folder / "site-packages"
        for path in self.content, self.dev, self.site:
            path.mkdir()
        monkeypatch.chdir(self.content)
        self.path = [self.site]
        self.imported = {}  # name: version
        self.brings = {"fedamp_jax": "0.1.0", "jax": "0.11.2"}  # what pip installs
        self.refusal = ""  # what pip writes when it installs nothing

    def install(self, name, version):
        """Puts a distribution into site-packages, in place of an older one."""
        for old in self.site.glob(f"{name}-*.dist-info"):
            shutil.rmtree(old)
        info = self.site / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def pip(self, command, **_):
        assert command[:5] == [sys.executable, "-m", "pip", "install", "--quiet"]
        self.wanted = command[5:]
        for name, version in self.brings.items() if not self.refusal else ():
            self.install(name, version)
        return SimpleNamespace(returncode=bool(self.refusal), stderr=self.refusal)

    def run_cell(self, **settings):
        """Executes the cell, with values for the settings at its top."""
        cell = CELL.replace('"/content', f'"{self.content}').replace('"/dev"', f'"{self.dev}"')
        for name, value in settings.items():
            assert f'\n{name} = ""' in cell
            cell = cell.replace(f'\n{name} = ""', f"\n{name} = {str(value)!r}")
        self.wanted = None
        elsewhere = [folder for folder in sys.path if not folder.endswith("-packages")]
        with self.monkeypatch.context() as patch:
            patch.setattr(sys, "path", [*map(str, self.path), *elsewhere])
            patch.setattr(subprocess, "run", self.pip)
            for name in "numpy", "scipy", "matplotlib", "jax", "jaxlib", "flax", "optax":
                patch.delitem(sys.modules, name, raising=False)
            for name, version in self.imported.items():
                patch.setitem(sys.modules, name, SimpleNamespace(__version__=version))
            exec(compile(cell, "install cell", "exec"), {})


@pytest.fixture
def session(tmp_path, monkeypatch):
    return Session(tmp_path, monkeypatch)


def wheel(folder, version="0.1.0", seconds=1000):
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"fedamp_jax-{version}-py3-none-any.whl"
    file.touch()
    os.utime(file, (seconds, seconds))
    return file.resolve()


def checkout(folder, name="fedamp_jax"):
    folder.mkdir(parents=True)
    (folder / "setup.cfg").write_text(f"[metadata]\nname = {name}\n")
    return folder


def test_both_notebooks_have_the_same():
    """Failed after an edit of one of them."""
    assert code_of("fedamp_jax_tpu.ipynb") == CELL
    assert "pip" in CELL


@pytest.mark.parametrize("kind", ["cuda", "tpu"])
def test_extras_are_those_of_setup_cfg(session, kind):
    """Failed when the notebooks installed jax[cuda12], and setup.cfg jax[cuda13]: jax is named in setup.cfg alone."""
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert config["options.extras_require"][kind].startswith(f"jax[{kind}")
    file = wheel(session.content)
    session.run_cell(ACCELERATOR=kind)
    assert session.wanted == [f"fedamp_jax[{kind}] @ {file.as_uri()}"]


@pytest.mark.parametrize(
    ("device", "extra"),
    [("nvidia0", "[cuda]"), ("accel0", "[tpu]"), ("vfio/0", "[tpu]"), ("vfio/vfio", ""), ("nvidiactl", "")],
)
def test_the_accelerator_is_found(session, device, extra):
    """Failed for a TPU v5e, which is /dev/vfio/0, and for machines that have /dev/vfio without a device."""
    (session.dev / "vfio").mkdir()
    (session.dev / device).touch()
    file = wheel(session.content)
    session.run_cell()
    assert session.wanted == [f"fedamp_jax{extra} @ {file.as_uri()}"]


def test_what_is_installed_stays(session):
    """And a checkout in the working directory, which may hold metadata of its own, is not taken for an installation."""
    wheel(session.content)
    session.install("fedamp_jax", "0.1.0")
    session.run_cell()
    assert session.wanted is None
    (session.site / "fedamp_jax-0.1.0.dist-info").rename(session.folder / "fedamp_jax-0.1.0.dist-info")
    session.path.insert(0, session.folder)
    session.run_cell()
    assert session.wanted is not None


@pytest.mark.parametrize("where", [".", "..", "drive/MyDrive", "drive/MyDrive/Colab Notebooks"])
def test_a_wheel_is_found(session, where):
    """The last folder's name has a space, which an address must not have."""
    file = wheel(session.content / where)
    session.run_cell()
    assert session.wanted == [f"fedamp_jax @ {file.as_uri()}"]


def test_colabs_folder_is_looked_at_from_any_other(session):
    file = wheel(session.content)
    (session.folder / "a" / "b").mkdir(parents=True)
    session.monkeypatch.chdir(session.folder / "a" / "b")
    session.run_cell()
    assert session.wanted == [f"fedamp_jax @ {file.as_uri()}"]


def test_the_newest_wheel_is_found(session):
    """By time, not by name; without a browser's second copy of a file, whose name pip refuses."""
    for seconds, version in [(1000, "0.1.0"), (3000, "0.2.0"), (2000, "0.3.0")]:
        wheel(session.content, version, seconds)
    (session.content / "fedamp_jax-0.4.0-py3-none-any (1).whl").touch()
    session.run_cell()
    assert "fedamp_jax-0.2.0-" in session.wanted[0]


@pytest.mark.parametrize("where", ["fedamp_jax", "drive/MyDrive/fedamp_jax-main"])
def test_a_checkout_is_found(session, where):
    """Failed when any folder with a setup.cfg was taken for one."""
    checkout(session.content / "fedamp_analysis", name="another")
    folder = checkout(session.content / where)
    session.run_cell()
    assert session.wanted == [f"fedamp_jax @ {folder.as_uri()}"]


def test_the_checkout_around_the_notebook_is_found(session):
    """In Jupyter, a notebook runs in its own folder."""
    folder = checkout(session.folder / "work")
    (folder / "notebooks").mkdir()
    session.monkeypatch.chdir(folder / "notebooks")
    session.run_cell()
    assert session.wanted == [f"fedamp_jax @ {folder.as_uri()}"]


def test_a_source_that_is_named_comes_first(session):
    """A wheel, a folder with a wheel or a checkout in it, a checkout, an address; whatever else is there."""
    wheel(session.content)
    file = wheel(session.folder / "mine", "0.2.0")
    folder = checkout(session.folder / "Drive" / "fedamp")
    address = "git+https://example.org/fedamp_jax"
    for source, found in [
        (file, file.as_uri()),
        ("../mine", file.as_uri()),
        (folder.parent, folder.as_uri()),
        (folder, folder.as_uri()),
        (address, address),
    ]:
        shutil.rmtree(session.site / "fedamp_jax-0.1.0.dist-info", ignore_errors=True)
        session.run_cell(SOURCE=source)
        assert session.wanted == [f"fedamp_jax @ {found}"]


@pytest.mark.parametrize("source", ["", "../nothing"])
def test_where_nothing_is_found_it_says_what_to_do(session, source):
    with pytest.raises(FileNotFoundError, match=r"(?s)upload a wheel.*drive\.mount.*set SOURCE") as error:
        session.run_cell(SOURCE=source)
    assert str((session.content / source).resolve()) in str(error.value)
    assert session.wanted is None


def test_numpy_stays(session):
    """Failed when pip was free to choose: it took a jax that needs another numpy than the session had imported."""
    wheel(session.content)
    session.install("numpy", "2.1.3")
    session.imported["numpy"] = "2.1.3"
    session.run_cell()
    assert session.wanted[1:] == ["numpy==2.1.3"]


def test_what_pip_says_is_shown(session):
    wheel(session.content)
    session.refusal = "ERROR: ResolutionImpossible"
    with pytest.raises(RuntimeError, match=r"(?s)ResolutionImpossible.*%pip install --upgrade numpy"):
        session.run_cell()


def test_it_asks_for_a_restart(session):
    """As often as it is run in the session that had imported another jax, and not in the next one."""
    wheel(session.content)
    session.install("jax", "0.7.2")
    session.imported["jax"] = "0.7.2"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"imported jax before.*Restart session"):
            session.run_cell()
    session.imported["jax"] = "0.11.2"
    session.run_cell()
    assert session.wanted is None
