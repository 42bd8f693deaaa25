"""Tries the notebooks' install cell in rebuilt Colab runtimes: Colab's packages, in a kernel that has imported numpy.

    python notebooks/try_in_colab.py                                      # all runtimes: 20 minutes, and PyPI
    python notebooks/try_in_colab.py tpu --python ~/3.13/bin/python3.13   # one of them

Needs Python 3.13 and the packages of `pip install -e '.[test]'`. A runtime is a virtual environment with the versions
of colab_runtimes.toml. In a copy of it for each notebook, one kernel imports what Colab's kernels have imported,
executes the install cell, and trains: on the CPU runtime the whole notebook, otherwise one round. Each time fedamp_jax
comes from another place: an uploaded wheel, a checkout around the notebook, a folder on Drive, a git address (the last
commit).

Neither a TPU nor a GPU is needed. `ACCELERATOR` says what their runtimes install, and they train on the CPU, so what is
tried is which packages pip chooses, that numpy stays, and that a session works with them. libtpu and JAX's CUDA
plugin are installed for that, NVIDIA's libraries are not.
"""

import argparse
import json
import os
import shutil
import subprocess
import tempfile
import tomllib
from importlib import metadata
from pathlib import Path

import nbclient
import nbformat

HERE = Path(__file__).parent
ROOT = HERE.parent
RUNTIMES = tomllib.loads((HERE / "colab_runtimes.toml").read_text())
CASES = [
    ("cpu", "fedamp_jax_tpu.ipynb", "wheel"),
    ("cpu", "sweep.ipynb", "checkout"),
    ("tpu", "fedamp_jax_tpu.ipynb", "drive"),
    ("tpu", "sweep.ipynb", "git"),
    ("cuda", "fedamp_jax_tpu.ipynb", "git"),
    ("cuda", "sweep.ipynb", "wheel"),
]
PRELOADED = "import matplotlib.pyplot, numpy, pandas, requests"
ONE_ROUND = """
import fedamp_jax, optax
train, test, _ = fedamp_jax.data.federation("digits")
task = fedamp_jax.models.mlp(10, shape=(8, 8))
solver = fedamp_jax.Solver(optax.adam(1e-3), epochs=10, batch_size=100)
algorithm = fedamp_jax.fedamp(task, solver, sigma=1.6, self_weight=1 / 4)
print(fedamp_jax.run(task, algorithm, train, test, rounds=1, progress=False).accuracy.mean())
"""


def rebuild(runtime: str, python: str, folder: Path) -> Path:
    """A virtual environment with the packages of a runtime."""
    print(f"rebuilding Colab's {runtime} runtime")
    subprocess.run([python, "-m", "venv", folder], check=True)
    pip = next(pin for pin in RUNTIMES["every"] if pin.startswith("pip=="))
    for pins in [pip], RUNTIMES["every"] + RUNTIMES[runtime]:
        subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", *pins], check=True)
    for pin in RUNTIMES.get(f"{runtime}_named_only", []):
        name, version = pin.split("==")
        info = packages(folder) / f"{name.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    return folder


def packages(environment: Path) -> Path:
    return next(environment.glob("lib/python*/site-packages"))


def versions(environment: Path) -> dict[str, str]:
    return {found.name: found.version for found in metadata.distributions(path=[str(packages(environment))])}


def copy_of(environment: Path, folder: Path) -> Path:
    """Another environment with the same packages. pip replaces files and never writes into them, so links will do."""
    return shutil.copytree(environment, folder, symlinks=True, copy_function=os.link)


def place(source: str, folder: Path) -> tuple[Path, str]:
    """Puts fedamp_jax where a person would have it: the working directory of the notebook, and its `SOURCE`."""
    checkout = folder / "drive" / "MyDrive" / "fedamp_jax"
    shutil.copytree(ROOT / "fedamp_jax", checkout / "fedamp_jax", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    content = folder / "content"
    content.mkdir()
    if source == "wheel":
        wheel = ["pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(content), str(checkout)]
        subprocess.run(wheel, check=True)
    if source == "checkout":
        content = checkout / "notebooks"
        content.mkdir()
    return content, {"drive": str(checkout.parent), "git": f"git+{ROOT.as_uri()}"}.get(source, "")


def set_in(cell: str, **settings: str) -> str:
    """The install cell with its settings filled in."""
    for name, value in settings.items():
        empty = f'{name} = ""'
        assert cell.count(empty) == 1, f"The install cell has no line {empty}."
        cell = cell.replace(empty, f"{name} = {value!r}")
    return cell


def session(environment: Path, folder: Path, sources: list[str], may_fail: int = 0) -> list[list[dict]]:
    """Executes cells in a new kernel of an environment. Returns their outputs; the first `may_fail` cells may fail."""
    kernel = folder / "kernels" / "colab"
    kernel.mkdir(parents=True, exist_ok=True)
    spec = {
        "argv": [str(environment / "bin" / "python"), "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "env": {"PYTHONPATH": "", "JAX_PLATFORMS": "cpu", "PYDEVD_DISABLE_FILE_VALIDATION": "1"},
        "display_name": "Colab",
        "language": "python",
    }
    (kernel / "kernel.json").write_text(json.dumps(spec))
    os.environ["JUPYTER_PATH"] = str(folder)
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    for cell in cells[:may_fail]:
        cell.metadata["tags"] = ["raises-exception"]
    where = {"metadata": {"path": folder}}
    notebook = nbformat.v4.new_notebook(cells=cells)
    nbclient.NotebookClient(notebook, timeout=1800, kernel_name="colab", resources=where).execute()
    return [cell.outputs for cell in cells]


def code_cells(notebook: str) -> list[str]:
    cells = nbformat.read(HERE / notebook, as_version=4).cells
    return [cell.source for cell in cells if cell.cell_type == "code"]


def report(before: dict[str, str], after: dict[str, str]) -> None:
    """Prints what the cell installed, and fails if it was another numpy."""
    assert after["numpy"] == before["numpy"], f"numpy {before['numpy']} was exchanged for {after['numpy']}."
    print(f"  numpy {after['numpy']} stayed")
    for name in sorted(after):
        if after[name] != before.get(name):
            print(f"  {name} {before.get(name, '(none)')} -> {after[name]}")


def restart(environment: Path, folder: Path, cell: str) -> None:
    """After jax was imported, the cell asks for a restart each time it is run; in the next session it does not."""
    *_, first, second = session(environment, folder, [PRELOADED + ", jax", cell, cell], may_fail=3)
    for outputs in first, second:
        assert "imported jax" in outputs[-1].get("evalue", ""), f"The cell asked for no restart: {outputs}"
    session(environment, folder, [PRELOADED, cell, ONE_ROUND])
    print("  a restart was asked for where jax had been imported, and the next session trained")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "runtimes", nargs="*", metavar="runtime", default=["cpu", "tpu", "cuda"], help="cpu, tpu or cuda"
    )
    parser.add_argument("--python", default="python3.13", help="the Python of the runtimes")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        for runtime in arguments.runtimes:
            base = rebuild(runtime, arguments.python, work / runtime)
            for number, (_, notebook, source) in enumerate(case for case in CASES if case[0] == runtime):
                folder = work / f"{runtime}{number}"
                folder.mkdir()
                environment = copy_of(base, folder / "environment")
                content, found = place(source, folder)
                install, *cells = code_cells(notebook)
                install = set_in(install, SOURCE=found, ACCELERATOR=runtime)
                print(f"{runtime}: {notebook}, fedamp_jax from {source}")
                rest = cells if runtime == "cpu" else [cells[0], ONE_ROUND]
                session(environment, content, [PRELOADED, install, *rest])
                report(versions(base), versions(environment))
            if runtime == "cpu":
                restart(copy_of(base, folder / "second"), content, install)
    print("All of it works.")


if __name__ == "__main__":
    main()
