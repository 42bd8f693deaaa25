"""One function of one client, run for all of them on every placement; random streams, held-out data, cross losses."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Placement, Solver, Task, Variables
from fedamp_jax.data import hold_out
from fedamp_jax.engine import cross_losses, for_each_client, split_client, stream
from fedamp_jax.engine.clients import init_clients, resample_epochs
from fedamp_jax.engine.hyperparameters import broadcast_to_clients
from fedamp_jax.engine.solver import Local, solve
from fedamp_jax.layout import contiguous
from fedamp_jax.placement import InHostMemory, OnMesh, client_mesh
from tests.registry import SIZES, batch_of, federation, run_rounds, tiny_task

KEY = jax.random.key(4)
PLACEMENTS = {
    "one device": lambda: Placement(),
    "in chunks": lambda: Placement(chunk=3),
    "mesh": lambda: OnMesh(mesh=client_mesh(8)),
    "mesh, padded": lambda: OnMesh(mesh=client_mesh(3), chunk=2),
    "host": lambda: InHostMemory(device=jax.devices()[5], chunk=3),
}
placement = pytest.mark.parametrize("name", PLACEMENTS)


def counting_task() -> Task:
    """The tiny task, whose statistics count steps and sum the examples seen."""
    task = tiny_task()

    def init(key):
        return Variables(task.init(key).params, {"steps": jnp.zeros((), jnp.int32), "seen": jnp.zeros((), jnp.int32)})

    def loss(variables, batch, key):
        value, _ = task.loss(Variables(variables.params, {"mean": jnp.zeros(5)}), batch, key)
        stats = variables.stats
        return value, {"steps": stats["steps"] + 1, "seen": stats["seen"] + jnp.sum(batch.mask)}

    return Task(init, loss, task.predict)


def call(data, fn, *args):
    """`fn(data, *args)`, compiled for where the data are, or operation by operation if they are on the host."""
    if isinstance(data.placement, InHostMemory):
        return data.placement.call(jax.jit(fn), (), data, *args)
    return jax.jit(data.placement.program(fn))(data, *args)


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_a_client_does_its_own_steps_and_no_more(chunk):
    """Steps are epochs x ceil(n / B), examples epochs x n, whichever clients train side by side with it.

    Failed when all clients of a chunk took as many steps as the one with most.
    """
    data, solver = Placement(chunk=chunk).place(federation()), Solver(optax.sgd(0.1), epochs=(1, 4), batch_size=4)
    algorithm = fedamp_jax.separate(counting_task(), solver)
    state, (info,) = run_rounds(algorithm, data, 1)
    epochs, sizes = np.asarray(info.epochs), np.array(SIZES)
    assert state.clients.variables.stats["steps"].tolist() == (epochs * -(-sizes // 4)).tolist()
    assert state.clients.variables.stats["seen"].tolist() == (epochs * sizes).tolist()
    assert epochs.min() >= 1 and epochs.max() <= 4 and len(set(epochs)) > 1


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_who_is_offline_keeps_its_row(chunk):
    """Also where it is computed beside others, and then whatever comes of it. Not a number is rejected where it counts.

    Failed where all ran side by side, with a choice by whether the result is finite alone, and with whoever was
    offline among the rejected.
    """
    online = jnp.arange(8) % 3 != 1
    data = Placement(chunk=chunk).place(federation()._replace(online=online))

    def count(key, client, epochs, mine):
        spoilt = (client.id == 4) | (client.id == 5)  # one of them is offline
        return jnp.where(spoilt, jnp.nan, mine + 1.0), jnp.float32(2.0)

    before = jnp.arange(8, dtype=jnp.float32)
    kept, info = call(data, lambda d, b: for_each_client(Solver(optax.sgd(0.1)), d, count, b, key=KEY), before)
    np.testing.assert_array_equal(kept - before, online & (data.id != 5))
    assert info.rejected.tolist() == (data.id == 5).tolist()
    np.testing.assert_array_equal(info.loss > 0, online)


@placement
def test_all_clients_at_once_equal_a_loop(name):
    """`for_each_client` against `solve` for one client after the other, two of which are offline.

    Failed with keys by position in the chunk, and with padding clients in front of the others.
    """
    data, task = federation(), tiny_task()
    data = data._replace(online=data.online.at[jnp.array([1, 6])].set(False))
    solver = Solver(optax.adam(0.05), epochs=2, batch_size=4)
    start = task.init(KEY)

    @jax.jit
    def local(key, client, epochs, mine):
        return solve(task, solver, client, mine.variables, key, epochs=epochs, k=jnp.int32(0))

    def everybody(data):
        m = len(data.size)
        keep = Local(jax.tree.map(lambda a: jnp.broadcast_to(a[None], (m, *a.shape)), start))
        return for_each_client(solver, data, local, keep, key=KEY)

    together, info = call(PLACEMENTS[name]().place(data), everybody)
    for i in range(8):
        client = data.client(i)
        if not client.online:
            alone, loss, epochs = Local(start), 0.0, 0
        else:
            key, epochs = jax.random.split(jax.random.fold_in(KEY, i))[1], 2
            alone, loss = local(key, client, jnp.int32(2), Local(start))
        np.testing.assert_allclose(info.loss[i], loss, rtol=1e-5)
        assert int(info.epochs[i]) == epochs and not info.rejected[i]
        chex.assert_trees_all_close(jax.tree.map(lambda a, i=i: a[i], together), alone, rtol=2e-5, atol=1e-6)
    assert not np.asarray(info.epochs[8:]).any() and not np.asarray(info.rejected[8:]).any()


def test_parts_of_clients_train_as_if_they_were_all_of_them():
    """What is left after `hold_out`, and the same examples packed by themselves.

    Failed with a copy of the first rows, as if they were the part, where one client trains at a time.
    """
    part, _ = hold_out(federation(), 0.3, seed=0)
    alone = contiguous(part)
    assert part.views and not alone.views and part.typical == part.longest
    algorithm = fedamp_jax.separate(tiny_task(), Solver(optax.sgd(0.1), epochs=2, batch_size=4))
    chex.assert_trees_all_close(*(run_rounds(algorithm, data, 1)[0] for data in (part, alone)), rtol=1e-5)


@placement
@pytest.mark.parametrize("share", [None, 0.5])
@pytest.mark.slow_variants
def test_cross_losses_equal_a_double_loop(name, share):
    """`losses[i, j]` is client i's loss under client j's model, on all data or on a part of them.

    Failed with rows and columns exchanged, and on a mesh with blocks written where the models came from.
    """
    task, solver, data = tiny_task(), Solver(optax.sgd(0.1), batch_size=4), federation()
    models = jax.vmap(task.init)(jax.random.split(KEY, 8))
    part = (lambda client: split_client(client, share, jax.random.fold_in(KEY, client.id))[1]) if share else None
    wanted, loss = np.zeros((8, 8)), jax.jit(lambda variables, batch: task.loss(variables, batch, KEY)[0])
    for i in range(8):
        batch = batch_of(part(data.client(i)) if part else data.client(i))
        wanted[i] = [loss(jax.tree.map(lambda a, j=j: a[j], models), batch) for j in range(8)]
    placed = PLACEMENTS[name]().place(data)
    rows = len(placed.size)
    models = jax.tree.map(lambda a: jnp.concatenate([a, jnp.broadcast_to(a[-1:], (rows - 8, *a.shape[1:]))]), models)
    if isinstance(placed.placement, OnMesh):
        models = jax.tree.map(lambda a: jax.device_put(a, placed.x.sharding), models)
    got = call(placed, lambda data, models: cross_losses(task, solver, data, models, examples=part), models)
    chex.assert_shape(got, (rows, rows))
    np.testing.assert_allclose(got[:8, :8], wanted, rtol=1e-5, atol=1e-6)
    assert np.isfinite(got).all()


@pytest.mark.parametrize("arrays", ["keep", "arguments", "models"])
def test_spread_arrays_without_a_placement_are_refused(arrays):
    """XLA would gather all models on every device without a word. Failed without `refuse_spread`."""
    data, solver = federation(), Solver(optax.sgd(0.1))
    plain, spread = (p.place(data).size for p in (Placement(), OnMesh(mesh=client_mesh(8))))

    def step(key, client, epochs, mine, *rest):
        return (mine, jnp.float32(0))

    calls = {
        "keep": lambda: for_each_client(solver, data, step, spread, key=KEY),
        "arguments": lambda: for_each_client(solver, data, step, plain, spread, key=KEY),
        "models": lambda: data.placement.by_parameters({"w": spread}),
    }
    with pytest.raises(ValueError, match=r"spread over 8 devices, but .* single device: let .*OnMesh\(mesh=.*\.place"):
        calls[arrays]()
    with pytest.raises(ValueError, match="spread over 8 devices"):
        jax.jit(lambda a: data.placement.by_parameters({"w": a}).tree)(spread)


# --- random numbers and held-out data ---------------------------------------------------------------------------------


def test_streams_are_independent():
    """Of each other, of the key, and of the counters that rounds and clients are folded in as.

    Failed with a hash of the name that takes few values.
    """
    names = ("epochs", "transmit", "holdout", "support", "full gradient", "a", "b")
    keys = [KEY, *(stream(name, KEY) for name in names), *(jax.random.fold_in(KEY, i) for i in range(1000))]
    assert len({jax.random.key_data(k).tobytes() for k in keys}) == len(keys)
    assert jax.random.key_data(stream("a", KEY)).tolist() == jax.random.key_data(stream("a", KEY)).tolist()


def test_resampled_epochs():
    """Drawn anew within the range, and 0 where the first training was. Failed with the first training's draw."""
    solver = Solver(optax.sgd(0.1), epochs=(2, 5))
    keys = jax.random.split(KEY, 200)
    again = np.asarray(jax.vmap(lambda k: resample_epochs(solver, jnp.int32(3), k))(keys))
    assert set(again) == {2, 3, 4, 5}
    assert int(resample_epochs(solver, jnp.int32(0), KEY)) == 0


@pytest.mark.parametrize(
    ("size", "share", "held_out"), [(10, 0.2, 2), (7, 0.5, 4), (7, 0.01, 1), (7, 0.99, 6), (2, 0.5, 1)]
)
def test_split_client_divides_the_examples(size, share, held_out):
    """Each example is for training or for validation, at least one for each; another key divides otherwise.

    Failed with padding rows drawn, with training data that began at the rounded share though that was 0 or all, and
    with the validation data first.
    """
    x = jnp.arange(20, dtype=jnp.float32)[:, None]
    client = federation().client(0)._replace(x=x, y=jnp.arange(20), start=jnp.int32(5), size=jnp.int32(size))
    divisions = set()
    for seed in range(8):
        rest, one = split_client(client, share, jax.random.key(seed))
        assert (int(one.size), int(rest.size)) == (held_out, size - held_out)
        taken, left = (batch.x[batch.mask, 0].tolist() for batch in map(batch_of, (one, rest)))
        assert sorted(taken + left) == list(range(5, 5 + size))
        np.testing.assert_array_equal(batch_of(one).y[: int(one.size)], taken)
        divisions.add(tuple(sorted(taken)))
    assert len(divisions) > 1


def test_split_client_of_a_single_example():
    """It is in both sets. Failed with a rest of size 0, whose mean loss is 0 / 0."""
    client = federation().client(3)
    for part in split_client(client, 0.2, KEY):
        assert int(part.size) == 1
        np.testing.assert_array_equal(batch_of(part).x[0], client.x[client.start])


def test_views_of_views():
    """Parts of a part, as of a client whose data were held out before the run, are parts of it.

    Failed with the divisions in the other order.
    """
    whole = federation(sizes=(10, 10))
    kept, held = hold_out(whole, 0.3, seed=3)
    rest, one = split_client(kept.client(1), 0.4, KEY)
    seen = [batch_of(part).rows[: int(part.size)].tolist() for part in (rest, one, held.client(1))]
    assert [len(rows) for rows in seen] == [4, 3, 3] and sorted(seen[0] + seen[1] + seen[2]) == list(range(10))


# --- before the first round -------------------------------------------------------------------------------------------


def test_one_initial_model_or_one_each():
    """Own models follow the ids, so that another order of the clients moves them along. Failed with positions."""
    task, solver, data = tiny_task(), Solver(optax.sgd(0.1)), federation()
    common = init_clients(task, solver, data, KEY).variables.params["head"]["kernel"]
    assert (common == common[:1]).all()
    order = jnp.array([3, 0, 7, 5, 1, 6, 2, 4])
    moved = data.select(order)
    own, other = (init_clients(task, solver, d, KEY, common=False).variables for d in (data, moved))
    chex.assert_trees_all_equal(jax.tree.map(lambda a: a[order], own), other)
    assert len(np.unique(own.params["head"]["kernel"], axis=0)) == 8


def test_numbers_per_client_must_fit_the_clients():
    """Padding excuses no wrong length. Failed when every shorter array was filled up."""
    for data in (federation(), OnMesh(mesh=client_mesh(3)).place(federation())):
        rows = len(data.size)
        for numbers in (3, 7, 9):
            with pytest.raises(ValueError, match=f"alpha has {numbers} numbers for 8 clients"):
                broadcast_to_clients("alpha", jnp.ones(numbers), data)
        assert broadcast_to_clients("alpha", jnp.float32(2), data).tolist() == [2] * rows
        assert broadcast_to_clients("alpha", jnp.arange(8.0), data).tolist() == [*range(8), *([0] * (rows - 8))]


WRONG = {"bfloat16": jnp.bfloat16, "float16": jnp.float16, "float64": jnp.float64}
METHODS = {
    "separate": fedamp_jax.separate,
    "fedamp": functools.partial(fedamp_jax.fedamp, sigma=1.0, self_weight=0.25),
    "scaffold": fedamp_jax.scaffold,
    "apfl": fedamp_jax.apfl,
    "fedrep": fedamp_jax.fedrep,
    "pflego": fedamp_jax.pflego,
}


@pytest.mark.parametrize("dtype", WRONG)
@pytest.mark.parametrize("method", METHODS)
def test_parameters_other_than_float32_are_refused(method, dtype):
    """When the method is made, and by a round whose state was cast by hand; the leaf is named.

    Failed when a bfloat16 state came back as float32, or not, as the chunk was; and for PFLEGO, which has a loop of its
    own, when only `solve` looked.
    """
    task, data = tiny_task(), federation()
    algorithm = METHODS[method](task, Solver(optax.sgd(0.1), epochs=1))

    def cast(tree):
        return jax.tree.map(lambda a: a.astype(WRONG[dtype]) if jnp.issubdtype(a.dtype, jnp.floating) else a, tree)

    half = task._replace(init=lambda key: cast(task.init(key)))
    message = rf"parameters must be float32, got {dtype} in .*(body|head)/.*compute_dtype"
    state = algorithm.init(KEY, data)
    with jax.enable_x64(dtype == "float64"):
        with pytest.raises(TypeError, match=message):
            METHODS[method](half, Solver(optax.sgd(0.1), epochs=1))
        with jax.numpy_dtype_promotion("standard"), pytest.raises(TypeError, match=message):
            fedamp_jax.round(algorithm, cast(state), data, KEY)
