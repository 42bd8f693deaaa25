"""Adapters: their forward pass, what is trained, what all clients share, and every method on them."""

import functools

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import fedamp_jax
from fedamp_jax import Placement, Solver, Variables
from fedamp_jax.driver.rounds import compiled_round, need_of
from fedamp_jax.kernels.pooling import max_pool
from fedamp_jax.models import adapted, cnn, from_linen, from_nnx, resnet18
from fedamp_jax.models.layers import conv
from fedamp_jax.placement import InHostMemory, OnMesh, client_mesh
from fedamp_jax.programs.jaxpr import equations
from fedamp_jax.trees import path_names
from fedamp_jax.types import Batch
from tests import registry
from tests.oracles import lora
from tests.registry import CLASSES, FEATURES, batch_of, federation, tiny_task

KEY = jax.random.key(0)
PLACES = {
    "one device": Placement,
    "all side by side": lambda: Placement(chunk=8),
    "a mesh": lambda: OnMesh(mesh=client_mesh(8)),
    "the host": lambda: InHostMemory(device=jax.devices()[1], chunk=3),
}


class Linen(nn.Module):
    """Convolutions with and without pooling, dense layers over one and two axes, and a norm."""

    @nn.compact
    def __call__(self, x):
        pool = functools.partial(max_pool, size=2, stride=2, padding="VALID")
        x = nn.tanh(conv(4, 3, pool=pool)(x[..., None]))
        x = nn.tanh(nn.Conv(5, (3, 2), 2)(x))
        x = nn.LayerNorm(name="norm")(x.mean((1, 2)))
        x = nn.tanh(nn.DenseGeneral((2, 3), name="query")(x))
        x = nn.tanh(nn.DenseGeneral(4, (-2, -1), name="out")(x))
        return nn.Dense(CLASSES, name="head")(x)


class Nnx(nnx.Module):
    """The same with the layers of nnx, in a list and under other names."""

    def __init__(self, rngs):
        self.convs = nnx.List([nnx.Conv(1, 4, (3, 3), rngs=rngs), nnx.Conv(4, 5, (3, 2), 2, rngs=rngs)])
        self.norm = nnx.LayerNorm(5, rngs=rngs)
        self.query = nnx.LinearGeneral(5, (2, 3), rngs=rngs)
        self.out = nnx.LinearGeneral((2, 3), 4, axis=(-2, -1), rngs=rngs)
        self.head = nnx.Linear(4, CLASSES, rngs=rngs)

    def __call__(self, x):
        x = nnx.tanh(max_pool(self.convs[0](x[..., None]), size=2, stride=2, padding="VALID"))
        x = self.norm(nnx.tanh(self.convs[1](x)).mean((1, 2)))
        return self.head(nnx.tanh(self.out(nnx.tanh(self.query(x)))))


MODELS = {
    "linen": (lambda: from_linen(Linen(), (8, 6)), ("Conv_0", "Conv_1")),
    "nnx": (lambda: from_nnx(Nnx, (8, 6)), ("convs/0", "convs/1")),
}


def randomized(tree, seed=1):
    """Every number drawn anew, so that no B is 0."""
    leaves, structure = jax.tree.flatten(tree)
    keys = jax.random.split(jax.random.key(seed), len(leaves))
    return jax.tree.unflatten(structure, [jax.random.normal(k, a.shape) / 2 for k, a in zip(keys, leaves)])


def by_path(variables):
    return dict(zip(path_names(variables.params), map(np.asarray, jax.tree.leaves(variables.params))))


def oracle(base, mine, x, names, scale):
    """The network's logits in float64, and its changed kernels."""
    w = {**by_path(base), **by_path(mine)}
    layers = (*names, "query", "out")
    kernels = {n: lora.changed(w[f"{n}/kernel"], w[f"{n}/lora_a"], w[f"{n}/lora_b"], scale) for n in layers}
    first, second = (f"{name}/bias" for name in names)
    x = np.tanh(lora.max_pool(lora.convolution(x[..., None], kernels[names[0]], w[first], 1)))
    x = np.tanh(lora.convolution(x, kernels[names[1]], w[second], 2)).mean((1, 2))
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-6)
    x = x * w["norm/scale"] + w["norm/bias"]
    x = np.tanh(lora.dense(x, kernels["query"], w["query/bias"]))
    x = np.tanh(lora.dense(x, kernels["out"], w["out/bias"]))
    return x @ w["head/kernel"].astype(np.float64) + w["head/bias"], kernels


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.slow_variants
def test_the_forward_pass_is_the_papers(name):
    """Layer by layer in float64, and the merged kernels. Failed with scale squared, with A B added after the pooling,
    and with the adapter of one convolution in the other.
    """
    make, names = MODELS[name]
    whole = make()
    base, x = randomized(whole.init(KEY), 2), jax.random.normal(KEY, (7, 8, 6))
    task = adapted(whole, base, rank=2, scale=0.5, train=("head", "norm"))
    start, mine = task.init(KEY), randomized(task.init(KEY))
    logits, kernels = oracle(base, mine, x, names, 0.5)
    np.testing.assert_allclose(task.predict(mine, x), logits, rtol=1e-4, atol=1e-5)
    merged = task.base.merge(mine)
    np.testing.assert_allclose(whole.predict(merged, x), logits, rtol=1e-4, atol=1e-5)
    for layer, kernel in kernels.items():
        np.testing.assert_allclose(by_path(merged)[f"{layer}/kernel"], kernel, rtol=1e-5, atol=1e-6)
    chex.assert_trees_all_equal_structs(merged, base)
    np.testing.assert_array_equal(task.predict(start, x), whole.predict(base, x))  # B is 0: the base, bit for bit
    chex.assert_trees_all_equal(task.base.merge(start), base)


def test_the_start():
    """A has variance 1 / inputs, and a rank of at most the layer's inputs and outputs; B is 0.

    Failed with the variance 1 / r, and with the same numbers in two layers.
    """
    whole = fedamp_jax.models.mlp(10, hidden=(300, 300), shape=(300,))
    task = adapted(whole, whole.init(KEY), rank=100)
    params = task.init(KEY).params["body"]
    a, b = (params[f"Dense_{i}"]["lora_a"] for i in range(2))
    assert a.shape == b.shape == (300, 100) and abs(float(a.var()) * 300 - 1) < 0.02
    assert not np.allclose(a, b) and not np.asarray(params["Dense_1"]["lora_b"]).any()
    assert not np.allclose(a, task.init(jax.random.key(1)).params["body"]["Dense_0"]["lora_a"])
    narrow = adapted(whole, whole.init(KEY), rank=100, where="body/Dense_1", train=())
    assert path_names(narrow.init(KEY).params) == ["body/Dense_1/lora_a", "body/Dense_1/lora_b"]
    small = adapted(*(lambda t: (t, t.init(KEY)))(cnn(3, shape=(8, 8), filters=(4,), hidden=(7,))))
    shapes = {name: a.shape for name, a in by_path(small.init(KEY)).items() if "lora" in name}
    assert shapes == {
        "body/Conv_0/lora_a": (5, 5, 1, 4), "body/Conv_0/lora_b": (4, 4),
        "body/Dense_0/lora_a": (64, 7), "body/Dense_0/lora_b": (7, 7),
    }  # fmt: skip


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.slow_variants
def test_gradients_are_those_of_the_merged_model(name):
    """By the chain rule through W + scale A B, for a loss with masked rows. Failed without the gradient through x A."""
    whole = MODELS[name][0]()
    base = randomized(whole.init(KEY), 2)
    task = adapted(whole, base, rank=2, scale=0.5, train=("head", "norm"))
    mine = randomized(task.init(KEY))
    x = jax.random.normal(KEY, (5, 8, 6))
    mask, y = jnp.arange(5) < 4, jnp.arange(5, dtype=jnp.int32) % CLASSES
    batch = fedamp_jax.Batch(x, y, mask, jnp.int32(CLASSES))

    def merged(params):
        return whole.loss(task.base.merge(Variables(params)), batch, KEY)[0]

    found = jax.grad(lambda params: task.loss(Variables(params), batch, KEY)[0])(mine.params)
    chex.assert_trees_all_close(found, jax.grad(merged)(mine.params), rtol=1e-3, atol=1e-5)
    assert all(np.abs(a).max() > 1e-6 for a in jax.tree.leaves(found))


def test_clients_share_the_products_with_the_base():
    """Of all clients side by side: one product of 5 * 4 rows with W, no array [M, inputs, outputs], no gradient of W.

    Failed when A B was added to W.
    """
    whole = fedamp_jax.models.mlp(CLASSES, hidden=(33,), shape=(17,))
    task = adapted(whole, whole.init(KEY), rank=2)
    models = jax.vmap(task.init)(jax.random.split(KEY, 5))
    x, y, mask = jnp.ones((5, 4, 17)), jnp.zeros((5, 4), jnp.int32), jnp.ones((5, 4), bool)

    def gradient(model, x, y, mask):
        batch = fedamp_jax.Batch(x, y, mask, jnp.int32(CLASSES))
        return jax.grad(lambda params: task.loss(Variables(params), batch, KEY)[0])(model.params)

    program = jax.make_jaxpr(jax.vmap(gradient))(models, x, y, mask)
    found = {v.aval.shape for equation in equations(program) for v in equation.outvars}
    assert (5, 4, 33) in found and not {(17, 33), (33, 17), (5, 17, 33), (5, 33, 17)} & found


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.slow_variants
def test_one_copy_of_the_base_for_all_clients(name, dtype):
    """A round takes the base once, in its dtype, wherever clients live. Failed with W + A B, and with a base that was
    made float32.
    """
    whole = fedamp_jax.models.mlp(CLASSES, hidden=(800, 800), shape=(FEATURES,), compute_dtype=dtype)
    params = whole.init(KEY).params
    base = Variables({**params, "body": jax.tree.map(lambda a: a.astype(dtype), params["body"])})
    task = adapted(whole, base, rank=2)
    place, data = PLACES[name](), federation()
    algorithm = fedamp_jax.separate(task, Solver(optax.sgd(0.05), epochs=1, batch_size=4))
    placed = data.placement.place(data) if name == "the host" else place.place(data)
    state = placed.placement.init(algorithm, jax.random.key(0), placed)
    held, working = need_of(algorithm, state, placed, jax.random.key(0), placed.placement)
    kernel = 800 * 800 * jnp.dtype(dtype).itemsize
    # A CPU multiplies no bfloat16 numbers: XLA makes float32 of the kernel for each of the three products, once.
    assert kernel <= held < 2.2 * kernel and working < (1.2 if dtype == jnp.float32 else 6.5) * kernel
    text = compiled_round.lower(algorithm.round, state, placed, jax.random.key(0)).as_text()
    kind = {"float32": "f32", "bfloat16": "bf16"}[jnp.dtype(dtype).name]
    assert f"tensor<800x800x{kind}>" in text and "tensor<8x800x800" not in text and len(text) < 2 * kernel
    assert kind == "f32" or "tensor<800x800xf32>" not in text


def test_gradients_of_adapters_are_plain_products():
    """Of inputs `[B, L, n]`, too, no product of A or B sums over more than one axis. Failed with two."""
    whole = from_linen(nn.Sequential([nn.Dense(7), lambda x: x.mean(1), nn.Dense(CLASSES, name="head")]), (4, 5))
    task = adapted(whole, whole.init(KEY), rank=2, where="dense")
    batch = Batch(jnp.ones((3, 4, 5)), jnp.zeros(3, jnp.int32), jnp.ones(3, bool), jnp.int32(CLASSES))
    model = task.init(KEY)
    jaxpr = jax.make_jaxpr(jax.grad(lambda params: task.loss(Variables(params), batch, KEY)[0]))(model.params)
    products = [eqn for eqn in equations(jaxpr) if eqn.primitive.name == "dot_general"]
    of_adapters = [eqn for eqn in products if any(2 in v.aval.shape for v in (*eqn.invars, *eqn.outvars))]
    assert len(of_adapters) == 5  # x A, its product with B, and the gradients of B, x A and A
    assert all(len(eqn.params["dimension_numbers"][0][0]) == 1 for eqn in of_adapters)


@pytest.mark.slow
def test_placements_agree():
    """Two rounds of FedAMP. Failed with devices that read the examples of other devices' clients."""
    whole = fedamp_jax.models.mlp(CLASSES, hidden=(300, 1000), shape=(FEATURES,))
    task, data = adapted(whole, whole.init(KEY), rank=2), federation()
    algorithm = fedamp_jax.fedamp(task, Solver(optax.sgd(0.1), epochs=2, batch_size=4), sigma=1.0, self_weight=0.25)
    runs = [
        fedamp_jax.run(task, algorithm, data, data, rounds=2, progress=False, placement=make())
        for make in PLACES.values()
    ]
    for run in runs[1:]:
        chex.assert_trees_all_close(run.state, runs[0].state, rtol=1e-4, atol=1e-5)
    start = algorithm.init(jax.random.key(0), data).clients.variables
    moved = jax.tree.map(lambda a, b: bool(jnp.any(a != b)), runs[0].state.clients.variables, start)
    assert all(jax.tree.leaves(moved))


class Plain(nn.Module):
    """The layers of `tests.registry.tiny_task`, under the same names."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(CLASSES, name="head")(nn.tanh(nn.Dense(4, name="body")(x)))


@functools.cache
def plain():
    whole = from_linen(Plain(), (FEATURES,))
    return whole, adapted(whole, whole.init(KEY), rank=2, train=("head", "body/bias"))


@pytest.mark.parametrize("entry", [pytest.param(e, id=e.name) for e in registry.ENTRIES])
def test_every_method_trains_adapters(entry):
    """One round: models are finite, differ from the start, and come without the base. Failed for a task that
    cannot be split, but had `features` and `head_loss`.
    """
    task, data, body = plain()[1], federation(), "body"
    if entry.factory in ("fedproto", "knnper", "fedpac"):  # which need the features of a classifier
        whole, body = fedamp_jax.models.mlp(CLASSES, shape=(FEATURES,), hidden=(4,)), "body/Dense_0"
        task = adapted(whole, whole.init(KEY), rank=2, train=("head", f"{body}/bias"))
    algorithm = entry.make(task, Solver(optax.adam(0.05), epochs=2, batch_size=4))
    state, infos = registry.run_rounds(algorithm, data, rounds=1)
    models = algorithm.personalize(KEY, state, data)
    own = [f"{body}/{name}" for name in ("bias", "lora_a", "lora_b")]
    assert path_names(models.params) == [*own, "head/bias", "head/kernel"]
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(models)) and not np.asarray(infos[0].rejected).any()
    adapter = models.params["body"] if body == "body" else models.params["body"]["Dense_0"]
    assert np.asarray(adapter["lora_b"]).any()


def test_features_go_through_the_adapters():
    """A classifier's body and head give its loss, with adapters in both. Failed with the base's features."""
    whole = cnn(CLASSES, shape=(8, 8), filters=(4,), hidden=(7,))
    task = adapted(whole, randomized(whole.init(KEY), 2), rank=2, train=("*/bias",))
    mine = randomized(task.init(KEY))
    batch = fedamp_jax.Batch(jnp.ones((4, 8, 8)), jnp.zeros(4, jnp.int32), jnp.ones(4, bool), jnp.int32(CLASSES))
    features = task.features(mine, batch, KEY)[0]
    loss = task.loss(mine, batch, KEY)[0]
    np.testing.assert_allclose(task.head_loss(mine, features, batch), loss, rtol=1e-6)
    np.testing.assert_allclose(task.predict_features(mine, batch.x), features, rtol=1e-6)
    merged = task.base.merge(mine)
    np.testing.assert_allclose(whole.features(merged, batch, KEY)[0], features, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(whole.loss(merged, batch, KEY)[0], loss, rtol=1e-5)


def test_parts_that_are_compiled_by_themselves():
    """Layers in nn.jit and nn.remat, and a task's function in jax.jit: one client's adapters do not stay in what was
    compiled for another. Failed when products closed over A and B.
    """

    class Lifted(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.tanh(nn.jit(nn.Dense)(4, name="one")(x))
            x = nn.tanh(nn.remat(nn.Dense)(4, name="two")(x))
            return nn.Dense(CLASSES, name="head")(x)

    whole, x = from_linen(Lifted(), (5,)), jnp.ones((2, 5))
    whole = whole._replace(predict=jax.jit(whole.predict))
    base = whole.init(KEY)
    for scale in (0.5, 2.0):
        task = adapted(whole, base, rank=2, scale=scale)
        for seed in range(2):
            mine = randomized(task.init(KEY), seed)
            np.testing.assert_allclose(task.predict(mine, x), whole.predict(task.base.merge(mine), x), rtol=1e-5)


def test_running_statistics_are_the_clients():
    """They start from the base's, and training moves them. Failed with those of a new model."""
    whole = resnet18(CLASSES, shape=(8, 8), widths=(2,))
    start = whole.init(KEY)
    base = start._replace(stats=jax.tree.map(lambda a: a + 3, start.stats))
    task = adapted(whole, base, rank=1)
    mine = task.init(KEY)
    chex.assert_trees_all_equal(mine.stats, base.stats)
    batch = fedamp_jax.Batch(jnp.ones((4, 8, 8)), jnp.zeros(4, jnp.int32), jnp.ones(4, bool), jnp.int32(CLASSES))
    chex.assert_trees_all_close(task.loss(mine, batch, KEY)[1], whole.loss(base, batch, KEY)[1])
    with pytest.raises(ValueError, match=r"base has not the running statistics of the task, .*mean"):
        adapted(whole, Variables(base.params))


def test_a_linear_probe():
    """Rank 0 trains the head alone, of any task, from the base's head or a new one. Failed with a head that was copied
    from the base whatever its shape.
    """
    whole = tiny_task()
    base = whole.init(jax.random.key(5))
    probe = adapted(whole, base, rank=0)
    chex.assert_trees_all_equal(probe.init(KEY).params, {"head": base.params["head"]})
    new = adapted(whole, base._replace(params={"body": base.params["body"]}), rank=0)
    chex.assert_trees_all_equal(new.init(KEY).params, {"head": whole.init(KEY).params["head"]})
    batch = batch_of(federation().client(2))
    start = probe.init(KEY)
    chex.assert_trees_all_equal(probe.loss(start, batch, KEY), whole.loss(base, batch, KEY))
    with pytest.raises(
        ValueError, match=r"head/kernel has shape \(4, 7\) in base and \(4, 3\) in the task: leave it out"
    ):
        adapted(whole, base._replace(params={**base.params, "head": {"kernel": jnp.ones((4, 7))}}), rank=0)


def test_what_words_name():
    """Attention by the layers' paths, words and patterns, and what is trained itself has no adapter.

    Failed with adapters of trained layers, and of grouped convolutions.
    """

    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.MultiHeadDotProductAttention(2)(nn.LayerNorm()(x))
            return nn.Dense(4, name="mlp")(x)

    class Encoder(nn.Module):
        @nn.compact
        def __call__(self, x):
            x = nn.Conv(4, (3,), name="conv")(x)
            x = nn.Conv(4, (3,), name="grouped", feature_group_count=2)(x)
            x = Block(name="one")(Block(name="two")(x)).mean(1)
            return nn.Dense(CLASSES, name="head")(x)

    whole = from_linen(Encoder(), (6, 4))
    base = whole.init(KEY)

    def layers(**words):
        names = path_names(adapted(whole, base, rank=2, **words).init(KEY).params)
        return {name.removesuffix("/lora_a") for name in names if name.endswith("lora_a")}

    attention = "MultiHeadDotProductAttention_0"
    projections = {f"{block}/{attention}/{one}" for block in ("one", "two") for one in ("query", "key", "value", "out")}
    assert layers(where="attention") == projections
    assert layers(where="conv") == {"conv"}
    assert layers(where="dense") == projections | {"one/mlp", "two/mlp"}
    assert layers() == layers(where=("dense", "conv"))
    assert layers(where=("*/query", "two/mlp")) == {f"{b}/{attention}/query" for b in ("one", "two")} | {"two/mlp"}
    assert layers(where="one") == {name for name in layers(where="dense") if name.startswith("one/")}
    assert layers(train="norm") == layers() | {"head"} == layers(train=())
    assert layers(train=("head", "one")) == layers() - layers(where="one")
    trained = path_names(adapted(whole, base, rank=0, train=("norm", "*/bias")).init(KEY).params)
    assert "one/LayerNorm_0/scale" in trained and "two/mlp/bias" in trained and "head/kernel" not in trained


def test_what_cannot_be_adapted_is_refused():
    """With what to do. Failed without the check of the base's names, as jax then says less."""
    whole, _ = plain()
    base = whole.init(KEY)
    for arguments, message in (
        ({"where": "conv"}, "where='conv' matches no layer that is not trained itself; there are: body"),
        ({"where": "head"}, "where='head' matches no layer"),
        ({"train": "norm"}, "train='norm' matches no parameter; there are: body/bias, body/kernel"),
        ({"rank": 0, "train": ()}, "nothing would be trained"),
        ({"rank": -1}, "rank must be at least 0"),
        ({"scale": 0.0}, "scale must be greater than 0"),
    ):
        with pytest.raises(ValueError, match=message):
            adapted(whole, base, **arguments)
    with pytest.raises(TypeError, match="base must be of type Variables"):
        adapted(whole, base.params)
    with pytest.raises(ValueError, match="base has no parameter body/bias, which is not trained; it has: head/bias"):
        adapted(whole, Variables({"head": base.params["head"]}))
    with pytest.raises(ValueError, match=r"where='all' matches no layer .* only tasks made from Flax modules"):
        adapted(tiny_task(), tiny_task().init(KEY))

    class Scanned(nn.Module):
        @nn.compact
        def __call__(self, x):
            layers = nn.scan(
                lambda dense, x, _: (dense(x), None), variable_axes={"params": 0}, split_rngs={"params": True}, length=3
            )
            x = layers(nn.Dense(5, name="stack"), x, None)[0]
            return nn.Dense(CLASSES, name="head")(x)

    scanned = from_linen(Scanned(), (5,))
    with pytest.raises(ValueError, match=r"stack holds the kernels of several layers, as in nn.scan"):
        adapted(scanned, scanned.init(KEY))


def test_saved_adapters_know_their_base(tmp_path):
    """Another base or scale is refused, other values of what is trained are not. Failed with a hash of the names."""
    whole, task = plain()
    base, path = whole.init(KEY), tmp_path / "models.npz"
    models = jax.vmap(task.init)(jax.random.split(KEY, 3))
    fedamp_jax.save_models(path, task, models, names=["a", "b", "c"])
    chex.assert_trees_all_equal(fedamp_jax.load_models(path, task).models, models)
    words = {"rank": 2, "train": ("head", "body/bias")}
    params = base.params
    head = {**params, "head": jax.tree.map(lambda a: a + 1, params["head"])}
    chex.assert_trees_all_equal(fedamp_jax.load_models(path, adapted(whole, Variables(head), **words)).models, models)
    kernel = params["body"]["kernel"].at[0, 0].add(1e-3)
    other = Variables({**params, "body": {**params["body"], "kernel": kernel}})
    for wrong in (adapted(whole, other, **words), adapted(whole, base, scale=2.0, **words)):
        with pytest.raises(ValueError, match="adapters of another base than the task's"):
            fedamp_jax.load_models(path, wrong)
    with pytest.raises(ValueError, match="adapters of another base"):
        fedamp_jax.load_models(path, task._replace(base=None))
