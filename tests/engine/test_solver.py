"""Local training of one client: batches, steps, gradients, and the arguments that are refused."""

import dataclasses
import subprocess
import sys

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Solver, Variables
from fedamp_jax.algorithms.pfedgraph import Alignment
from fedamp_jax.engine import for_each_minibatch, take_batch
from fedamp_jax.engine.minibatches import full_gradient, mean_loss, share_of
from fedamp_jax.engine.solver import Prox, solve
from tests.registry import batch_of, federation, run_rounds, tiny_task

KEY = jax.random.key(4)


def client(i=0, **sizes):
    """One client of the tests' federation: the first has 7 examples."""
    return federation(**sizes).client(i)


# --- the loop over minibatches ----------------------------------------------------------------------------------------


def trace(solver, one, **options):
    """What `for_each_minibatch` hands to its step: rows `[steps, B]`, masks and keys, in order."""

    def step(carry, batch, key):
        t, rows, real, keys = carry
        return t + 1, rows.at[t].set(batch.rows), real.at[t].set(batch.mask), keys.at[t].set(jax.random.bits(key))

    most, width = 21, solver.width(one)
    empty = (jnp.int32(0), jnp.full((most, width), -1), jnp.zeros((most, width), bool), jnp.zeros(most, "uint32"))
    (count, rows, real, keys), steps = for_each_minibatch(solver, one, step, empty, KEY, **options)
    assert count == steps
    return np.asarray(rows[:count]), np.asarray(real[:count]), np.asarray(keys[:count])


@pytest.mark.parametrize("epochs", [0, 1, 3])
@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_each_pass_reads_every_example_once(batch_size, epochs):
    """In an order of its own, with a last batch that holds what is left.

    Failed with steps counted from the padded length, and with one order for all passes.
    """
    rows, real, keys = trace(Solver(optax.sgd(0.1), 3, batch_size), client(), epochs=epochs)
    per_pass = -(-7 // min(batch_size, 10))
    assert len(rows) == epochs * per_pass == len(set(keys.tolist()))
    orders = set()
    for p in range(epochs):
        part = slice(p * per_pass, (p + 1) * per_pass)
        assert sorted(rows[part][real[part]]) == list(range(7))
        orders.add(tuple(rows[part][real[part]]))
    assert len(orders) == epochs
    assert (rows[~real] == np.iinfo(np.int32).max).all()  # so that a write to it is dropped


def test_unshuffled_batches_follow_the_data():
    """Failed when the order was drawn nevertheless."""
    rows, real, _ = trace(Solver(optax.sgd(0.1), 1, 3), client(), shuffle=False)
    assert rows[real].tolist() == list(range(7))


def test_padding_is_masked_and_has_label_zero():
    """What lies beyond `size` reaches a step as row 0 with mask False. Failed without the mask."""
    one = client()._replace(y=jnp.full(10, 2, jnp.int32))

    def add(carry, batch, key):
        chex.assert_shape((batch.x, batch.y, batch.mask), [(4, 5), (4,), (4,)])
        seen, labels = carry
        return seen + jnp.sum(batch.mask, dtype=jnp.int32), labels + jnp.sum(batch.y)

    (seen, labels), steps = for_each_minibatch(Solver(optax.sgd(0.1), 1, 4), one, add, (jnp.int32(0),) * 2, KEY)
    assert (int(seen), int(labels), int(steps)) == (7, 14, 2)


# --- gradients and steps ----------------------------------------------------------------------------------------------


def test_full_gradient_is_the_gradient_over_everything():
    """In blocks of four equals `jax.grad` over all. Failed with a mean of block means."""
    task, one = tiny_task(), client()
    start = task.init(KEY)
    got, _, loss = full_gradient(task, Solver(optax.sgd(1.0), batch_size=4), one, start, KEY)

    def objective(p):
        return task.loss(Variables(p, start.stats), batch_of(one), KEY)

    (value, _), grads = jax.value_and_grad(objective, has_aux=True)(start.params)
    np.testing.assert_allclose(loss, value, rtol=1e-5)
    chex.assert_trees_all_close(got, grads, rtol=1e-4, atol=1e-6)


def test_mean_loss_is_over_all_examples():
    """In blocks of three, seven examples. Failed with a mean of block means."""
    task, one = tiny_task(), client()
    start = task.init(KEY)
    got = mean_loss(task, Solver(optax.sgd(1.0), batch_size=3), one, start)
    np.testing.assert_allclose(got, task.loss(start, batch_of(one), KEY)[0], rtol=1e-5)
    assert float(share_of(batch_of(one), one)) == 1.0


def test_one_step_is_gradient_penalty_and_correction():
    """`w - rate (g + weight (w - center) + correction)`, and the loss is without the penalty.

    Failed with the penalty in the reported loss, and with the correction subtracted.
    """
    task, one = tiny_task(), client()
    start = task.init(KEY)
    center = jax.tree.map(lambda a: a + 1.0, start.params)
    shift = jax.tree.map(lambda a: jnp.full_like(a, 0.3), start.params)
    local, loss = solve(task, Solver(optax.sgd(0.1), 1), one, start, KEY, epochs=1, k=jnp.int32(0),
                        penalty=fedamp_jax.engine.Prox(center, jnp.float32(2.0)), correction=shift)  # fmt: skip

    def objective(p):
        return task.loss(Variables(p, start.stats), batch_of(one), KEY)

    (value, stats), grads = jax.value_and_grad(objective, has_aux=True)(start.params)
    wanted = jax.tree.map(lambda w, g: w - 0.1 * (g - 2.0 + 0.3), start.params, grads)
    chex.assert_trees_all_close(local.variables, Variables(wanted, stats), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(loss, value, rtol=1e-5)


def test_unshuffled_training_follows_the_data():
    """Two passes of SGD by hand. Failed with shuffled examples."""
    task, one = tiny_task(), client()
    start = task.init(KEY)
    solver = Solver(optax.sgd(0.1), 2, 3, shuffle=False)
    local, _ = solve(task, solver, one, start, KEY, epochs=2, k=jnp.int32(0))
    params = start.params
    for rows in 2 * [[0, 1, 2], [3, 4, 5], [6]]:
        some = take_batch(one, jnp.array(rows), jnp.ones(len(rows), bool))
        grads = jax.grad(lambda p, some=some: task.loss(Variables(p, start.stats), some, KEY)[0])(params)
        params = jax.tree.map(lambda w, g: w - 0.1 * g, params, grads)
    chex.assert_trees_all_close(local.variables.params, params, rtol=1e-5, atol=1e-6)


def test_unshuffled_pfedme():
    """Its own loop over minibatches, whose order depends on the key. Failed with shuffled examples."""
    data, task = federation(), tiny_task()
    algorithm = fedamp_jax.pfedme(task, Solver(optax.sgd(0.1), 1, 3, shuffle=False))
    state = algorithm.init(KEY, data)
    one, other = (algorithm.round(jax.random.key(i), state, data)[0] for i in (1, 2))
    chex.assert_trees_all_equal(one, other)


def test_what_is_not_trainable_stays():
    """Bit for bit, also under a penalty and weight decay. Failed with the gradient masked but not the penalty."""
    task, one = tiny_task(), client()
    start = task.init(KEY)
    trainable = {"body": {"kernel": False, "bias": False}, "head": {"kernel": True, "bias": True}}
    solver = Solver(optax.adamw(0.1, weight_decay=0.1), 2, 4)
    pull = fedamp_jax.engine.Prox(jax.tree.map(jnp.ones_like, start.params), jnp.float32(1.0))
    local, _ = solve(task, solver, one, start, KEY, epochs=2, k=jnp.int32(0), penalty=pull, trainable=trainable)
    chex.assert_trees_all_equal(local.variables.params["body"], start.params["body"])
    assert float(jnp.abs(local.variables.params["head"]["kernel"] - start.params["head"]["kernel"]).max()) > 1e-2


def test_no_epochs_return_the_start():
    """Failed with a loss of 0 / 0."""
    task, start = tiny_task(), tiny_task().init(KEY)
    local, loss = solve(task, Solver(optax.adam(0.1)), client(), start, KEY, epochs=jnp.int32(0), k=jnp.int32(0))
    chex.assert_trees_all_equal(local.variables, start)
    assert float(loss) == 0


def test_the_loss_is_the_mean_over_steps():
    """At a learning rate of 0 every full batch has the mean loss of all examples. Failed with the sum over steps."""
    task, one = tiny_task(), client()
    start = task.init(KEY)
    solver = Solver(optax.sgd(0.0), epochs=3, batch_size=10)
    _, loss = solve(task, solver, one, start, KEY, epochs=3, k=jnp.int32(0))
    np.testing.assert_allclose(loss, mean_loss(task, solver, one, start), rtol=1e-5)


def test_a_learning_rate_may_follow_the_round():
    """`Solver(k -> optimizer)` with rate 0 from round 1 on stands still. Failed when k was the step."""
    solver = Solver(lambda k: optax.sgd(jnp.where(k < 1, 0.1, 0.0)), epochs=1, batch_size=4)
    algorithm, data = fedamp_jax.separate(tiny_task(), solver), federation()
    first, _ = run_rounds(algorithm, data, 1)
    first = jax.tree.map(np.asarray, first.clients.variables.params)
    third, _ = run_rounds(algorithm, data, 3)
    chex.assert_trees_all_equal(first, third.clients.variables.params)
    assert float(jnp.abs(third.clients.variables.params["head"]["bias"]).max()) > 0


def test_noise_of_an_optimizer_is_each_clients_own():
    """And each round's. Failed when it was as `optimizer.init` seeds it: the same for all, and again in every round."""
    data = federation(sizes=(4, 4, 4))
    noisy = Solver(optax.add_noise(0.1, 0.0, 0), epochs=1, batch_size=4)
    for keep in (False, True):
        algorithm = fedamp_jax.separate(tiny_task(), dataclasses.replace(noisy, keep_optimizer=keep))
        flat = data._replace(x=jnp.zeros_like(data.x), y=jnp.zeros_like(data.y))
        before = algorithm.init(KEY, flat)
        start = np.asarray(before.clients.variables.params["body"]["kernel"])  # of zeros, its gradient is zero
        after = jax.jit(algorithm.round)
        one, _ = after(jax.random.key(1), before, flat)
        two, _ = after(jax.random.key(2), one, flat)
        kernels = [start, *(np.asarray(s.clients.variables.params["body"]["kernel"]) for s in (one, two))]
        steps = np.concatenate([kernels[1] - kernels[0], kernels[2] - kernels[1]])
        apart = np.abs(steps[:, None] - steps[None]).max(axis=(2, 3))[~np.eye(6, dtype=bool)]
        assert apart.min() > 0.01


# --- what a solver refuses --------------------------------------------------------------------------------------------

REFUSED = {
    "batch size": ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
    "no epochs": ({"epochs": 0}, ValueError, "epochs must be at least 1, got 0"),
    "half an epoch": ({"epochs": 1.5}, TypeError, "epochs must be a whole number, got 1.5"),
    "epochs the wrong way": ({"epochs": (5, 2)}, ValueError, r"epochs \(upper end of the range\) must be at least 5"),
    "three epochs": ({"epochs": (1, 2, 3)}, ValueError, r"epochs must be a number or a pair \(low, high\)"),
    "a name": ({"optimizer": "adam"}, TypeError, "optimizer must be an optax optimizer or a function of the round"),
    "not called": ({"optimizer": optax.adam}, TypeError, r"call it, such as optax.adam\(1e-3\)"),
    "chunk": ({"chunk": 1}, TypeError, "chunk"),
    "corrupt": ({"corrupt": lambda *a: a}, TypeError, "corrupt"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_solver_refuses(case):
    """Each failed with its check taken out; `chunk` is the placement's, `corrupt` is `fedamp_jax.corrupted`."""
    change, kind, message = REFUSED[case]
    with pytest.raises(kind, match=message):
        Solver(**{"optimizer": optax.sgd(0.1), **change})


# --- schedules of steps ----------------------------------------------------------------------------------------------

COSINE = optax.cosine_decay_schedule(0.1, 100)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.sgd(COSINE),
        optax.adam(COSINE),
        optax.chain(optax.clip(1.0), optax.adamw(optax.piecewise_constant_schedule(0.1, {500: 0.1}))),
        optax.inject_hyperparams(optax.adam)(learning_rate=lambda count: 0.1 * 0.9 ** count.astype(float)),
    ],
)
def test_a_schedule_that_starts_over_is_reported(optimizer):
    """Unless its state is kept. Failed with a comparison of the first two steps, where a staircase is level."""
    with pytest.warns(UserWarning, match="schedule counts the steps of one round.*lambda k: optax.sgd"):
        Solver(optimizer)
    kept = Solver(optimizer, keep_optimizer=True)
    # Fine-tuning starts afresh on purpose.
    task, clients = tiny_task(), federation()
    tuned = fedamp_jax.fine_tuned(task, kept, base=fedamp_jax.fedavg(task, kept))
    tuned.personalize(jax.random.key(0), tuned.init(jax.random.key(0), clients), clients)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.sgd(0.1), optax.adam(0.1), optax.sgd(optax.constant_schedule(0.1)), optax.lion(0.1), optax.adagrad(0.1),
        lambda k: optax.sgd(COSINE(k)), optax.add_noise(0.1, 0.5, 0), optax.masked(optax.adam(0.1), {"other": True}),
        optax.inject_hyperparams(optax.adam)(learning_rate=0.1),
    ],
)  # fmt: skip
def test_optimizers_without_a_schedule_are_not(optimizer):
    """Adam's correction of its bias counts steps, too. Failed with every count set ahead."""
    Solver(optimizer)


def test_a_swept_rate_is_no_schedule():
    """Failed with a tracer that was compared."""
    jax.jit(lambda rate: Solver(optax.sgd(lambda count: rate * count)).max_epochs * rate)(0.1)


def test_a_solver_starts_nothing():
    """`split_cpu` may come after it. Failed with an optimizer's state made to look for schedules."""
    code = """
import jax, optax, fedamp_jax
fedamp_jax.Solver(optax.adam(0.1))
fedamp_jax.placement.split_cpu(3)
print(jax.device_count())
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "3"


# --- optimizers that ask for more than the gradient -------------------------------------------------------------------


def quadratic(matrix, target):
    """`loss = (w - target)' matrix (w - target) / 2`, whatever the data."""

    def loss(variables, batch, key):
        away = variables.params["w"] - target
        return away @ matrix @ away / 2, variables.stats

    return fedamp_jax.Task(lambda key: Variables({"w": jnp.zeros(2)}, {}), loss, lambda variables, x: x)


@pytest.mark.parametrize("extra", ["nothing", "penalty", "correction"])
def test_lbfgs_minimizes_the_objective(extra):
    """Its line search sees the loss, the penalty and the correction.

    Failed with a TypeError of optax, and with the value of the loss alone, by which the line search stops early.
    """
    matrix, target, center = jnp.array([[30.0, 3.0], [3.0, 1.0]]), jnp.array([1.0, -2.0]), jnp.array([4.0, 4.0])
    shift, weight = jnp.array([5.0, -5.0]), 20.0
    given, h, g = {}, np.asarray(matrix, np.float64), np.asarray(matrix @ target, np.float64)
    if extra == "penalty":
        given = {"penalty": Prox({"w": center}, jnp.float32(weight))}
        h, g = h + weight * np.eye(2), g + weight * np.asarray(center)
    if extra == "correction":
        given, g = {"correction": {"w": shift}}, g - np.asarray(shift)
    solver = Solver(optax.lbfgs(), epochs=12, batch_size=10)
    start = Variables({"w": jnp.array([3.0, 3.0])}, {})
    found, _ = solve(quadratic(matrix, target), solver, client(), start, KEY, epochs=12, k=jnp.int32(0), **given)
    np.testing.assert_allclose(found.variables.params["w"], np.linalg.solve(h, g), atol=2e-3)


def test_a_plateau_lowers_the_rate():
    """With the value of the minibatch's loss, which cannot fall below its minimum. Failed with a TypeError of optax."""
    task = quadratic(jnp.eye(2), jnp.zeros(2))
    optimizer = optax.chain(optax.sgd(0.5), optax.contrib.reduce_on_plateau(factor=0.1, patience=2))
    solver = Solver(optimizer, epochs=9, batch_size=10, keep_optimizer=True)
    start = Variables({"w": jnp.zeros(2)}, {})
    found, _ = solve(
        task, solver, client(), start, KEY, epochs=9, k=jnp.int32(0), optimizer_state=optimizer.init(start.params)
    )
    assert float(found.optimizer[-1].scale) < 0.2


def test_these_optimizers_train_all_clients():
    """In a compiled round of FedAMP, side by side, with one compilation. Failed with a TypeError of optax."""
    algorithm = fedamp_jax.fedamp(tiny_task(), Solver(optax.lbfgs(), 2, 4), sigma=1.0, self_weight=0.5)
    for info in run_rounds(algorithm, federation(), 2)[1]:
        assert np.isfinite(np.asarray(info.loss)).all() and not np.asarray(info.rejected).any()


def test_values_of_penalties():
    """Their gradients are those of their values. Failed with `weight * ||w - center||^2`."""
    params, center = {"a": jnp.array([1.0, 2.0])}, {"a": jnp.array([-1.0, 0.5])}
    for penalty in (Prox(center, jnp.float32(0.7)), Alignment(center, jnp.float32(0.7))):
        chex.assert_trees_all_close(jax.grad(penalty.value)(params), penalty.gradient(params), rtol=1e-5)
