"""Distances and cosines of products A B that are not formed, against those of formed ones in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Placement, Solver
from fedamp_jax.engine import low_rank, server
from fedamp_jax.models import adapted
from fedamp_jax.placement import InHostMemory, OnMesh, client_mesh
from tests.registry import CLASSES, FEATURES, federation, run_rounds, tiny_task

KEY, M, SCALE = jax.random.key(0), 8, 0.7
PLACES = {
    "one device": Placement,
    "a mesh": lambda: OnMesh(mesh=client_mesh(4)),
    "the host": lambda: InHostMemory(device=jax.devices()[1], chunk=3),
}


def adapters(spread=1.0, seed=0):
    """A dense layer, one to several axes, a convolution and a head, all clients' `spread` apart."""
    shapes = {
        "dense": {"lora_a": (9, 3), "lora_b": (3, 5)},
        "attention": {"out": {"lora_a": (2, 4, 3), "lora_b": (3, 6)}, "query": {"lora_a": (6, 2), "lora_b": (2, 2, 4)}},
        "conv": {"lora_a": (3, 3, 2, 4), "lora_b": (4, 5)},
        "head": {"kernel": (5, 3), "bias": (3,)},
    }
    rng = np.random.default_rng(seed)

    def drawn(shape):
        return (rng.normal(size=(1, *shape)) + spread * rng.normal(size=(M, *shape))).astype(np.float32)

    return jax.tree.map(drawn, shapes, is_leaf=lambda a: isinstance(a, tuple))


def formed(tree, scale=SCALE):
    """All clients' models as vectors `[M, D]` float64: products and other leaves."""
    if "lora_a" in tree:
        a, b = (np.asarray(tree[name], np.float64) for name in ("lora_a", "lora_b"))
        return np.stack([scale * np.tensordot(x, y, 1).ravel() for x, y in zip(a, b)])
    inner = [
        formed(t, scale) if isinstance(t, dict) else np.asarray(t, np.float64).reshape(M, -1) for t in tree.values()
    ]
    return np.concatenate(inner, axis=1)


@pytest.mark.parametrize("spread", [1.0, 1e-2, 1e-4])
@pytest.mark.slow_variants
def test_distances_and_cosines_are_those_of_formed_products(spread):
    """Also of clients that nearly coincide, where float32 Gram matrices have lost all. Failed in float32, with the Gram
    matrix of rows of A for that of columns, and without the square of the scale.
    """
    tree = adapters(spread)
    flat = formed(tree)
    geometry = low_rank.products(SCALE)
    wanted = np.square(flat[:, None] - flat[None]).sum(-1)
    found = np.asarray(geometry.sq_dists(tree))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-12 * np.square(flat).sum(1).max())
    assert found.dtype == np.float32 and (found >= 0).all() and not np.diag(found).any()
    assert np.array_equal(found, found.T)
    units = flat / np.linalg.norm(flat, axis=1, keepdims=True)
    np.testing.assert_allclose(geometry.cosines(tree), units @ units.T, rtol=0, atol=1e-7)


def test_factors_of_one_product_have_no_distance():
    """`(A R, R^-1 B)` is the client that `(A, B)` is, although its parameters are elsewhere. Failed with a distance of
    the factors.
    """
    tree = adapters()
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    a, b = (tree["dense"][name].astype(np.float64) for name in ("lora_a", "lora_b"))
    other = {"lora_a": np.stack([a[0], a[0] @ turn]), "lora_b": np.stack([b[0], turn.T @ b[0]])}
    other = jax.tree.map(lambda v: v.astype(np.float32), {"dense": other})
    assert float(server.sq_dists(other)[0, 1]) > 1
    assert float(low_rank.products(1.0).sq_dists(other)[0, 1]) < 1e-10
    assert float(low_rank.products(1.0).cosines(other)[0, 1]) == 1


def test_models_without_adapters_or_a_direction():
    """Without adapters it is the geometry of the parameters; zero has cosine 1/2. Failed with NaN for zero."""
    tree = adapters()["head"]
    geometry = low_rank.products(3.0)
    np.testing.assert_allclose(geometry.sq_dists(tree), server.sq_dists(tree), rtol=1e-5)
    tree = jax.tree.map(lambda a: np.where(np.arange(M).reshape(-1, *[1] * (a.ndim - 1)) < 2, np.float32(0), a), tree)
    np.testing.assert_allclose(geometry.cosines(tree), server.cosines(tree), atol=1e-6)
    lonely = {"lora_a": tree["kernel"], "head": {"lora_b": tree["kernel"]}}  # no pair: leaves of these names
    np.testing.assert_allclose(geometry.sq_dists(lonely), server.sq_dists(lonely), rtol=1e-5)


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("method", ["fedamp", pytest.param("heurfedamp", marks=pytest.mark.slow)])
@pytest.mark.slow_variants
def test_attention_of_a_round_is_that_of_merged_models(method, name):
    """The second round's weights, wherever clients live, are the softmax over models that `Base.merge` makes.

    Failed with distances of the factors, and with a scale of 1.
    """
    whole = fedamp_jax.models.mlp(CLASSES, hidden=(6,), shape=(FEATURES,))
    task, data = adapted(whole, whole.init(KEY), rank=2, scale=SCALE), federation()
    solver = Solver(optax.sgd(0.3), epochs=3, batch_size=4)
    algorithm = getattr(fedamp_jax, method)(task, solver, sigma=2.0, self_weight=0.25, common_init=False)
    placed = PLACES[name]().place(data)
    state = placed.placement.init(algorithm, KEY, placed)
    state, _ = fedamp_jax.round(algorithm, state, placed, jax.random.fold_in(KEY, 0))
    models = jax.tree.map(np.asarray, state.clients.variables)
    _, info = fedamp_jax.round(algorithm, state, placed, jax.random.fold_in(KEY, 1))
    merged = jax.vmap(task.base.merge)(jax.tree.map(jnp.asarray, models)).params
    base = whole.init(KEY).params
    # Cosines are of the changes: the base, the same for all, would make them 1.
    body = jax.tree.map(lambda a, b: np.asarray(a, np.float64) - np.asarray(b), merged["body"], base["body"])
    flat = np.concatenate([np.reshape(a, (8, -1)) for a in jax.tree.leaves((body, merged["head"]))], axis=1)
    if method == "fedamp":
        score = -np.square(flat[:, None] - flat[None]).sum(-1) / 2.0
    else:
        units = flat / np.linalg.norm(flat, axis=1, keepdims=True)
        score = 2.0 * units @ units.T
    share = np.exp(score - score.max()) * (1 - np.eye(8))
    wanted = 0.75 * share / share.sum(1, keepdims=True) + 0.25 * np.eye(8)
    np.testing.assert_allclose(info.xi, wanted, rtol=1e-3, atol=1e-5)


def test_a_sweep_over_sigma():
    """Under `vmap` and `jit`, as one by one. Failed when transformations made float32 of float64."""
    tree = adapters(1e-4)
    alone = low_rank.products(SCALE).sq_dists(tree)
    trees = jax.tree.map(lambda a: jnp.stack([a, 2 * a]), tree)
    np.testing.assert_array_equal(jax.jit(jax.vmap(low_rank.products(SCALE).sq_dists))(trees)[0], alone)


@pytest.mark.parametrize("method", [fedamp_jax.fedamp, pytest.param(fedamp_jax.heurfedamp, marks=pytest.mark.slow)])
def test_what_the_weights_are_of(method):
    """Of the factors if one asks for it; without adapters, both are those of the parameters. Failed when `of` was not
    read, and for a head alone, which has a base and no scale.
    """
    whole, data, solver = tiny_task(), federation(), Solver(optax.sgd(0.3), epochs=2, batch_size=4)
    body = fedamp_jax.models.mlp(CLASSES, hidden=(6,), shape=(FEATURES,))
    found = {}
    head, adapters = adapted(whole, whole.init(KEY), rank=0), adapted(body, body.init(KEY), rank=2)
    for name, task in (("whole", whole), ("head", head), ("adapters", adapters)):
        for of in ("models", "parameters"):
            algorithm = method(task, solver, sigma=3.0, self_weight=0.2, common_init=False, of=of)
            found[name, of] = np.asarray(run_rounds(algorithm, data, rounds=2)[1][1].xi)
    for name in ("whole", "head"):
        np.testing.assert_array_equal(found[name, "models"], found[name, "parameters"])
    assert np.abs(found["adapters", "models"] - found["adapters", "parameters"]).max() > 1e-3
    with pytest.raises(ValueError, match="of must be one of 'models', 'parameters', got 'model'"):
        method(whole, solver, sigma=1.0, self_weight=0.5, of="model")
