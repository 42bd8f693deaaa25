"""Programs that are compiled with less effort for a CPU."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedamp_jax import Placement
from fedamp_jax.programs.jitted import Jitted
from tests.registry import federation


@pytest.fixture
def _default_flags(monkeypatch):
    """Without the level that the test suite compiles with."""
    monkeypatch.delenv("XLA_FLAGS", raising=False)


def programs():
    """A `Jitted`, and how many of its calls were compiled for a CPU and how many as `jax.jit` does."""
    program = Jitted(lambda scale, data: scale * data.y.sum(), static=1)
    return program, lambda: compiled_by(program, 2)


def compiled_by(program, *static):
    """How many programs were compiled with less effort, and how many as `jax.jit` does."""
    return tuple(program._made(level, *static)._cache_size() for level in (1, None))


@jax.tree_util.register_static
class Elsewhere(Placement):
    """Of another platform."""

    @property
    def platform(self):
        return "tpu"


@pytest.mark.usefixtures("_default_flags")
def test_less_effort_on_a_cpu_only():
    """Failed when the platform was `jax.default_backend()`."""
    program, compiled = programs()
    program(2, federation())
    assert compiled() == (1, 0)
    program(2, federation()._replace(placement=Elsewhere()))
    assert compiled() == (1, 1)


@pytest.mark.usefixtures("_default_flags")
def test_full_effort_for_convolutions():
    """Images alone do not count. Failed when every program of a CPU had less effort."""
    program = Jitted(lambda model, data: model["w"].sum() * data.x.sum())
    data = federation()._replace(x=jnp.ones((46, 3, 3, 1)))
    for kernel, counts in ((jnp.ones((4, 9, 2)), (1, 0)), (jnp.ones((4, 3, 3, 1, 2)), (1, 1))):
        program({"w": kernel}, data)
        assert compiled_by(program) == counts


@pytest.mark.usefixtures("_default_flags")
def test_a_part_of_another_program():
    """With traced arguments and with none. Failed with "`compiler_options` can only be passed to top-level"."""
    program, data = programs()[0], federation()
    wanted = 2 * np.asarray(data.y).sum()
    assert jax.jit(lambda y: program(2, data._replace(y=y)))(data.y) == wanted
    assert jax.jit(lambda: program(2, data))() == wanted
    assert jax.jit(lambda: jnp.int32(0) + program(2, data))() == wanted


def test_the_users_level_counts(monkeypatch):
    """Failed when it was overridden: this suite would take a third longer to compile."""
    program, compiled = programs()
    monkeypatch.setenv("XLA_FLAGS", "--xla_backend_optimization_level=3")
    program(2, federation())
    assert compiled() == (0, 1)
