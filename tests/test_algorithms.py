"""The entry exam: every property over every registered algorithm."""

import contextlib
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Placement, placement, silos
from fedamp_jax.driver.checkpoint import Checkpoints
from fedamp_jax.driver.evaluation import compiled_personal_scores, personal_scores, reader_of
from fedamp_jax.driver.rounds import compiled_round, round_keys
from fedamp_jax.layout import parts
from fedamp_jax.programs.memory import collectives
from fedamp_jax.types import Static
from tests import registry
from tests.registry import SIZES, initial, rows, run_rounds, wide

KEY = jax.random.key(7)
ELEVEN = (*SIZES, 2, 9, 3)
M, BAD = len(ELEVEN), 4
OTHERS = np.arange(M) != BAD


entry = registry.one_after_the_other(registry.ENTRIES)

SHARED = {
    **dict.fromkeys(
        (
            "fedavg",
            "fedprox",
            "perfedavg",
            "knnper",
            "pfedhn",
            "apfl",
            "fedper",
            "fedrep",
            "fedbabu",
            "fedrecon",
            "fedrod",
        ),
        ".stats",
    ),
    "scaffold": ".clients.stats",
    "fedala": ".clients.variables.stats",
    "ditto": ".shared.stats",
    "pflego": ".model.stats",
    "fedpac": ".model.stats",
    "cfl": ".cluster",
}
"""What has a row for each client and is nevertheless the server's: running statistics that it averages, clusters."""


def federation(**other):
    """Eleven clients: eight devices do not divide them, nor do chunks of three."""
    return registry.federation(sizes=ELEVEN, **other)


def made(entry, **solver):
    """With a random number of local epochs, and an optimizer that is a part of the state."""
    return registry.made(entry, **{"epochs": (1, 3), "keep_optimizer": True, **solver})


@functools.partial(jax.jit, static_argnums=0)
def personal(algorithm, key, state, data):
    return data.placement.program(algorithm.personalize)(key, state, data)


def models(algorithm, state, data):
    """The personal models' parameters and statistics, `[M, D]` float32."""
    variables = data.placement.call(personal, (algorithm,), KEY, state, data)
    return np.concatenate([np.asarray(a).reshape(a.shape[0], -1) for a in jax.tree.leaves(variables)], axis=1)[:M]


def close(a, b, rtol=2e-5, atol=2e-6):
    np.testing.assert_allclose(a, b, rtol=rtol, atol=atol)


def contents(state):
    """`path -> array` of all of a state but its round counter."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    named = {jax.tree_util.keystr(path): np.array(a) for path, a in leaves}
    return {name: a for name, a in named.items() if not name.endswith(".round")}


def own_rows(entry, state):
    """The part of `contents` that has a row of each client's own."""
    shared = SHARED.get(entry.factory, "none")
    return {name: a for name, a in contents(state).items() if a.shape[:1] == (M,) and not name.startswith(shared)}


@functools.cache
def after_one_round(algorithm):
    """The state after a first round of all clients, on the host, as every further round donates what it is given."""
    return jax.device_get(run_rounds(algorithm, federation(), 1)[0])


def second_round(algorithm, data):
    """`(state, info)` after a second round, of these data."""
    state, [info] = run_rounds(algorithm, data, 1, state=jax.tree.map(jnp.array, after_one_round(algorithm)), first=1)
    return state, info


def only(data, *clients):
    """With no other client online."""
    return data._replace(online=jnp.asarray(np.isin(np.arange(M), clients)))


def poisoned(data, *clients):
    """With features of these clients that are not finite."""
    x = np.array(data.x)
    for i in clients:
        x[rows(data, i)] = np.nan
    return data._replace(x=jnp.asarray(x))


def test_one_compile_and_a_stable_state(entry):
    """Three rounds, one program. Failed when the round counter started as a Python int (weak type: two compiles)."""
    _, algorithm = made(entry)
    data = federation()

    def shapes(state):
        return jax.tree.map(lambda a: (a.shape, a.dtype, a.weak_type), state)

    state = algorithm.init(KEY, data)
    kinds = shapes(state)
    state, _ = run_rounds(algorithm, data, 3, state=state)
    assert compiled_round.count(algorithm.round) == 1
    assert shapes(state) == kinds


def test_chunks_do_not_matter(entry):
    """Three at a time or all: the same. Failed when chunks wrote rows unsorted."""
    _, algorithm = made(entry)
    data = federation()
    (a, first), (b, second) = (run_rounds(algorithm, d) for d in (data, Placement(chunk=3).place(data)))
    close(models(algorithm, a, data), models(algorithm, b, data))
    close(first[-1].loss, second[-1].loss)


def test_a_program_of_their_own_for_small_clients_changes_nothing(entry):
    """Seven of one to four examples beside one of sixty: as one program for all, as two a client at a time, and as two
    side by side.

    Failed with a copy of the examples that begins a row too late, for the client whose copy would end behind the last
    row, and with the large client among those side by side.
    """
    _, algorithm = made(entry)
    two = registry.federation(sizes=(3, 2, 60, 1, 4, 2, 4, 3))
    assert [part.reach for part in parts(two, M, 1)] == [60, 4]
    one = two._replace(typical=Static(0))
    (a, first), *others = (run_rounds(algorithm, data) for data in (one, two, Placement(chunk=M).place(two)))
    for b, second in others:
        close(*(models(algorithm, state, data)[:8] for state, data in ((a, one), (b, two))))
        close(first[-1].loss, second[-1].loss)


def test_no_other_examples_are_read(entry):
    """Examples that lie between the clients', NaN features with labels out of range, change no bit.

    Failed when a batch took rows beyond `size`, when it began a row too late, and with a start that was not added.
    """
    data = federation()
    _, algorithm = made(entry)
    apart = np.arange(M, dtype=np.int32) + 1  # one such example before each client's, and one behind the last
    at = np.concatenate([np.arange(n) + s + k for n, s, k in zip(np.asarray(data.size), np.asarray(data.start), apart)])
    x, y = np.full((len(data.y) + M + 1, 5), np.nan, np.float32), np.full(len(data.y) + M + 1, 99, np.int32)
    x[at], y[at] = data.x, data.y
    other = data._replace(x=jnp.asarray(x), y=jnp.asarray(y), start=data.start + apart)
    a, b = (models(algorithm, run_rounds(algorithm, d)[0], d) for d in (data, other))
    np.testing.assert_array_equal(a, b)


def test_clients_may_be_permuted(entry):
    """Permuted clients give permuted results. Failed when a client's key followed its position instead of its id."""
    data = federation()
    _, algorithm = made(entry)
    order = np.random.default_rng(0).permutation(M)
    shuffled = data.select(order)
    a, b = (models(algorithm, run_rounds(algorithm, d)[0], d) for d in (data, shuffled))
    close(a[order], b)


def test_eight_devices_equal_one(entry):
    """`run` with drop-outs, at most two clients on a device: accuracies, losses, xi and models as on one device.

    Failed with devices training on their neighbours' data; and when padding clients counted: in SCAFFOLD's |S|/M, in
    PFLEGO's I/r, in FedAMP's xi over stale models.
    """
    task, algorithm = made(entry)
    train, test = federation(), federation(seed=1)
    settings = {"rounds": 3, "participation": fedamp_jax.Participation(0.7), "progress": False}
    one = fedamp_jax.run(task, algorithm, train, test, **settings)
    mesh = placement.OnMesh(mesh=placement.client_mesh(8), chunk=1)
    eight = fedamp_jax.run(task, algorithm, train, test, placement=mesh, **settings)
    assert eight.accuracy.shape == (3, M) and eight.rejected.shape == (M,)
    close(eight.accuracy, one.accuracy)
    close(eight.loss, one.loss)
    assert (one.xi is None) == (eight.xi is None)
    if one.xi is not None:
        close(eight.xi, one.xi, rtol=1e-4)
    together = models(algorithm, eight.state, mesh.place(train))
    close(models(algorithm, one.state, train), together, rtol=1e-5, atol=1e-5)


def test_the_hosts_memory_equals_a_device(entry):
    """Three of eleven clients at a time visit another device. Failed with the rows of the first chunk."""
    task, algorithm = made(entry)
    train, test = federation(), federation(seed=1)
    there = placement.InHostMemory(device=jax.devices()[1], chunk=3)
    results = []
    for data in (train, there.place(train)):
        state, _ = run_rounds(algorithm, only(data, *range(1, M)), 2)
        state, infos = run_rounds(algorithm, data, 1, state=state, first=2)
        accuracy = personal_scores(task, algorithm, KEY, state, data, data.placement.place(test))
        results.append((contents(state), infos[0].loss, accuracy))
    chex.assert_trees_all_close(*results, rtol=1e-4, atol=1e-5)


def test_silos_equal_the_simulation(entry):
    """Five clients that keep their data, some of them offline: what is reported, and each client's own model.

    Failed with the first client's rows sent to all, and with a client's state not kept between rounds.
    """
    task, algorithm = made(entry)
    train, test = (registry.federation(sizes=(7, 3, 7, 1, 3), seed=seed) for seed in (0, 1))
    settings = {"rounds": 3, "seed": 3, "participation": fedamp_jax.Participation(0.7), "progress": False}
    whole = fedamp_jax.run(task, algorithm, train, test, **settings)
    clients = [silos.Silo(task, algorithm, train.select([i]), test.select([i])) for i in range(5)]
    data = silos.InProcess(clients).connect(seed=3)
    found = fedamp_jax.run(task, algorithm, *data, **settings)
    close(found.accuracy, whole.accuracy)
    close(found.loss, whole.loss)
    if whole.xi is not None:
        close(found.xi, whole.xi)
    silos.deliver(algorithm, found, data[0])
    last = round_keys(jax.random.key(3), 2)[2]
    models = personal(algorithm, last, whole.state, train)
    chex.assert_trees_all_close(jax.tree.map(lambda *a: np.stack(a), *(c.model for c in clients)), models, atol=2e-6)


def test_resumed_equals_uninterrupted(entry, tmp_path):
    """Saved after one round of three and loaded: bit for bit the same. Failed when the round counter was left out."""
    data = federation()
    _, algorithm = made(entry)
    whole, _ = run_rounds(algorithm, data, 3)
    fresh = initial(algorithm, KEY, data)
    unfinished = [
        fedamp_jax.Run(state, rejected=np.zeros(M, int))
        for state in (jax.tree.map(jnp.array, after_one_round(algorithm)), fresh)
    ]
    with contextlib.closing(Checkpoints(tmp_path, {"seed": 0}, M)) as saved:
        saved.save(1, unfinished[0])
    with contextlib.closing(Checkpoints(tmp_path, {"seed": 0}, M)) as saved:
        assert saved.restore(unfinished[1]) == 1
    resumed, _ = run_rounds(algorithm, data, 2, state=unfinished[1].state, first=1)
    chex.assert_trees_all_equal(resumed, whole)


def test_absent_clients_keep_everything(entry):
    """One client alone: not a bit of what is another's own changes; and with nobody, nothing at all.

    Failed when `for_each_client` returned the start of training instead of the client's own row, with an optimizer of
    the server that went on without clients, and when the mean over no client was 0.
    """
    _, algorithm = made(entry)
    data, before = federation(), after_one_round(algorithm)
    state, info = second_round(algorithm, only(data, 2))
    assert (np.flatnonzero(info.epochs) == 2).all() and np.count_nonzero(info.loss) == 1
    chex.assert_tree_all_finite(state)
    old, new = own_rows(entry, before), own_rows(entry, state)
    rest = np.arange(M) != 2
    chex.assert_trees_all_equal(*({name: a[rest] for name, a in s.items()} for s in (new, old)))
    moved = contents(before), contents(state)
    assert any((moved[0][name] != moved[1][name]).any() for name in moved[0])
    state, info = second_round(algorithm, only(data))
    chex.assert_trees_all_equal(contents(state), contents(before))
    assert not np.asarray(info.epochs).any() and not np.asarray(info.rejected).any()


def test_a_diverged_client_harms_nobody(entry):
    """NaN in one client's features: it is named and keeps every bit of its own, and for the rest it is as if it had
    been offline; or, where they received its last model, as if nothing had happened.

    Failed when the mean multiplied by a zero weight instead of selecting (0 x NaN), when a rejected client's row was
    set to zero, when the server counted it (PFLEGO's r), and when it remembered what it had trained from (FedFomo).
    """
    _, algorithm = made(entry)
    data, before = federation(), after_one_round(algorithm)
    state, info = second_round(algorithm, poisoned(data, BAD))
    assert np.flatnonzero(info.rejected).tolist() == [BAD]
    old, new = own_rows(entry, before), own_rows(entry, state)
    chex.assert_trees_all_equal(*({name: a[BAD] for name, a in s.items()} for s in (new, old)))
    chex.assert_tree_all_finite(state)
    chex.assert_tree_all_finite(models(algorithm, state, poisoned(data, BAD)))
    like = only(data, *np.flatnonzero(OTHERS)) if entry.rejected_is_offline else data
    expected, _ = second_round(algorithm, like)
    own = own_rows(entry, state)
    rest = [{name: a[OTHERS] if name in own else a for name, a in contents(s).items()} for s in (state, expected)]
    chex.assert_trees_all_close(*rest, rtol=1e-6, atol=1e-7)


def test_all_diverge(entry):
    """Nothing changes. Failed when the mean over no client was 0."""
    _, algorithm = made(entry)
    state, info = second_round(algorithm, poisoned(federation(), *range(M)))
    assert np.asarray(info.rejected).all()
    chex.assert_trees_all_equal(contents(state), contents(after_one_round(algorithm)))


def test_personal_models_are_everybodys(entry):
    """They do not depend on which clients are online. Failed when fine-tuning left out clients that were offline."""
    _, algorithm = made(entry)
    data, state = federation(), jax.tree.map(jnp.array, after_one_round(algorithm))
    np.testing.assert_array_equal(models(algorithm, state, data), models(algorithm, state, only(data, 2)))


def test_kept_optimizer_is_used(entry):
    """With `keep_optimizer` the second round goes on from the first one's moments, so it differs from a fresh start.

    Failed with `optimizer.init` in every round.
    """
    if entry.own_steps:
        pytest.skip("has a step rule of its own")
    _, algorithm = made(entry)
    data, state = federation(), after_one_round(algorithm)
    fresh = initial(algorithm, KEY, data)

    def choose(path, old, new):
        return new if "optimizer" in jax.tree_util.keystr(path) else old

    reset = jax.tree_util.tree_map_with_path(choose, state, fresh)
    results = [
        models(algorithm, run_rounds(algorithm, data, 1, state=jax.tree.map(jnp.array, s), first=1)[0], data)
        for s in (state, reset)
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
    _, algorithm = made(entry)
    _, infos = run_rounds(algorithm, data, 4)
    assert float(np.mean(infos[-1].loss)) < float(np.mean(infos[0].loss))
    assert not any(np.asarray(info.rejected).any() for info in infos)


# What crosses from device to device in a round: so many times all models (a device's share of them), so many global
# models that are summed, and whether models travel around a ring. A method that is not listed sends nothing.
# "weights": further matrices of weights.
TRAFFIC = {
    "fedamp": {"all-to-all": 2},
    "fedamp, auto": {"all-to-all": 10, "weights": 10},  # in a round in which somebody chooses; 2 in others
    "heurfedamp": {"all-to-all": 2},
    "pfedgraph": {"all-to-all": 3},
    "fedfomo": {"all-to-all": 2, "collective-permute": 2},
    "fedavg": {"all-reduce": 1},
    "fedprox": {"all-reduce": 1},
    "scaffold": {"all-reduce": 2},
    "apfl": {"all-reduce": 1},
    "ditto": {"all-reduce": 1},
    "fedper": {"all-reduce": 1},
    "fedrep": {"all-reduce": 1},
    "fedbabu": {"all-reduce": 1},
    "fedrecon": {"all-reduce": 1},
    "pflego": {"all-reduce": 1},
    "pfedme": {"all-reduce": 1},
    "ifca": {"all-reduce": 3},  # its three models
    "cfl": {"all-to-all": 1, "all-reduce": 3},  # updates, and as many models
    "lg_fedavg": {"all-reduce": 0.25},  # the head
    "fedbn": {"all-reduce": 1},
    "fedrod": {"all-reduce": 1},
    "perfedavg": {"all-reduce": 1},
    "fedproto": {"all-reduce": 0.25},  # the prototypes
    "knnper": {"all-reduce": 1},
    "fedala": {"all-reduce": 1},
    "pfedhn": {"all-reduce": 5},  # the hypernetwork's gradient
    "fedpac": {"all-to-all": 0.7, "all-reduce": 1},  # statistics, heads there and back; body and class means
}


def assert_traffic(entry, program, parameters, m, devices):
    """`program` moves what `TRAFFIC` says and beside it only some numbers for each client or pair of clients."""
    moved = {name: sum(sizes) for name, sizes in collectives(program.as_text()).items()}
    allowed = dict(TRAFFIC.get(entry.name, TRAFFIC.get(entry.factory, {})))
    little = 4 * m * m * (3 + allowed.pop("weights", 0))
    share = 4 * parameters * m // devices
    sizes = {"all-to-all": share, "collective-permute": share, "all-reduce": 4 * parameters}
    for name, size in moved.items():
        assert size <= 1.02 * allowed.get(name, 0) * sizes.get(name, 0) + little, (moved, share)
    for name, times in allowed.items():
        assert moved.get(name, 0) > 0.1 * times * sizes[name], (moved, share)


def test_what_crosses_between_devices(entry):
    """In a round what the method documents, and to use its models nothing but the accuracies; no device ever gets all
    models. A round that is compiled without the placement's `program` is the same, or says what to do.

    Failed with distances on the client axis, an all-gather of all models.
    """
    task, data = wide()
    algorithm = entry.make(task, fedamp_jax.Solver(optax.sgd(0.1), 1, 2))
    m, devices = len(data.size), 8
    place = placement.OnMesh(mesh=placement.client_mesh(devices), chunk=1)
    spread = place.shapes(data)
    key = jax.eval_shape(lambda: jax.random.key(0))
    state = place.state_shapes(algorithm, key, spread)
    parameters = sum(a.size for a in jax.tree.leaves(jax.eval_shape(task.init, key)))
    program = compiled_round.lower(algorithm.round, state, spread, key).compile()
    assert_traffic(entry, program, parameters, m, devices)
    reads = reader_of(task, algorithm, spread)
    program = compiled_personal_scores.lower(reads, algorithm.personalize, key, state, spread, spread).compile()
    assert collectives(program.as_text()) == {"all-gather": [4 * m]}
    try:
        plain = jax.jit(algorithm.round).lower(key, state, spread)
    except ValueError as error:
        assert "jax.jit(data.placement.program(function))" in str(error)  # noqa: PT017
    else:
        assert_traffic(entry, plain.compile(), parameters, m, devices)


def test_spread_arrays_without_a_placement_are_refused(entry):
    """Rather than gathered on every device without a word."""
    task, algorithm = made(entry)
    spread = placement.OnMesh(mesh=placement.client_mesh(8)).place(federation())
    state = spread.placement.init(algorithm, KEY, spread)
    lost = spread._replace(placement=Placement())
    with pytest.raises(ValueError, match="are spread over 8 devices"):
        fedamp_jax.round(algorithm, state, lost, KEY)
    with pytest.raises(ValueError, match="are spread over 8 devices"):
        personal_scores(task, algorithm, KEY, state, lost, lost)
