"""One compiled round, many as one loop, and rounds that their algorithm refuses."""

import logging
from typing import NamedTuple

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Algorithm, Info, Participation, Placement, RoundError, Solver, Variables
from fedamp_jax.driver.rounds import compiled_round
from fedamp_jax.placement import InHostMemory, OnMesh, client_mesh
from fedamp_jax.programs import memory
from tests.registry import federation, find, made, run_rounds, tiny_task

KEY = jax.random.key(3)


def test_an_old_state_is_refused():
    """As when a cell of a notebook runs again. Failed with XLA's "Invalid buffer passed to Execute()"."""
    _, algorithm = made(find("separate"))
    state = algorithm.init(KEY, federation())
    fedamp_jax.round(algorithm, state, federation(), KEY)
    with pytest.raises(ValueError, match="donated to an earlier round: use the one that it returned"):
        fedamp_jax.round(algorithm, state, federation(), KEY)


def test_numpy_data_and_traced_rounds(monkeypatch):
    """`online` as NumPy makes it, and a round within `jit`. Failed with "no attribute 'committed'" on devices that
    report their memory, and with "is_fully_addressable"; for FedAMP, when the weights of a trace were looked at.
    """
    task, algorithm = made(find("fedamp"))
    data = jax.tree.map(np.asarray, federation())
    fedamp_jax.run(task, algorithm, data, data, rounds=1, progress=False)
    state, key = algorithm.init(KEY, federation()), jax.random.key(1)
    plain, _ = jax.jit(lambda s: fedamp_jax.round(algorithm, s, federation(), key))(state)
    monkeypatch.setattr(memory, "room", lambda device: 1 << 40)
    again, _ = fedamp_jax.round(algorithm, state, federation()._replace(online=np.ones(8, bool)), key)
    chex.assert_trees_all_close(plain, again, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_arrays_of_the_user_stay_theirs():
    """A task whose `init` returns weights that it holds. Failed when a round donated them."""
    task = tiny_task()
    pretrained = task.init(jax.random.key(1))
    task = task._replace(init=lambda key: pretrained)
    solver, data = Solver(optax.sgd(0.1), epochs=1), federation()
    for factory in (fedamp_jax.fedavg, fedamp_jax.scaffold, fedamp_jax.apfl, fedamp_jax.ditto, fedamp_jax.separate):
        algorithm = factory(task, solver)
        fedamp_jax.round(algorithm, algorithm.init(KEY, data), data, KEY)
    assert not any(a.is_deleted() for a in jax.tree.leaves(pretrained))


# --- where the data are -----------------------------------------------------------------------------------------------

PLACEMENTS = {
    "one device": lambda: Placement(chunk=3),
    "mesh": lambda: OnMesh(mesh=client_mesh(3)),
    "host": lambda: InHostMemory(device=jax.devices()[5], chunk=3),
}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_the_placement_stays_with_the_data(name):
    """Through `_replace`, `jax.tree.map`, `jit` and `vmap`. Failed with a placement that was a leaf."""
    data = PLACEMENTS[name]().place(federation())
    place = data.placement
    assert all(isinstance(a, jax.Array) for a in jax.tree.leaves(data)) and len(jax.tree.leaves(data)) == 7
    assert data._replace(online=data.online).placement == place
    assert jax.tree.map(jnp.copy, data).placement == place
    assert jax.jit(lambda d: d._replace(size=d.size + 1))(data).placement == place
    seen = []
    jax.vmap(lambda scale, d: seen.append(d.placement) or d.size * scale, in_axes=(0, None))(jnp.arange(2), data)
    assert seen == [place] and data.clients == 8
    assert jax.tree.structure(data) != jax.tree.structure(data._replace(placement=Placement(chunk=7)))


def test_clients_in_host_memory_are_no_part_of_a_compiled_program():
    """`jax.jit` of a round says what to do in place of it. Failed with an error of JAX about a primitive."""
    place = InHostMemory(device=jax.devices()[5], chunk=3)
    data = place.place(federation())
    for name in ("separate", "fedamp"):
        _, algorithm = made(find(name), epochs=1)
        state = place.init(algorithm, KEY, data)
        with pytest.raises(TypeError, match=r"memory cannot be part of a compiled program: call fedamp_jax.round"):
            jax.jit(algorithm.round)(KEY, state, data)


# --- many rounds as one loop ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.slow_variants
def test_scanned_rounds_are_those_of_a_run(devices):
    """State, losses, weights and accuracies, with clients that stay away. Failed with other keys than `run` has."""
    task, algorithm = made(find("fedamp"), epochs=(1, 3))
    data, some = federation(), Participation(0.6, drop_rate=0.25)
    if devices > 1:
        data = OnMesh(mesh=client_mesh(devices)).place(data)
    result = fedamp_jax.run(task, algorithm, data, data, rounds=3, seed=5, participation=some, progress=False)

    def each(key, state, info):
        return info, algorithm.personalize(key, state, data)

    def rounds(data):
        key = jax.random.key(5)
        state = algorithm.init(key, data)
        return fedamp_jax.scan_rounds(algorithm, state, data, 3, key, participation=some, each=each)

    state, (infos, models) = jax.jit(data.placement.program(rounds))(data)
    chex.assert_trees_all_close(state, result.state, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(infos.xi[-1], result.xi, rtol=1e-5, atol=1e-6)
    trained = np.asarray(infos.epochs) > 0
    np.testing.assert_allclose([a[t].mean() for a, t in zip(np.asarray(infos.loss), trained)], result.loss, rtol=1e-5)
    for k in range(3):
        one = jax.tree.map(lambda a, k=k: a[k], models)
        np.testing.assert_allclose(fedamp_jax.evaluate(task, one, data), result.accuracy[k], atol=1e-6)


def test_infos_are_collected_unless_something_else_is():
    """And without `participation` every client takes part."""
    _, algorithm = made(find("separate"))
    data = federation()
    state, infos = jax.jit(lambda d: fedamp_jax.scan_rounds(algorithm, algorithm.init(KEY, d), d, 2, KEY))(data)
    assert isinstance(infos, Info) and infos.loss.shape == (2, 8) and (np.asarray(infos.epochs) > 0).all()
    assert int(state.round) == 2


# --- rounds that are refused ------------------------------------------------------------------------------------------


class CountState(NamedTuple):
    """Attributes: models: `Variables [M, ...]`. round: `[]` int32."""

    models: Variables
    round: jax.Array


class TooHotError(RoundError):
    """An error that is a method's own."""


def moody(error=True, xi=None):
    """A method that refuses every second round, and may report weights."""

    def init(key, data):
        return CountState(Variables({"w": jnp.zeros((8, 2))}), jnp.zeros((), jnp.int32))

    def round(key, state, data):
        online = data.online.astype(jnp.int32)
        code = (state.round % 2).astype(jnp.int32) * 7 if error else None
        return state._replace(round=state.round + 1), Info(jnp.zeros(8), online, ~data.online, xi, code)

    def explain(info, data):
        return TooHotError(f"code {int(info.error)} in a round of {int(data.online.sum())} clients")

    return Algorithm(init, round, lambda key, state, data: state.models, explain if error else None)


def test_a_method_may_refuse_a_round_in_its_own_words():
    """The error is what `explain` makes of the round, with the state after it. Failed with FedAMP's own check in
    `round`, and without `.state`, whose buffers are gone.
    """
    algorithm, data = moody(), federation()._replace(online=jnp.arange(8) < 5)
    state, _ = fedamp_jax.round(algorithm, algorithm.init(KEY, data), data, KEY)
    with pytest.raises(TooHotError, match="code 7 in a round of 5 clients") as refused:
        fedamp_jax.round(algorithm, state, data, KEY)
    assert int(refused.value.state.round) == 2
    state, _ = fedamp_jax.round(algorithm, refused.value.state, data, KEY)
    assert int(state.round) == 3


def test_fine_tuning_keeps_what_its_base_says():
    """Of a failed round, and of newcomers. Failed with an AssertionError in place of the method's error."""
    tuned = fedamp_jax.fine_tuned(tiny_task(), Solver(optax.sgd(0.1), epochs=1), base=moody())
    data = federation()._replace(online=jnp.arange(8) < 5)
    state, _ = fedamp_jax.round(tuned, tuned.init(KEY, data), data, KEY)
    with pytest.raises(TooHotError, match="code 7 in a round of 5 clients"):
        fedamp_jax.round(tuned, state, data, KEY)


def test_a_scan_collects_errors_and_raises_none():
    """Failed when the code was read within a trace."""
    data = federation()
    state, infos = jax.jit(lambda d: fedamp_jax.scan_rounds(moody(), moody().init(KEY, d), d, 4, KEY))(data)
    assert infos.error.tolist() == [0, 7, 0, 7] and int(state.round) == 4


def test_negative_weights_of_other_methods_are_their_own_business():
    """A method whose xi has a negative diagonal, or NaN, gets no advice on FedAMP's alpha.

    Failed when `round` itself looked at every method's xi.
    """
    data = federation()
    for xi in (-jnp.eye(8), jnp.full((8, 8), jnp.nan)):
        algorithm = moody(error=False, xi=xi)
        _, info = fedamp_jax.round(algorithm, algorithm.init(KEY, data), data, KEY)
        np.testing.assert_array_equal(info.xi, xi)

    def own(models, edges, k, data):
        return -jnp.eye(8)

    attentive = fedamp_jax.attentive(tiny_task(), Solver(optax.sgd(0.1), epochs=1), own)
    _, info = fedamp_jax.round(attentive, attentive.init(KEY, data), data, KEY)
    assert info.error is None and info.epochs.tolist() == [1] * 8


@pytest.mark.parametrize("name", ["fedamp", "fedamp, mcp, stale", "fedamp, scad", "heurfedamp"])
def test_numbers_that_cannot_fail_are_not_waited_for(name):
    """FedAMP whose constants were validated has no error to read, so `round` returns before it is computed.

    Failed when `info.error` was there for all; with Eq. 5 as printed, or a schedule, it has to be.
    """
    _, algorithm = made(find(name))
    assert algorithm.explain is None
    assert run_rounds(algorithm, federation(), 1)[1][0].error is None


@pytest.mark.parametrize("change", [{"self_weight": None, "alpha": 1e-3}, {"sigma": lambda k: 1.0}])
def test_numbers_that_may_fail_are_checked(change):
    """The counterpart: an alpha that may be too large, and a schedule that may come to zero."""
    algorithm = fedamp_jax.fedamp(tiny_task(), Solver(optax.sgd(0.1), epochs=1),
                                  **{"sigma": 1.0, "self_weight": 0.25, "common_init": False, **change})  # fmt: skip
    info = run_rounds(algorithm, federation(), 1)[1][0]
    assert info.error.dtype == jnp.int32 and info.error.shape == () and int(info.error) == 0


def test_one_round_is_compiled_once(caplog):
    """Whatever the data hold and whoever takes part. Failed with the number of clients online as a static argument."""
    _, algorithm = made(find("fedavg"))
    data = federation()
    state = algorithm.init(KEY, data)
    with caplog.at_level(logging.WARNING):
        for k in range(3):
            some = data._replace(online=jnp.arange(8) > 2 * k)
            state, _ = fedamp_jax.round(algorithm, state, some, jax.random.fold_in(KEY, k))
    assert compiled_round.count(algorithm.round) == 1


def test_a_wrapped_method_shares_its_round():
    """FedAvg-FT's round is FedAvg's. Failed when programs belonged to the algorithm and not to its function."""
    task, data = tiny_task(), federation()
    solver = Solver(optax.sgd(0.1), epochs=1)
    base = fedamp_jax.fedavg(task, solver)
    tuned = fedamp_jax.fine_tuned(task, solver, base=base)
    for algorithm in (base, tuned):
        fedamp_jax.round(algorithm, algorithm.init(KEY, data), data, KEY)
    assert compiled_round.count(algorithm.round) == 1
