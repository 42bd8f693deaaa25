"""Clients spread over many devices: what is exchanged, padding clients, and results that do not depend on it."""

import functools
import os
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import fedamp_jax
from fedamp_jax import Participation, Placement, Solver
from fedamp_jax.driver.evaluation import compiled_scores
from fedamp_jax.driver.rounds import compiled_round
from fedamp_jax.engine import server
from fedamp_jax.placement import OnMesh, client_mesh
from fedamp_jax.programs.memory import collectives
from tests.registry import ENTRIES, federation, run_rounds, tiny_task

KEY = jax.random.key(3)


def on(devices, chunk=None):
    """A placement on so many devices."""
    return OnMesh(mesh=client_mesh(devices), chunk=chunk)


def spread(tree, place):
    """Leaves `[M, ...]` with clients over the devices."""
    return jax.device_put(tree, NamedSharding(place.mesh, P("clients")))


@pytest.mark.slow
def test_cpu_devices_wait_for_each_other():
    """A CPU split into devices has them, with flags that let them wait for each other, and the user's own flags win.

    With a timeout of a second the process ends, so the flags are the right ones; JAX ends at once at unknown flags.
    Failed when the user's flags stood first, where XLA takes the last.
    """
    program = """
import jax, jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from fedamp_jax.placement import client_mesh, split_cpu
split_cpu(2)
def uneven(steps):
    done = jax.lax.fori_loop(0, steps[0], lambda i, a: jnp.sin(a) @ a, jnp.ones((300, 300)))
    return jax.lax.psum(done.sum(), "clients")
mesh = client_mesh(2)
jax.jit(jax.shard_map(uneven, mesh=mesh, in_specs=P("clients"), out_specs=P()))(jnp.array([STEPS, 1]))
"""
    own = " ".join(f"--xla_cpu_collective_call_{kind}_timeout_seconds=1" for kind in ("warn_stuck", "terminate"))
    for steps, flags, message in ((1, "", b""), (20_000, own, b"Termination timeout")):
        done = subprocess.run(
            [sys.executable, "-c", program.replace("STEPS", str(steps))],
            env={**os.environ, "XLA_FLAGS": flags}, capture_output=True,
        )  # fmt: skip
        assert (done.returncode == 0) == (not message) and message in done.stderr, done.stderr


def wide(m=16):
    """A task whose models are large beside everything else that a round moves, and `m` clients of few examples."""
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(3 + i % 3, 33)).astype(np.float32) for i in range(m)]
    data = fedamp_jax.data.from_lists(xs, [rng.integers(0, 10, len(x)) for x in xs], classes=10)
    return fedamp_jax.models.mlp(classes=10, shape=(33,)), data


def compiled(algorithm, data):
    """The program of a round, and the state before it."""
    state = data.placement.init(algorithm, KEY, data)
    return compiled_round.lower(algorithm.round, state, data, KEY).compile(), state


@pytest.mark.parametrize("method", ["fedamp", "heurfedamp"])
def test_what_a_round_exchanges(method):
    """W goes from clients to parameters and U back, a device's share each; gathered are only numbers of clients.

    Failed with sq_dists and mix on the client axis (an all-gather of W for each), with a sort of all clients in
    `for_each_client` (gathers of W and of the data), with an exchange for distances and another for mixing, and with a
    constraint that gathers in place of the one that exchanges.
    """
    task, data = wide()
    algorithm = getattr(fedamp_jax, method)(task, Solver(optax.adam(1e-3), 2, 2), sigma=1.0, self_weight=0.25)
    program, state = compiled(algorithm, on(8, chunk=1).place(data))
    leaves = jax.tree.leaves(state.clients.variables.params)
    share = sum(a.size for a in leaves) * 4 / 8  # bytes of W on one device
    moved = collectives(program.as_text())
    assert set(moved) == {"all-to-all", "all-reduce", "all-gather"}
    # Failed when the edges were computed from numbers on different axes of the mesh, with an exchange of their own.
    assert len(moved["all-to-all"]) == 2 * 3  # kernels by themselves, but the last one with all biases
    assert 2 * share <= sum(moved["all-to-all"]) <= 2.02 * share  # padding of leaves that 8 does not divide
    assert sum(moved["all-reduce"]) == 16 * 16 * 4
    assert sum(moved["all-gather"]) <= 16 * 20 < share / 100


def test_local_training_exchanges_nothing():
    """Separate's program has no collective but to gather `Info`. Failed with a sort of all clients, see above."""
    task, data = wide()
    algorithm = fedamp_jax.separate(task, Solver(optax.adam(1e-3), (1, 3), 2))
    program, _ = compiled(algorithm, on(8, chunk=1).place(data))
    moved = collectives(program.as_text())
    assert set(moved) == {"all-gather"} and len(moved["all-gather"]) == 3
    assert sum(moved["all-gather"]) == 16 * (4 + 4 + 1)  # loss, epochs, rejected


def test_evaluation_exchanges_nothing():
    """Only the accuracies are gathered. Failed when `evaluate` mapped over all clients at once."""
    task, data = wide()
    place = on(8)
    models = jax.tree.map(lambda a: jnp.tile(a[None], (16,) + (1,) * a.ndim), task.init(KEY))
    program = compiled_scores.lower(task, spread(models, place), place.place(data)).compile()
    assert collectives(program.as_text()) == {"all-gather": [16 * 4]}


@pytest.mark.parametrize("width", [1, 7, 8, 2500])
def test_aggregation_equals_one_device(width):
    """Distances, cosines and mixtures of leaves of any size. Failed with columns of padding that were not zero."""
    rng = np.random.default_rng(width)
    tree = {"a": rng.normal(size=(8, width)), "b": rng.normal(size=(8, 2, 3))}
    tree = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), tree)
    xi = jnp.asarray(rng.dirichlet(np.ones(8), size=8), jnp.float32)

    def all_of(place, xi, tree):
        models = place.by_parameters(tree)
        return server.sq_dists(models), server.cosines(models), server.mix(xi, models)

    place = on(8)
    eight = jax.jit(place.program(functools.partial(all_of, place)))(xi, spread(tree, place))
    chex.assert_trees_all_close(eight, all_of(Placement(), xi, tree), rtol=1e-5, atol=1e-6)


MISFITS = {
    "fedamp, stale": lambda t, s, own: fedamp_jax.fedamp(t, s, sigma=2.0, self_weight=own, stale="include"),
    "heurfedamp": lambda t, s, own: fedamp_jax.heurfedamp(t, s, sigma=5.0, self_weight=own),
    "fine_tuned": lambda t, s, own: fedamp_jax.fine_tuned(t, s, base=fedamp_jax.fedavg(t, s)),
    "scaffold": lambda t, s, own: fedamp_jax.scaffold(t, s, learning_rate=0.2),
    "apfl": lambda t, s, own: fedamp_jax.apfl(t, s, alpha=own, learning_rate=0.2),
    "fedrecon": lambda t, s, own: fedamp_jax.fedrecon(t, s),
    "pflego": lambda t, s, own: fedamp_jax.pflego(t, s, beta=0.5, rho=0.2),
}


QUICK = ("fedamp, stale",)


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in MISFITS])
def test_clients_that_devices_do_not_divide(name):
    """Six clients on four devices, one number per client, drop-outs: accuracies, losses, xi as on one device.

    Failed when padding counted as clients: in SCAFFOLD's |S|/M, in PFLEGO's I/r, in FedAMP's xi over stale models.
    """
    task, sizes = tiny_task(), (7, 3, 10, 1, 5, 10)
    train, test = federation(sizes=sizes), federation(seed=1, sizes=sizes)
    own = jnp.linspace(0.1, 0.6, 6, dtype=jnp.float32)
    algorithm = MISFITS[name](task, Solver(optax.adam(0.05), (1, 3), 4), own)
    settings = {"rounds": 3, "participation": Participation(0.7), "progress": False}
    one = fedamp_jax.run(task, algorithm, train, test, **settings)
    four = fedamp_jax.run(task, algorithm, train, test, placement=on(4, chunk=1), **settings)
    assert four.accuracy.shape == (3, 6) and four.rejected.shape == (6,)
    np.testing.assert_allclose(four.accuracy, one.accuracy, atol=1e-6)
    np.testing.assert_allclose(four.loss, one.loss, rtol=1e-5)
    assert (one.xi is None) == (four.xi is None)
    if one.xi is not None:
        assert four.xi.shape == (6, 6)
        np.testing.assert_allclose(four.xi, one.xi, rtol=1e-4, atol=1e-6)
    placed = on(4, chunk=1).place(train)
    alone = jax.jit(algorithm.personalize)(KEY, one.state, train).params
    together = jax.jit(placed.placement.program(algorithm.personalize))(KEY, four.state, placed).params
    jax.tree.map(lambda a, b: np.testing.assert_allclose(b[:6], a, rtol=1e-5, atol=1e-5), alone, together)


def test_one_compile_on_a_mesh():
    """The state comes back laid out as it went in. Failed without `settle` (the second round compiled anew)."""
    for method, arguments in (("fedamp", {"sigma": 2.0, "self_weight": 0.25}), ("scaffold", {}), ("fedper", {})):
        algorithm = getattr(fedamp_jax, method)(tiny_task(), Solver(optax.adam(0.05), 1, 4), **arguments)
        data = on(8).place(federation())
        state = data.placement.init(algorithm, KEY, data)
        lies = jax.tree.map(lambda a: a.sharding, state)
        state, _ = run_rounds(algorithm, data, 3, state=state)
        assert compiled_round.count(algorithm.round) == 1
        assert jax.tree.map(lambda a: a.sharding, state) == lies
        lengths = {a.addressable_shards[0].data.shape[0] for a in jax.tree.leaves(state) if a.ndim and a.shape[0] == 8}
        assert lengths == {1}


@pytest.mark.slow
def test_a_sweep_on_a_mesh():
    """Rounds vmapped over sigma, each on eight devices, equal those on one device."""
    task, data = tiny_task(), federation()

    def one(sigma, data):
        algorithm = fedamp_jax.fedamp(task, Solver(optax.adam(0.05), 1, 4), sigma=sigma, self_weight=0.25)
        state, _ = algorithm.round(KEY, algorithm.init(KEY, data), data)
        return algorithm.round(KEY, state, data)[1].xi

    sigmas = jnp.array([0.5, 2.0])
    place = on(8)

    def sweep(sigmas, data):
        return jax.vmap(one, in_axes=(0, None))(sigmas, data)

    eight = jax.jit(place.program(sweep))(sigmas, place.place(data))
    np.testing.assert_allclose(eight, jax.jit(sweep)(sigmas, data), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_an_estimate_is_what_is_compiled():
    """An estimate made of shapes alone says what the real program does; with twice the devices, a device holds half.

    Failed with the shapes of clients that the devices do not divide.
    """
    task, data = wide(m=13)
    algorithm = fedamp_jax.fedamp(task, Solver(optax.adam(1e-3), 2, 2), sigma=1.0, self_weight=0.25)
    shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), data)
    places = on(8, chunk=1), on(4, chunk=1), Placement(chunk=1)
    eight, four, one = (fedamp_jax.estimate(algorithm, shapes, place) for place in places)
    program, state = compiled(algorithm, on(8, chunk=1).place(data))
    assert eight.exchanged == collectives(program.as_text())
    assert eight.state == sum(a.addressable_shards[0].data.nbytes for a in jax.tree.leaves(state))
    assert (eight.clients, four.clients, one.clients) == (2, 4, 13)
    parameters = sum(a.size for a in jax.tree.leaves(task.init(KEY).params))
    assert [p.state for p in (eight, four, one)] == [(4 * parameters + 1) * p.clients + 4 for p in (eight, four, one)]
    assert one.exchanged == {} and eight.memory < four.memory < one.memory
    assert "8 device(s) of 2 client(s)" in str(eight) and "all-to-all" in str(eight) and "nothing" in str(one)
    placed = fedamp_jax.estimate(algorithm, on(8, chunk=1).place(data))
    assert placed == fedamp_jax.estimate(algorithm, data, on(8, chunk=1))
    # The examples of a device are counted where the sizes are known, and else those of clients of one size.
    assert placed.data > eight.data and placed._replace(data=eight.data) == eight


def test_a_self_weight_is_missing():
    """Two too few for fourteen clients, on one device as on eight, where there are two padding clients.

    On a mesh the last ones' were taken for those of padding clients.
    """
    task, data = wide(m=14)
    algorithm = fedamp_jax.fedamp(task, Solver(optax.sgd(0.1), 1, 2), sigma=1.0, self_weight=np.full(12, 0.1))
    for placed in (data, on(8).place(data)):
        with pytest.raises(ValueError, match="self_weight has 12 numbers for 14 clients"):
            fedamp_jax.round(algorithm, placed.placement.init(algorithm, KEY, placed), placed, KEY)


def test_asynchronous_collectives_are_counted_once():
    """As GPUs have them. Failed when the operand that `-start` returns too was counted."""
    program = """
      s = (f32[8,4]{1,0}, f32[8,32]{1,0}) all-gather-start(f32[8,4]{1,0} p), dimensions={1}
      d = f32[8,32]{1,0} all-gather-done((f32[8,4]{1,0}, f32[8,32]{1,0}) s)
      r = (f32[4]{0}, bf16[2]{0}) all-reduce(f32[4]{0} a, bf16[2]{0} b), to_apply=sum
    """
    assert collectives(program) == {"all-gather": [8 * 32 * 4], "all-reduce": [4 * 4 + 2 * 2]}


def test_a_mesh_that_cannot_be():
    """More devices than there are, and other clients than a process owns. Failed with an error of JAX's reshape."""
    with pytest.raises(ValueError, match="devices=9, but jax sees 8"):
        client_mesh(9)
    with pytest.raises(ValueError, match="holds 8 of 8 clients, but brings 2"):
        on(4).from_owned(federation().select([0, 1]), 8)


def test_data_that_are_placed_already():
    """Placed again where they lie they stay; on another mesh they are refused.

    Failed with padding clients counted as clients the second time.
    """
    once = on(3).place(federation())
    again = on(3, chunk=2).place(once)
    assert again.clients == once.clients == 8 and len(again.size) == 9
    assert again.placement == OnMesh(mesh=client_mesh(3), chunk=2, clients=8)
    chex.assert_trees_all_equal(again._replace(placement=once.placement), once)
    with pytest.raises(ValueError, match=r"lie on .*already, they cannot be placed on"):
        on(4).place(once)


def test_data_that_were_not_placed():
    """Rows that the devices do not divide. Failed with an error of JAX's `shard_map`."""
    data = federation()._replace(placement=on(3))
    with pytest.raises(ValueError, match=r"8 rows on 3 devices: let placement.place\(data\) place the data"):
        fedamp_jax.round(algorithm := fedamp_jax.separate(tiny_task(), Solver(optax.sgd(0.1))),
                         algorithm.init(KEY, data), data, KEY)  # fmt: skip


def test_a_round_within_a_program_of_ones_own():
    """`jax.jit(algorithm.round)` has the all-to-all as well. Failed with all models gathered on each device."""
    task, data = wide()
    placed = on(8, chunk=1).place(data)
    solver = Solver(optax.adam(1e-3), 1, 2)
    amp = fedamp_jax.fedamp(task, solver, sigma=1.0, self_weight=0.25)
    state = placed.placement.init(amp, KEY, placed)
    program = jax.jit(amp.round).lower(KEY, state, placed).compile()
    assert len(collectives(program.as_text())["all-to-all"]) == 2 * 3


def test_a_function_of_one_client_that_closes_over_spread_arrays():
    """It runs within `placement.program`; by itself it does as well, or the error says what to do, as JAX has it.

    Failed with JAX's own error about a context mesh.
    """
    placed, solver = on(8).place(federation()), Solver(optax.sgd(0.1))

    def largest(data):
        def step(key, client, epochs, mine):
            return (jnp.maximum(mine, jnp.max(data.size)), jnp.float32(0))

        return fedamp_jax.engine.for_each_client(solver, data, step, jnp.zeros_like(data.size), key=KEY)[0]

    assert jax.jit(placed.placement.program(largest))(placed).tolist() == [10] * 8
    try:
        assert jax.jit(largest)(placed).tolist() == [10] * 8
    except ValueError as error:
        assert "jax.jit(data.placement.program(function))" in str(error)  # noqa: PT017


FORBIDDEN = ("callback", "infeed", "outfeed", "debug_print", "io_")


def equations(jaxpr):
    """All equations of a jaxpr and of those within it, but for those that a TPU's program leaves out."""
    for eqn in jaxpr.eqns:
        yield eqn
        params = dict(eqn.params)
        if params.get("branches_platforms"):  # None stands for all platforms that no other branch names
            branches = dict(
                (name, branch)
                for branch, names in zip(params["branches"], params["branches_platforms"])
                for name in names or (None,)
            )
            params["branches"] = branches.get("tpu", branches.get(None))
        for value in jax.tree.leaves(list(params.values()), is_leaf=lambda v: hasattr(v, "jaxpr")):
            inner = getattr(value, "jaxpr", value)
            if hasattr(inner, "eqns"):
                yield from equations(inner)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_a_round_is_fit_for_a_tpu(entry):
    """No float64, no dynamic shape, no callback to the host, in rounds and in `personalize`, even where x64 is allowed.

    Failed with the default dtype of `jax.random.uniform`, with `jnp.sum` of flags over an integer, which is a float64
    there, and with a `jax.debug.print` in `solve`.
    """
    task = tiny_task()
    task = task._replace(init=lambda key: jax.tree.map(lambda a: a.astype(jnp.float32), tiny_task().init(key)))
    algorithm = entry.make(task, Solver(optax.sgd(0.05), epochs=(1, 3), batch_size=4))
    data = Placement(chunk=3).place(federation())
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        state = jax.eval_shape(algorithm.init, KEY, data)
        after, _ = jax.eval_shape(algorithm.round, KEY, state, data)
        assert [(a.shape, a.dtype) for a in jax.tree.leaves(after)] == [
            (a.shape, a.dtype) for a in jax.tree.leaves(state)
        ]
        seen = {fn: list(equations(jax.make_jaxpr(fn)(KEY, state, data).jaxpr)) for fn in algorithm[1:3]}
    assert len(seen[algorithm.round]) > 0
    for eqn in [eqn for equations in seen.values() for eqn in equations]:
        assert not any(word in eqn.primitive.name for word in FORBIDDEN), eqn
        for v in eqn.outvars:
            shape = getattr(v.aval, "shape", ())
            # Numbers of Python's are, one for each client: optax's, which a TPU gets as float32.
            assert len(shape) < 2 or str(v.aval.dtype) not in ("float64", "complex128"), eqn
            assert all(isinstance(n, int) for n in shape), eqn
