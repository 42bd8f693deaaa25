"""`benchmarks/gpu.py`, which has to work at once on the day a GPU is there: rehearsed on the CPU."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))

import gpu  # noqa: E402
from on_gpu import column, decide, launches, record, server  # noqa: E402

from fedamp_jax import platforms  # noqa: E402
from fedamp_jax.kernels.convolution import conv_general_dilated  # noqa: E402

NHWC = ("NHWC", "HWIO", "NHWC")

# Machines with a GPU often lack these.
BLOCKED = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in (
            "tyro", "plotly", "matplotlib", "tensorflow_datasets", "importlib_resources", "PIL", "torch"
        ):
            raise ImportError(name)
sys.meta_path.insert(0, Blocked())
"""


def results_of(tmp_path, lines):
    """A result file with these lines."""
    found = record.Results(tmp_path / "results.jsonl")
    for part, name, line in lines:
        found.add(part, name, **line)
    return found


@pytest.mark.slow
def test_a_rehearsal_of_all_parts(tmp_path):
    """Every part runs to its end in a place that has only what the script says it takes, and the decision is printed.

    Failed with a part that raised, which leaves `failed` in its lines, and with tyro imported.
    """
    (tmp_path / "sitecustomize.py").write_text(BLOCKED)
    paths = os.pathsep.join([str(tmp_path), str(BENCHMARKS.parent)])
    environment = {**os.environ, "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu", "JAX_DEFAULT_PRNG_IMPL": "rbg"}
    command = [sys.executable, str(BENCHMARKS / "gpu.py"), "--out", str(tmp_path / "out"), "--tiny", "--apply"]
    alike = {"rounds mnist-mlp", "graphs none", "graphs concurrent"}  # other numbers and flags
    parts = {part for part in gpu.PARTS if part not in alike}
    command += ["--only", *parts]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    log = (tmp_path / "out" / "log.txt").read_text()
    assert done.returncode == 0, done.stderr + log
    found = json.loads((tmp_path / "out" / "gpu.json").read_text())
    assert not found["without"], (found["without"], log)
    assert parts == {row["part"] for row in found["rows"]}
    assert found["machine"]["device"].startswith("cpu")
    rounds = [row for row in found["rows"] if row["part"].startswith("rounds")]
    assert all(row["round"] > 0 and row["kernels"] > 0 and row["gib"] > 0 for row in rounds)
    whole = next(row for row in found["rows"] if row["name"] == "digits-mlp reproduced")
    assert whole["same_bits_float32"] and whole["from_cpu_float32"] == 0  # it is the CPU
    assert "gpu column: Choices(" in done.stdout


@pytest.mark.slow
def test_the_package_imports_without_what_only_experiments_need():
    """Failed with `import matplotlib` at the top of a module that the package imports."""
    subprocess.run([sys.executable, "-c", BLOCKED + "import fedamp_jax"], check=True, timeout=300)


@pytest.mark.parametrize("name", ["unrolled", "blocks"])
def test_candidate_lowerings_equal_lax(name, monkeypatch):
    """In value and gradients, of several clients. Failed with the clients of `unrolled` in another order."""
    monkeypatch.setattr(column, "L2", 1000)  # so that there are several blocks
    rng = np.random.default_rng(0)
    x, w = rng.normal(size=(3, 4, 6, 6, 2)), rng.normal(size=(3, 3, 3, 2, 5))

    def of(lowering, x, w):
        def loss(x, w):
            return jnp.sum(jnp.sin(conv_general_dilated(x, w, (2, 2), "SAME", dimension_numbers=NHWC,
                                                        lowering=lowering)))  # fmt: skip

        return jax.vmap(jax.value_and_grad(loss, (0, 1)))(x, w)

    with jax.enable_x64(True):
        x, w = jnp.asarray(x), jnp.asarray(w)
        with column.Candidate("xla", 3).chosen():
            right = of("auto", x, w)
        with column.Candidate(name, 3).chosen():
            text = str(jax.make_jaxpr(lambda x, w: of("auto", x, w))(x, w))
            found = of("auto", x, w)
        assert ("conv_general_dilated" in text) == (name == "unrolled")
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-10), found, right)


def test_a_candidate_is_the_column_while_it_is_chosen():
    """Also for the precision. Failed when the column was not put back."""
    before = dict(platforms.CHOICES)
    with column.Candidate("patches", 4, "window", "float32").chosen():
        assert platforms.CHOICES["gpu"][:2] == ("patches", "window")
        assert jax.config.jax_default_matmul_precision == "highest"
    assert before == platforms.CHOICES


def test_kernels_are_counted_as_often_as_loops_run():
    """With the loop of `repeat` as often as it is told. Failed when a loop counted once, or a tuple as a kernel."""
    text = """
%fused (p: f32[8,4], i: s32[]) -> f32[1,4] {
  %p = f32[8,4]{1,0} parameter(0)
  %i = s32[] parameter(1)
  ROOT %slice = f32[1,4]{1,0} dynamic-slice(%p, %i, %i), dynamic_slice_sizes={1,4}
}

%body (a: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %a = (s32[], f32[8,4]{1,0}) parameter(0)
  %i.1 = s32[] get-tuple-element(%a), index=0
  %x = f32[8,4]{1,0} get-tuple-element(%a), index=1
  %row = f32[1,4]{1,0} fusion(%x, %i.1), kind=kLoop, calls=%fused
  ROOT %t = (s32[], f32[8,4]{1,0}) tuple(%i.1, %x)
}

%condition (a.1: (s32[], f32[8,4])) -> pred[] {
  %a.1 = (s32[], f32[8,4]{1,0}) parameter(0)
  ROOT %c = pred[] constant(true)
}

ENTRY %main (w: f32[8,4]) -> f32[8,4] {
  %w = f32[8,4]{1,0} parameter(0)
  %t.1 = (s32[], f32[8,4]{1,0}) tuple(%w, %w)
  %l = (s32[], f32[8,4]{1,0}) while(%t.1), condition=%condition, body=%body, metadata={op_name="jit(f)/at_most_5/while"}
  ROOT %y = f32[8,4]{1,0} copy(%w)
}
"""
    # The fusion reads a row and a number and writes a row, 36 bytes; the copy moves 256.
    assert launches.launched(text) == (6, 5 * 36 + 256)
    assert launches.launched(text, {5: 7}).kernels == 8


def test_all_ways_to_distances_agree():
    """With clients that nearly coincide far apart, where they should. Failed with the first client not subtracted."""
    w = server.models(8, 3 * server.BLOCK + 5)
    right = np.asarray(server.exact(w))
    off = ~np.eye(8, dtype=bool)
    for name, way in server.ways().items():
        found = np.asarray(jax.jit(way)(w), np.float64)
        error = (np.abs(found - right)[off] / right[off]).max()
        assert error < (1e-5 if "float32," not in name else 0.05), (name, error)


def test_the_column_follows_from_the_results(tmp_path):
    """Each line by its own measurements. Failed when a gain of one percent made a change."""
    cnn = {"seconds_taken": 1, "precision": "tf32", "pooling": "slices", "together": 1}
    mlp = {**cnn, "lowering": "-", "pooling": "-"}
    distance = {"seconds_taken": 1, "error_of_nearest": 1e-6}
    lines = [
        ("rounds mnist-cnn", "a", {**cnn, "lowering": "xla", "round": 1.0}),
        ("rounds mnist-cnn", "b", {**cnn, "lowering": "xla", "pooling": "window", "round": 0.8}),
        ("rounds mnist-cnn", "c", {**cnn, "lowering": "patches", "round": 0.99}),
        ("rounds mnist-cnn", "d", {**cnn, "lowering": "unrolled", "together": 4, "round": 0.5}),
        ("rounds mnist-mlp", "e", {**mlp, "round": 0.1}),
        ("rounds mnist-mlp", "f", {**mlp, "together": 100, "round": 0.2}),
        ("server", "cnn gram", {**distance, "seconds": 2.0}),
        ("server", "cnn differences", {**distance, "seconds": 1.0}),
    ]
    found = decide.decide(results_of(tmp_path, lines))
    assert found.choices == platforms.Choices("xla", "window", "differences", together=False)
    assert "2.00 times" in " ".join(found.notes)
    diff = decide.change(found, {"device": "gpu: a card"})
    assert '+    "gpu": Choices("xla", "window", "differences", together=False),' in diff
    assert "+| max pooling | `slices` | `window` | `window` |" in diff
    assert "+- gpu: measured" in diff and "gpu: a card" in diff

    inexact = [
        *lines[:-1],
        ("server", "cnn differences", {"seconds_taken": 1, "seconds": 1.0, "error_of_nearest": 0.1}),
    ]
    (tmp_path / "results.jsonl").unlink()
    assert decide.decide(results_of(tmp_path, inexact)).choices.distances == "gram"
    (tmp_path / "results.jsonl").unlink()
    assert decide.decide(results_of(tmp_path, [])).choices == platforms.CHOICES["gpu"]


def test_jobs_that_fail_or_crash_do_not_end_the_others(tmp_path):
    """A second process goes on where the first one died. Failed when a job that had begun was begun again."""
    results, ran = record.Results(tmp_path / "results.jsonl"), []

    def job(name, error=None):
        def run():
            ran.append(name)
            if error is not None:
                raise error
            return {"seconds": 1.0}

        return name, run

    crash = [job("first"), job("raises", ValueError("no")), job("dies", SystemExit()), job("last")]
    settings = record.Settings(results, time.time() + 100, tiny=True)
    with pytest.raises(SystemExit):
        record.work("part", iter(crash), settings)
    record.work("part", iter(crash), settings)
    record.work("part", iter([job("late")]), settings._replace(until=time.time() - 1))
    assert ran == ["first", "raises", "dies", "last"]
    states = {"first": "done", "raises": "failed", "dies": "begun", "last": "done", "late": "skipped"}
    assert results.states("part") == states
    assert [row["name"] for row in results.rows("part")] == ["first", "last"]


def test_a_part_that_hangs_is_ended(tmp_path):
    """And says so. Failed without the limit of a job."""
    results = results_of(tmp_path, [("part", "hangs", {"begun": True})])
    began = time.time()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"], start_new_session=True) as process:
        why = gpu.watch(process, "part", 0.5, began + 50, results)
    assert "failed" in why and time.time() - began < 30
