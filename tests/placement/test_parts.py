"""Clients far larger than most run a program of their own: with the same results, and no small client waits for one."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedamp_jax
from fedamp_jax.layout import Part, parts
from fedamp_jax.placement import InHostMemory, OnMesh, Placement, client_mesh
from fedamp_jax.types import Static
from tests.registry import federation, find, make

SIZES = (3, 2, 60, 1, 4, 2, 4, 55, 3, 2, 50)
M = len(SIZES)
PLACES = {
    "one at a time": Placement,
    "all side by side": lambda: Placement(chunk=M),
    "four side by side": lambda: Placement(chunk=4),
    "a mesh": lambda: OnMesh(mesh=client_mesh(3)),
    "a mesh, all side by side": lambda: OnMesh(mesh=client_mesh(3), chunk=M),
    "the host": lambda: InHostMemory(device=jax.devices()[1]),
    "the host, four at a time": lambda: InHostMemory(device=jax.devices()[1], chunk=4),
}

FIRST = ("all side by side", "a mesh, all side by side", "the host, four at a time")
"""Where `pytest` alone runs what all are for."""


def test_parts():
    """Of the large ones, only as many side by side as all examples would make. Failed with as many as small ones."""
    data = federation(sizes=SIZES)
    assert (data.longest, data.typical, data.larger) == (60, 4, 3)
    assert parts(data, M, M) == (Part(60, 3, 3), Part(4, M, M))
    assert parts(data, M, 2) == (Part(60, 2, 3), Part(4, 2, M))
    assert parts(federation(sizes=(5,) * 20 + (50, 30, 20)), 23, 8) == (Part(50, 3, 3), Part(5, 8, 23))
    assert parts(federation(sizes=(1,) * 20 + (50,)), 21, 8) == (Part(50, 1, 1), Part(1, 8, 21))
    assert parts(federation(sizes=(15, 5, 4, 5)), 4, 8) == (Part(15, 4, 4),)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_every_client_with_work_is_run(place):
    """Once, and no other is written.

    Failed with a first chunk of small clients that began where the large ones do, and with clients written that fill a
    chunk up.
    """
    data = place().place(federation(sizes=SIZES))
    online = np.array([True, True, True, False, True, True, True, True, False, True, False])
    work = jnp.where(jnp.pad(online, (0, len(data.size) - M)), data.size, 0)

    def step(client, out, key):
        return out + 1 + client.size

    def run(work, data, out):
        return data.placement.for_each_client(step, data, out, jnp.zeros(len(data.size)), work=work)

    out = jnp.arange(len(data.size), dtype=jnp.int32)
    if not isinstance(data.placement, InHostMemory):
        run = jax.jit(data.placement.program(run))
    wanted = np.arange(M) + np.where(online, 1 + np.array(SIZES), 0)
    np.testing.assert_array_equal(np.asarray(run(work, data, out))[:M], wanted)


@pytest.mark.parametrize(
    "place",
    [pytest.param(place, id=name, marks=[] if name in FIRST else [pytest.mark.slow]) for name, place in PLACES.items()],
)
def test_the_same_as_one_program(place):
    """A round of FedAMP. Failed with large clients in the small ones' program, which saw their first examples alone."""
    _, algorithm = make(find("fedamp"))
    data, key = federation(sizes=SIZES), jax.random.key(0)

    def models(data):
        state = data.placement.init(algorithm, key, data)
        state, info = fedamp_jax.round(algorithm, state, data, key)
        return jax.tree.map(lambda a: np.asarray(a)[:M], (state.clients.variables.params, info.loss))

    one, two = models(data._replace(typical=Static(0))), models(place().place(data))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), one, two)


@pytest.mark.parametrize("chunk", [M, 3, 1])
def test_small_clients_do_not_wait_for_large_ones(chunk):
    """Steps that are computed, by the size of the largest in the program. Failed with one program for all."""
    data, seen = Placement(chunk=chunk).place(federation(sizes=SIZES)), Counter()

    def step(client, out):
        def one(i, out):
            jax.debug.callback(lambda _: seen.update([int(client.longest)]), out)
            return out + 1

        return jax.lax.fori_loop(0, client.size, one, out)

    run = jax.jit(lambda work, data, out: data.placement.for_each_client(step, data, out, work=work))
    out = run(data.size, data, jnp.zeros(M, jnp.int32))
    jax.effects_barrier()
    assert out.tolist() == list(SIZES)
    assert seen == {60: 165 if chunk == 1 else 3 * 60, 4: {M: 4 * M, 3: 3 * (4 + 3 + 2), 1: 21}[chunk]}
