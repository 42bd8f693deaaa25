"""The notebooks run from top to bottom, and what is committed is what a run gave."""

from pathlib import Path

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

FOLDER = Path(__file__).parent.parent / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def read(name):
    return nbformat.read(FOLDER / name, as_version=4)


def said(notebook):
    """What its cells printed and returned as text."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return "".join(o.get("text", "") or o.get("data", {}).get("text/plain", "") for o in outputs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", NAMES)
def test_runs_from_top_to_bottom(name, tmp_path, monkeypatch):
    """On a CPU, without a network, in an empty folder. Failed when a cell used a name that a later cell defines."""
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    notebook = read(name)
    place = {"metadata": {"path": tmp_path}}
    nbclient.NotebookClient(notebook, timeout=400, kernel_name="python3", resources=place).execute()
    errors = [o for cell in notebook.cells for o in cell.get("outputs", []) if o.output_type == "error"]
    assert not errors
    pictures = [o for cell in notebook.cells for o in cell.get("outputs", []) if "image/png" in o.get("data", {})]
    assert len(pictures) >= 2
    if name == "fedamp_jax_tpu.ipynb":
        assert "FedAMP       BMTA" in said(notebook)
        assert (tmp_path / "fedamp_run" / "digits" / "FedAMP" / "checkpoints" / "30").is_dir()


@pytest.mark.parametrize("name", NAMES)
def test_outputs_are_those_of_a_whole_run(name):
    """Every code cell was executed, in order, without an error. Failed with a cell edited and not run again."""
    cells = [cell for cell in read(name).cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert all(o.output_type != "error" for cell in cells for o in cell.outputs)
    assert sum(len(str(cell.outputs)) for cell in cells) < 2_000_000  # a repository is no place for films
    assert "CpuDevice" in said(read(name)) or "Device" in said(read(name))


def test_both_are_there():
    assert NAMES == ["fedamp_jax_tpu.ipynb", "sweep.ipynb"]
