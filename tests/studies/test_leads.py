"""What might explain the paper's FedAvg: each lead changes what it says, and nothing else."""

import jax
import jax.numpy as jnp
import leads
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Solver
from fedamp_jax.engine import server
from fedamp_jax.experiments.catalogue import EXPERIMENTS
from fedamp_jax.runner.experiment import prepare
from tests.registry import federation
from tests.small_experiments import command, main_of, options_of, read

KEY = jax.random.key(0)


def prepared(lead):
    options = options_of(leads.EXPERIMENT, "--lead", lead, "--epochs", 1, "--batch-size", 8)
    return prepare(leads.EXPERIMENT, options, leads.METHODS)[:3]


def examples(data, i):
    """One client's examples with their labels, as rows in the order in which they are stored."""
    x, y = map(np.asarray, data.examples(i))
    return np.concatenate([x.reshape(len(x), -1), y[:, None]], axis=1)


@pytest.mark.slow
def test_base_is_the_practical_setting():
    """Failed with a lead's change in `base`, too."""
    options = options_of(leads.EXPERIMENT, "--lead", "base")
    clients, _, methods, _ = prepare(leads.EXPERIMENT, options, leads.METHODS)
    expected, _, every, _ = prepare(EXPERIMENTS["practical"], options_of("practical"), ("FedAvg",))
    jax.tree.map(np.testing.assert_array_equal, clients, expected)
    assert list(methods) == list(leads.METHODS)

    def one(a):
        return a.round(KEY, a.init(KEY, clients.train), clients.train)[0]

    jax.tree.map(np.testing.assert_array_equal, one(methods["FedAvg"]), one(every["FedAvg"]))


def test_a_tenth_of_the_examples():
    """Of the training data alone. Failed with the nine other tenths."""
    clients, expected = prepared("tenth")[0], prepared("base")[0]
    assert clients.train.size.tolist() == (expected.train.size // 10).tolist()
    for i in range(20):
        assert {row.tobytes() for row in examples(clients.train, i)} <= {
            row.tobytes() for row in examples(expected.train, i)
        }
    jax.tree.map(np.testing.assert_array_equal, clients.test, expected.test)


def test_sorted_by_class():
    """The same examples, each with its label. Failed with labels sorted without their images, and with padding."""
    clients, expected = prepared("sorted")[0], prepared("base")[0]
    for i in range(20):
        mine, theirs = examples(clients.train, i), examples(expected.train, i)
        assert (np.diff(mine[:, -1]) >= 0).all()
        np.testing.assert_array_equal(mine, theirs[np.argsort(theirs[:, -1], kind="stable")])


@pytest.mark.parametrize("lead", ["in-order", "sorted"])
def test_examples_are_not_shuffled(lead):
    """A client's model does not depend on the key of the round. Failed with shuffled examples."""
    clients, _, methods = prepared(lead)
    state = methods["Separate"].init(KEY, clients.train)
    one, other = (methods["Separate"].round(jax.random.key(i), state, clients.train)[0].clients for i in (1, 2))
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_classes_are_equally_frequent():
    """In both pools, and images keep their labels. Failed with the test pool left as it is."""
    source = fedamp_jax.data.load("digits")
    source = source._replace(x_test=source.x_test[7:], y_test=source.y_test[7:])  # it has 50 of each class otherwise
    changed = leads.LEADS["even"].source(source)
    for split in ("train", "test"):
        (x, y), (found_x, found_y) = ((getattr(s, f"x_{split}"), getattr(s, f"y_{split}")) for s in (source, changed))
        assert set(np.bincount(found_y)) == {np.bincount(y).min()}
        pairs, found = ({(a.tobytes(), int(b)) for a, b in zip(*p)} for p in ((x, y), (found_x, found_y)))
        assert found <= pairs


def test_pixels_are_not_scaled():
    """In training and evaluation. Failed with scaled pixels in the one or the other."""
    clients, task, _ = prepared("unscaled")
    plain = prepared("base")[1]
    variables, x = task.init(KEY), clients.train.x[:4]
    np.testing.assert_array_equal(task.predict(variables, x), plain.predict(variables, x.astype(jnp.float32)))
    batch = fedamp_jax.Batch(x, clients.train.y[:4], jnp.ones(4, bool), clients.train.classes[0])
    raw = batch._replace(x=x.astype(jnp.float32))
    assert (
        task.loss(variables, batch, KEY)[0]
        == plain.loss(variables, raw, KEY)[0]
        != plain.loss(variables, batch, KEY)[0]
    )


@pytest.mark.parametrize("weight", [1e-3, 1e-2])
def test_l2(weight):
    """A step without a loss is -rate weight w. Failed with the decay after the optimizer."""
    solver = leads.LEADS[f"l2-{weight:.0e}".replace("e-0", "e-")].solver(Solver(optax.sgd(0.1)))
    optimizer, w = solver.at_round(jnp.int32(0), federation().client(0)), {"w": jnp.array([1.0, -2.0])}
    step = optimizer.update({"w": jnp.zeros(2)}, optimizer.init(w), w)[0]
    np.testing.assert_allclose(step["w"], -0.1 * weight * w["w"], rtol=1e-6)


@pytest.mark.slow
def test_other_models():
    """FedAvg's are those that the average is made of, FedAMP's the mixtures that the next round starts from.

    Failed with FedAMP's own models, and with FedAvg's average.
    """
    clients, _, methods = prepared("other-models")
    data, expected = clients.train, prepared("base")[2]
    state = methods["FedAvg"].init(KEY, data)
    sent = methods["FedAvg"].personalize(KEY, state, data).params
    mean = methods["FedAvg-FT"].personalize(KEY, methods["FedAvg"].round(KEY, state, data)[0], data).params
    of_sent = jax.tree.map(lambda a: jnp.tensordot(data.size / data.size.sum(), a, 1), sent)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[0], b, rtol=1e-4, atol=1e-6), mean, of_sent)
    state = expected["FedAMP"].round(KEY, expected["FedAMP"].init(KEY, data), data)[0]
    xi = expected["FedAMP"].round(KEY, state, data)[1].xi
    mixtures = server.mix(xi, fedamp_jax.Placement().by_parameters(state.clients.variables.params))
    found = methods["FedAMP"].personalize(KEY, state, data).params
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), found, mixtures)


@pytest.mark.parametrize("k", [0, 61])
@pytest.mark.slow_variants
def test_proximal_tuning(k):
    """From the global model, with the proximal weight lam / alpha_k. Failed without the term, and with that of round 0.

    Clients that are offline fine-tune, too.
    """
    options = options_of(leads.EXPERIMENT, "--lead", "proximal-tuning", "--epochs", 3, "--batch-size", 8)
    clients, task, methods, _ = prepare(leads.EXPERIMENT, options, leads.METHODS)
    data = clients.train._replace(online=jnp.zeros(20, bool))
    state = methods["FedAvg-FT"].init(KEY, data)._replace(round=jnp.int32(k))
    found = methods["FedAvg-FT"].personalize(KEY, state, data).params
    start = methods["FedAvg"].personalize(KEY, state, data)

    def prox(center):
        return fedamp_jax.engine.Prox(center, jnp.float32({0: 1e-4, 61: 1e-2}[k]))

    def local(key, client, epochs, mine):
        local, loss = fedamp_jax.engine.solve(
            task, options.training.solver(), client, mine, key, epochs=epochs, k=state.round,
            penalty=prox(mine.params),
        )  # fmt: skip
        return local.variables, loss

    solver = options.training.solver()
    expected = fedamp_jax.engine.for_each_client(solver, clients.train, local, start, key=KEY)[0].params
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), found, expected)


def test_one_optimizer_state():
    """Step t of all clients, one after the other by id, and of all rounds is -t: the optimizer counts on.

    Failed with a state for each client, in the order of the rows, and with one that starts anew in each round.
    """
    clients, task, _ = prepared("base")
    data = jax.tree.map(lambda a: a[:4], clients.train)
    count = optax.GradientTransformation(
        lambda params: jnp.int32(0),
        lambda g, t, params: (jax.tree.map(lambda a: jnp.full_like(a, -(t + 1).astype(jnp.float32)), g), t + 1),
    )
    lead = leads.LEADS["one-optimizer"]
    solver = lead.solver(Solver(count, epochs=1, batch_size=8))
    made_of = leads.MadeOf(task, solver, lambda solver: {})
    separate = lead.methods({"Separate": fedamp_jax.separate(task, solver)}, made_of)["Separate"]
    state, bias = separate.init(KEY, data), lambda s: s.clients.variables.params["head"]["bias"][:, 0]
    expected, t = np.zeros(4), 0
    assert data.id.tolist() != sorted(data.id.tolist())
    for _ in range(2):
        state = separate.round(KEY, state, data)[0]
        for i in np.argsort(data.id):
            steps = -(-int(data.size[i]) // 8)
            expected[i] -= sum(range(t + 1, t + steps + 1))
            t += steps
    np.testing.assert_allclose(bias(state), expected)


@pytest.mark.slow
def test_leads_together(tmp_path, monkeypatch):
    """Joined by +, and a folder for each run. Failed when only the first lead was applied."""
    clients, _, methods = prepared("tenth+sorted+one-optimizer")
    assert clients.train.size.max() == 7 and "APFL" not in methods
    assert (np.diff(clients.train.examples(0)[1]) >= 0).all()
    words = ("--quick", "--methods", "Separate", "--lead", "base", "tenth+l2-1e-2", "--out", tmp_path)
    command(monkeypatch, main_of(leads.EXPERIMENT), *words)
    found = read(tmp_path)
    assert list(found["parts"]) == ["base", "tenth+l2-1e-2"] and found["settings"]["lead"] == list(found["parts"])
    accuracy = [part["methods"]["Separate"]["accuracy"] for part in found["parts"].values()]
    assert accuracy[0] != accuracy[1]
