"""Local training: batches, steps, chunks, statistics, and what the front door refuses."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Solver, Task, Variables, checks, sample_online
from fedamp_jax.heads import head_mask
from fedamp_jax.local import Local, for_each_client, full_gradient, minibatch_order, solve
from tests.registry import SIZES, federation, run_rounds, tiny_task

KEY = jax.random.key(4)


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


@pytest.mark.parametrize("size", [1, 5, 12])
def test_every_pass_is_a_new_permutation(size):
    """Failed with one permutation for all passes, and with padding drawn among the real rows."""
    order = np.asarray(minibatch_order(KEY, jnp.int32(size), 6, 12))
    for row in order:
        assert sorted(row[:size]) == list(range(size))
    assert size == 1 or len({tuple(row[:size]) for row in order}) > 1


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_a_client_does_its_own_steps_and_no_more(chunk):
    """Steps are epochs x ceil(n / B), examples epochs x n, whoever shares the chunk. Failed when a chunk ran all its
    members
    as long as its longest."""
    data, solver = federation(), Solver(optax.sgd(0.1), epochs=(1, 4), batch_size=4, chunk=chunk)
    algorithm = fedamp_jax.separate(counting_task(), solver)
    state, (info,) = run_rounds(algorithm, data, 1)
    epochs, sizes = np.asarray(info.epochs), np.array(SIZES)
    assert state.clients.variables.stats["steps"].tolist() == (epochs * -(-sizes // 4)).tolist()
    assert state.clients.variables.stats["seen"].tolist() == (epochs * sizes).tolist()
    assert epochs.min() >= 1 and epochs.max() <= 4 and len(set(epochs)) > 1


def test_the_engine_equals_a_python_loop():
    """`for_each_client` against `solve` called for one client after the other. Failed with keys by position in the
    chunk.
    """
    data, task = federation(), tiny_task()
    solver = Solver(optax.adam(0.05), epochs=2, batch_size=4, chunk=3)
    start = task.init(KEY)
    keep = Local(jax.tree.map(lambda a: jnp.broadcast_to(a[None], (8, *a.shape)), start))

    def local(key, client, epochs, mine):
        return solve(task, solver, key, client, mine.variables, epochs=epochs, k=jnp.int32(0))

    together, info = for_each_client(solver, KEY, data, local, keep)
    for i in range(8):
        client = jax.tree.map(lambda a, i=i: a[i], data)
        key = jax.random.split(jax.random.fold_in(KEY, i))[1]
        alone, loss = local(key, client, jnp.int32(2), Local(start))
        np.testing.assert_allclose(info.loss[i], loss, rtol=1e-5)
        for a, b in zip(jax.tree.leaves(together), jax.tree.leaves(alone)):
            np.testing.assert_allclose(a[i], b, rtol=2e-5, atol=1e-6)


def test_a_learning_rate_may_follow_the_round():
    """`Solver(k -> optimizer)` with rate 0 from round 1 on stands still. Failed when k was the step."""
    solver = Solver(lambda k: optax.sgd(jnp.where(k < 1, 0.1, 0.0)), epochs=1, batch_size=4)
    algorithm, data = fedamp_jax.separate(tiny_task(), solver), federation()
    first, _ = run_rounds(algorithm, data, 1)
    first = jax.tree.map(np.asarray, first.clients.variables.params)
    third, _ = run_rounds(algorithm, data, 3)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(third.clients.variables.params)):
        np.testing.assert_array_equal(a, b)
    assert float(jnp.abs(third.clients.variables.params["head"]["bias"]).max()) > 0


def test_full_gradient_is_the_gradient_over_everything():
    """In blocks of four equals `jax.grad` over all. Failed with a mean of block means."""
    data, task = federation(), tiny_task()
    start, client = task.init(KEY), jax.tree.map(lambda a: a[0], data)
    got, _, loss = full_gradient(task, Solver(optax.sgd(1.0), batch_size=4), KEY, client, start)
    batch = fedamp_jax.Batch(client.x, client.y, jnp.arange(len(client.y)) < client.size, client.classes)
    (value, _), grads = jax.value_and_grad(lambda p: task.loss(Variables(p, start.stats), batch, KEY), has_aux=True)(
        start.params
    )
    np.testing.assert_allclose(loss, value, rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), got, grads)


FAMILIES = {
    "fedavg": lambda task, solver, stats: fedamp_jax.fedavg(task, solver, stats=stats),
    "fedamp": lambda task, solver, stats: fedamp_jax.fedamp(task, solver, sigma=1e9, self_weight=1 / 8, stats=stats),
    "ditto": lambda task, solver, stats: fedamp_jax.ditto(task, solver, stats=stats),
    "scaffold": lambda task, solver, stats: fedamp_jax.scaffold(task, solver, stats=stats),
    "apfl": lambda task, solver, stats: fedamp_jax.apfl(task, solver, stats=stats),
    "fedper": lambda task, solver, stats: fedamp_jax.fedper(task, solver, stats=stats),
    "pflego": lambda task, solver, stats: fedamp_jax.pflego(task, solver, stats=stats),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_statistics_follow_their_policy(family):
    """`"local"`: what a client's own data made of them; `"mix"`: averages. Failed with the policies turned."""
    task = tiny_task()

    def loss(variables, batch, key):
        value, _ = task.loss(Variables(variables.params, {"mean": jnp.zeros(5)}), batch, key)
        mean = jnp.sum(jnp.where(batch.mask, batch.x[:, 0], 0.0)) / jnp.maximum(
            jnp.sum(batch.mask, dtype=jnp.float32), 1.0
        )
        return value, {"mean": 0.5 * variables.stats["mean"] + 0.5 * mean}

    noted = Task(lambda key: Variables(task.init(key).params, {"mean": jnp.zeros(())}), loss, task.predict)
    data = federation()._replace(size=jnp.full(8, 1, jnp.int32))  # one example each, of weight one each
    results = {}
    for policy in ("local", "mix"):
        algorithm = FAMILIES[family](noted, Solver(optax.sgd(0.0), epochs=1, batch_size=4), policy)
        state, _ = run_rounds(algorithm, data, 2)
        stats = algorithm.personalize(KEY, state, data).stats
        results[policy] = np.asarray(stats["mean"])
    own = 0.75 * np.asarray(data.x[:, 0, 0])
    np.testing.assert_allclose(results["local"], own, rtol=1e-5)
    if family == "fedamp":  # mixed before training, so the last round's own share is still apart
        own = 0.5 * np.asarray(data.x[:, 0, 0]) + 0.25 * float(data.x[:, 0, 0].mean())
        np.testing.assert_allclose(results["mix"], own, rtol=1e-4)
    else:
        np.testing.assert_allclose(results["mix"], own.mean(), rtol=1e-4)


def test_head_mask_names_whole_path_parts():
    """`"head"` is not the beginning of `"header"`. Failed with `str.startswith` alone."""
    params = {"head": {"kernel": 0.0}, "header": {"kernel": 0.0}, "body": 0.0}
    task = tiny_task()
    assert head_mask(task, params) == {"head": {"kernel": True}, "header": {"kernel": False}, "body": False}
    for head in (("nothing",), ("head", "header", "body")):
        with pytest.raises(ValueError, match="must select some and not all"):
            head_mask(task._replace(head=head), params)


def test_participation_and_dropping_are_whole_numbers():
    """Failed with one Bernoulli draw per client."""
    for seed in range(5):
        assert int(sample_online(jax.random.key(seed), 100, 0.2).sum()) == 20
        assert int(sample_online(jax.random.key(seed), 10, 1.0, 0.3).sum()) == 7
        assert int(sample_online(jax.random.key(seed), 3, 0.1).sum()) == 1
    draws = np.stack([sample_online(jax.random.key(s), 10, 0.5) for s in range(40)])
    assert draws.any(0).all() and not draws.all(0).any()


def test_noise_of_an_optimizer_is_each_clients_own():
    """And each round's. Failed when it was as `optimizer.init` seeds it: the same for all, and again in every round."""
    data = federation(sizes=(4, 4, 4))
    noisy = Solver(optax.add_noise(0.1, 0.0, 0), epochs=1, batch_size=4)
    for keep in (False, True):
        algorithm = fedamp_jax.separate(tiny_task(), dataclasses.replace(noisy, keep_optimizer=keep))
        flat = data._replace(x=jnp.zeros_like(data.x), y=jnp.zeros_like(data.y))
        before = algorithm.init(KEY, flat)
        start = np.asarray(before.clients.variables.params["body"]["kernel"])  # of zeros, its gradient is zero
        one, _ = algorithm.round(jax.random.key(1), before, flat)
        two, _ = algorithm.round(jax.random.key(2), one, flat)
        kernels = [start, *(np.asarray(s.clients.variables.params["body"]["kernel"]) for s in (one, two))]
        steps = np.concatenate([kernels[1] - kernels[0], kernels[2] - kernels[1]])
        apart = np.abs(steps[:, None] - steps[None]).max(axis=(2, 3))[~np.eye(6, dtype=bool)]
        assert apart.min() > 0.01


def test_fine_tuning_follows_the_round_and_corrupts_nothing():
    """A rate that is 0 after the first round leaves the models alone; who sends poison keeps a model for itself.

    Failed when every fine-tuning was that of round 0, and when `corrupt` was applied to it.
    """
    data = federation()

    def tuned(**solver):
        solver = Solver(**{"optimizer": optax.sgd(0.1), "epochs": 1, **solver})
        base = fedamp_jax.ditto(tiny_task(), solver)  # its round lies within another state
        state, _ = run_rounds(base, data, 1)
        wrapped = fedamp_jax.fine_tuned(tiny_task(), solver, base=base)
        before, after = (a.personalize(KEY, state, data).params["head"]["kernel"] for a in (base, wrapped))
        return np.abs(after - before).max(axis=(1, 2))

    assert (tuned() > 1e-3).all()
    assert (tuned(optimizer=lambda k: optax.sgd(jnp.where(k == 0, 0.1, 0.0))) == 0).all()
    poison = {"corrupt": lambda key, client, sent: jax.tree.map(lambda a: a + 1e3, sent)}
    assert (tuned(**poison) < 500).all()


TASK, SGD = tiny_task(), Solver(optax.sgd(0.1))
REFUSED = {
    "sigma zero": (lambda: fedamp_jax.fedamp(TASK, SGD, sigma=0.0, self_weight=0.1), "sigma must be greater than 0"),
    "sigma text": (lambda: fedamp_jax.fedamp(TASK, SGD, sigma="1", self_weight=0.1), "sigma must be a number"),
    "sigma NaN": (
        lambda: fedamp_jax.heurfedamp(TASK, SGD, sigma=float("nan"), self_weight=0.1),
        "sigma must be greater",
    ),
    "sigma of each": (
        lambda: fedamp_jax.fedamp(TASK, SGD, sigma=[1.0, 2.0], self_weight=0.1),
        "sigma must be a number or a schedule",
    ),
    "lam": (lambda: fedamp_jax.fedamp(TASK, SGD, sigma=1.0, self_weight=0.1, lam=-1.0), "lam must be at least 0"),
    "alpha": (
        lambda: fedamp_jax.fedamp(TASK, SGD, sigma=1.0, self_weight=0.1, alpha=0.0),
        "alpha must be greater than 0",
    ),
    "self_weight": (
        lambda: fedamp_jax.fedamp(TASK, SGD, sigma=1.0, self_weight=1.5),
        "self_weight must be at least 0 and at most 1",
    ),
    "self_weights": (lambda: fedamp_jax.fedamp(TASK, SGD, sigma=1.0, self_weight=np.array([0.1, -0.2])), "position 1"),
    "no self_weight": (
        lambda: fedamp_jax.heurfedamp(TASK, SGD, sigma=1.0, self_weight=None),
        "self_weight must be given",
    ),
    "start": (lambda: fedamp_jax.fedamp(TASK, SGD, sigma=1.0, self_weight=0.1, start="clod"), "did you mean 'cloud'"),
    "stats": (lambda: fedamp_jax.fedavg(TASK, SGD, stats="global"), "stats must be one of"),
    "mu": (lambda: fedamp_jax.fedprox(TASK, SGD, mu=-0.1), "mu must be at least 0"),
    "batch": (lambda: Solver(optax.sgd(0.1), batch_size=0), "batch_size must be at least 1"),
    "epochs": (lambda: Solver(optax.sgd(0.1), epochs=0), "epochs must be at least 1"),
    "epochs float": (lambda: Solver(optax.sgd(0.1), epochs=1.5), "epochs must be a whole number"),
    "epochs range": (lambda: Solver(optax.sgd(0.1), epochs=(5, 2)), "upper end of the range"),
    "chunk": (lambda: Solver(optax.sgd(0.1), chunk=0), "chunk must be at least 1"),
    "optimizer": (lambda: Solver("adam"), "optimizer must be an optax optimizer"),
    "optimizer not called": (lambda: Solver(optax.adam), r"call it, such as optax.adam\(1e-3\)"),
    "solver": (lambda: fedamp_jax.fedavg(TASK, optax.sgd(0.1)), "solver must be of type Solver"),
    "solver of fedamp": (lambda: fedamp_jax.fedamp(TASK, None, sigma=1.0, self_weight=0.1), "solver must be of type"),
    "head solver": (lambda: fedamp_jax.fedrep(TASK, SGD, head_solver=optax.sgd(0.1)), "head_solver must be of type"),
    "reconstruction": (lambda: fedamp_jax.fedrecon(TASK, SGD, head_solver=3), "head_solver must be of type Solver"),
    "tuner": (lambda: fedamp_jax.fedbabu(TASK, SGD, tuner=optax.sgd(0.1)), "tuner must be of type Solver"),
    "own solver": (lambda: fedamp_jax.ditto(TASK, SGD, personal_solver=0), "personal_solver must be of type Solver"),
    "task": (lambda: fedamp_jax.separate(SGD, SGD), "task must be of type Task"),
    "drop rate": (lambda: sample_online(KEY, 4, 1.0, 1.0), r"drop_rate must be in \[0, 1\)"),
    "nobody left": (lambda: sample_online(KEY, 4, 0.25, 0.6), "nobody would ever take part: of 4 clients"),
    "participation": (lambda: sample_online(KEY, 4, 0.0), "participation must be greater than 0"),
    "base": (lambda: fedamp_jax.fine_tuned(TASK, SGD, base=fedamp_jax.fedavg), "base must be of type Algorithm"),
    "support": (lambda: fedamp_jax.fedrecon(TASK, SGD, support=1.0), "support must be below 1"),
    "apfl alpha": (lambda: fedamp_jax.apfl(TASK, SGD, alpha=1.1), "alpha must be at least 0 and at most 1"),
    "apfl schedule": (lambda: fedamp_jax.apfl(TASK, SGD, alpha=lambda k: 0.5), "alpha must be a number or one for"),
    "option": (lambda: fedamp_jax.scaffold(TASK, SGD, option="III"), "did you mean 'I"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_the_front_door(case):
    """Refused with the argument's name before anything compiles. Each failed with its check taken out."""
    call, message = REFUSED[case]
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_tracers_and_schedules_pass_the_front_door():
    """A swept or scheduled number has no value yet."""
    checks.number("sigma", lambda k: -1.0, low=0)
    jax.jit(lambda s: (checks.number("sigma", s, low=0), s)[1])(-1.0)
