"""Strict everywhere: no silent promotion of dtypes or ranks, warnings are errors, eight CPU devices."""

import gc
import os
import signal
from importlib.metadata import version
from pathlib import Path

# The tests are for CPU devices, whatever else is here. (Where libtpu is installed, JAX would look for a TPU.)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

# Most of the suite's time is XLA compiling programs that run for a millisecond. Set before jax reads it.
_FLAGS = [
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
    "--xla_cpu_parallel_codegen_split_count=1",
]
if version("jaxlib").startswith("0.10."):  # later ones do not have this flag, and end at one that they do not have
    _FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ["XLA_FLAGS"] = " ".join([os.environ.get("XLA_FLAGS", ""), *_FLAGS])

# A shell's background jobs ignore SIGINT, and so would the processes that some tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"  # nor does a test read or write the user's compiled programs

# Tracing makes many objects, of which few are garbage; looking for it as often as Python does took 4 % of the time.
gc.set_threshold(50_000, 20, 20)

import jax
import pytest

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_num_cpu_devices", 8)


def drop_programs():
    """Forget compiled programs when they are many: 3,000 memory maps go with 800 MB, and a process may have 65,530."""
    maps = Path("/proc/self/maps")
    if not maps.exists() or maps.read_bytes().count(b"\n") > 3_000:
        jax.clear_caches()


@pytest.fixture(autouse=True, scope="session")
def _eight_devices():
    """Make the devices before any test: the first one to start an experiment would else split the CPU its own way.

    Not when this module is imported: a process that forks (tests/runner/test_resume.py) must not have started JAX.
    """
    jax.devices()


@pytest.fixture(autouse=True, scope="module")
def _drop_programs():
    """A file's tests share the methods that `registry.made` has made for them, and what these have compiled."""
    from tests import registry

    yield
    registry.made.cache_clear()
    drop_programs()


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items):
    """Tests of one file run on one worker, unless they say otherwise: they share what they have compiled.

    Of the tests that run over all methods, some are left to `pytest -m slow`; of a test that is marked as having slow
    variants, all but the first one.
    """
    from tests import registry

    seen = set()
    for item in list(items):
        name = item.nodeid.partition("[")[0]
        if item.get_closest_marker("slow_variants") and not item.get_closest_marker("slow"):
            if name in seen:
                item.add_marker(pytest.mark.slow)
            seen.add(name)
        entry = getattr(getattr(item, "callspec", None), "params", {}).get("entry")
        if isinstance(entry, registry.Entry) and not registry.is_run(entry, item.originalname):
            items.remove(item)
        if isinstance(entry, registry.Entry) and registry.is_slow(entry, item.originalname):
            item.add_marker(pytest.mark.slow)
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))


@pytest.fixture(autouse=True)
def _own_cache_folder(tmp_path, monkeypatch):
    """No test reads or writes the user's cache of data sets."""
    monkeypatch.setenv("FEDAMP_JAX_CACHE", str(tmp_path / "cache"))
