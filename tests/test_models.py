"""Tasks made from Linen modules: loss, padding, statistics, head, and the papers' networks."""

import functools

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedamp_jax
from fedamp_jax.models import Classifier, cifar_cnn, cnn, cross_entropy, from_linen, mlp, omniglot_cnn, resnet18
from fedamp_jax.types import Batch, Variables

SHAPE = (8, 8)
SMALL = {
    "mlp": lambda **kw: mlp(4, hidden=(6,), shape=SHAPE, **kw),
    "cnn": lambda **kw: cnn(4, shape=SHAPE, filters=(3, 5), hidden=(6,), **kw),
    "resnet_batch": lambda **kw: resnet18(4, shape=SHAPE, widths=(4, 8), **kw),
    "resnet_group": lambda **kw: resnet18(4, shape=SHAPE, widths=(4, 8), norm="group", **kw),
}
small = pytest.mark.parametrize("name", SMALL)


@functools.cache
def _task(name):
    return SMALL[name]()


def _batch(rows=6, real=6, classes=4, seed=0):
    """`rows` examples of which the first `real` count; pixels as float, so that they can be poisoned."""
    x = jax.random.uniform(jax.random.key(seed), (rows, *SHAPE))
    mask = jnp.arange(rows) < real
    y = jnp.where(mask, jnp.arange(rows, dtype=jnp.int32) % classes, 0)
    return Batch(x, y, mask, jnp.int32(classes))


@functools.partial(jax.jit, static_argnums=0)
def _step(task, variables, batch, key):
    """Loss, gradient of every parameter, new statistics."""
    loss = lambda params: task.loss(variables._replace(params=params), batch, key)  # noqa: E731
    (value, stats), gradient = jax.value_and_grad(loss, has_aux=True)(variables.params)
    return value, gradient, stats


def _assert_close(mine, theirs, **tolerance):
    assert jax.tree.structure(mine) == jax.tree.structure(theirs)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} | tolerance
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **tolerance), mine, theirs)


def _count(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


# Cross entropy


def test_cross_entropy_equals_numpy_in_float64():
    """Fails if the mean divides by the length of the batch, or if foreign classes share in the probability."""
    logits = np.asarray(jax.random.normal(jax.random.key(0), (5, 7)))
    y, mask = jnp.array([0, 3, 2, 1, 0]), jnp.array([True, True, False, True, False])
    batch = Batch(jnp.zeros((5, 1)), y, mask, jnp.int32(4))
    own = logits.astype(np.float64)[[0, 1, 3], :4]
    log_p = own - np.log(np.exp(own).sum(1, keepdims=True))
    expected = -np.mean([log_p[0, 0], log_p[1, 3], log_p[2, 1]])
    value, gradient = jax.value_and_grad(cross_entropy)(jnp.asarray(logits), batch)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    one_hot = np.eye(4)[[0, 3, 1]]
    np.testing.assert_allclose(np.asarray(gradient)[[0, 1, 3], :4], (np.exp(log_p) - one_hot) / 3, atol=1e-7)


@pytest.mark.parametrize("high", [0.0, 1e4, -1e4])
def test_foreign_classes_have_probability_exactly_zero(high):
    """Fails if their logits are multiplied by zero or lowered by a constant instead of replaced."""
    logits = jnp.full((3, 5), high).at[:, 3:].set(3e4)
    batch = Batch(jnp.zeros((3, 1)), jnp.array([0, 1, 2]), jnp.ones(3, bool), jnp.int32(3))
    value, gradient = jax.value_and_grad(cross_entropy)(logits, batch)
    np.testing.assert_allclose(value, np.log(3), rtol=1e-6)
    assert jnp.all(gradient[:, 3:] == 0)


@pytest.mark.parametrize("poison", [jnp.nan, jnp.inf, -jnp.inf])
def test_padding_rows_reach_neither_value_nor_gradient(poison):
    """Fails if only the loss is selected and not the logits under it: the gradient is then 0 * NaN."""
    batch = _batch(rows=4, real=3)
    logits = jax.random.normal(jax.random.key(0), (4, 4))
    value, gradient = jax.value_and_grad(cross_entropy)(logits.at[3].set(poison), batch)
    expected = jax.value_and_grad(cross_entropy)(logits, batch)
    np.testing.assert_array_equal(value, expected[0])
    np.testing.assert_array_equal(gradient, expected[1])
    assert jnp.all(gradient[3] == 0)


def test_no_real_row():
    """Fails if the mean divides by zero."""
    value, gradient = jax.value_and_grad(cross_entropy)(jnp.ones((4, 4)), _batch(rows=4, real=0))
    assert value == 0 and jnp.all(gradient == 0)


# Every model


@small
def test_poisoned_padding_changes_nothing(name):
    """NaN pixels in padding rows. Fails if the input is not cleaned before the network: in BatchNorm's variance a
    selected NaN comes back as 0 * NaN in the gradient, in a dense layer's as 0 * NaN of the kernel's.
    """
    task, batch = _task(name), _batch(rows=6, real=4)
    variables = task.init(jax.random.key(1))
    poisoned = batch._replace(x=batch.x.at[4:].set(jnp.nan))
    key = jax.random.key(2)
    _assert_close(_step(task, variables, poisoned, key), _step(task, variables, batch, key), rtol=0, atol=0)


@small
def test_partial_batch_equals_the_unpadded_one(name):
    """Fails if BatchNorm gets no mask: its statistics, and so value and gradients, would contain the padding."""
    task = _task(name)
    variables = task.init(jax.random.key(1))
    whole = _batch(rows=4, real=4)
    padded = jax.tree.map(lambda a: jnp.concatenate([a, jnp.ones_like(a[:2])]) if a.ndim else a, whole)
    padded = padded._replace(mask=jnp.arange(6) < 4)
    key = jax.random.key(2)
    # BatchNorm sums in another order, and the last layers' gradients are differences of nearly equal numbers.
    _assert_close(_step(task, variables, padded, key), _step(task, variables, whole, key), rtol=1e-3, atol=2e-5)


@small
def test_batch_of_only_padding(name):
    """Fails if BatchNorm takes the mean of no row, which is NaN, or if its statistics move."""
    task = _task(name)
    variables = task.init(jax.random.key(1))
    value, gradient, stats = _step(task, variables, _batch(real=0), jax.random.key(2))
    assert value == 0
    assert all(jnp.all(leaf == 0) for leaf in jax.tree.leaves(gradient))
    _assert_close(stats, variables.stats, rtol=0, atol=0)


@small
def test_features_and_head_loss_are_the_loss(name):
    """Fails if the features lack what the head reads, if statistics are lost, or if padding reaches the head."""
    task, batch, key = _task(name), _batch(real=4), jax.random.key(2)
    variables = task.init(jax.random.key(1))
    assert set(variables.params) == {"body", "head"} and task.head == ("head",)
    features, stats = task.features(variables, batch, key)
    value, gradient, expected_stats = _step(task, variables, batch, key)
    _assert_close(stats, expected_stats)
    features = features.at[4:].set(jnp.nan)
    loss = lambda params: task.head_loss(variables._replace(params=params), features, batch)  # noqa: E731
    mine, head_gradient = jax.value_and_grad(loss)(variables.params)
    np.testing.assert_allclose(mine, value, rtol=1e-5)
    _assert_close(head_gradient["head"], gradient["head"])


@small
def test_uint8_equals_its_fraction(name):
    """Fails if uint8 is not divided by 255, or is divided before it is a float."""
    task = _task(name)
    variables = task.init(jax.random.key(1))
    raw = jax.random.randint(jax.random.key(0), (5, *SHAPE), 0, 256).astype(jnp.uint8)
    mine, fraction = task.predict(variables, raw), task.predict(variables, raw.astype(jnp.float32) / 255)
    np.testing.assert_allclose(mine, fraction, rtol=1e-6)
    np.testing.assert_allclose(task.predict(variables, raw[..., None]), mine, rtol=1e-6)
    assert mine.shape == (5, 4) and mine.dtype == jnp.float32
    assert jnp.std(mine) > 0


@small
def test_vmap_over_clients_equals_one_after_the_other(name):
    """Fails if a model mixes clients, as BatchNorm does that names the client axis."""
    task = _task(name)
    keys = jax.random.split(jax.random.key(0), 3)
    variables = jax.vmap(task.init)(keys)
    batches = [_batch(real=real, classes=classes, seed=real) for real, classes in ((6, 4), (3, 2), (1, 3))]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)
    together = jax.jit(jax.vmap(functools.partial(_step, task)))(variables, stacked, keys)
    for i, batch in enumerate(batches):
        alone = _step(task, jax.tree.map(lambda a, i=i: a[i], variables), batch, keys[i])
        _assert_close(jax.tree.map(lambda a, i=i: a[i], together), alone, rtol=1e-3, atol=2e-5)


@pytest.mark.parametrize("name", ["cnn", "resnet_batch"])
@pytest.mark.parametrize("conv", ["loop", "patches"])
def test_lowerings_agree(name, conv):
    """Fails if a lowering pads or strides otherwise than XLA's convolution, or if `conv` does not reach the layers."""
    task, plain = SMALL[name](conv=conv), SMALL[name](conv="xla")
    variables, key, batch = plain.init(jax.random.key(1)), jax.random.key(2), _batch(real=5)
    mine, theirs = (_step(t, variables, batch, key) for t in (task, plain))
    _assert_close(mine, theirs, rtol=1e-3, atol=2e-5)
    texts = [str(jax.make_jaxpr(t.predict)(variables, batch.x)) for t in (task, plain)]
    assert texts[0] != texts[1]


@small
def test_bfloat16_computes_low_and_keeps_float32(name):
    """Fails if parameters, statistics, logits or gradients become bfloat16, or if the arithmetic stays float32."""
    task, full = SMALL[name](compute_dtype=jnp.bfloat16), _task(name)
    variables = task.init(jax.random.key(1))
    batch = _batch()
    value, gradient, stats = _step(task, variables, batch, jax.random.key(2))
    logits = task.predict(variables, batch.x)
    for leaf in jax.tree.leaves((variables, value, gradient, stats, logits)):
        assert leaf.dtype == jnp.float32
    np.testing.assert_allclose(logits, full.predict(variables, batch.x), atol=0.1)
    program = jax.jit(task.predict).lower(variables, batch.x).as_text().splitlines()
    products = [line for line in program if "stablehlo.dot_general" in line or "stablehlo.convolution" in line]
    assert len(products) > 1
    assert sum(line.rstrip().split(" loc(")[0].endswith("f32>") for line in products) == 1  # the head


# BatchNorm


def test_statistics_follow_the_real_rows_and_prediction_uses_them():
    """Fails if prediction normalises by the batch it is given, or if training does not return new statistics."""
    task = _task("resnet_batch")
    variables = task.init(jax.random.key(1))
    batch = _batch()
    _, _, stats = _step(task, variables, batch, jax.random.key(2))
    moved = jax.tree.map(lambda a, b: float(jnp.max(jnp.abs(a - b))), stats, variables.stats)
    assert min(jax.tree.leaves(moved)) > 0
    trained = variables._replace(stats=stats)
    together = task.predict(trained, batch.x)
    alone = jnp.concatenate([task.predict(trained, row[None]) for row in batch.x])
    np.testing.assert_allclose(together, alone, rtol=1e-4, atol=1e-5)
    assert jnp.max(jnp.abs(task.predict(variables, batch.x) - together)) > 1e-3


def test_models_without_statistics_have_none():
    """Fails if `stats` is a tree with empty branches, which would not equal what training returns."""
    for name in ("mlp", "cnn", "resnet_group"):
        assert _task(name).init(jax.random.key(0)).stats == ()


# The papers' networks


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: mlp(10), 784 * 200 + 200 + 200 * 10 + 10),
        (lambda: cnn(10), 1_663_370),
        (lambda: cnn(62, shape=(28, 28, 1)), 1_663_370 + 52 * 513),
        (lambda: cifar_cnn(10), 1_756_426),
        (lambda: omniglot_cnn(55), (9 + 1) * 64 + 3 * (9 * 64 + 1) * 64 + 65 * 55),
        (lambda: resnet18(10), 11_173_962),
        (lambda: resnet18(100, norm="group"), 11_220_132),
    ],
    ids=["mlp", "cnn", "cnn_emnist", "cifar_cnn", "omniglot_cnn", "resnet18", "resnet18_group"],
)
def test_parameter_counts(make, expected):
    """Fails for VALID convolutions in the CNN, a bias too many in ResNet18, or a missing layer."""
    variables = jax.eval_shape(make().init, jax.random.key(0))
    assert _count(variables.params) == expected
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(variables))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: mlp(0), "classes must be at least 1, got 0"),
        (lambda: cnn(0), "classes must be at least 1, got 0"),
        (lambda: resnet18(0), "classes must be at least 1, got 0"),
        (lambda: mlp(10, hidden=(5, 0)), "hidden must be at least 1, got 0"),
        (lambda: cnn(10, filters=(32, -1)), "each of filters must be at least 1, got -1"),
        (lambda: cnn(10, hidden=(0,)), "each of hidden must be at least 1, got 0"),
        (lambda: resnet18(10, widths=(64, 0)), "each width in widths must be at least 1, got 0"),
        (lambda: resnet18(10, widths=()), "widths is empty"),
        (lambda: resnet18(10, norm="bach"), "norm must be one of 'batch', 'group', got 'bach'; did you mean 'batch'?"),
        (lambda: cnn(10, conv="patch"), "conv must be one of .* did you mean 'patches'?"),
        (lambda: resnet18(10, conv="patch"), "conv must be one of .* did you mean 'patches'?"),
        (lambda: cnn(10, shape=(3, 8)), r"shape \(3, 8\) are too small: .* 4x4 .* mlp\(classes, shape=\(3, 8\)\)"),
        (lambda: omniglot_cnn(10, shape=(8, 8)), r"images of shape \(8, 8\) are too small: .* 16x16"),
        (lambda: cnn(10, shape=(64,)), r"shape must be \(height, width\) or .*, got \(64,\)"),
    ],
)
def test_refuses_before_anything_is_traced(make, message):
    """Fails if a wrong argument surfaces only inside Flax, as a shape error that names nothing the user wrote."""
    with pytest.raises(ValueError, match=message):
        make()


@small
def test_wrong_shape_of_x(name):
    """Fails if a transposed or flattened image is reshaped, broadcast, or refused by a layer inside."""
    task = _task(name)
    variables = task.init(jax.random.key(0))
    for shape in ((2, 64), (2, 4, 16), (2, 8, 8, 3)):
        with pytest.raises(ValueError, match=rf"x has shape .*examples of shape \(8, 8\).*shape=\{shape[1:]}"[:-1]):
            jax.eval_shape(task.predict, variables, jnp.zeros(shape))


# Anybody's module


class Plain(nn.Module):
    """Knows neither `train` nor `mask`; its last layer is not the last in the alphabet."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, name="alpha")(nn.relu(nn.Dense(5, name="zeta")(x)))


class Rich(nn.Module):
    """Dropout, BatchNorm with a mask, and eleven layers whose names sort otherwise than they are made."""

    @nn.compact
    def __call__(self, x, train, mask):
        for _ in range(10):
            x = nn.Dense(4)(x)
        x = nn.BatchNorm(use_running_average=not train)(x, mask=mask[:, None])
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.Dense(3)(x)


def _vector_batch(real=4):
    x = jax.random.normal(jax.random.key(0), (4, 6))
    return Batch(x, jnp.arange(4, dtype=jnp.int32) % 3, jnp.arange(4) < real, jnp.int32(3))


def test_module_that_knows_nothing():
    """Fails if `train` or `mask` is passed to a module that does not take it, or if the head is chosen by alphabet."""
    task = from_linen(Plain(), (6,))
    assert task.head == ("alpha",)
    assert task.features is None and task.head_loss is None
    variables = task.init(jax.random.key(0))
    assert variables.stats == ()
    loss, stats = task.loss(variables, _vector_batch(), jax.random.key(1))
    params = variables.params
    hidden = jax.nn.relu(_vector_batch().x @ params["zeta"]["kernel"])
    expected = cross_entropy(hidden @ params["alpha"]["kernel"], _vector_batch())
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert stats == ()


def test_module_with_dropout_and_batch_norm():
    """Fails if dropout gets no key or stays on in prediction, or if the last of eleven layers is taken for Dense_9."""
    task = from_linen(Rich(), (6,))
    assert task.head == ("Dense_10",)
    variables = task.init(jax.random.key(0))
    losses = [float(task.loss(variables, _vector_batch(), jax.random.key(i))[0]) for i in (1, 1, 2)]
    assert losses[0] == losses[1] != losses[2]
    logits = [task.predict(variables, _vector_batch().x) for _ in range(2)]
    np.testing.assert_array_equal(*logits)
    batch = _vector_batch(real=2)
    poisoned = batch._replace(x=batch.x.at[2:].set(jnp.nan))
    key = jax.random.key(1)
    _assert_close(_step(task, variables, poisoned, key), _step(task, variables, batch, key), rtol=0, atol=0)


def test_head_is_any_set_of_whole_names():
    """Fails if a prefix is compared letter by letter (Dense_1 would be the beginning of Dense_10) or not at all."""
    assert from_linen(Rich(), (6,), head=("Dense_1/kernel", "BatchNorm_0")).head == ("Dense_1/kernel", "BatchNorm_0")
    assert from_linen(Plain(), (6,), head="zeta").head == ("zeta",)
    with pytest.raises(ValueError, match=r"head='Dense' is the beginning of no parameter's path; .*Dense_0/"):
        from_linen(Rich(), (6,), head=("Dense_1", "Dense"))
    with pytest.raises(ValueError, match="head names no parameter"):
        from_linen(Plain(), (6,), head=())


def test_tokens_stay_integers():
    """Fails if integers are converted to float or the model is initialised with floats."""

    class Tokens(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.Dense(3)(jnp.mean(nn.Embed(7, 5)(x), 1))

    task = from_linen(Tokens(), (4,), dtype=jnp.int32)
    batch = Batch(jnp.ones((2, 4), jnp.int32), jnp.zeros(2, jnp.int32), jnp.ones(2, bool), jnp.int32(3))
    assert jnp.isfinite(task.loss(task.init(jax.random.key(0)), batch, jax.random.key(0))[0])


def test_refuses_modules_it_cannot_use():
    """Fails if further collections are dropped in silence, or logits of another rank are broadcast."""

    class Counter(nn.Module):
        @nn.compact
        def __call__(self, x):
            self.variable("counts", "n", lambda: jnp.zeros(()))
            return nn.Dense(3)(x)

    with pytest.raises(ValueError, match=r"variables \['counts'\]; only 'params' and 'batch_stats'"):
        from_linen(Counter(), (6,))
    with pytest.raises(ValueError, match=r"logits must be \[B, C\]; for x of shape \(1, 5, 6\).* \(1, 5, 3\)"):
        from_linen(Plain(), (5, 6))
    with pytest.raises(ValueError, match="no parameters"):
        from_linen(nn.Sequential([nn.relu]), (6,))


def test_classifier_takes_any_body():
    """Fails if the cut between body and head is known only to the models of this package."""

    class Body(nn.Module):
        @nn.compact
        def __call__(self, x, train, mask):
            return nn.tanh(nn.Dense(5)(x))

    task = from_linen(Classifier(Body(), 3), (6,))
    variables = task.init(jax.random.key(0))
    assert isinstance(variables, Variables)
    features, _ = task.features(variables, _vector_batch(), jax.random.key(1))
    assert features.shape == (4, 5)
    loss = task.loss(variables, _vector_batch(), jax.random.key(1))[0]
    np.testing.assert_allclose(task.head_loss(variables, features, _vector_batch()), loss, rtol=1e-6)


def test_a_model_looks_tokens_up():
    """With the package's own data, which keep tokens as float32. Failed with "Input type must be an integer"."""
    task = from_linen(Tokens(), (2,), dtype=jnp.int32)
    data = fedamp_jax.data.from_lists([np.array([[1, 2], [300, 4]])], [[0, 1]])
    variables = task.init(jax.random.key(0))
    table = variables.params["Embed_0"]["embedding"]
    expected = jnp.stack([table[1] + table[2], table[300] + table[4]]) @ variables.params["Dense_0"]["kernel"]
    np.testing.assert_allclose(task.predict(variables, data.x[0]), expected, rtol=1e-5)


class Tokens(nn.Module):
    """A bag of words."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.Embed(400, 3)(x).sum(axis=1))
