"""Clients that come later, for every method; and runs that go on from a state."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Checkpoint, Solver, data
from fedamp_jax.models import resnet18
from fedamp_jax.placement import InHostMemory, OnMesh, client_mesh
from tests.registry import ENTRIES, batch_of, federation, find, made, one_after_the_other, run_rounds, tiny_task

KEY = jax.random.key(1)  # of `run_rounds`
OLD, NEW = 5, 3
entry = one_after_the_other(ENTRIES)


def rows(tree, some):
    return jax.tree.map(lambda a: a[some], tree)


def split(everybody):
    """The first five clients, and the last three as if made on their own."""
    return everybody.select(range(OLD)), everybody.select(range(OLD, OLD + NEW))._replace(id=jnp.arange(NEW))


def grown(algorithm, state, everybody):
    """Which leaves have a row for each client."""
    few = jax.eval_shape(algorithm.init, KEY, split(everybody)[0])
    return jax.tree.map(lambda a, b: a.shape != b.shape, few, state)


def test_newcomers_of_every_method(entry):
    """The others keep every number, what all share stays, newcomers start by the method's rule, and rounds go on.

    Failed with newcomers of FedAMP at an initial model, and with those of FedPer under the first client's head.
    There are as many clients as features, so that a shared layer has as many rows as there are clients.
    """
    task, algorithm = made(entry)
    everybody = federation()
    first, last = split(everybody)
    state, _ = run_rounds(algorithm, first, 2)
    before = jax.tree.map(np.asarray, state)
    joined, together = fedamp_jax.join(algorithm, state, first, last, KEY)
    chex.assert_trees_all_equal(together, everybody)
    chex.assert_trees_all_equal_shapes_and_dtypes(joined, algorithm.init(KEY, everybody))
    kept = jax.tree.map(lambda a, g: a[:OLD] if g else a, joined, grown(algorithm, joined, everybody))
    chex.assert_trees_all_equal(kept, before)
    chex.assert_trees_all_equal(state, before)  # still usable
    _by_rule(entry.factory, task, algorithm, joined, before, everybody)
    after, infos = run_rounds(algorithm, together, 1, state=joined, first=2)
    assert int(after.round) == 3 and all(np.isfinite(np.asarray(a)).all() for a in jax.tree.leaves(after))
    assert np.asarray(infos[0].epochs).tolist() == [2] * 8


def each_loss(task, models, data):
    """`[M, k]`: every client's loss of every model, on all of its examples at once."""
    k = len(jax.tree.leaves(models)[0])
    return np.array([
        [task.loss(rows(models, j), batch_of(data.client(i)), KEY)[0] for j in range(k)] for i in range(len(data.size))
    ])  # fmt: skip


def _by_rule(factory, task, algorithm, joined, before, everybody):
    """What newcomers start from, written from each method's description."""

    def part(tree):
        return jax.tree.leaves(rows(tree, slice(OLD, None)))

    initial = task.init(KEY)
    if factory == "pfedhn":
        pairs = [(joined.embeddings[OLD:], algorithm.init(KEY, everybody).embeddings[OLD:])]
    elif factory in ("separate", "fedproto"):
        fresh = algorithm.init(KEY, everybody)
        pairs = zip(part(joined.clients.variables), part(fresh.clients.variables), strict=True)
    elif factory in ("fedavg", "fedprox", "perfedavg", "knnper"):
        pairs = zip(part(joined.stats), (a[:1] for a in jax.tree.leaves(before.stats)), strict=True)
    elif factory == "fedala":
        mine = algorithm.personalize(KEY, joined, everybody).params
        pairs = zip(part(mine), (a[None] for a in jax.tree.leaves(before.params)), strict=True)
    elif factory in ("fedamp", "heurfedamp", "fedfomo", "pfedgraph"):
        mean = [a.astype(np.float64).mean(axis=0)[None] for a in jax.tree.leaves(before.clients.variables.params)]
        pairs = zip(part(joined.clients.variables.params), mean, strict=True)
    elif factory in ("ifca", "cfl"):
        there = before.clusters if factory == "cfl" else None
        losses = each_loss(task, before.models, everybody)[:, :there]
        mine = algorithm.personalize(KEY, joined, everybody)
        pairs = zip(part(mine), jax.tree.leaves(rows(before.models, losses.argmin(axis=1)[OLD:])), strict=True)
    elif factory == "scaffold":
        shared = (a[None] for a in jax.tree.leaves((before.params, before.control)))
        pairs = zip([*part(joined.clients.params), *part(joined.controls)], shared, strict=True)
    elif factory in ("pfedme", "apfl", "ditto"):
        mine = {"pfedme": lambda s: s.personal.params, "apfl": lambda s: s.personal,
                "ditto": lambda s: s.personal.variables.params}[factory](joined)  # fmt: skip
        shared = before.shared.params if factory == "ditto" else before.params
        pairs = zip(part(mine), (a[None] for a in jax.tree.leaves(shared)), strict=True)
    else:
        model = getattr(joined, "model", joined)
        old = getattr(before, "model", before)
        alike = {"fedbabu": old.own, "fedrecon": old.own}.get(factory)
        heads = jax.tree.map(lambda a: a[None], initial.params["head"]) if alike is None else rows(alike, slice(0, 1))
        if factory == "fedper":  # in the registry's entry each has a head of its own
            own = [task.init(jax.random.fold_in(KEY, i)).params["head"] for i in range(OLD, OLD + NEW)]
            heads = jax.tree.map(lambda *a: jnp.stack(a), *own)
        elif factory == "lg_fedavg":
            heads = jax.tree.map(lambda a: a[None], initial.params["body"])
        elif factory == "fedrod":  # so that they have the generic model
            heads = jax.tree.map(lambda a: jnp.zeros_like(a)[None], initial.params["head"])
        elif factory == "fedbn":
            heads = initial.params["body"]["bias"][None]
        pairs = zip(part(model.own), jax.tree.leaves(heads), strict=True)
    for a, b in pairs:
        np.testing.assert_allclose(a, np.broadcast_to(b, a.shape), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["fedavg", "fedamp"])
def test_an_unseen_client_gets_a_model_of_its_own(name):
    """Fine-tuned from what newcomers start with, without a round. Failed with a loss as high as before."""
    task, algorithm = made(find(name))
    everybody = federation()
    first, last = split(everybody)
    state, _ = run_rounds(algorithm, first, 3)
    state, together = fedamp_jax.join(algorithm, state, first, last, KEY)
    tuned = fedamp_jax.fine_tuned(task, Solver(optax.adam(0.05), epochs=10, batch_size=4), base=algorithm)
    solver = Solver(optax.sgd(0.1), batch_size=4)
    losses = [
        jnp.diag(fedamp_jax.engine.cross_losses(task, solver, together, one.personalize(KEY, state, together)))[OLD:]
        for one in (algorithm, tuned)
    ]
    assert (losses[1] < losses[0]).all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mesh", "host"])
def test_newcomers_on_other_placements(kind):
    """Padding clients make room for newcomers. Failed when a padding client's row was kept in place of a newcomer's."""
    there = OnMesh(mesh=client_mesh(4)) if kind == "mesh" else InHostMemory(device=jax.devices()[2], chunk=2)
    _, algorithm = made(find("fedamp"))
    first, last = split(federation())
    states = []
    for clients in (first, there.place(first)):
        state, _ = run_rounds(algorithm, clients, 2)
        state, together = fedamp_jax.join(algorithm, state, clients, last, KEY)
        assert together.clients == 8
        state, _ = run_rounds(algorithm, together, 1, state=state, first=2)
        states.append(state)
    chex.assert_trees_all_close(*(jax.tree.map(np.asarray, s) for s in states), rtol=1e-4, atol=1e-5)


def test_concatenated_data_stay_a_pair():
    """Of different lengths; a second time, too. Failed with ids numbered from 0, and with the shorter length."""
    train, test = federation(sizes=(7, 3)), federation(seed=1, sizes=(2, 9))
    more, their_test = federation(sizes=(12,)), federation(sizes=(1,))
    a, b = data.concatenate(train, more), data.concatenate(test, their_test)
    data.check_pair(data.concatenate(a, more), data.concatenate(b, their_test))
    assert a.size.tolist() == [7, 3, 12] and a.y.shape == (22,) and a.id.tolist() == [0, 1, 2]
    for i, whole in ((0, train.examples(0)), (1, train.examples(1)), (2, more.examples(0))):
        jax.tree.map(np.testing.assert_array_equal, a.examples(i), whole)
    with pytest.raises(ValueError, match="examples differ"):
        data.concatenate(train, data.from_lists([np.zeros((1, 2))], [[0]]))


# --- runs that go on -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["fedamp, schedules", "ditto", "pflego, server Adam"])
def test_a_run_goes_on_from_a_state(name):
    """Bit for bit as a run of all rounds; the state given stays. Failed with rounds that were counted from 0 again."""
    task, algorithm = made(find(name), keep_optimizer=True, epochs=(1, 3))
    clients = federation()
    options = {"participation": fedamp_jax.Participation(0.75), "progress": False}
    whole = fedamp_jax.run(task, algorithm, clients, clients, rounds=5, **options)
    begun = fedamp_jax.run(task, algorithm, clients, clients, rounds=2, **options)
    for _ in range(2):
        rest = fedamp_jax.run(task, algorithm, clients, clients, rounds=5, state=begun.state, **options)
        chex.assert_trees_all_equal(rest.state, whole.state)
    assert rest.rounds == [3, 4, 5]
    np.testing.assert_array_equal(rest.accuracy, whole.accuracy[2:])
    with pytest.raises(ValueError, match="the state has seen 2 rounds, which count: rounds must be more, got 2"):
        fedamp_jax.run(task, algorithm, clients, clients, rounds=2, state=begun.state, **options)


def test_a_state_and_a_checkpoint(tmp_path):
    """A checkpoint of a run that went on is newer than its state. Failed with the state in its place: rounds again."""
    task, algorithm = made(find("fedamp"))
    clients = federation()

    def run(rounds, **options):
        return fedamp_jax.run(task, algorithm, clients, clients, rounds=rounds, progress=False, **options)

    begun = run(2)
    folder = Checkpoint(tmp_path / "a", 1, {"sigma": 2.0})
    run(3, state=begun.state, checkpoint=folder)
    rest = run(5, state=begun.state, checkpoint=folder)
    assert rest.rounds == [3, 4, 5]
    chex.assert_trees_all_equal(rest.state, run(5).state)
    other = Checkpoint(tmp_path / "b", 1, {"sigma": 2.0})
    run(1, checkpoint=other)
    with pytest.raises(ValueError, match="has 1 rounds, fewer than the state's 2: use another folder"):
        run(3, state=begun.state, checkpoint=other)


def test_states_that_are_refused():
    """Of another method, of other clients, and one that a round consumed. Failed deep inside of a compiled round."""
    task, algorithm = made(find("fedamp"))
    clients = federation()

    def run(state):
        return fedamp_jax.run(task, algorithm, clients, clients, rounds=3, state=state, progress=False)

    with pytest.raises(TypeError, match=r"state is a FedAvgState .*go on with the method"):
        run(made(find("fedavg"))[1].init(KEY, clients))
    few = algorithm.init(KEY, split(clients)[0])
    with pytest.raises(ValueError, match=r"state.clients/variables/params/body/bias is float32 \[5, 4\]"):
        run(few)
    with pytest.raises(ValueError, match=r"or let fedamp_jax.join add clients"):
        fedamp_jax.join(algorithm, few, clients, clients, KEY)
    used = algorithm.init(KEY, clients)
    fedamp_jax.round(algorithm, used, clients, KEY)
    with pytest.raises(ValueError, match="donated"):
        run(used)


@pytest.mark.slow
def test_statistics_of_newcomers_under_batch_norm():
    """FedAvg's are the averaged ones, and predictions of newcomers the global model's. Failed with initial ones."""
    task = resnet18(3, shape=(8, 8), widths=(4,))
    rng = np.random.default_rng(0)
    clients = data.from_lists([rng.random((4, 8, 8)) for _ in range(3)], [[0, 1, 2, 0]] * 3, classes=3)
    first, last = clients.select([0, 1]), clients.select([2])
    algorithm = fedamp_jax.fedavg(task, Solver(optax.sgd(0.05), epochs=1))
    state, _ = run_rounds(algorithm, first, 1)
    state, everybody = fedamp_jax.join(algorithm, state, first, last, KEY)
    models = algorithm.personalize(KEY, state, everybody)
    chex.assert_trees_all_equal(rows(models, 0), rows(models, 2))


def test_numbers_per_client_in_the_state_are_explained():
    """APFL with an alpha for each client. Failed with a message that led in a circle."""
    everybody = federation()
    first, last = split(everybody)
    task, solver = tiny_task(), Solver(optax.sgd(0.1))
    algorithm = fedamp_jax.apfl(task, solver, alpha=np.full(len(first.size), 0.5))
    state = algorithm.init(KEY, first)
    with pytest.raises(ValueError, match="as APFL with an alpha for each, can neither have newcomers"):
        fedamp_jax.join(algorithm, state, first, last, KEY)
