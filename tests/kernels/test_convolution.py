"""Convolution and pooling compared with `lax`, in value and gradients."""

import functools
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import fedamp_jax
from fedamp_jax.kernels import products
from fedamp_jax.kernels.convolution import LOWERINGS, conv_general_dilated
from fedamp_jax.kernels.pooling import max_pool
from fedamp_jax.models.layers import as_image, check_image

NHWC = ("NHWC", "HWIO", "NHWC")
# Kernel, stride, padding, input channels, image: odd and even sizes, strides that leave input unread, kernels as large
# as the image, residues without taps (kernel 1 with stride 2), one-channel first layers.
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


def _make(case, batch=5, clients=(), features=17):
    kernel, stride, padding, channels, image = case
    rng = np.random.default_rng(0)
    x, w = (
        rng.normal(size=(*clients, batch, *image, channels)),
        rng.normal(size=(*clients, kernel, kernel, channels, features)),
    )
    return x, w, (stride, stride) if isinstance(stride, int) else stride, padding


def _value_and_gradients(convolve, x, w):
    """The value, and the gradients of a linear function of it."""
    y, transpose = jax.vjp(convolve, x, w)
    dx, dw = transpose(jnp.cos(jnp.arange(y.size, dtype=y.dtype)).reshape(y.shape))
    return {"value": y, "input gradient": dx, "kernel gradient": dw}


def _assert_equal_to_lax(lowerings, x, w, strides, padding, wrap=lambda convolve: convolve):
    """In one program with `lax`, in float64."""

    @jax.jit
    def together(x, w):
        functions = [functools.partial(conv_general_dilated, lowering=lowering) for lowering in lowerings]
        return [
            _value_and_gradients(wrap(lambda x, w, f=f: f(x, w, strides, padding, dimension_numbers=NHWC)), x, w)
            for f in (lax.conv_general_dilated, *functions)
        ]

    with jax.enable_x64(True):
        theirs, *ours = together(x, w)
    for lowering, mine in zip(lowerings, ours, strict=True):
        chex.assert_trees_all_equal_shapes_and_dtypes(mine, theirs)
        for name in mine:
            message = f"{name} of {lowering}"
            np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-11, atol=1e-11, err_msg=message)


@pytest.mark.parametrize("features", [4, 17], ids="{} features".format)  # from 17 on, no products in the loop
@pytest.mark.parametrize("case", CASES, ids=str)
def test_equals_lax_in_value_and_both_gradients(case, features):
    """Fails if the input gradient does not reverse the taps, or ignores the stride's residues or the low padding; or if
    the kernel gradient keeps the forward pass's high padding where strides leave input unread.
    """
    _assert_equal_to_lax(["loop", "patches"], *_make(case, features=features))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.slow_variants
def test_products_equal_lax(case, monkeypatch):
    """Fails if a row of the kernel meets the wrong pixels; in float64, in blocks of two or three images."""
    monkeypatch.setattr("fedamp_jax.kernels.blocks.POSITIONS", 100)
    x, w, strides, padding = _make(case)
    with jax.enable_x64(True):
        x, w = jnp.asarray(x), jnp.asarray(w)
        pads = (
            tuple(map(tuple, lax.padtype_to_pads(x.shape[1:3], w.shape[:2], strides, padding)))
            if isinstance(padding, str)
            else padding
        )
        convolve = functools.partial(lax.conv_general_dilated, dimension_numbers=NHWC)
        theirs = jax.jit(lambda x, w: _value_and_gradients(lambda x, w: convolve(x, w, strides, padding), x, w))(x, w)
        dy = jnp.cos(jnp.arange(theirs["value"].size, dtype=x.dtype)).reshape(theirs["value"].shape)
        np.testing.assert_allclose(products.convolve(x, w, strides, pads), theirs["value"], atol=1e-11)
        mine = products.to_kernel(x, dy, w.shape, strides, pads)
        np.testing.assert_allclose(mine, theirs["kernel gradient"], atol=1e-11)


@pytest.mark.parametrize(("dtype", "tolerance"), [(jnp.float64, 1e-11), (jnp.bfloat16, 2**-7)], ids=str)
@pytest.mark.parametrize(("kernel", "stride"), [(3, 1), (3, 2), (5, 1)])
@pytest.mark.slow_variants
def test_wide_layers(kernel, stride, dtype, tolerance, monkeypatch):
    """Winograd's filtering and products in bfloat16, as chosen for 64 channels, with two clients.

    Fails if either gets another layer's arguments, if bits that are only moved are taken for numbers, or if sums over
    images are rounded to bfloat16: 64 images in blocks of one.
    """
    monkeypatch.setattr("fedamp_jax.kernels.blocks.POSITIONS", 1)
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        shapes = (2, 64, 7, 6, 64), (2, kernel, kernel, 64, 64), (2, 64, -(-7 // stride), -(-6 // stride), 64)
        x, w, dy = (jnp.asarray(1 + rng.normal(size=shape), dtype) for shape in shapes)

        @functools.partial(jax.jit, static_argnames="lowering")
        def run(x, w, dy, lowering):
            one = functools.partial(conv_general_dilated, dimension_numbers=NHWC, lowering=lowering)
            y, transpose = jax.vjp(jax.vmap(lambda x, w: one(x, w, (stride, stride), "SAME")), x, w)
            return y, *transpose(dy)

        exact = run(*(a.astype(jnp.float64) for a in (x, w, dy)), "patches")
        for mine, theirs in zip(run(x, w, dy, "loop"), exact, strict=True):
            assert mine.dtype == dtype and mine.shape == theirs.shape
            np.testing.assert_allclose(mine.astype(jnp.float64), theirs, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", MANY, ids=str)
def test_kernels_of_many_clients(case):
    """Fails if the loop over clients passes the first client's kernel to all, or drops the client axis."""
    _assert_equal_to_lax(["loop", "patches"], *_make(case, clients=(3,)), wrap=jax.vmap)


def test_kernel_of_a_single_client():
    """Fails if the shortcut for one client drops the client axis."""
    _assert_equal_to_lax(["loop", "patches"], *_make(MANY[1], clients=(1,)), wrap=jax.vmap)


@pytest.mark.parametrize("axes", [(0, None), (None, 0)])
def test_one_argument_shared_by_all_clients(axes):
    """Fails if the loop over clients slices an argument without a client axis."""
    x, w, strides, padding = _make(MANY[1], clients=(3,))
    x, w = x if axes[0] == 0 else x[0], w if axes[1] == 0 else w[0]
    _assert_equal_to_lax(["loop"], x, w, strides, padding, wrap=lambda f: jax.vmap(f, axes))


@pytest.mark.parametrize("case", [(3, 1, "SAME", 2, (8, 8)), (3, 2, "SAME", 2, (16, 16))], ids=str)
def test_kernel_gradient_in_several_blocks_of_images(case, monkeypatch):
    """Fails if the last, padded block is dropped or the blocks overlap: 7 images in blocks of 3."""
    monkeypatch.setattr("fedamp_jax.kernels.blocks.POSITIONS", 3 * 64)
    _assert_equal_to_lax(["loop"], *_make(case, batch=7))


def test_plain_convolutions_only():
    """The purpose of "loop": fails if `vmap` gives a grouped convolution, as with `lax.conv_general_dilated`."""
    x, w, strides, padding = _make(MANY[2], clients=(3,))
    x, w = jnp.float32(x), jnp.float32(w)

    def operations(lowering):
        one = functools.partial(conv_general_dilated, lowering=lowering, dimension_numbers=NHWC)
        both = jax.grad(lambda x, w: jnp.sum(jax.vmap(lambda x, w: one(x, w, strides, padding))(x, w)), (0, 1))
        text = jax.jit(both).lower(x, w).as_text()
        names = ("feature_group_count = 3", "stablehlo.convolution", "dot_general")
        return {name: text.count(name) for name in names}

    assert operations("xla")["feature_group_count = 3"] > 0
    loop, patches = operations("loop"), operations("patches")
    assert loop["feature_group_count = 3"] == 0 and loop["stablehlo.convolution"] > 0
    assert patches["stablehlo.convolution"] == 0 and patches["dot_general"] > 0


@pytest.mark.parametrize("lowering", LOWERINGS)
def test_other_convolutions_are_left_to_lax(lowering):
    """Fails if groups, dilation, layouts or negative padding are ignored."""
    x, w = np.ones((2, 6, 5, 4), np.float32), np.ones((3, 3, 4, 4), np.float32)

    def operations(convolve, x, w, **arguments):
        arguments = {"window_strides": (1, 1), "padding": ((0, 0), (1, 0)), "dimension_numbers": NHWC} | arguments
        return str(jax.make_jaxpr(functools.partial(convolve, **arguments))(x, w))

    ours = functools.partial(conv_general_dilated, lowering=lowering)
    low = (x.astype(jnp.bfloat16), w.astype(jnp.bfloat16))
    for images, kernel, arguments in (
        (x, w, {"rhs_dilation": (2, 1)}),
        (x, w, {"lhs_dilation": (2, 1)}),
        (x, w, {"dimension_numbers": ("NWHC", "HWIO", "NHWC")}),
        (x, w, {"padding": ((-1, 0), (0, 0))}),
        (x, w[:, :, :2], {"feature_group_count": 2}),
        (x, w, {"batch_group_count": 2}),
        (*low, {"preferred_element_type": jnp.float32}),
    ):
        theirs = operations(lax.conv_general_dilated, images, kernel, **arguments)
        assert operations(ours, images, kernel, **arguments) == theirs
    if lowering not in ("auto", "xla"):
        assert operations(ours, x, w) != operations(lax.conv_general_dilated, x, w)


@pytest.mark.parametrize(("platform", "loops"), [("cpu", True), ("tpu", False), ("cuda", False)])
def test_auto_follows_the_platform_compiled_for(platform, loops):
    """Whatever the platform that traces it, forward and backward. Failed when JAX's default backend was asked."""
    x, w, strides, padding = _make(MANY[2])

    def total(x, w):
        y = conv_general_dilated(x, w, strides, padding, dimension_numbers=NHWC)
        return jnp.sum(jnp.square(y))

    program = jax.jit(jax.vmap(jax.grad(total, (0, 1)))).trace(*(jnp.stack([a, a]) for a in (x, w)))
    text = program.lower(lowering_platforms=(platform,)).as_text()
    assert "stablehlo.convolution" in text and ("stablehlo.while" in text) == loops


def test_bfloat16_sums_the_batch_in_float32(monkeypatch):
    """Fails if the sum over a block of images is rounded to bfloat16 (263 becomes 264) before blocks are added."""
    monkeypatch.setattr("fedamp_jax.kernels.blocks.POSITIONS", 263)
    x, w = jnp.ones((7, 263, 1, 1), jnp.bfloat16), jnp.zeros((3, 1, 1, 1), jnp.bfloat16)
    one = functools.partial(conv_general_dilated, lowering="loop", dimension_numbers=NHWC)
    dw = jax.jit(jax.grad(lambda w: jnp.sum(one(x, w, (1, 1), "SAME"), dtype=jnp.float32)))(w)
    assert dw.dtype == jnp.bfloat16
    assert float(dw[1, 0, 0, 0]) == 1840  # 7 * 263 = 1841, rounded once; 7 * 264 = 1848


def test_unknown_lowering():
    """Fails if a misspelled lowering falls back to a default."""
    x, w, strides, padding = _make(MANY[1])
    with pytest.raises(ValueError, match=r"lowering must be one of .*did you mean 'patches'"):
        conv_general_dilated(x, w, strides, padding, lowering="patch", dimension_numbers=NHWC)


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize("image", [(8, 6), (7, 5)], ids=str)
@pytest.mark.parametrize(("size", "stride"), [(2, 2), (3, 2), (3, 1)])
def test_pooling_equals_reduce_window(size, stride, image, padding):
    """No two elements are equal. Fails if SAME pads with zeros (all elements are negative), if an odd edge is not
    dropped, or if the gradient goes to an element that is not the largest.
    """
    order = np.random.default_rng(0).permutation(2 * image[0] * image[1] * 3)
    x = np.float32(-1 - order.reshape(2, *image, 3) / 8)
    x = np.stack([x, 2 * x])

    def theirs(x):
        return lax.reduce_window(x, -jnp.inf, lax.max, (1, size, size, 1), (1, stride, stride, 1), padding)

    def mine(x):
        return max_pool(x, size, stride, padding)

    @jax.jit
    def values_and_gradients(x):
        out = []
        for pool in (mine, theirs):
            y, transpose = jax.vjp(jax.vmap(pool), x)
            out.append((y, *transpose(jnp.cos(y))))
        return out

    values, expected = values_and_gradients(x)
    np.testing.assert_array_equal(values[0], expected[0])
    np.testing.assert_allclose(values[1], expected[1], rtol=1e-6)


def test_equal_elements_do_not_multiply_the_gradient():
    """Fails if each of several largest elements gets the whole gradient."""
    dx = jax.jit(jax.grad(lambda x: jnp.sum(max_pool(x))))(jnp.zeros((1, 4, 4, 2)))
    assert float(jnp.sum(dx)) == 8 and float(jnp.max(dx)) == 1


def test_check_image():
    """Fails if a shape with a batch axis, an empty image or an image too small for the model is accepted."""
    assert check_image([28, 28], 4) == (28, 28)
    with pytest.raises(ValueError, match=r"shape must be \(height, width\) or .* got \(100, 28, 28, 1\)"):
        check_image((100, 28, 28, 1), 4)
    with pytest.raises(ValueError, match=r"the channels in shape=\(8, 8, 0\) must be at least 1"):
        check_image((8, 8, 0), 4)
    with pytest.raises(ValueError, match=r"images of shape \(8, 3\) are too small.*4x4"):
        check_image((8, 3), 4)
    assert as_image(jnp.zeros((2, 4, 5)), jnp.bfloat16).shape == (2, 4, 5, 1)


def test_operations_are_counted(monkeypatch):
    """The benchmarks' operation counts. Fails if products in jitted functions are missed, as by jax 0.12's names."""
    monkeypatch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    import bench

    task = fedamp_jax.models.mlp(classes=3, hidden=(5,), shape=(4,))
    variables = task.init(jax.random.key(0))
    nested = task._replace(predict=jax.jit(task.predict))
    assert bench.layers(task, variables, jnp.zeros((7, 4))) == [2 * 7 * 4 * 5, 2 * 7 * 5 * 3]
    assert bench.layers(nested, variables, jnp.zeros((7, 4))) == [2 * 7 * 4 * 5, 2 * 7 * 5 * 3]
    assert bench.training_flops([10.0, 3.0]) == 3 * 13 - 10  # no gradient with respect to the first layer's input


@pytest.mark.parametrize("case", MANY)
def test_second_derivatives(case):
    """A gradient's gradient, for several clients side by side, is that of `lax`; as `perfedavg` needs it.

    Failed with an error of JAX's, as `custom_vmap` cannot be transposed.
    """
    x, w, strides, padding = (jnp.asarray(a, jnp.float32) if isinstance(a, np.ndarray) else a
                              for a in _make(case, clients=(2,), features=3))  # fmt: skip

    def curvature(lowering):
        def loss(x, w):
            y = conv_general_dilated(x, w, strides, padding, dimension_numbers=NHWC, lowering=lowering)
            return jnp.sum(jnp.sin(y))

        def along(x, w):
            return sum(jnp.sum(jnp.cos(g)) for g in jax.grad(loss, (0, 1))(x, w))

        return jax.jit(jax.vmap(jax.grad(along, (0, 1))))(x, w)

    expected = curvature("xla")
    for lowering in ("auto", "loop", "patches"):
        chex.assert_trees_all_close(curvature(lowering), expected, rtol=1e-3, atol=2e-3)
