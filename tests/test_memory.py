"""Memory: as many clients side by side as fit, found from the compiled round, and a message where nothing fits."""

import logging

import jax
import numpy as np
import pytest

from fedamp_jax import driver, local, memory, sharding
from fedamp_jax.memory import Need
from tests.registry import federation, find, make

FEDAMP = find("fedamp")


def two_rounds(algorithm, data):
    key = jax.random.key(0)
    state = sharding.init(algorithm, key, data)
    for k in range(2):
        state, _ = driver.round(algorithm, state, data, jax.random.fold_in(key, k))
    return state


@pytest.mark.parametrize("devices", [1, 2])
def test_fewer_clients_side_by_side_where_memory_is_short(devices, monkeypatch):
    """The chunk shrinks until the round fits, and the result is that of plenty. Failed when the limit was not looked at
    in `chunk_size`, and when all clients were counted in place of a device's.
    """
    _, algorithm = make(FEDAMP)
    data = federation()
    data = data if devices == 1 else sharding.shard(data, sharding.client_mesh(devices))
    plenty = two_rounds(algorithm, data)
    with sharding.over(data):
        held, working = driver._need_of(algorithm, (plenty, data, jax.random.key(0)))
    seen = []
    chunk_size = local.chunk_size
    monkeypatch.setattr(local, "chunk_size", lambda *args: seen.append(chunk_size(*args)) or seen[-1])
    monkeypatch.setattr(memory, "room", lambda: held + working - 1)
    _, again = make(FEDAMP)
    short = two_rounds(again, data)
    on_device = len(data.size) // devices
    # Traced as it is, then until it fits.
    assert seen[0] == on_device and seen == sorted(set(seen), reverse=True) and len(seen) in (2, 3)
    for a, b in zip(jax.tree.leaves(plenty), jax.tree.leaves(short), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_round_that_fits_compiles_once(monkeypatch, caplog):
    """To look at what it takes costs no second compilation. Failed with shapes that had lost their placement."""
    monkeypatch.setattr(memory, "room", lambda: 1 << 40)
    _, algorithm = make(FEDAMP)
    data = sharding.shard(federation(), sharding.client_mesh(2))
    with caplog.at_level(logging.WARNING), jax.log_compiles():
        two_rounds(algorithm, data)
    assert sum("Finished XLA compilation of jit(_round)" in line for line in caplog.messages) == 1


@pytest.mark.parametrize(
    ("base", "each", "room", "expected", "tried"),
    [
        (20, 10, 110, None, [None]),
        (20, 10, 109, 7, [None, 7]),
        (20, 10, 70, 4, [None, 4]),
        (50, 10, 90, 3, [None, 4, 3]),  # more of it stays than the estimate thinks
        (20, 10, 5, 1, [None]),
    ],
)
def test_side_by_side(base, each, room, expected, tried):
    """Failed when one client was let in that did not fit, for 0 where nothing fits, and with the first estimate."""
    seen = []

    def taken(chunk):
        seen.append(chunk)
        return Need(10, base + each * (chunk or 8))

    assert memory.side_by_side(taken, 8, room) == expected and seen == tried


def test_a_compiler_that_refuses(monkeypatch):
    """As a TPU's where a program is too large. Failed when no smaller chunk was tried, and when every round did."""
    _, algorithm = make(FEDAMP)
    real, refused = driver._round, []

    class Picky:
        def lower(self, *args):
            if local.fitting.value is None or local.fitting.value > 2:
                refused.append(local.fitting.value)
                return self
            return real.lower(*args)

        def compile(self):
            raise jax.errors.JaxRuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.")

        def __call__(self, *args):
            assert local.fitting.value == 2
            return real(*args)

    monkeypatch.setattr(driver, "_round", Picky())
    monkeypatch.setattr(memory, "room", lambda: 1 << 40)
    two_rounds(algorithm, federation())
    assert refused == [None, 4]


def test_out_of_memory_says_what_to_do(monkeypatch):
    """XLA's error names the estimate and the arguments to lower. Failed when other errors of XLA were taken for it."""
    _, algorithm = make(FEDAMP)
    data = federation()

    def exhausted(*_):
        raise jax.errors.JaxRuntimeError(f"{status}: while trying to allocate 99 bytes\nmore")

    key = jax.random.key(0)
    state = algorithm.init(key, data)
    real = driver._round
    exhausted.lower = real.lower
    monkeypatch.setattr(driver, "_round", exhausted)
    status = "RESOURCE_EXHAUSTED"
    with pytest.raises(MemoryError, match=r"A round takes .* GiB .*chunk=.*--chunk.*allocate 99 bytes\)$"):
        driver.round(algorithm, state, data, key)
    status = "INTERNAL"
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        driver.round(algorithm, state, data, key)
