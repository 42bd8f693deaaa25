"""The flag for training is set under every name that a module may have for it; those without one are refused."""

import re

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import fedamp_jax
from fedamp_jax import Batch, Task, Variables
from fedamp_jax.engine.task_checks import check_loss_fits
from fedamp_jax.models import Classifier, from_linen, from_nnx, mask_like, modes
from tests.registry import federation, tiny_task

KEY = jax.random.key(0)


def net(x, mask, *, train):
    """Layers with BatchNorm and dropout, inside a compact method."""
    x = nn.BatchNorm(use_running_average=not train, momentum=0.5, name="norm")(x, mask=mask_like(mask, x))
    return nn.Dense(3, name="head")(nn.Dropout(0.5, deterministic=not train, name="drop")(x))


def told_by_argument(name):
    """A Linen class whose `__call__` has the argument `name`, by default in prediction."""
    space = {"net": net, "nn": nn}
    default = name not in modes.TRAINING
    train = name if not default else f"not {name}"
    exec(f"def call(self, x, mask, {name}={default}): return net(x, mask, train={train})", space)
    return type("Net", (nn.Module,), {"__call__": nn.compact(space["call"])})


class ByTrain(nn.Module):
    train: bool = False

    @nn.compact
    def __call__(self, x, mask):
        return net(x, mask, train=self.train)


class ByDeterministic(nn.Module):
    """`nn.merge_param` refuses a value at both places."""

    deterministic: bool | None = None

    @nn.compact
    def __call__(self, x, mask, deterministic: bool | None = None):
        return net(x, mask, train=not nn.merge_param("deterministic", self.deterministic, deterministic))


class Inside(nn.Module):
    """A module that is given another one, twice."""

    parts: dict

    def __call__(self, x, mask):
        return self.parts["again"](x, mask) + self.parts["first"](x, mask)


def shared():
    one = ByTrain()
    return Inside({"first": one, "again": one})


class Nnx(nnx.Module):
    def __init__(self, rngs):
        self.norm = nnx.BatchNorm(5, momentum=0.5, rngs=rngs)
        self.drop, self.head = nnx.Dropout(0.5, rngs=rngs), nnx.Linear(5, 3, rngs=rngs)

    def run(self, x, mask, train):
        x = self.norm(x, mask=mask_like(mask, x), use_running_average=not train)
        return self.head(self.drop(x, deterministic=not train))


class NnxInference(Nnx):
    def __call__(self, x, mask, inference=True):
        return self.run(x, mask, not inference)


class NnxAttribute(Nnx):
    def __init__(self, rngs):
        super().__init__(rngs)
        self.is_training = False

    def __call__(self, x, mask):
        return self.run(x, mask, self.is_training)


class NnxTrain(Nnx):
    """An attribute that hides `nnx.Module.train`."""

    def __init__(self, rngs):
        super().__init__(rngs)
        self.train = False

    def __call__(self, x, mask):
        return self.run(x, mask, self.train)


TOLD = {
    **{name: (lambda name=name: from_linen(told_by_argument(name)(), (5,))) for name in modes.TRAINING},
    **{name: (lambda name=name: from_linen(told_by_argument(name)(), (5,))) for name in modes.EVALUATION},
    "field": lambda: from_linen(ByTrain(), (5,)),
    "field, set to train": lambda: from_linen(ByTrain(train=True), (5,)),
    "field or argument": lambda: from_linen(ByDeterministic(), (5,)),
    "field and argument": lambda: from_linen(ByDeterministic(deterministic=True), (5,)),
    "body's field": lambda: from_linen(Classifier(ByTrain(), 3), (5,)),
    "body's argument": lambda: from_linen(Classifier(told_by_argument("training")(), 3), (5,)),
    "shared": lambda: from_linen(shared(), (5,)),
    "compiled": lambda: from_linen(nn.jit(told_by_argument("training"), static_argnames="training")(), (5,)),
    "nnx argument": lambda: from_nnx(NnxInference, (5,)),
    "nnx attribute": lambda: from_nnx(NnxAttribute, (5,)),
    "nnx attribute train": lambda: from_nnx(NnxTrain, (5,)),
}


def batch(x=None, real=3):
    x = jnp.asarray(np.random.default_rng(0).normal(2.0, 1.0, (4, 5)), jnp.float32) if x is None else x
    return Batch(x, jnp.arange(len(x), dtype=jnp.int32) % 3, jnp.arange(len(x)) < real, jnp.int32(3))


def statistic(stats, name="mean"):
    found = [a for path, a in jax.tree_util.tree_leaves_with_path(stats) if name in str(path[-1])]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("name", TOLD)
@pytest.mark.slow_variants
def test_a_module_is_put_into_training_by_whatever_name_it_takes(name):
    """The mean moves halfway to that of the real rows, dropout follows the key, and predictions are of one row each.

    Failed with `train` alone passed on: statistics and losses were those of prediction; and with nnx modules that were
    left in training.
    """
    task = TOLD[name]()
    variables, some = jax.jit(task.init)(KEY), batch()
    (first, stats), (other, _) = (jax.jit(task.loss)(variables, some, key) for key in jax.random.split(KEY))
    assert first != other
    mean = some.x[:3].mean(axis=0) * (0.75 if name == "shared" else 0.5)  # a shared layer sees the batch twice
    np.testing.assert_allclose(statistic(stats), mean, rtol=1e-5)
    trained = variables._replace(stats=stats)
    alone = [task.predict(trained, row[None])[0] for row in some.x]  # in training, rows depend on each other
    np.testing.assert_allclose(task.predict(trained, some.x), alone, rtol=1e-4, atol=1e-6)
    if name == "shared":
        assert len(jax.tree.leaves(variables.params)) == 4  # of one BatchNorm and one Dense


def test_the_layers_of_a_sequence_are_told():
    """Which passes on no argument. Failed with flax's `Parameter "deterministic" must be passed`."""
    layers = [nn.Dense(8), nn.Dropout(0.5), nn.Dropout(0.5, deterministic=True), nn.Dense(3)]
    for module in (nn.Sequential(layers), Classifier(nn.Sequential(layers), 3)):
        task = from_linen(module, (5,))
        variables = jax.jit(task.init)(KEY)
        first, other = (task.loss(variables, batch(), key)[0] for key in jax.random.split(KEY))
        assert first != other


class Odd(nn.Module):
    """A flag of a name that says nothing."""

    @nn.compact
    def __call__(self, x, mask, noisy=False):
        return net(x, mask, train=noisy)


class Attention(nn.Module):
    @nn.compact
    def __call__(self, x, quiet=True):
        x = nn.MultiHeadDotProductAttention(2, dropout_rate=0.1)(x, x, deterministic=quiet)
        return nn.Dense(3)(x.mean(axis=1))


class NnxOdd(Nnx):
    def __call__(self, x, mask, noisy=False):
        return self.run(x, mask, noisy)


@pytest.mark.parametrize(
    ("make", "messages"),
    [
        (lambda: from_linen(Odd(), (5,)), [r"as it got them \(norm/mean, norm/var\)", r"dropout is off.*\(.*drop"]),
        (lambda: from_linen(Classifier(Odd(), 3), (5,)), [r"got them \(body/norm/mean", r"off.*\(.*body/drop"]),
        (lambda: from_linen(Attention(), (4, 6)), [r"dropout is off in training \(MultiHeadDotProductAttention_0\)"]),
        (lambda: from_nnx(NnxOdd, (5,)), [r"as it got them \(norm/mean, norm/var\)", r"dropout is off.*\(drop\)"]),
    ],
)
def test_a_module_that_is_not_told_is_warned_of(make, messages):
    """With the layers and the names to use, where the task is made. Failed without a word."""
    with pytest.warns(UserWarning, match="off in training|training step") as found:
        make()
    assert len(found) == len(messages) and all(w.filename == __file__ for w in found)
    for warning, message in zip(found, messages, strict=True):
        assert re.search(rf"{message}.*by any of these names \(True in training: train, training", str(warning.message))


class Unmasked(nn.Module):
    @nn.compact
    def __call__(self, x, train):
        return nn.Dense(3)(nn.BatchNorm(use_running_average=not train)(x))


class Unused(nn.Module):
    """Takes the mask, and does not use it for the statistics."""

    @nn.compact
    def __call__(self, x, train, mask):
        x = nn.BatchNorm(use_running_average=not train)(x)
        return nn.Dense(3)(jnp.where(mask_like(mask, x), x, 0.0))


class NnxUnmasked(nnx.Module):
    def __init__(self, rngs):
        self.norm, self.head = nnx.BatchNorm(5, rngs=rngs), nnx.Linear(5, 3, rngs=rngs)

    def __call__(self, x):
        return self.head(self.norm(x))


@pytest.mark.parametrize(
    "make",
    [lambda: from_linen(Unmasked(), (5,)), lambda: from_linen(Unused(), (5,)), lambda: from_nnx(NnxUnmasked, (5,))],
)
def test_statistics_with_padding_are_warned_of(make):
    """Failed with a look at the arguments of `__call__` alone, for the module that takes the mask in vain."""
    with pytest.warns(UserWarning, match=r"padding enters the model's running statistics.*mask_like\(mask, x\)"):
        make()


class Phase(nn.Module):
    @nn.compact
    def __call__(self, x, phase):
        return nn.Dense(3)(x)


class Always(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.Dropout(0.5, deterministic=False)(x))


class AlwaysNorm(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(3)(nn.BatchNorm(use_running_average=False)(x))


class NnxPhase(Nnx):
    def __call__(self, x, mask, phase):
        return self.run(x, mask, phase)


@pytest.mark.parametrize(
    ("make", "kind", "message"),
    [
        (lambda: from_linen(Phase(), (5,)), TypeError, r"Phase.__call__ takes 'phase', which has no default"),
        (lambda: from_linen(Classifier(Phase(), 3), (5,)), TypeError, r"Phase.__call__ takes 'phase'"),
        (lambda: from_nnx(NnxPhase, (5,)), TypeError, r"NnxPhase.__call__ takes 'phase'"),
        (lambda: from_linen(Always(), (5,)), ValueError, r"draws random numbers in prediction, too.*deterministic"),
        (lambda: from_linen(AlwaysNorm(), (5,)), ValueError, r"changes its running statistics in prediction, too"),
    ],
)
def test_a_module_that_cannot_be_told_is_refused(make, kind, message):
    """With the names to use. Failed with flax's own errors: a missing argument, no PRNG, an immutable collection."""
    with pytest.raises(kind, match=message):
        make()


class Noise(nn.Module):
    """A body that takes the mode alone, and has a generator of its own name."""

    @nn.compact
    def __call__(self, x, train):
        x = nn.Dense(4)(x)
        return x + jax.random.normal(self.make_rng("noise"), x.shape) if train else x


class Bare(nn.Module):
    """A body that takes nothing but x."""

    @nn.compact
    def __call__(self, x):
        return nn.relu(nn.Dense(4)(x))


def test_any_generator_is_available_in_training():
    """Also in the body of a `Classifier` without `mask`. Failed with flax's InvalidRngError."""
    task = from_linen(Classifier(Noise(), 3), (5,))
    variables = jax.jit(task.init)(KEY)
    losses = {float(task.loss(variables, batch(), key)[0]) for key in (KEY, KEY, jax.random.key(1))}
    assert len(losses) == 2


def test_a_body_needs_neither_mode_nor_mask():
    """Failed with `takes 2 positional arguments but 4 were given`."""
    task = from_linen(Classifier(Bare(), 3), (5,))
    variables = jax.jit(task.init)(KEY)
    features, _ = task.features(variables, batch(), KEY)
    np.testing.assert_allclose(task.head_loss(variables, features, batch()), task.loss(variables, batch(), KEY)[0])


# --- masks ----------------------------------------------------------------------------------------------------------


def image_norms(like):
    """Networks for images of both kinds; `like`: gives BatchNorm's mask."""

    class Images(nn.Module):
        @nn.compact
        def __call__(self, x, train, mask):
            x = nn.BatchNorm(use_running_average=not train, momentum=0.0)(x, mask=like(mask, x))
            return nn.Dense(3)(x.mean(axis=tuple(range(1, x.ndim - 1))))

    class NnxImages(nnx.Module):
        def __init__(self, rngs):
            self.norm = nnx.BatchNorm(2, momentum=0.0, rngs=rngs)
            self.head = nnx.Linear(2, 3, rngs=rngs)

        def __call__(self, x, mask):
            return self.head(self.norm(x, mask=like(mask, x)).mean(axis=tuple(range(1, x.ndim - 1))))

    return {"linen": lambda shape: from_linen(Images(), shape), "nnx": lambda shape: from_nnx(NnxImages, shape)}


@pytest.mark.parametrize("kind", ["linen", "nnx"])
@pytest.mark.parametrize("axes", [(), (4,), (4, 4), (4, 4, 4)])
@pytest.mark.slow_variants
def test_the_mask_of_images_is_right_where_the_batch_is_as_large_as_they_are_wide(axes, kind):
    """The mean of the real rows, for any rank. Failed with `mask[:, None]`, which chose columns of pixels."""
    x = jnp.asarray(np.random.default_rng(0).normal(2.0, 1.0, (4, *axes, 2)), jnp.float32)
    task = image_norms(mask_like)[kind]((*axes, 2))
    _, stats = task.loss(jax.jit(task.init)(KEY), batch(x, real=2), KEY)
    np.testing.assert_allclose(statistic(stats), x[:2].reshape(-1, 2).mean(axis=0), rtol=1e-5)


@pytest.mark.parametrize("kind", ["linen", "nnx"])
@pytest.mark.parametrize("like", [lambda mask, x: mask[:, None], lambda mask, x: mask])
@pytest.mark.slow_variants
def test_a_mask_that_lies_along_another_axis_is_refused(like, kind):
    """When the task is made, for images of any width. Failed without a word where it was the number of examples."""
    with pytest.raises(ValueError, match="broadcast") as found:
        image_norms(like)[kind]((4, 4, 2))
    assert "fedamp_jax.models.mask_like(mask, x)" in "".join(found.value.__notes__)


# --- tasks by hand --------------------------------------------------------------------------------------------------


def test_a_task_by_hand_whose_statistics_stay_is_warned_of():
    """By `run`, before it trains; one that changes them is not. Failed without a word."""
    task, data = tiny_task(), federation()
    check_loss_fits(task, data)
    fixed = task._replace(loss=lambda variables, batch, key: (task.loss(variables, batch, key)[0], variables.stats))
    with pytest.warns(UserWarning, match=r"returns running statistics as it gets them \(mean\)"):
        check_loss_fits(fixed, data)
    bare = Task(lambda key: Variables({"w": jnp.zeros((5, 3))}),
                lambda variables, batch, key: (fedamp_jax.cross_entropy(batch.x @ variables.params["w"], batch), ()),
                lambda variables, x: x @ variables.params["w"])  # fmt: skip
    check_loss_fits(bare, data)
