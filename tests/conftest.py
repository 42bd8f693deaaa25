"""Strict everywhere: no silent promotion of dtypes or ranks, warnings are errors, eight CPU devices."""

import os

# Most of the suite's time is LLVM optimising programs that run for a millisecond. Set before jax reads it.
os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # nor does a test read or write the user's compiled programs

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 8)


@pytest.fixture(autouse=True, scope="module")
def _drop_programs():
    """Compiled programs hold memory maps, of which a process may have 65,530: with all of the suite's it crashes."""
    yield
    jax.clear_caches()


@pytest.fixture(autouse=True)
def _own_cache_folder(tmp_path, monkeypatch):
    """No test reads or writes the user's cache of data sets."""
    monkeypatch.setenv("FEDAMP_JAX_CACHE", str(tmp_path / "cache"))
    assert os.environ["FEDAMP_JAX_CACHE"]
