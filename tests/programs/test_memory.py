"""Memory: as many clients side by side as fit, and a message where nothing fits."""

import logging

import chex
import jax
import jax.numpy as jnp
import optax
import pytest

import fedamp_jax
from fedamp_jax import Placement, Solver, platforms
from fedamp_jax.driver import rounds
from fedamp_jax.placement import OnMesh, client_mesh
from fedamp_jax.programs import memory
from fedamp_jax.programs.jaxpr import OneClient, peak
from fedamp_jax.programs.memory import Need
from tests.registry import CLASSES, FEATURES, federation, find, make

FEDAMP = find("fedamp")


def two_rounds(algorithm, data):
    key = jax.random.key(0)
    state = data.placement.init(algorithm, key, data)
    for k in range(2):
        state, _ = fedamp_jax.round(algorithm, state, data, jax.random.fold_in(key, k))
    return state


def deep():
    """FedAMP with a model of many activations and few parameters: training takes more than exchanges."""
    task = fedamp_jax.models.mlp(CLASSES, hidden=(16,) * 8, shape=(FEATURES,))
    return FEDAMP.make(task, Solver(optax.sgd(0.05), batch_size=64))


@pytest.mark.parametrize("devices", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_fewer_clients_side_by_side_where_memory_is_short(devices, monkeypatch, caplog):
    """The first program that is compiled fits, and the result is that of plenty.

    Failed when the limit was not looked at in `side_by_side`, when one client's peak was taken for less than it is, and
    when all clients were counted in place of a device's.
    """
    monkeypatch.setitem(platforms.CHOICES, "cpu", platforms.CHOICES["gpu"])
    algorithm, data = deep(), federation(sizes=(64,) * 8)
    data = data if devices == 1 else OnMesh(mesh=client_mesh(devices)).place(data)
    plenty = two_rounds(algorithm, data)
    held, working = rounds.need_of(algorithm, plenty, data, jax.random.key(0), data.placement)
    room, chosen, choose = held + working - 1, [], Placement.side_by_side

    def recorded(self, clients, *args):
        chosen.append((choose(self, clients, *args), clients))
        return chosen[-1][0]

    monkeypatch.setattr(Placement, "side_by_side", recorded)
    monkeypatch.setattr(memory, "room", lambda device: room)
    again = deep()
    with caplog.at_level(logging.WARNING), jax.log_compiles():
        short = two_rounds(again, data)
    assert sum("Finished XLA compilation of jit(compiled_round)" in line for line in caplog.messages) == 1
    assert chosen and all(1 <= chunk < clients == len(data.size) // devices for chunk, clients in chosen)
    assert sum(rounds.need_of(again, short, data, jax.random.key(0), data.placement)) <= room
    chex.assert_trees_all_close(plenty, short, rtol=1e-5, atol=1e-6)


def test_a_round_that_fits_compiles_once(monkeypatch, caplog):
    """To look at what it takes costs no second compilation. Failed with shapes that had lost where the arrays lie."""
    monkeypatch.setattr(memory, "room", lambda device: 1 << 40)
    _, algorithm = make(FEDAMP)
    data = OnMesh(mesh=client_mesh(2)).place(federation())
    with caplog.at_level(logging.WARNING), jax.log_compiles():
        two_rounds(algorithm, data)
    assert sum("Finished XLA compilation of jit(compiled_round)" in line for line in caplog.messages) == 1


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
def test_largest_chunk(base, each, room, expected, tried):
    """Failed when one client was let in that did not fit, for 0 where nothing fits, and with the first estimate."""
    seen = []

    def taken(chunk):
        seen.append(chunk)
        return Need(10, base + each * (chunk or 8))

    assert memory.largest_chunk(taken, lambda: 8, room) == expected and seen == tried


def test_one_client_at_a_time_is_not_compiled_again():
    """Where the choice is one client, nothing smaller can be tried. Failed with half of all clients as the next try."""
    tried = []
    assert memory.largest_chunk(tried.append, lambda: 1, 70) is None and tried == [None]


def test_a_compiler_that_refuses(monkeypatch):
    """As a TPU's where a program is too large. Failed when no smaller chunk was tried, when every round did, and with
    half of all clients, which are more than were chosen.
    """
    _, algorithm = make(FEDAMP)
    data, asked, real = federation(), [], memory.need_if_compiled
    monkeypatch.setattr(Placement, "side_by_side", lambda self, *_: self.chunk or 6)

    def need(lowered):
        asked.append(lowered)
        return real(lowered) if len(asked) == 2 else None

    monkeypatch.setattr(memory, "need_if_compiled", need)
    monkeypatch.setattr(memory, "room", lambda device: 1 << 40)
    two_rounds(algorithm, data)
    key = jax.random.key(0)
    assert len(asked) == 2 and rounds.fitted(algorithm, algorithm.init(key, data), data, key).placement.chunk == 3


def test_what_a_tpus_compiler_accepts_fits(monkeypatch):
    """The sizes in its analysis may add up to more than the memory. Failed with the rule of the other platforms."""
    monkeypatch.setattr(Placement, "platform", "tpu")
    monkeypatch.setattr(memory, "room", lambda device: 100)
    place, needed = Placement(), [Need(50, 51)]
    assert place.fitting(lambda _: needed.pop(), lambda: 8) is place


def test_out_of_memory_says_what_to_do(monkeypatch):
    """XLA's error names the estimate and the arguments to lower. Failed when other errors of XLA were taken for it."""
    _, algorithm = make(FEDAMP)
    data = federation()

    def exhausted(*_):
        raise jax.errors.JaxRuntimeError(f"{status}: while trying to allocate 99 bytes\nmore")

    key = jax.random.key(0)
    state = algorithm.init(key, data)
    exhausted.trace = rounds.compiled_round.trace
    monkeypatch.setattr(rounds, "compiled_round", exhausted)
    status = "RESOURCE_EXHAUSTED"
    with pytest.raises(MemoryError, match=r"A round takes .* GiB .*Placement\(chunk=.*--chunk.*allocate 99 bytes\)$"):
        fedamp_jax.round(algorithm, state, data, key)
    status = "INTERNAL"
    with pytest.raises(jax.errors.JaxRuntimeError, match="INTERNAL"):
        fedamp_jax.round(algorithm, state, data, key)


def test_a_chunk_that_was_asked_for_is_kept(monkeypatch):
    """Whatever the device's memory. Failed when only `Placement()` was left alone."""
    monkeypatch.setattr(memory, "room", lambda device: 1)
    place = Placement(chunk=3)
    assert place.fitting(lambda placement: pytest.fail("nothing to find out"), 8) is place


@pytest.mark.parametrize(("platform", "convolves", "expected"), [
    ("gpu", False, 8), ("gpu", True, 1), ("rocm", True, 1), ("rocm", False, 8), ("tpu", False, 8), ("tpu", True, 1),
    ("cpu", True, 1), ("cpu", False, 1),
])  # fmt: skip
def test_side_by_side_on_a_platform(platform, convolves, expected, monkeypatch):
    """As `platforms.py` says. Failed with one client at a time everywhere, and with convolutions together on a TPU."""
    monkeypatch.setattr(Placement, "platform", platform)
    step = (lambda x: jnp.convolve(x, x)) if convolves else (lambda x: x * x)
    client = OneClient(step, jnp.ones((8, 3)))
    assert Placement().side_by_side(8, client) == expected
    assert Placement().side_by_side(8, client, at_most=1) == 1
    assert Placement(chunk=3).side_by_side(8, client) == 3
    assert Placement(chunk=30).side_by_side(8, client) == 8


def test_peak_of_a_program():
    """Of loops and branches too. Failed when an array was kept after its last use, and without the loop's inside."""

    def fn(x):
        y = jnp.stack([x] * 10)  # [10, 100] float32: 4,000 bytes
        loop = jax.lax.fori_loop(0, 3, lambda i, a: a + jnp.sum(jnp.outer(a, a), axis=1), jnp.sum(y, axis=0))
        return loop * 2

    # Within the loop: x, the loop's carry, and the outer product of 40,000 bytes, whatever else is short.
    found = peak(jax.make_jaxpr(fn)(jnp.ones(100)).jaxpr)
    assert 40_000 < found < 43_000
    assert 4_400 <= peak(jax.make_jaxpr(lambda x: jnp.sum(jnp.stack([x] * 10)))(jnp.ones(100)).jaxpr) < 9_000
