"""Clients that stay in the host's memory: the same results, and only pieces of them on the device."""

import logging

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Checkpoint, Participation, Solver
from fedamp_jax.engine import server
from fedamp_jax.placement import InHostMemory, visits
from tests.registry import ENTRIES, federation, find, make

KEY = jax.random.key(3)


def there(chunk=3):
    """Clients in the host's memory, and a device that is not the host's."""
    return InHostMemory(device=jax.devices()[5], chunk=chunk)


CHOSEN = ("fedamp", "fedamp, mcp, stale", "heurfedamp", "fine_tuned(fedavg)", "scaffold", "apfl, adaptive", "pflego")


def numbers(tree):
    return np.concatenate([np.ravel(np.asarray(a, np.float64)) for a in jax.tree.leaves(tree)])


@pytest.mark.slow
@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.name in CHOSEN], ids=lambda e: e.name)
def test_results_are_those_of_all_clients_on_the_device(entry):
    """Three rounds with drop-outs, three of eight clients at a time on a device that is not the host's.

    Failed with rows written in order instead of to their own clients, and with the first clients' rows in every chunk.
    """
    train, test = federation(), federation(seed=1)
    task, algorithm = make(entry, epochs=(1, 3))
    settings = {"rounds": 3, "participation": Participation(0.8), "progress": False}
    whole = fedamp_jax.run(task, algorithm, train, test, **settings)
    pieces = fedamp_jax.run(task, algorithm, train, test, placement=there(), **settings)
    np.testing.assert_allclose(numbers(pieces.state), numbers(whole.state), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(pieces.accuracy, whole.accuracy, atol=1e-6)
    np.testing.assert_allclose(pieces.loss, whole.loss, rtol=1e-5)
    if whole.xi is not None:
        np.testing.assert_allclose(pieces.xi, whole.xi, rtol=1e-4, atol=1e-6)
    assert {d for a in jax.tree.leaves(pieces.state) for d in a.devices()} == {visits.host()}


def test_only_pieces_are_on_the_device(monkeypatch):
    """Three clients at a time in training and no more than 64 parameters of all in mixing and distances.

    Failed with chunks as large as the federation, and with blocks as wide as the leaves.
    """
    device, sent, put = jax.devices()[5], [], jax.device_put

    def watched(a, to):
        sent.extend([jnp.shape(x) for x in jax.tree.leaves(a)] if to == device else [])
        return put(a, to)

    monkeypatch.setattr(jax, "device_put", watched)
    monkeypatch.setattr(visits, "BLOCK_BYTES", 7 * 64 * 4)
    task = fedamp_jax.models.mlp(classes=10, shape=(20,))
    rng = np.random.default_rng(0)
    data = fedamp_jax.data.from_lists(list(rng.normal(size=(7, 5, 20)).astype(np.float32)), [np.arange(5)] * 7)
    algorithm = fedamp_jax.fedamp(task, Solver(optax.adam(1e-3), 1, 5), sigma=1.0, self_weight=0.3)
    data = there().place(data)
    state = data.placement.init(algorithm, KEY, data)
    fedamp_jax.round(algorithm, state, data, KEY)
    parameters = sum(a.size for a in jax.tree.leaves(state.clients.variables.params)) // 7
    blocks = [shape for shape in sent if shape[:1] == (7,) and shape not in ((7,), (7, 7))]  # but for scale and xi
    assert max(width for _, width in blocks) == 64
    assert sum(width for _, width in blocks) == 2 * parameters
    rows = [shape for shape in sent if shape[:1] == (3,)]
    # Three chunks of data (five arrays), key, epochs, lam, personal and cloud models, and the two outputs beside the
    # model.
    # The cloud model is start and centre: failed when it was sent twice.
    models = len(jax.tree.leaves(state.clients.variables.params))
    assert len(rows) == 3 * (5 + 3 + 2 * models + 2)
    assert {shape[0] for shape in sent if shape} == {3, 7, 15}  # x and y of the chunk's own examples


def test_a_chunk_brings_its_own_examples(monkeypatch):
    """One large client among small ones: what is sent is a small multiple of the examples, not chunks of the largest.

    Failed with starts that were those among all clients, and with the program for the largest chunk for all.
    """
    data = federation(sizes=(1, 2, 200, 3, 1, 2, 1, 3, 2, 1, 2, 3))
    _, algorithm = make(find("fedavg"))
    sent, put, device = [], jax.device_put, jax.devices()[5]

    def watched(a, to):
        if to == device:
            sent.extend(len(x) for x in jax.tree.leaves(a) if jnp.shape(x)[1:] == (5,) and len(x) not in (1, 3))
        return put(a, to)

    there_, here = there().place(data), data
    monkeypatch.setattr(jax, "device_put", watched)
    results = []
    for placed in (there_, here):
        state = placed.placement.init(algorithm, KEY, placed)
        for k in range(2):
            state, info = fedamp_jax.round(algorithm, state, placed, jax.random.fold_in(KEY, k))
        results.append((state, info.loss))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), *results)
    assert sent == 2 * [200, 9, 9, 9, 9]  # in each round the large client by itself, and then chunks of three


@pytest.mark.parametrize("block", [24, 1 << 20])
def test_columns_in_blocks(block, monkeypatch):
    """Mixtures and distances block by block equal those at once. Failed with sums of the last block alone."""
    monkeypatch.setattr(visits, "BLOCK_BYTES", 6 * 4 * block)
    rng = np.random.default_rng(1)
    tree = {"a": rng.normal(size=(6, 5, 7)), "b": rng.normal(size=(6,)), "c": rng.normal(size=(6, 24))}
    tree = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), tree)
    xi = jnp.asarray(rng.dirichlet(np.ones(6), size=6), jnp.float32)

    def all_of(models):
        return server.mix(xi, models), server.sq_dists(models), server.cosines(models)

    at_once, in_blocks = all_of(tree), all_of(there().by_parameters(tree))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), in_blocks, at_once)


def test_one_program_for_all_rounds(caplog, monkeypatch):
    """The next rounds, with another global model and learning rate, compile nothing anew.

    Failed with a trace of its own for every round.
    """
    _, algorithm = make(find("fedprox"))
    data = there().place(federation())
    state = data.placement.init(algorithm, KEY, data)
    state, _ = fedamp_jax.round(algorithm, state, data, KEY)
    monkeypatch.setattr(jax, "make_jaxpr", None)
    caplog.clear()
    with caplog.at_level(logging.WARNING), jax.log_compiles():
        for k in range(2):
            state, _ = fedamp_jax.round(algorithm, state, data, jax.random.fold_in(KEY, k))
    assert not [line for line in caplog.messages if "Finished XLA compilation of jit(piece)" in line]


def test_resumed_on_another_device(tmp_path):
    """Two rounds with clients in the host's memory, the third with everything on the device: as in one run.

    Failed with a chunk's rows sent in another order than that in which they were taken back.
    """
    train, test = federation(), federation(seed=1)
    task, algorithm = make(ENTRIES[0])
    settings = {"progress": False, "checkpoint": Checkpoint(tmp_path, every=1)}
    fedamp_jax.run(task, algorithm, train, test, rounds=2, placement=there(), **settings)
    resumed = fedamp_jax.run(task, algorithm, train, test, rounds=3, **settings)
    whole = fedamp_jax.run(task, algorithm, train, test, rounds=3, progress=False)
    assert resumed.rounds == [1, 2, 3]
    np.testing.assert_allclose(numbers(resumed.state), numbers(whole.state), rtol=1e-5, atol=1e-5)


def test_an_estimate_says_what_is_sent():
    """A smaller chunk needs less of the device, and as much is sent.

    Failed when what is brought back was counted as what is sent.
    """
    data = federation()
    algorithm = fedamp_jax.separate(fedamp_jax.models.mlp(3, shape=(5,)), Solver(optax.sgd(0.1)))
    two, eight = (fedamp_jax.estimate(algorithm, data, there(chunk)) for chunk in (2, 8))
    state = sum(a.nbytes for a in jax.tree.leaves(algorithm.init(KEY, data)))
    inputs = sum(a.nbytes for a in jax.tree.leaves(data))
    assert eight.device > 3 * two.device and two.device >= 4 * (state // 8) * 2
    assert inputs + state <= two.sent <= inputs + state + 8 * 32
    assert two.sent == eight.sent and state <= two.returned <= state + 8 * 9
    assert 2 * state + inputs <= two.host <= 2 * state + 2 * inputs
    assert "on the device at a time" in str(two)


def test_what_is_not_needed_is_not_run():
    """`when` sends nothing to the device unless it is needed. Failed with the computation run every time."""
    data = there().place(federation())
    runs = []

    def computed(needed):
        def doubled():
            place = data.placement

            def step(client, out, a):
                jax.debug.callback(lambda: runs.append(1))
                return 2 * a

            return place.for_each_client(step, data, jnp.zeros(8), jnp.arange(8.0), work=data.size)

        return data.placement.when(needed, doubled, jnp.zeros(8))

    found = [data.placement.call(jax.jit(computed), (), jnp.array(needed)) for needed in (False, True)]
    jax.effects_barrier()
    np.testing.assert_array_equal(found, [np.zeros(8), 2 * np.arange(8.0)])
    assert len(runs) == 3  # chunks of clients
