"""Convolution and pooling against `lax` in value and both gradients."""

import functools
import itertools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedamp_jax
from fedamp_jax.models.layers import LOWERINGS, as_image, check_image, conv_general_dilated
from fedamp_jax.models.pooling import max_pool

NHWC = ("NHWC", "HWIO", "NHWC")
# kernel, stride, padding, channels in, image: odd and even sizes, strides that leave input unread, kernels as large as
# the image, taps that no input of one residue meets (kernel 1 and 2 with stride 2), one-channel first layers.
CASES = [
    (1, 2, "SAME", 3, (6, 5)),
    (1, 2, ((1, 0), (0, 2)), 2, (5, 6)),
    (2, 1, "SAME", 2, (5, 4)),
    (2, 2, "VALID", 2, (7, 6)),
    (3, 1, "SAME", 1, (7, 6)),
    (3, 2, "SAME", 3, (8, 8)),
    (3, 2, "SAME", 3, (7, 9)),
    (3, 3, ((0, 2), (1, 1)), 2, (8, 10)),
    (3, (1, 2), "SAME", 2, (5, 6)),
    (5, 1, "SAME", 3, (7, 8)),
    (5, 2, ((2, 2), (2, 2)), 2, (9, 8)),
    (5, 1, "VALID", 2, (5, 5)),
    (5, 1, ((3, 1), (0, 4)), 2, (6, 6)),
]
MANY = [(1, 2, "SAME", 3, (6, 5)), (3, 2, "SAME", 3, (8, 8)), (5, 1, "SAME", 1, (8, 7))]


def _make(case, batch=5, clients=()):
    kernel, stride, padding, channels, image = case
    keys = jax.random.split(jax.random.key(0), 2)
    x = jax.random.normal(keys[0], (*clients, batch, *image, channels))
    w = jax.random.normal(keys[1], (*clients, kernel, kernel, channels, 4))
    return x, w, (stride, stride) if isinstance(stride, int) else stride, padding


def _value_and_gradients(convolve, x, w):
    """The value and the gradients of a random linear function of it."""

    def scalar(x, w):
        y = convolve(x, w)
        return jnp.sum(y * jax.random.normal(jax.random.key(7), y.shape, y.dtype)), y

    (dx, dw), y = jax.grad(scalar, (0, 1), has_aux=True)(x, w)
    return {"value": y, "input gradient": dx, "kernel gradient": dw}


def _assert_equal_to_lax(lowering, x, w, strides, padding, wrap=lambda convolve: convolve):
    @jax.jit
    def both(x, w):
        ours = functools.partial(conv_general_dilated, lowering=lowering)
        return [
            _value_and_gradients(wrap(lambda x, w, f=f: f(x, w, strides, padding, dimension_numbers=NHWC)), x, w)
            for f in (ours, lax.conv_general_dilated)
        ]

    with jax.enable_x64(True):
        mine, theirs = both(*(jnp.asarray(np.asarray(a), jnp.float64) for a in (x, w)))
    for name in mine:
        assert mine[name].shape == theirs[name].shape and mine[name].dtype == theirs[name].dtype == jnp.float64, name
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-11, atol=1e-11, err_msg=name)


@pytest.mark.parametrize("lowering", ["loop", "patches"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_lax_in_value_and_both_gradients(case, lowering):
    """Fails if the input gradient does not reverse the taps, drops the residue of the stride or the low padding; if
    the kernel gradient keeps the forward pass's high padding (strides that leave input unread, with float64).
    """
    _assert_equal_to_lax(lowering, *_make(case))


@pytest.mark.parametrize("lowering", ["loop", "patches"])
@pytest.mark.parametrize("case", MANY, ids=str)
@pytest.mark.parametrize("clients", [1, 3])
def test_kernels_of_many_clients(case, lowering, clients):
    """Fails if the loop over clients hands every client the first one's kernel, or forgets the axis it took away."""
    _assert_equal_to_lax(lowering, *_make(case, clients=(clients,)), wrap=jax.vmap)


@pytest.mark.parametrize("axes", [(0, None), (None, 0)])
def test_one_argument_shared_by_all_clients(axes):
    """Fails if the loop over clients slices an argument that has no client axis."""
    x, w, strides, padding = _make(MANY[1], clients=(3,))
    x, w = x if axes[0] == 0 else x[0], w if axes[1] == 0 else w[0]
    _assert_equal_to_lax("loop", x, w, strides, padding, wrap=lambda f: jax.vmap(f, axes))


def test_kernel_gradient_in_several_blocks_of_images(monkeypatch):
    """Fails if the last, padded block is dropped or the blocks overlap: 7 images in blocks of 2."""
    monkeypatch.setattr("fedamp_jax.models.layers._POSITIONS", 2 * 64)
    _assert_equal_to_lax("loop", *_make((3, 1, "SAME", 2, (8, 8)), batch=7))
    _assert_equal_to_lax("loop", *_make((3, 2, "SAME", 2, (16, 16)), batch=7))


def test_plain_convolutions_only():
    """What "loop" is for: fails if vmapping it gives a grouped convolution, as `lax.conv_general_dilated` does."""
    x, w, strides, padding = _make(MANY[2], clients=(3,))

    def groups(lowering):
        one = functools.partial(conv_general_dilated, lowering=lowering, dimension_numbers=NHWC)
        both = jax.grad(lambda x, w: jnp.sum(jax.vmap(lambda x, w: one(x, w, strides, padding))(x, w)), (0, 1))
        text = jax.jit(both).lower(x, w).as_text()
        return text.count("feature_group_count = 3"), text.count("stablehlo.convolution"), text.count("dot_general")

    assert groups("xla")[0] > 0
    assert groups("loop")[0] == 0 and groups("loop")[1] > 0
    assert groups("patches")[:2] == (0, 0) and groups("patches")[2] > 0


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_hands_over_what_is_not_special(lowering):
    """Fails if groups, dilation, layouts or negative padding are computed as if they were not there."""
    x = jax.random.normal(jax.random.key(0), (2, 6, 5, 4))
    w = jax.random.normal(jax.random.key(1), (3, 3, 4, 4))
    ours = functools.partial(conv_general_dilated, lowering=lowering)
    for arguments in (
        {"rhs_dilation": (2, 1)},
        {"lhs_dilation": (2, 1)},
        {"dimension_numbers": ("NWHC", "HWIO", "NHWC")},
        {"padding": ((-1, 0), (0, 0))},
    ):
        arguments = {"window_strides": (1, 1), "padding": ((0, 0), (1, 0)), "dimension_numbers": NHWC} | arguments
        mine, theirs = ours(x, w, **arguments), lax.conv_general_dilated(x, w, **arguments)
        assert mine.dtype == theirs.dtype
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)
    low = (x.astype(jnp.bfloat16), jnp.ones_like(w, jnp.bfloat16))
    assert ours(*low, (1, 1), "SAME", dimension_numbers=NHWC, preferred_element_type=jnp.float32).dtype == jnp.float32
    grouped = {"dimension_numbers": NHWC, "feature_group_count": 2}
    mine, theirs = (f(x, w[:, :, :2], (1, 1), "SAME", **grouped) for f in (ours, lax.conv_general_dilated))
    np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=1e-5)


def test_auto_is_measured_on_cpu_and_patches_elsewhere(monkeypatch):
    """Fails if "auto" means the same everywhere."""
    x, w, strides, padding = _make(MANY[2])

    def operations():
        convolve = functools.partial(conv_general_dilated, dimension_numbers=NHWC)
        return str(jax.make_jaxpr(lambda x, w: convolve(x, w, strides, padding))(x, w))

    assert "conv_general_dilated" in operations()
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert "conv_general_dilated" not in operations() and "dot_general" in operations()


def test_bfloat16_sums_the_batch_in_float32(monkeypatch):
    """Fails if the sum of a block of images is rounded to bfloat16 (263 becomes 264) before the blocks are added."""
    monkeypatch.setattr("fedamp_jax.models.layers._POSITIONS", 263)
    x, w = jnp.ones((7, 263, 1, 1), jnp.bfloat16), jnp.zeros((3, 1, 1, 1), jnp.bfloat16)
    one = functools.partial(conv_general_dilated, lowering="loop", dimension_numbers=NHWC)
    dw = jax.grad(lambda w: jnp.sum(one(x, w, (1, 1), "SAME"), dtype=jnp.float32))(w)
    assert dw.dtype == jnp.bfloat16
    assert float(dw[1, 0, 0, 0]) == 1840  # 7 * 263 = 1841, rounded once; 7 * 264 = 1848


def test_unknown_lowering():
    """Fails if a misspelt lowering falls through to some default."""
    x, w, strides, padding = _make(MANY[1])
    with pytest.raises(ValueError, match=r"lowering must be one of .*did you mean 'patches'"):
        conv_general_dilated(x, w, strides, padding, lowering="patch", dimension_numbers=NHWC)


@pytest.mark.parametrize(
    ("size", "stride", "padding", "image"),
    [(*a, b, c) for a, b, c in itertools.product([(2, 2), (3, 2), (3, 1)], ["VALID", "SAME"], [(8, 6), (7, 5)])],
)
def test_pooling_equals_reduce_window(size, stride, padding, image):
    """No two elements are equal. Fails if SAME pads with zeros (all elements are negative), if an odd edge is not
    dropped, or if the gradient goes to another corner than the largest's.
    """
    order = jax.random.permutation(jax.random.key(0), jnp.arange(2.0 * image[0] * image[1] * 3))
    x = -1 - order.reshape(2, *image, 3) / 8

    def theirs(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, size, size, 1), (1, stride, stride, 1), padding)

    def gradient(pool):
        return jax.grad(lambda x: jnp.sum(jnp.sin(pool(x))))(x)

    def mine(x):
        return max_pool(x, size, stride, padding)

    np.testing.assert_array_equal(mine(x), theirs(x))
    np.testing.assert_allclose(gradient(mine), gradient(theirs), rtol=1e-6)
    stacked = jnp.stack([x, 2 * x])
    np.testing.assert_array_equal(jax.vmap(mine)(stacked)[1], theirs(2 * x))


def test_pooling_gives_a_gradient_once_where_elements_are_equal():
    """Fails if every largest element gets the whole gradient."""
    dx = jax.grad(lambda x: jnp.sum(max_pool(x)))(jnp.zeros((1, 4, 4, 2)))
    assert float(jnp.sum(dx)) == 8 and float(jnp.max(dx)) == 1


def test_check_image():
    """Fails if a shape with a batch axis, an empty one or one too small for the model passes."""
    assert check_image([28, 28], 4) == (28, 28)
    with pytest.raises(ValueError, match=r"shape must be \(height, width\) or .* got \(100, 28, 28, 1\)"):
        check_image((100, 28, 28, 1), 4)
    with pytest.raises(ValueError, match=r"the channels in shape=\(8, 8, 0\) must be at least 1"):
        check_image((8, 8, 0), 4)
    with pytest.raises(ValueError, match=r"images of shape \(8, 3\) are too small.*4x4"):
        check_image((8, 3), 4)
    assert as_image(jnp.zeros((2, 4, 5)), jnp.bfloat16).shape == (2, 4, 5, 1)


def test_operations_are_counted(monkeypatch):
    """What the benchmarks divide by the time: also within functions that are jitted. Failed with jax 0.12's names."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    import bench

    task = fedamp_jax.models.mlp(classes=3, hidden=(5,), shape=(4,))
    variables = task.init(jax.random.key(0))
    nested = task._replace(predict=jax.jit(task.predict))
    assert bench.layers(task, variables, jnp.zeros((7, 4))) == [2 * 7 * 4 * 5, 2 * 7 * 5 * 3]
    assert bench.layers(nested, variables, jnp.zeros((7, 4))) == [2 * 7 * 4 * 5, 2 * 7 * 5 * 3]
    assert bench.training_flops([10.0, 3.0]) == 3 * 13 - 10  # no gradient towards the first layer's input
