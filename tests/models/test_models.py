"""Tasks made from Linen modules: loss, padding, statistics, head, dtypes, and the papers' networks."""

import functools
import re

import chex
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedamp_jax
from fedamp_jax.checks import check_number
from fedamp_jax.driver.evaluation import check_task_fits
from fedamp_jax.models import Classifier, cifar_cnn, cnn, cross_entropy, from_linen, mlp, omniglot_cnn, resnet18
from fedamp_jax.models.resnet import Norm
from fedamp_jax.trees import check_float32
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


@functools.cache
def _variables(name):
    return jax.jit(_task(name).init)(jax.random.key(1))


def _batch(rows=6, real=6, classes=4, seed=0):
    """`rows` examples, of which the first `real` are real; pixels are floats, so that they can be NaN."""
    x = np.random.default_rng(seed).random((rows, *SHAPE), np.float32)
    mask = np.arange(rows) < real
    y = np.where(mask, np.arange(rows) % classes, 0).astype(np.int32)
    return Batch(jnp.asarray(x), jnp.asarray(y), jnp.asarray(mask), jnp.int32(classes))


@functools.partial(jax.jit, static_argnums=0)
def _step(task, variables, batch, key):
    """Loss, gradient of every parameter, new statistics."""

    def loss(params):
        return task.loss(variables._replace(params=params), batch, key)

    (value, stats), gradient = jax.value_and_grad(loss, has_aux=True)(variables.params)
    return value, gradient, stats


@functools.partial(jax.jit, static_argnums=0)
def _predict(task, variables, x):
    return task.predict(variables, x)


_cross_entropy = jax.jit(jax.value_and_grad(cross_entropy))


def _assert_close(mine, theirs):
    """Up to rounding: BatchNorm sums in another order, and some gradients are differences of nearly equal numbers."""
    chex.assert_trees_all_close(mine, theirs, rtol=1e-3, atol=2e-5)


def _count(tree):
    return sum(leaf.size for leaf in jax.tree.leaves(tree))


# Cross entropy


def test_cross_entropy_equals_numpy_in_float64():
    """Fails if the mean divides by the size of the batch, or if other clients' classes have a probability."""
    logits = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    y, mask = jnp.array([0, 3, 2, 1, 0]), jnp.array([True, True, False, True, False])
    batch = Batch(jnp.zeros((5, 1)), y, mask, jnp.int32(4))
    own = logits.astype(np.float64)[[0, 1, 3], :4]
    log_p = own - np.log(np.exp(own).sum(1, keepdims=True))
    expected = -np.mean([log_p[0, 0], log_p[1, 3], log_p[2, 1]])
    value, gradient = _cross_entropy(jnp.asarray(logits), batch)
    assert value.dtype == jnp.float32
    np.testing.assert_allclose(value, expected, rtol=1e-6)
    one_hot = np.eye(4)[[0, 3, 1]]
    np.testing.assert_allclose(np.asarray(gradient)[[0, 1, 3], :4], (np.exp(log_p) - one_hot) / 3, atol=1e-7)


@pytest.mark.parametrize("high", [0.0, 1e4, -1e4])
def test_other_classes_have_probability_exactly_zero(high):
    """Fails if their logits are multiplied by zero or lowered by a constant instead of replaced."""
    logits = jnp.full((3, 5), high).at[:, 3:].set(3e4)
    batch = Batch(jnp.zeros((3, 1)), jnp.array([0, 1, 2]), jnp.ones(3, bool), jnp.int32(3))
    value, gradient = _cross_entropy(logits, batch)
    np.testing.assert_allclose(value, np.log(3), rtol=1e-6)
    assert jnp.all(gradient[:, 3:] == 0)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_padding_rows_affect_neither_value_nor_gradient(poison):
    """Fails if only the loss is selected and not the logits it is computed from: the gradient is then 0 * NaN."""
    batch = _batch(rows=4, real=3)
    logits = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
    poisoned = np.where(np.arange(4)[:, None] == 3, np.float32(poison), logits)
    value, gradient = _cross_entropy(poisoned, batch)
    chex.assert_trees_all_equal((value, gradient), _cross_entropy(logits, batch))
    assert jnp.all(gradient[3] == 0)


def test_no_real_row():
    """Fails if the mean divides by zero."""
    value, gradient = _cross_entropy(jnp.ones((4, 4)), _batch(rows=4, real=0))
    assert value == 0 and jnp.all(gradient == 0)


# Every model


@small
@pytest.mark.slow_variants
def test_poisoned_padding_changes_nothing(name):
    """NaN pixels in padding rows. Fails if the input is not cleaned before the network: a NaN that is masked later, in
    BatchNorm's variance or after a dense layer, comes back as 0 * NaN in the gradient.
    """
    task, variables, key = _task(name), _variables(name), jax.random.key(2)
    batch = _batch(real=4)
    poisoned = batch._replace(x=batch.x.at[4:].set(jnp.nan))
    chex.assert_trees_all_equal(_step(task, variables, poisoned, key), _step(task, variables, batch, key))


@pytest.mark.parametrize("name", ["cnn", pytest.param("resnet_batch", marks=pytest.mark.slow)])
def test_partial_batch_equals_the_unpadded_one(name):
    """Fails if BatchNorm gets no mask: its statistics, and so value and gradients, include the padding."""
    task, variables, key = _task(name), _variables(name), jax.random.key(2)
    unpadded = _batch(rows=4, real=4)
    padded = jax.tree.map(lambda a: np.concatenate([a, np.ones_like(a[:2])]) if a.ndim else a, unpadded)
    padded = padded._replace(mask=np.arange(6) < 4)
    _assert_close(_step(task, variables, padded, key), _step(task, variables, unpadded, key))


@small
@pytest.mark.slow_variants
def test_batch_of_only_padding(name):
    """Fails if BatchNorm takes the mean of no rows, which is NaN, or if its statistics change."""
    task, variables = _task(name), _variables(name)
    value, gradient, stats = _step(task, variables, _batch(real=0), jax.random.key(2))
    assert value == 0
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(gradient))
    chex.assert_trees_all_equal(stats, variables.stats)


@small
@pytest.mark.slow_variants
def test_features_and_head_loss_are_the_loss(name):
    """Fails if the features lack an input of the head, if statistics are lost, or if padding reaches the head."""
    task, variables, batch, key = _task(name), _variables(name), _batch(real=4), jax.random.key(2)
    assert set(variables.params) == {"body", "head"} and task.head == ("head",)

    @jax.jit
    def in_two_parts(variables, batch, key):
        features, stats = task.features(variables, batch, key)
        features = features.at[4:].set(jnp.nan)

        def loss(params):
            return task.head_loss(variables._replace(params=params), features, batch)

        return *jax.value_and_grad(loss)(variables.params), stats

    mine, head_gradient, stats = in_two_parts(variables, batch, key)
    value, gradient, expected_stats = _step(task, variables, batch, key)
    chex.assert_trees_all_close(
        (mine, head_gradient["head"], stats), (value, gradient["head"], expected_stats), rtol=1e-5, atol=1e-6
    )


@small
def test_predicted_features_are_the_input_of_the_head(name):
    """In evaluation mode, with running statistics. Fails with the features of training."""
    task, variables, x = _task(name), _variables(name), _batch().x
    h = jax.jit(task.predict_features)(variables, x)
    head = variables.params["head"]
    assert h.dtype == jnp.float32 and h.shape[1] == len(head["kernel"])
    expected = jax.jit(task.predict)(variables, x)
    np.testing.assert_allclose(h @ head["kernel"] + head["bias"][None], expected, rtol=1e-4, atol=1e-5)


@small
def test_uint8_equals_its_fraction(name):
    """Fails if uint8 is not divided by 255, or is divided before it is converted to float."""
    task, variables = _task(name), _variables(name)
    raw = np.random.default_rng(0).integers(0, 256, (6, *SHAPE)).astype(np.uint8)
    mine, fraction = _predict(task, variables, raw), _predict(task, variables, raw.astype(np.float32) / 255)
    np.testing.assert_allclose(mine, fraction, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(_predict(task, variables, raw[..., None]), mine, rtol=1e-5, atol=1e-6)
    chex.assert_shape(mine, (6, 4))
    assert mine.dtype == jnp.float32 and jnp.std(mine) > 0


@pytest.mark.parametrize("name", ["cnn", pytest.param("resnet_batch", marks=pytest.mark.slow)])
def test_vmap_over_clients_equals_a_loop(name):
    """Fails if a model mixes clients, as does a BatchNorm that names the client axis."""
    task = _task(name)
    keys = jax.random.split(jax.random.key(0), 3)
    variables = jax.jit(jax.vmap(task.init))(keys)
    batches = [_batch(real=real, classes=classes, seed=real) for real, classes in ((6, 4), (3, 2), (1, 3))]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *batches)
    together = jax.jit(jax.vmap(functools.partial(_step, task)))(variables, stacked, keys)
    for i, batch in enumerate(batches):

        def client(tree, i=i):
            return jax.tree.map(lambda a: a[i], tree)

        _assert_close(client(together), _step(task, client(variables), batch, keys[i]))


@pytest.mark.parametrize("name", ["cnn", pytest.param("resnet_batch", marks=pytest.mark.slow)])
def test_lowerings_agree(name):
    """Fails if a lowering pads or strides differently from XLA's, or if `conv` does not reach the layers."""
    variables, key, batch = _variables(name), jax.random.key(2), _batch(real=5)
    tasks = [_task(name), SMALL[name](conv="patches"), SMALL[name](conv="xla")]  # the first is "loop" on CPUs
    loop, patches, xla = (_step(task, variables, batch, key) for task in tasks)
    _assert_close(loop, xla)
    _assert_close(patches, xla)
    assert len({str(jax.make_jaxpr(task.predict)(variables, batch.x)) for task in tasks}) == 3


@small
@pytest.mark.slow_variants
def test_bfloat16_computes_low_and_keeps_float32(name):
    """Fails if parameters, statistics, logits or gradients become bfloat16, or if the arithmetic stays float32."""
    task = SMALL[name](compute_dtype=jnp.bfloat16)
    variables, batch = _variables(name), _batch()
    chex.assert_trees_all_equal_shapes_and_dtypes(jax.eval_shape(task.init, jax.random.key(1)), variables)
    outputs = jax.eval_shape(functools.partial(_step, task), variables, batch, jax.random.key(2))
    assert {leaf.dtype for leaf in jax.tree.leaves((variables, outputs))} == {jnp.dtype(jnp.float32)}
    logits = _predict(task, variables, batch.x)
    assert logits.dtype == jnp.float32
    np.testing.assert_allclose(logits, _predict(_task(name), variables, batch.x), atol=0.1)
    program = jax.jit(task.predict).lower(variables, batch.x).as_text().splitlines()
    products = [line for line in program if "stablehlo.dot_general" in line or "stablehlo.convolution" in line]
    assert len(products) > 1
    assert sum(line.rstrip().split(" loc(")[0].endswith("f32>") for line in products) == 1  # the head


# BatchNorm


def test_statistics_follow_the_real_rows_and_prediction_uses_them():
    """Fails if prediction normalizes by the batch it is given, or if training does not return new statistics."""
    task, variables, batch = _task("resnet_batch"), _variables("resnet_batch"), _batch()
    _, _, stats = _step(task, variables, batch, jax.random.key(2))
    moved = jax.tree.map(lambda a, b: np.abs(a - b).max(), stats, variables.stats)
    assert min(jax.tree.leaves(moved)) > 0
    trained = variables._replace(stats=stats)
    together = _predict(task, trained, batch.x)
    repeated = jnp.stack([_predict(task, trained, jnp.stack([row] * 6))[0] for row in batch.x])
    np.testing.assert_allclose(together, repeated, rtol=1e-4, atol=1e-5)
    assert jnp.max(jnp.abs(_predict(task, variables, batch.x) - together)) > 1e-3


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet_group"])
def test_models_without_statistics_have_none(name):
    """Fails if `stats` is a tree with empty branches, which differs from what training returns."""
    assert _variables(name).stats == ()


@pytest.mark.parametrize(("channels", "groups"), [(64, 32), (16, 8), (6, 2), (5, 1), (2, 1), (1, 1)])
@pytest.mark.slow_variants
def test_group_norm_of_narrow_layers(channels, groups):
    """Fails if a group has a single channel, whose scale would be lost, or if 64 channels have other than 32 groups."""
    x = np.random.default_rng(0).normal(size=(3, 4, 4, channels)) * np.arange(1, channels + 1)
    norm = Norm("group", jnp.float32)
    y, _ = norm.init_with_output(jax.random.key(0), jnp.float32(x), True, jnp.ones(3, bool))
    parts = x.reshape(3, 16, groups, -1)
    mean, std = (f(parts, axis=(1, 3), keepdims=True) for f in (np.mean, np.std))
    np.testing.assert_allclose(y, ((parts - mean) / std).reshape(x.shape), atol=1e-4)


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
@pytest.mark.slow_variants
def test_parameter_counts(make, expected):
    """Fails for VALID convolutions in the CNN, biases in ResNet18's convolutions, or a missing layer."""
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
        (lambda: cnn(10, shape=(3, 8)), r"shape \(3, 8\) are too small: .* 4x4; .* mlp\(classes, shape=\(3, 8\)\)"),
        (lambda: omniglot_cnn(10, shape=(8, 8)), r"images of shape \(8, 8\) are too small: .* 16x16"),
        (lambda: cnn(10, shape=(64,)), r"shape must be \(height, width\) or .*, got \(64,\)"),
    ],
)
def test_refuses_before_anything_is_traced(make, message):
    """Fails if a wrong argument raises an error only inside Flax, without the argument's name."""
    with pytest.raises(ValueError, match=message):
        make()


@small
def test_wrong_shape_of_x(name):
    """Fails if a transposed or flattened image is reshaped, broadcast, or refused only by a layer."""
    task, variables = _task(name), jax.eval_shape(_task(name).init, jax.random.key(0))
    for shape in ((2, 64), (2, 4, 16), (2, 8, 8, 3)):
        with pytest.raises(ValueError, match=r"examples of shape \(8, 8\b.*" + re.escape(f"shape={shape[1:]},")):
            jax.eval_shape(task.predict, variables, jnp.zeros(shape))


# Users' own modules


class Plain(nn.Module):
    """Takes neither `train` nor `mask`; its last layer is not the last in alphabetical order."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(3, name="alpha")(nn.relu(nn.Dense(5, name="zeta")(x)))


class Rich(nn.Module):
    """Dropout, BatchNorm with a mask, and eleven layers, whose names sort in another order than they are created."""

    @nn.compact
    def __call__(self, x, train, mask):
        for _ in range(10):
            x = nn.Dense(4)(x)
        x = nn.BatchNorm(use_running_average=not train)(x, mask=mask[:, None])
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.Dense(3)(x)


class Tokens(nn.Module):
    """A bag of words."""

    @nn.compact
    def __call__(self, x):
        return nn.Dense(2)(nn.Embed(400, 3)(x).sum(axis=1))


def _vector_batch(real=4):
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)
    return Batch(jnp.asarray(x), jnp.arange(4, dtype=jnp.int32) % 3, jnp.arange(4) < real, jnp.int32(3))


def test_a_module_without_train_and_mask():
    """Fails if `train` or `mask` is passed to a module that does not take it, or if the head is chosen by name."""
    task = from_linen(Plain(), (6,))
    assert task.head == ("alpha",)
    assert task.features is None and task.head_loss is None
    variables, batch = jax.jit(task.init)(jax.random.key(0)), _vector_batch()
    assert variables.stats == ()
    value, _, stats = _step(task, variables, batch, jax.random.key(1))
    assert stats == ()
    hidden = np.maximum(batch.x @ variables.params["zeta"]["kernel"], 0)
    expected, _ = _cross_entropy(hidden @ variables.params["alpha"]["kernel"], batch)
    np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_a_module_with_dropout_and_batch_norm():
    """Fails if dropout gets no key or stays on in prediction, or if Dense_9 is taken for the last of eleven layers."""
    task = from_linen(Rich(), (6,))
    assert task.head == ("Dense_10",)
    variables = jax.jit(task.init)(jax.random.key(0))
    batch, keys = _vector_batch(real=2), jax.random.split(jax.random.key(1))
    steps = [_step(task, variables, batch, key) for key in (keys[0], keys[0], keys[1])]
    chex.assert_trees_all_equal(steps[0], steps[1])
    assert steps[0][0] != steps[2][0]
    poisoned = batch._replace(x=batch.x.at[2:].set(jnp.nan))
    chex.assert_trees_all_equal(_step(task, variables, poisoned, keys[0]), steps[0])
    rows = jnp.stack([batch.x[0]] * 4)
    logits = np.asarray(_predict(task, variables, rows))
    np.testing.assert_array_equal(logits, logits[[0] * 4])  # dropout would treat equal rows differently


def test_head_is_any_set_of_path_prefixes():
    """Fails if prefixes are not whole names (Dense_1 would be a prefix of Dense_10), or are not checked at all."""
    assert from_linen(Rich(), (6,), head=("Dense_1/kernel", "BatchNorm_0")).head == ("Dense_1/kernel", "BatchNorm_0")
    assert from_linen(Plain(), (6,), head="zeta").head == ("zeta",)
    with pytest.raises(ValueError, match=r"head='Dense' is not a prefix of any parameter's path; .*Dense_0/"):
        from_linen(Rich(), (6,), head=("Dense_1", "Dense"))
    with pytest.raises(ValueError, match="head is empty"):
        from_linen(Plain(), (6,), head=())


def test_tokens_become_integers_again():
    """Data keep tokens as float32. Fails if they, or the model's example input, are not converted to int32."""
    task = from_linen(Tokens(), (2,), dtype=jnp.int32)
    data = fedamp_jax.data.from_lists([np.array([[1, 2], [300, 4]])], [[0, 1]])
    variables = jax.jit(task.init)(jax.random.key(0))
    table = variables.params["Embed_0"]["embedding"]
    expected = np.stack([table[1] + table[2], table[300] + table[4]]) @ variables.params["Dense_0"]["kernel"]
    for x in (data.x, data.x.astype(jnp.int32)):
        np.testing.assert_allclose(_predict(task, variables, x), expected, rtol=1e-5)


class Counter(nn.Module):
    """Has a collection of its own."""

    @nn.compact
    def __call__(self, x):
        self.variable("counts", "n", lambda: jnp.zeros(()))
        return nn.Dense(3)(x)


@pytest.mark.parametrize(
    ("module", "shape", "message"),
    [
        (Counter(), (6,), r"variables \['counts'\], but only 'params' and 'batch_stats'"),
        (Plain(), (5, 6), r"logits must be \[B, C\]; for x of shape \(1, 5, 6\).* \(1, 5, 3\)"),
        (nn.Sequential([nn.relu]), (6,), "no parameters"),
    ],
)
def test_refuses_modules_it_cannot_use(module, shape, message):
    """Fails if further collections are dropped silently, or if logits of another rank are accepted."""
    with pytest.raises(ValueError, match=message):
        from_linen(module, shape)


class Tanh(nn.Module):
    """A body for `Classifier`."""

    @nn.compact
    def __call__(self, x, train, mask):
        return nn.tanh(nn.Dense(5)(x))


def test_classifier_takes_any_body():
    """Fails if only this package's models can be split into body and head."""
    task = from_linen(Classifier(Tanh(), 3), (6,))
    variables, batch, key = jax.jit(task.init)(jax.random.key(0)), _vector_batch(), jax.random.key(1)
    assert isinstance(variables, Variables)
    features, _ = task.features(variables, batch, key)
    chex.assert_shape(features, (4, 5))
    value, _, _ = _step(task, variables, batch, key)
    np.testing.assert_allclose(task.head_loss(variables, features, batch), value, rtol=1e-6)


def test_parameters_must_be_float32():
    """Fails if only some of the parameters are checked, or if statistics are too."""
    variables = jax.eval_shape(_task("resnet_batch").init, jax.random.key(0))
    low = jax.tree.map(lambda a: a.update(dtype=jnp.bfloat16), variables)
    check_float32(variables._replace(stats=low.stats))
    variables.params["head"]["kernel"] = low.params["head"]["kernel"]
    message = "parameters must be float32, got bfloat16 in head/kernel: to compute in bfloat16, cast them"
    with pytest.raises(TypeError, match=message):
        check_float32(variables)
    task = _task("mlp")._replace(init=lambda key: variables)
    data = fedamp_jax.data.from_lists([np.zeros((1, *SHAPE))], [[0]])
    with pytest.raises(TypeError, match="head/kernel"):
        check_task_fits(task, data)


@pytest.mark.parametrize(
    ("value", "options", "message"),
    [
        (1e-39, {"strict": False, "low_is": "the least"}, r"must be at least 1\.18e-38 \(the least\), got 1e-39"),
        (
            np.float32([1, 3]),
            {"allow_array": True, "high": 2},
            r"greater than 1\.18e-38 and at most 2, got 3\.0 at .* 1",
        ),
        (np.inf, {}, "got inf"),
    ],
)
def test_numbers_out_of_range_are_refused(value, options, message):
    """Fails if infinity is accepted, or if the message lacks a bound or the position."""
    check_number("s", 1.0, low=np.finfo(np.float32).tiny, **options)
    with pytest.raises(ValueError, match=message):
        check_number("s", value, low=np.finfo(np.float32).tiny, **options)
