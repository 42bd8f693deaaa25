"""Every algorithm against a float64 loop over clients, written from the paper's equations (`tests/oracles/`).

Three clients of 7, 3 and 10 examples, the second one offline in round two, the minibatches replayed exactly.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Solver, attention
from fedamp_jax.local import minibatch_order
from tests.oracles import apfl as o_apfl
from tests.oracles import ditto as o_ditto
from tests.oracles import fedamp as o_fedamp
from tests.oracles import fedavg as o_fedavg
from tests.oracles import fedrecon as o_fedrecon
from tests.oracles import fine_tuned as o_fine_tuned
from tests.oracles import optimizers as o_opt
from tests.oracles import partial as o_partial
from tests.oracles import pflego as o_pflego
from tests.oracles import scaffold as o_scaffold
from tests.oracles import separate as o_separate
from tests.registry import federation, tiny_task

ROUNDS, BATCH, EPOCHS = 3, 4, 2
ADAM, O_ADAM = optax.adam(0.02), o_opt.adam(0.02)
SGD, O_SGD = optax.sgd(0.3), o_opt.sgd(0.3)
KEY_INIT, KEY_USE = jax.random.key(11), jax.random.key(12)
TASK = tiny_task()


def trees(stacked_tree):
    """A stacked tree as a list of float64 trees, one per client."""
    m = jax.tree.leaves(stacked_tree)[0].shape[0]
    return [jax.tree.map(lambda a, i=i: np.asarray(a[i], np.float64), stacked_tree) for i in range(m)]


def tree(t):
    return jax.tree.map(lambda a: np.asarray(a, np.float64), t)


class World(NamedTuple):
    """One federation as both sides see it."""

    data: fedamp_jax.Data
    clients: list

    def key(self, k):
        return jax.random.fold_in(jax.random.key(3), k)

    def online(self, k):
        return [True, k != 1, True]

    def phase_key(self, key, i, phase=None):
        """The key of client i's `solve`; with several phases each has a fold of it."""
        client_key = jax.random.split(jax.random.fold_in(key, i))[1]
        if isinstance(phase, tuple):
            return jax.random.split(client_key)[phase[1]]
        return client_key if phase is None else jax.random.fold_in(client_key, phase)

    def batches(self, key, phase=None, epochs=EPOCHS, sizes=None):
        """Row numbers of every local step of every client."""
        result = []
        for i, client in enumerate(self.clients):
            n = len(client["y"]) if sizes is None else sizes[i]
            padded = -(-self.data.y.shape[1] // BATCH) * BATCH
            order = jax.random.split(self.phase_key(key, i, phase))[0]
            order = np.asarray(minibatch_order(order, jnp.int32(n), epochs, padded))
            result.append([row[b : min(b + BATCH, n)] for row in order for b in range(0, n, BATCH)])
        return result


def world(sizes=(7, 3, 10)):
    data = federation(sizes=sizes)
    return World(data, [
        {"x": np.asarray(data.x[i, :n], np.float64), "y": np.asarray(data.y[i, :n]), "classes": 3}
        for i, n in enumerate(sizes)
    ])  # fmt: skip


def play(algorithm, w):
    """`(state, infos)` of the engine after all rounds."""
    state, infos = algorithm.init(KEY_INIT, w.data), []
    for k in range(ROUNDS):
        data = w.data._replace(online=jnp.array(w.online(k)))
        state, info = fedamp_jax.round(algorithm, state, data, w.key(k))
        infos.append(info)
    return state, infos


def same(ours, theirs, rtol=2e-4, atol=2e-5):
    """Stacked parameters against a list of trees."""
    for a, b in zip(trees(ours), theirs, strict=True):
        jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=rtol, atol=atol), a, b)


def start(common=True):
    init = (lambda i: KEY_INIT) if common else (lambda i: jax.random.fold_in(KEY_INIT, i))
    return [tree(TASK.init(init(i)).params) for i in range(3)]


@pytest.mark.parametrize(("optimizer", "oracle"), [(ADAM, O_ADAM), (SGD, O_SGD)], ids=["adam", "sgd"])
def test_separate(optimizer, oracle):
    """Failed with the partial last batch averaged over its width instead of its rows."""
    w = world()
    algorithm = fedamp_jax.separate(TASK, Solver(optimizer, epochs=EPOCHS, batch_size=BATCH), common_init=False)
    state, _ = play(algorithm, w)
    expected = {"models": start(common=False)}
    for k in range(ROUNDS):
        expected = o_separate.round(expected, w.clients, w.batches(w.key(k)), w.online(k), k, optimizer=oracle)
    same(state.clients.variables.params, expected["models"])


@pytest.mark.parametrize("mu", [0.0, 0.7])
@pytest.mark.parametrize("tuned", [False, True])
def test_fedavg_fedprox_and_fine_tuned(mu, tuned):
    """Failed with a uniform mean, and with a penalty on detached parameters."""
    w, solver = world(), Solver(ADAM, epochs=EPOCHS, batch_size=BATCH)
    base = fedamp_jax.fedprox(TASK, solver, mu=mu) if mu else fedamp_jax.fedavg(TASK, solver)
    algorithm = fedamp_jax.fine_tuned(TASK, solver, base=base) if tuned else base
    state, _ = play(algorithm, w)
    expected = {"global": start()[0]}
    for k in range(ROUNDS):
        args = (expected, w.clients, w.batches(w.key(k)), w.online(k), k)
        expected = o_fedavg.fedprox(*args, optimizer=O_ADAM, mu=mu) if mu else o_fedavg.fedavg(*args, optimizer=O_ADAM)
    models = [expected["global"]] * 3
    if tuned:
        models = o_fine_tuned.personalize(expected, w.clients, w.batches(KEY_USE), optimizer=O_ADAM)
    same(algorithm.personalize(KEY_USE, state, w.data).params, models)


def _alpha(k):
    return 3.0 * 0.1 ** (k // 2)


FEDAMP = {
    "Eq. 5 as printed": ({"self_weight": None, "alpha": 0.3, "lam": 0.1}, {"alpha": lambda k: 0.3}),
    "self weight": ({"self_weight": 0.25, "alpha": 3.0, "lam": 1.0}, {"alpha": lambda k: 3.0}),
    "self weight of each": ({"self_weight": np.array([0.1, 0.5, 0.9]), "alpha": 3.0, "lam": 1.0},
                            {"alpha": lambda k: 3.0}),
    "scad, personal start": (
        {"self_weight": 0.25, "alpha": 3.0, "lam": 1.0, "slope": attention.scad, "start": "personal"},
        {"alpha": lambda k: 3.0, "kind": "scad", "start": "personal"}),
    "mcp, stale included": ({"self_weight": 0.25, "alpha": 3.0, "lam": 1.0, "slope": attention.mcp, "stale": "include"},
                            {"alpha": lambda k: 3.0, "kind": "mcp", "stale": "include"}),
    "alpha of the round": (
        {"self_weight": 0.25, "alpha": optax.exponential_decay(3.0, 2, 0.1, staircase=True), "lam": 1.0},
        {"alpha": _alpha}),
}  # fmt: skip


@pytest.mark.parametrize("case", FEDAMP)
def test_fedamp(case):
    """Failed with lam / (2 alpha) as the weight of the gradient (a forgotten 2), and with rows and columns of xi
    turned.
    """
    ours, theirs = FEDAMP[case]
    w = world()
    solver = Solver(ADAM, epochs=EPOCHS, batch_size=BATCH)
    algorithm = fedamp_jax.fedamp(TASK, solver, sigma=4.0, common_init=False, **ours)
    state, infos = play(algorithm, w)
    expected = {"models": start(common=False)}
    for k in range(ROUNDS):
        expected = o_fedamp.round(
            expected, w.clients, w.batches(w.key(k)), w.online(k), k, optimizer=O_ADAM, lam=ours["lam"], sigma=4.0,
            self_weight=ours["self_weight"], **theirs,
        )  # fmt: skip
        hears = np.array(w.online(k))
        np.testing.assert_allclose(np.asarray(infos[k].xi)[hears], expected["xi"][hears], rtol=1e-3, atol=1e-6)
    same(state.clients.variables.params, expected["models"])


@pytest.mark.parametrize("begin", ["cloud", "personal"])
def test_heurfedamp(begin):
    """Failed with the softmax taken over all clients instead of the others."""
    w = world()
    hyper = {"sigma": 5.0, "self_weight": 0.3, "lam": 1.0, "start": begin}
    algorithm = fedamp_jax.heurfedamp(
        TASK, Solver(SGD, epochs=EPOCHS, batch_size=BATCH), alpha=3.0, common_init=False, **hyper
    )
    state, infos = play(algorithm, w)
    expected = {"models": start(common=False)}
    for k in range(ROUNDS):
        expected = o_fedamp.heuristic_round(expected, w.clients, w.batches(w.key(k)), w.online(k), k, optimizer=O_SGD,
                                            alpha=lambda k: 3.0, **hyper)  # fmt: skip
        np.testing.assert_allclose(infos[k].xi, expected["xi"], rtol=1e-4, atol=1e-6)
    same(state.clients.variables.params, expected["models"])


def solver(**changes):
    return Solver(**{"optimizer": ADAM, "epochs": EPOCHS, "batch_size": BATCH, **changes})


def zeros(t):
    return jax.tree.map(np.zeros_like, t)


@pytest.mark.parametrize(("option", "number"), [("I", 1), ("II", 2)])
def test_scaffold(option, number):
    """Client by client, variates too. Failed with `+ c_i - c` in the step, which no check of the server alone had
    seen.
    """
    w = world()
    algorithm = fedamp_jax.scaffold(TASK, solver(), learning_rate=0.2, global_step=0.7, option=option)
    state, _ = play(algorithm, w)
    x = start()[0]
    expected = {"global": x, "c": zeros(x), "c_i": [zeros(x)] * 3, "models": [x] * 3}
    for k in range(ROUNDS):
        expected = o_scaffold.round(expected, w.clients, w.batches(w.key(k)), w.online(k), k, lr=0.2, global_step=0.7,
                                    option=number)  # fmt: skip
    same(state.controls, expected["c_i"])
    same(algorithm.personalize(KEY_USE, state, w.data).params, expected["models"])
    same(jax.tree.map(lambda a: a[None], state.control), [expected["c"]])
    same(jax.tree.map(lambda a: a[None], state.params), [expected["global"]])


@pytest.mark.parametrize("alpha", [0.0, 0.25, 0.75])
@pytest.mark.parametrize("adapt", [False, True])
def test_apfl(alpha, adapt):
    """Failed without the factor alpha in v's gradient, and with w's gradient taken through the mixture."""
    w = world()
    algorithm = fedamp_jax.apfl(TASK, solver(), alpha=alpha, adapt_alpha=adapt, learning_rate=0.4)
    state, _ = play(algorithm, w)
    expected = {"global": start()[0], "local": start(), "alpha": [alpha] * 3}
    for k in range(ROUNDS):
        expected = o_apfl.round(expected, w.clients, w.batches(w.key(k)), w.online(k), k, lr=0.4,
                                adapt="step" if adapt else None)  # fmt: skip
    np.testing.assert_allclose(state.alpha, expected["alpha"], rtol=1e-3, atol=1e-5)
    assert not adapt or alpha == 0 or len({round(float(a), 4) for a in state.alpha}) == 3
    same(state.personal, expected["local"])
    same(algorithm.personalize(KEY_USE, state, w.data).params, o_apfl.personalize(expected))


def test_ditto():
    """Failed with the pull towards the new global model instead of the received one."""
    w = world()
    algorithm = fedamp_jax.ditto(TASK, solver(), lam=0.8, personal_solver=solver(optimizer=SGD, epochs=3))
    state, _ = play(algorithm, w)
    expected = {"global": start()[0], "models": start()}
    for k in range(ROUNDS):
        phases = [w.batches(w.key(k), ("half", phase), epochs) for phase, epochs in ((0, EPOCHS), (1, 3))]
        expected = o_ditto.round(expected, w.clients, list(zip(*phases)), w.online(k), k, optimizer=O_ADAM, lam=0.8,
                                 personal_optimizer=O_SGD)  # fmt: skip
    same(state.personal.variables.params, expected["models"])
    same(jax.tree.map(lambda a: a[None], state.shared.params), [expected["global"]])


def body_and_heads(common=True):
    params = start(common)
    return {"body": start()[0]["body"], "heads": [p["head"] for p in params]}


def test_fedper():
    """Failed with heads averaged, too."""
    w = world()
    algorithm = fedamp_jax.fedper(TASK, solver(), common_init=False)
    state, _ = play(algorithm, w)
    expected = body_and_heads(common=False)
    for k in range(ROUNDS):
        expected = o_partial.fedper(expected, w.clients, w.batches(w.key(k)), w.online(k), k, optimizer=O_ADAM)
    same(algorithm.personalize(KEY_USE, state, w.data).params, o_partial.personalize(expected))


def test_fedrep():
    """Failed with the body trained first."""
    w = world()
    algorithm = fedamp_jax.fedrep(TASK, solver(), head_solver=solver(optimizer=SGD, epochs=3))
    state, _ = play(algorithm, w)
    expected = body_and_heads()
    for k in range(ROUNDS):
        phases = [w.batches(w.key(k), phase=0, epochs=3), w.batches(w.key(k), phase=1)]
        expected = o_partial.fedrep(expected, w.clients, list(zip(*phases)), w.online(k), k, optimizer=O_SGD,
                                    body_optimizer=O_ADAM)  # fmt: skip
    same(algorithm.personalize(KEY_USE, state, w.data).params, o_partial.personalize(expected))


@pytest.mark.parametrize(("part", "parts"), [("all", ("body", "head")), ("head", ("head",))])
def test_fedbabu(part, parts):
    """Failed with the head trained, too. The head must be orthogonal and everybody's."""
    w = world()
    algorithm = fedamp_jax.fedbabu(TASK, solver(), tune_part=part)
    state, _ = play(algorithm, w)
    head = jax.tree.map(lambda a: np.asarray(a[0], np.float64), state.heads["head"])
    np.testing.assert_allclose(head["kernel"].T @ head["kernel"], np.eye(3), atol=1e-6)
    expected = {"body": start()[0]["body"], "head": head}
    for k in range(ROUNDS):
        expected = o_partial.fedbabu(expected, w.clients, w.batches(w.key(k)), w.online(k), k, optimizer=O_ADAM)
    models = o_partial.fedbabu_personalize(expected, w.clients, w.batches(KEY_USE), optimizer=O_ADAM, parts=parts)
    same(algorithm.personalize(KEY_USE, state, w.data).params, models)


def test_fedrecon():
    """Failed with heads that survived their round, and with support and query sets that overlapped."""
    from fedamp_jax.algorithms.fedrecon import _rows

    w = world((7, 3, 1))
    algorithm = fedamp_jax.fedrecon(
        TASK, solver(), head_solver=solver(optimizer=SGD, epochs=3), support=0.5, server_step=0.8
    )
    state, _ = play(algorithm, w)
    expected = {"body": start()[0]["body"], "head": start()[0]["head"]}
    for k in range(ROUNDS):
        sizes = [(4, 3), (2, 1), (1, 1)]  # support and query; round(3.5) is 4, half to even
        batches = []
        for phase, epochs in ((0, 3), (1, EPOCHS)):
            local = w.batches(w.key(k), phase, epochs, [s[phase] for s in sizes])
            for i, steps in enumerate(local):
                rows = np.asarray(
                    _rows(w.phase_key(w.key(k), i, phase=None), jax.tree.map(lambda a, i=i: a[i], w.data))
                )
                rows = rows if phase == 0 else np.roll(rows, -min(sizes[i][0], len(w.clients[i]["y"]) - 1))
                local[i] = [rows[s] for s in steps]
            batches.append(local)
        expected = o_fedrecon.round(expected, w.clients, list(zip(*batches)), w.online(k), k, optimizer=O_ADAM,
                                    reconstruction_optimizer=O_SGD, server_step=0.8)  # fmt: skip
    models = o_fedrecon.personalize(expected, w.clients, w.batches(KEY_USE, epochs=3), optimizer=O_SGD)
    same(algorithm.personalize(KEY_USE, state, w.data).params, models)


@pytest.mark.parametrize("weigh_heads", [False, True])
@pytest.mark.parametrize("features", [False, True])
def test_pflego(weigh_heads, features):
    """Failed with alpha_i over the online clients only, and with tau head steps before the joint one."""
    w, hyper = world(), {"beta": 0.5, "rho": 0.3}
    task = TASK if features else TASK._replace(features=None, head_loss=None)
    algorithm = fedamp_jax.pflego(task, solver(epochs=5), **hyper, weigh_heads=weigh_heads, common_init=False)
    state, _ = play(algorithm, w)
    expected = body_and_heads(common=False)
    for k in range(ROUNDS):
        expected = o_pflego.round(expected, w.clients, None, w.online(k), k, tau=5, head_alpha=weigh_heads, **hyper)
    same(algorithm.personalize(KEY_USE, state, w.data).params, o_pflego.personalize(expected))


def test_pflego_is_unbiased():
    """Proposition 1: over all choices of one of three clients the step is on average the full gradient's (tau = 1).

    Failed without I / r.
    """
    w, rho = world(), 0.1
    algorithm = fedamp_jax.pflego(TASK, solver(epochs=1), beta=0.5, rho=rho, weigh_heads=True)
    state = algorithm.init(KEY_INIT, w.data)
    steps = []
    for i in range(3):
        data = w.data._replace(online=jnp.arange(3) == i)
        new, _ = algorithm.round(w.key(0), state, data)
        steps.append(
            jax.tree.map(jnp.subtract, (state.model.body, state.model.heads), (new.model.body, new.model.heads))
        )
    mean = jax.tree.map(lambda *a: sum(a) / 3, *steps)
    everybody, _ = algorithm.round(w.key(0), state, w.data)
    full = jax.tree.map(
        jnp.subtract, (state.model.body, state.model.heads), (everybody.model.body, everybody.model.heads)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-6), mean, full)
