"""The oracles against themselves: gradients by finite differences, projections and inner problems by brute force.

Nothing of the library takes part.
"""

import numpy as np
import pytest
from scipy.optimize import minimize

from tests.oracles import (
    apfl,
    attention,
    cfl,
    ditto,
    fedamp,
    fedavg,
    fedbn,
    fedfomo,
    fedrecon,
    fedrod,
    fine_tuned,
    heurfedamp,
    ifca,
    lg_fedavg,
    perfedavg,
    pfedgraph,
    pfedme,
    pflego,
    scaffold,
    separate,
    shared_body,
    statistics,
)
from tests.oracles.model import accepted, gradient, logits, loss_and_gradient, train
from tests.oracles.optimizers import adam, sgd
from tests.oracles.trees import add, combine, flatten, scale, sub, tree_map

FEATURES, HIDDEN, CLASSES = 3, 2, 4
SGD = sgd(0.2)
BATCHES = [[[0, 1, 2], [3, 4]], [[1, 0]], [[2, 0, 1], [3]]]
HALVES = [[steps, steps] for steps in BATCHES]


def model(seed):
    rng = np.random.default_rng(seed)
    return {
        "body": {"kernel": rng.normal(size=(FEATURES, HIDDEN)), "bias": rng.normal(size=HIDDEN)},
        "head": {"kernel": rng.normal(size=(HIDDEN, CLASSES)), "bias": rng.normal(size=CLASSES)},
    }


def federation(classes=(4, 4, 4)):
    rng = np.random.default_rng(7)
    return [
        {"x": rng.normal(size=(n, FEATURES)), "y": rng.integers(c, size=n), "classes": c}
        for n, c in zip((5, 2, 4), classes)
    ]


def slope(function, w, direction, h=1e-6):
    return (function(add(w, scale(h, direction))) - function(sub(w, scale(h, direction)))) / (2 * h)


def assert_gradient(function, grads, w):
    for seed in range(5):
        direction = model(100 + seed)
        np.testing.assert_allclose(flatten(grads) @ flatten(direction), slope(function, w, direction), rtol=1e-6)


def assert_same(a, b):
    assert type(a) is type(b) or np.isscalar(a)
    if isinstance(a, dict):
        assert a.keys() == b.keys()
        for name in a:
            assert_same(a[name], b[name])
    elif isinstance(a, list):
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("classes", [4, 2])
def test_gradient_of_the_loss(classes):
    client = federation((classes,) * 3)[0]

    def loss(w):
        return loss_and_gradient(w, client["x"], client["y"], classes)[0]

    assert_gradient(loss, gradient(model(0), client), model(0))


def test_train_adds_the_extra_gradient():
    """`extra` and `pull` for the same term give the same steps."""
    client, w, u = federation()[0], model(0), model(1)
    pulled = train(w, client, BATCHES[0], adam(0.1), pull=0.7, centre=u)
    extra = train(w, client, BATCHES[0], adam(0.1), extra=lambda w: scale(0.7, sub(w, u)))
    assert_same(pulled, extra)


# pFedGraph


@pytest.mark.parametrize("n", [1, 2, 3, 8])
@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0, 100.0])
def test_projection(n, spread):
    """On the simplex, and no nearer point found: by a solver, and at the vertices and random points."""
    rng = np.random.default_rng(n)
    for _ in range(3):
        v = spread * rng.normal(size=n)
        x = pfedgraph.projection(v)
        assert x.min() >= 0
        np.testing.assert_allclose(x.sum(), 1, rtol=1e-12)
        others = [*np.eye(n), *rng.dirichlet(np.ones(n), size=200)]
        assert all(np.sum((x - v) ** 2) <= np.sum((other - v) ** 2) + 1e-9 for other in others)
        best = minimize(
            lambda x, v=v: np.sum((x - v) ** 2), np.full(n, 1 / n), jac=lambda x, v=v: 2 * (x - v), method="SLSQP",
            bounds=[(0, 1)] * n, constraints={"type": "eq", "fun": lambda x: x.sum() - 1, "jac": lambda x: np.ones(n)},
            options={"ftol": 1e-14, "maxiter": 500},
        )  # fmt: skip
        np.testing.assert_allclose(x, best.x, atol=1e-5)


def test_projection_of_known_points():
    np.testing.assert_allclose(pfedgraph.projection([0.2, 0.3, 0.5]), [0.2, 0.3, 0.5], rtol=1e-12)
    np.testing.assert_allclose(pfedgraph.projection([5.0, 0.0, 0.0]), [1, 0, 0])
    np.testing.assert_allclose(pfedgraph.projection([1.0, 1.0, 0.0]), [0.5, 0.5, 0])


@pytest.mark.parametrize("lam", [0.1, 0.8, 10.0])
@pytest.mark.parametrize("released", [False, True])
def test_collaboration_graph(lam, released):
    """Every row minimises <x, d> + lam ||x - p||^2 on the simplex; an offline client has the identity's row."""
    models, g, online = [model(i) for i in range(4)], model(9), [True, True, False, True]
    models[3] = add(models[0], scale(0.01, models[1]))  # a cosine above 0.9
    sizes, here = np.array([5.0, 2.0, 4.0, 1.0]), [0, 1, 3]
    xi = pfedgraph.weights(models, g, sizes, lam, released=released, online=online)
    np.testing.assert_array_equal(xi[2], [0, 0, 1, 0])
    np.testing.assert_array_equal(xi[here, 2], 0)
    p = sizes[here] / sizes[here].sum()
    rng = np.random.default_rng(0)
    for i in here:
        a = [flatten(models[j]) - flatten(g) for j in (i, *here)]
        cosines = np.array([a[0] @ b / np.linalg.norm(a[0]) / np.linalg.norm(b) for b in a[1:]])
        d = -np.where(released & (cosines > 0.9), 1, cosines)
        points = np.array([xi[i, here], *rng.dirichlet(np.ones(3), size=500)])
        objective = points @ d + lam * np.sum((points - p) ** 2, axis=1)
        assert objective[0] <= objective.min() + 1e-12
    snapped = pfedgraph.weights(models, g, sizes, lam, released=True, online=online)
    assert np.allclose(snapped[0, 0] - snapped[0, 3], p[0] - p[2]) or 0 in snapped[0, [0, 3]]


def test_graph_before_any_training():
    """No client has moved: all cosines are 0, and the row is the sample fractions."""
    xi = pfedgraph.weights([model(0)] * 3, model(0), [1, 2, 5], 0.8)
    np.testing.assert_allclose(xi, [[1 / 8, 2 / 8, 5 / 8]] * 3, rtol=1e-12)


@pytest.mark.parametrize("released", [False, True])
def test_gradient_of_the_cosine_penalty(released):
    w, u, sign = model(0), model(1), 1 if released else -1
    models, row = [model(i) for i in (2, 3, 4)], [0.5, 0.0, 0.5]

    def cloud(w):
        return sign * 0.3 * pfedgraph.cosine(flatten(w), flatten(u))

    def neighbours(w):
        return sign * 0.3 * sum(x * pfedgraph.cosine(flatten(w), flatten(m)) for x, m in zip(row, models))

    assert_gradient(cloud, pfedgraph.penalty_gradient(w, u, 0.3, released=released), w)
    assert_gradient(neighbours, pfedgraph.neighbours_gradient(w, row, models, 0.3, released=released), w)


def test_neighbours_penalty_is_one_product():
    """sum_j xi_ij cos(w, w_j) is the product of w / |w| and sum_j xi_ij w_j / |w_j|, as the authors' code has it."""
    w, models, row = flatten(model(0)), [flatten(model(i)) for i in (2, 3, 4)], [0.5, 0.2, 0.3]
    u = sum(x * m / np.linalg.norm(m) for x, m in zip(row, models))
    total = sum(x * pfedgraph.cosine(w, m) for x, m in zip(row, models))
    np.testing.assert_allclose(total, u @ w / np.linalg.norm(w), rtol=1e-12)


def test_pfedgraph_round():
    """mu = 0 is training from u_i; a penalty moves nothing in the first round, and the cosine up (released: down)."""
    clients = federation()
    state = {"models": [model(i) for i in range(3)], "initial": model(9)}

    def play(k, mu, **more):
        return pfedgraph.round(state, clients, BATCHES, [True] * 3, k, optimizer=SGD, lam=0.8, mu=mu, **more)

    plain = play(1, 0.0)
    for i, client in enumerate(clients):
        assert_same(plain["models"][i], train(plain["cloud"][i], client, BATCHES[i], SGD))
    assert_same(play(0, 5.0), play(0, 0.0))
    cosines = [
        pfedgraph.cosine(flatten(result["models"][0]), flatten(result["cloud"][0]))
        for result in (play(1, 1.0, released=True), plain, play(1, 1.0))
    ]
    assert cosines == sorted(cosines) and len(set(cosines)) == 3


# FedFomo


def test_fedfomo_weights_by_hand():
    models = [{"w": np.array([0.0, 0.0])}, {"w": np.array([3.0, 4.0])}, {"w": np.array([0.0, 2.0])}]
    table = np.array([[1.0, 0.0, 0.6], [0.5, 0.4, 0.9], [0.1, 0.1, 0.2]])
    third = np.array([0.1 / 2, 0.1 / np.sqrt(13), 0])
    expected = [[0, 0.5, 0.5], [0, 0, 0], third / third.sum()]
    np.testing.assert_allclose(fedfomo.weights(models, table, [True] * 3), expected, rtol=1e-12)
    table[1, 0] = 0.0
    np.testing.assert_allclose(
        fedfomo.weights(models, table, [True, True, False]), [[0, 1, 0], [1, 0, 0], [0, 0, 0]], rtol=1e-12
    )


def test_fedfomo_baseline_received():
    """The client's own trained model is a candidate; b_i is left as it is if all candidates are worse."""
    clients = federation()
    validation = [[0, 3], [1], []]
    state = {"models": [model(i) for i in range(3)]}
    first = fedfomo.round(state, clients, BATCHES, [True] * 3, 0, optimizer=SGD, validation=validation)
    assert not first["weights"].diagonal().any()
    second = fedfomo.round(first, clients, BATCHES, [True] * 3, 1, optimizer=SGD, validation=validation)
    assert second["weights"].diagonal().any()
    for i in range(3):
        row = second["weights"][i]
        assert row.min() >= 0 and np.isclose(row.sum(), 0 if not row.any() else 1)
        expected = combine(row, first["models"]) if row.any() else first["received"][i]
        assert_same(second["received"][i], expected)
    assert not second["weights"][2].any()  # no validation rows


# pFedMe


@pytest.mark.parametrize("start", ["local", "last"])
def test_pfedme_inner_problem(start):
    """With many inner steps theta is where the gradient of f + lam / 2 ||theta - w||^2 vanishes."""
    clients, w, lam, eta = federation(), model(0), 5.0, 0.01
    batches = [[[0, 1, 2]], [[0, 1]], [[1, 2], [0, 3]]]
    state = {"global": w, "thetas": [w] * 3}
    result = pfedme.round(
        state, clients, batches, [True, True, False], 0, optimizer=sgd(0.1), inner_steps=400, lam=lam, eta=eta,
        beta=0.7, start=start,
    )  # fmt: skip
    sent = []
    for i in (0, 1):
        theta = result["thetas"][i]
        residual = add(gradient(theta, clients[i], batches[i][0]), scale(lam, sub(theta, w)))
        np.testing.assert_allclose(flatten(residual), 0, atol=1e-9)
        # eta lam (w - theta) is then eta times the gradient of the Moreau envelope
        sent.append(sub(w, scale(eta, gradient(theta, clients[i], batches[i][0]))))
    assert_same(result["thetas"][2], w)
    mean = combine([5 / 7, 2 / 7], sent)
    np.testing.assert_allclose(flatten(result["global"]), flatten(combine([0.3, 0.7], [w, mean])), atol=1e-9)


def test_pfedme_starts_differ():
    """`start` matters from the second minibatch on."""
    clients, w = federation(), model(0)
    state = {"global": w, "thetas": [w] * 3}
    thetas = [
        pfedme.round(state, clients, BATCHES, [True] * 3, 0, optimizer=SGD, inner_steps=2, lam=1.0, eta=0.1, beta=1.0,
                     start=start)["thetas"]
        for start in ("local", "last")
    ]  # fmt: skip
    assert_same(thetas[0][1], thetas[1][1])
    assert np.abs(flatten(sub(thetas[0][0], thetas[1][0]))).max() > 1e-3


# FedAMP


@pytest.mark.parametrize("self_weight", [None, 0.3])
def test_offline_row_is_the_identitys(self_weight):
    models, online = [model(i) for i in range(3)], [True, False, True]
    for stale in ("include", "exclude"):
        hyper = {"online": online, "stale": stale, "sigma": 20.0}
        for xi in (
            attention.weights(models, alpha=0.1, self_weight=self_weight, **hyper),
            attention.heuristic_weights(models, self_weight=0.3, **hyper),
        ):
            np.testing.assert_array_equal(xi[1], [0, 1, 0])
            np.testing.assert_allclose(xi.sum(axis=1), 1)
            assert (xi[0, 1] > 0) == (xi[2, 1] > 0) == (stale == "include")


# Running statistics


def test_running_statistics():
    clients = federation()
    stats = [{"mean": np.full(FEATURES, float(i))} for i in range(3)]
    x = clients[0]["x"]
    expected = 0.9 * (0.9 * stats[0]["mean"] + 0.1 * (x[0] + x[1] + x[2]) / 3) + 0.1 * (x[3] + x[4]) / 2
    online, rejected, before = [True, False, True], [False, False, True], [True] * 3

    def after(online, policy, trained=before, **more):
        return statistics.round(stats, trained, clients, BATCHES, online, policy=policy, **more)

    local, now = after(online, "local", rejected=rejected)
    assert_same(local, [{"mean": expected}, stats[1], stats[2]])
    assert now == before
    first, now = after(online, "local", [False] * 3, rejected=rejected)
    assert_same(first, [{"mean": expected}] * 3)
    assert now == [True, False, False]
    assert_same(after(online, "own", [False] * 3, rejected=rejected)[0], local)
    assert_same(after(online, "mix", rejected=rejected)[0], [{"mean": expected}] * 3)
    own, mixed = after(online, "local")[0], after(online, "mix")[0]
    assert_same(mixed, [combine([5 / 9, 4 / 9], [own[0], own[2]])] * 3)
    assert_same(after([False] * 3, "mix")[0], stats)
    xi = np.array([[0.0, 1.0, 0.0], [0.0, 1.0, 0.0], [0.5, 0.5, 0.0]])
    for swapped in (after(online, "mix", xi=xi)[0], after(online, "local", [False] * 3, xi=xi)[0]):
        assert_same(swapped[0], statistics.follow(stats[1], clients[0], BATCHES[0]))
        assert_same(swapped[1], stats[1])
    assert_same(after(online, "local", xi=xi)[0], own)


# Every oracle: a rejected client, and clients of different numbers of classes


def one(heads=False, **more):
    if heads:
        return {"body": model(0)["body"], "heads": [model(i)["head"] for i in range(3)]}
    return {"global": model(0), **more}


def several():
    return {"models": [model(i) for i in range(3)]}


def variates():
    c_i = [scale(0.1, model(20 + i)) for i in range(3)]
    return one(c=combine([1 / 3] * 3, c_i), c_i=c_i, **several())


AMP = {"optimizer": SGD, "alpha": lambda k: 3.0, "lam": 1.0, "sigma": 20.0, "self_weight": 0.3}
# name: round, state, batches, arguments, what belongs to each client
ROUNDS = {
    "separate": (separate.round, several, BATCHES, {"optimizer": SGD}, ["models"]),
    "fedavg": (fedavg.fedavg, one, BATCHES, {"optimizer": SGD}, []),
    "fedprox": (fedavg.fedprox, one, BATCHES, {"optimizer": SGD, "mu": 0.5}, []),
    "fine_tuned": (fine_tuned.round, one, BATCHES, {"optimizer": SGD, "mu": 0.5}, []),
    "fedper": (shared_body.fedper, lambda: one(True), BATCHES, {"optimizer": SGD}, ["heads"]),
    "fedrep": (shared_body.fedrep, lambda: one(True), HALVES, {"optimizer": SGD}, ["heads"]),
    "fedbabu": (shared_body.fedbabu, lambda: model(0), BATCHES, {"optimizer": SGD}, []),
    "perfedavg": (perfedavg.round, one, [[[rows] * 3 for rows in steps] for steps in BATCHES],
                  {"alpha": 0.2, "beta": 0.3, "exact": True}, []),
    "fedrod": (fedrod.round, lambda: {"model": model(0), "own": [model(i)["head"] for i in range(3)]}, BATCHES,
               {"optimizer": SGD}, ["own"]),
    "lg_fedavg": (lg_fedavg.round, lambda: {"bodies": [model(i)["body"] for i in range(3)], "head": model(0)["head"]},
                  BATCHES, {"optimizer": SGD}, ["bodies"]),
    "fedrecon": (fedrecon.round, lambda: model(0), HALVES, {"optimizer": SGD}, []),
    "pflego": (pflego.round, lambda: one(True), None, {"tau": 3, "beta": 0.1, "rho": 0.1}, ["heads"]),
    "scaffold, I": (scaffold.round, variates, BATCHES, {"lr": 0.1, "option": 1}, ["c_i", "models"]),
    "scaffold, II": (scaffold.round, variates, BATCHES, {"lr": 0.1}, ["c_i", "models"]),
    "ditto": (ditto.round, lambda: one(**several()), HALVES, {"optimizer": SGD, "lam": 0.5}, ["models"]),
    "apfl": (apfl.round, lambda: one(local=several()["models"], alpha=[0.5] * 3), BATCHES,
             {"lr": 0.1, "adapt": "step"}, ["local", "alpha"]),
    "pfedme": (pfedme.round, lambda: one(thetas=several()["models"]), BATCHES,
               {"optimizer": SGD, "inner_steps": 2, "lam": 1.0, "eta": 0.1, "beta": 0.8}, ["thetas"]),
    "fedamp": (fedamp.round, several, BATCHES, AMP, ["models"]),
    "fedamp, stale": (fedamp.round, several, BATCHES, {**AMP, "stale": "include"}, ["models"]),
    "heurfedamp": (heurfedamp.round, several, BATCHES, AMP, ["models"]),
    "pfedgraph": (pfedgraph.round, lambda: {**several(), "initial": model(9)}, BATCHES,
                  {"optimizer": SGD, "lam": 0.8, "mu": 0.1}, ["models"]),
    "fedfomo": (fedfomo.round, lambda: {**several(), "received": [model(10 + i) for i in range(3)]}, BATCHES,
                {"optimizer": SGD, "validation": [[0, 4], [1], [2]]}, ["models", "received"]),
    "cfl": (cfl.round, lambda: {"models": [model(0), model(1)], "cluster": [0, 0, 0], "largest": 1.0}, BATCHES,
            {"optimizer": SGD, "eps1": lambda k: 9.0, "eps2": lambda k: 0.0}, []),
    "ifca": (ifca.round, lambda: {"models": [model(0), model(1)]}, BATCHES, {"optimizer": SGD}, []),
}  # fmt: skip
# Clients exchange their models before they train: that one is rejected makes a difference to itself only.
EXCHANGE = {"fedamp", "fedamp, stale", "heurfedamp", "pfedgraph", "fedfomo"}


def play(name, online=(True, True, True), rejected=None, classes=(4, 4, 4)):
    round, state, batches, arguments, _ = ROUNDS[name]
    return round(state(), federation(classes), batches, list(online), 1, **arguments, rejected=rejected)


def test_perfedavg_descends_on_the_loss_after_a_step():
    """With one batch for all three, a step is along the gradient of F(w) = f(w - alpha grad f(w)). Failed with the
    Hessian at v.
    """
    client, w, alpha = federation()[0], model(3), 0.4

    def after(w):
        v = sub(w, scale(alpha, gradient(w, client)))
        return loss_and_gradient(v, client["x"], client["y"], client["classes"])[0]

    rows = list(range(5))
    new = perfedavg.local(w, client, [(rows, rows, rows)], alpha, 1.0, True)
    assert_gradient(after, sub(w, new), w)


def test_fedbn_keeps_layers():
    """A rejected client has its own layer and the others' mean of the rest. Failed with everybody in the mean."""
    state, arguments = several(), {"optimizer": SGD, "layers": [("body", "bias")]}
    new = fedbn.round(state, federation(), BATCHES, [True] * 3, 1, **arguments, rejected=[False, True, False])
    sent = [train(state["models"][i], federation()[i], BATCHES[i], SGD) for i in (0, 2)]
    mean = combine([5 / 9, 4 / 9], sent)
    for after, own in zip(new["models"], (sent[0], state["models"][1], sent[1])):
        assert_same(after["head"], mean["head"])
        assert_same(after["body"], {"kernel": mean["body"]["kernel"], "bias": own["body"]["bias"]})


@pytest.mark.parametrize("name", ROUNDS)
def test_rejected(name):
    """A rejected client keeps what is its own. For the others it was offline, or they have received its old model."""
    before, own = ROUNDS[name][1](), ROUNDS[name][4]
    result = play(name, rejected=[False, True, False])
    for part in own:
        assert_same(result[part][1], before[part][1])
        assert any(np.abs(flatten(after) - flatten(old)).max() > 1e-6 for after, old in zip(result[part], before[part]))
    everybody, absent = play(name), play(name, online=(True, False, True))
    if name not in EXCHANGE:
        assert_same(result, absent)
        assert np.abs(values(result) - values(everybody)).max() > 1e-6
    else:
        for part in own:
            assert_same([result[part][i] for i in (0, 2)], [everybody[part][i] for i in (0, 2)])
        for part in result.keys() - {*own}:
            assert_same(result[part], everybody[part])
    assert_same(play(name, rejected=[False] * 3), everybody)
    assert_same({part: play(name, rejected=[True] * 3)[part] for part in before}, before)


def values(state):
    if isinstance(state, dict):
        state = [state[name] for name in sorted(state)]
    return np.concatenate([values(part) for part in state]) if isinstance(state, list) else np.ravel(state)


@pytest.mark.parametrize("name", ROUNDS)
def test_different_numbers_of_classes(name):
    """With the same labels, clients of 4, 2 and 3 classes differ from clients of 4, but not the one of 4 by itself."""
    round, state, batches, arguments, _ = ROUNDS[name]
    clients = federation((4, 2, 3))
    result = values(round(state(), clients, batches, [True] * 3, 1, **arguments))
    wide = [{**client, "classes": 4} for client in clients]
    assert np.isfinite(result).all()
    assert np.abs(result - values(round(state(), wide, batches, [True] * 3, 1, **arguments))).max() > 1e-4
    online = [True, False, False]  # whose classes are 4 either way
    if "xi" not in play(name) and "weights" not in play(name):
        assert_same(*(round(state(), c, batches, online, 1, **arguments) for c in (clients, wide)))


def test_columns_beyond_the_classes_get_no_gradient():
    """And the loss does not depend on them."""
    client, w = federation((2, 2, 2))[0], model(0)
    head = gradient(w, client)["head"]
    assert not head["kernel"][:, 2:].any() and not head["bias"][2:].any()
    other = tree_map(np.array, w)
    other["head"]["kernel"][:, 2:], other["head"]["bias"][2:] = 7.0, -3.0
    assert np.abs(logits(w, client["x"]) - logits(other, client["x"]))[:, 2:].max() > 0
    losses = [loss_and_gradient(params, client["x"], client["y"], 2)[0] for params in (w, other)]
    assert losses[0] == losses[1]
    trained = train(w, client, BATCHES[0], adam(0.1))["head"]
    np.testing.assert_array_equal(trained["kernel"][:, 2:], w["head"]["kernel"][:, 2:])


def test_accepted():
    assert accepted([True, True, False], None) == [True, True, False]
    assert accepted(np.array([True, True, False]), np.array([False, True, True])) == [True, False, False]
