"""The entry exam: every property over every registered algorithm."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedamp_jax
from fedamp_jax import driver
from fedamp_jax.checkpoint import Checkpoints
from fedamp_jax.sharding import client_mesh, shard
from tests import registry
from tests.registry import federation, run_rounds

KEY = jax.random.key(7)


entry = registry.one_after_the_other(registry.ENTRIES)


def made(entry, **solver):
    """With a random number of local epochs."""
    return registry.made(entry, **{"epochs": (1, 3), **solver})


def models(algorithm, state, data):
    """The personal models' parameters and statistics, `[M, D]` float32."""
    variables = jax.jit(algorithm.personalize)(KEY, state, data)
    return np.concatenate([np.asarray(a).reshape(a.shape[0], -1) for a in jax.tree.leaves(variables)], axis=1)


def close(a, b, rtol=2e-5, atol=2e-6):
    np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def shapes(state):
    return jax.tree.map(lambda a: (a.shape, a.dtype, getattr(a, "weak_type", False)), state)


def contents(state):
    """`path -> array` of all of a state but its round counter."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    named = {jax.tree_util.keystr(path): np.asarray(a) for path, a in leaves}
    return {name: a for name, a in named.items() if not name.endswith(".round")}


def test_one_compile_and_a_stable_state(entry):
    """Three rounds, one program. Failed when the round counter started as a Python int (weak type: two compiles)."""
    _, algorithm = made(entry)
    data = federation()
    state = algorithm.init(KEY, data)
    initial = shapes(state)
    before = driver._round._cache_size()
    state, _ = run_rounds(algorithm, data, 3, state=state)
    assert driver._round._cache_size() <= before + 1
    assert shapes(state) == initial


def test_chunks_do_not_matter(entry):
    """Three at a time (which does not divide eight) or all: the same. Failed when chunks wrote rows unsorted."""
    data = federation()
    results = []
    for solver in ({"chunk": 3}, {}):
        _, algorithm = made(entry, **solver)
        state, infos = run_rounds(algorithm, data)
        results.append((models(algorithm, state, data), np.stack([i.loss for i in infos]), infos[-1].epochs))
    for a, b in zip(*results):
        close(a, b)


def test_padding_is_never_read(entry):
    """NaN features and labels out of range beyond `size` change no bit. Failed when a batch took rows beyond `size`."""
    data = federation()
    _, algorithm = made(entry)
    beyond = jnp.arange(data.y.shape[1])[None] >= data.size[:, None]
    poisoned = data._replace(x=jnp.where(beyond[..., None], jnp.nan, data.x), y=jnp.where(beyond, 99, data.y))
    a, b = (models(algorithm, run_rounds(algorithm, d)[0], d) for d in (data, poisoned))
    np.testing.assert_array_equal(a, b)


def test_clients_may_be_permuted(entry):
    """Permuted clients give permuted results. Failed when a client's key followed its position instead of its id."""
    data = federation()
    _, algorithm = made(entry, chunk=3)
    order = np.random.default_rng(0).permutation(len(data.size))
    shuffled = jax.tree.map(lambda a: a[order], data)
    a, b = (models(algorithm, run_rounds(algorithm, d)[0], d) for d in (data, shuffled))
    close(a[order], b)


def test_eight_devices_equal_one(entry):
    """State and data spread over eight devices give the same. Failed with devices training on their neighbours'
    data.
    """
    data = federation()
    _, algorithm = made(entry)
    one, _ = run_rounds(algorithm, data)
    mesh = client_mesh(8)
    spread = shard(data, mesh)
    eight, _ = run_rounds(algorithm, spread, state=shard(algorithm.init(jax.random.key(1), data), mesh))
    close(models(algorithm, one, data), models(algorithm, eight, spread), rtol=1e-5, atol=1e-5)


def test_resumed_equals_uninterrupted(entry, tmp_path):
    """Saved after one round of three and loaded: bit for bit the same. Failed when the round counter was left out."""
    data = federation()
    _, algorithm = made(entry, keep_optimizer=True)
    whole, _ = run_rounds(algorithm, data, 3)
    expected = models(algorithm, whole, data)
    half, _ = run_rounds(algorithm, data, 1)
    m = len(data.size)
    books = Checkpoints(tmp_path, {"seed": 0})
    books.save(1, driver.Run(half, accuracy=np.zeros((0, m), np.float32), rejected=np.zeros(m, int)))
    books.close()
    fresh = driver.Run(algorithm.init(KEY, data), accuracy=np.zeros((0, m), np.float32), rejected=np.zeros(m, int))
    books = Checkpoints(tmp_path, {"seed": 0})
    assert books.restore(fresh) == 1
    books.close()
    resumed, _ = run_rounds(algorithm, data, 2, state=fresh.state, first=1)
    np.testing.assert_array_equal(models(algorithm, resumed, data), expected)


def test_who_is_offline_keeps_everything(entry):
    """All but one offline, then all: nothing of an absent client moves, nothing is NaN.

    Failed when `for_each_client` returned the start of training instead of the client's own row.
    """
    _, algorithm = made(entry)
    data = federation()
    state, _ = run_rounds(algorithm, data, 1)
    alone = data._replace(online=jnp.arange(len(data.size)) == 2)
    nobody = data._replace(online=jnp.zeros_like(data.online))
    state, infos = run_rounds(algorithm, alone, 1, state=state, first=1)
    assert np.isfinite(models(algorithm, state, data)).all()
    assert (np.asarray(infos[0].epochs) > 0).tolist() == alone.online.tolist()
    before = contents(state)
    state, infos = run_rounds(algorithm, nobody, 1, state=state, first=2)
    after = contents(state)
    assert all(np.array_equal(before[name], after[name]) for name in before)
    assert not np.asarray(infos[0].epochs).any()


def test_a_diverged_client_harms_nobody(entry):
    """NaN in one client's features: it is named, keeps its model, and the rest go on without it.

    Failed when the mean multiplied by a zero weight instead of selecting (0 x NaN).
    """
    _, algorithm = made(entry)
    data = federation()
    bad = 4
    poisoned = data._replace(x=data.x.at[bad].set(jnp.nan))
    absent = data._replace(online=data.online.at[bad].set(False))
    state, infos = run_rounds(algorithm, poisoned)
    for info in infos:
        assert np.flatnonzero(info.rejected).tolist() == [bad]
    got = models(algorithm, state, poisoned)
    assert np.isfinite(got).all()
    if entry.rejected_is_offline:
        others = np.arange(len(data.size)) != bad
        close(got[others], models(algorithm, run_rounds(algorithm, absent)[0], absent)[others])


def test_kept_optimizer_is_used(entry):
    """With `keep_optimizer` the second round goes on from the first one's moments, so it differs from a fresh start."""
    if entry.own_steps:
        pytest.skip("has a step rule of its own")
    data = federation()
    results = [
        models(algorithm, run_rounds(algorithm, data, 2)[0], data)
        for algorithm in (made(entry, keep_optimizer=keep)[1] for keep in (False, True))
    ]
    assert np.abs(results[0] - results[1]).max() > 1e-4


def test_same_seed_same_bits(entry):
    """Twice the same, bit for bit; another seed is another result."""
    data = federation()
    _, algorithm = made(entry)
    a, b, c = (models(algorithm, run_rounds(algorithm, data, seed=s)[0], data) for s in (1, 1, 2))
    np.testing.assert_array_equal(a, b)
    assert np.abs(a - c).max() > 1e-4


def test_learns(entry):
    """On clients that are alike every method's training loss falls. Failed with the gradient's sign turned."""
    data = federation(kinds=1)
    task, algorithm = made(entry)
    state, infos = run_rounds(algorithm, data, 4)
    assert float(infos[-1].loss.mean()) < float(infos[0].loss.mean())
    accuracy = fedamp_jax.evaluate(task, jax.jit(algorithm.personalize)(KEY, state, data), data)
    assert accuracy.shape == (8,) and float(accuracy.min()) >= 0 and float(accuracy.max()) <= 1
