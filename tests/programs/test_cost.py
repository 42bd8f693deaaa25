"""What a compiled program takes by its compiler's own estimates: which computations run, and how often."""

import jax
import jax.numpy as jnp
import pytest
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

import fedamp_jax
from fedamp_jax.kernels.convolution import conv_general_dilated
from fedamp_jax.placement import client_mesh
from fedamp_jax.programs import cost
from fedamp_jax.programs.accelerators import ACCELERATORS, accelerator
from fedamp_jax.programs.jaxpr import flops, repeat
from tests.accelerators import topology_or_skip

V5E = ACCELERATORS["v5e"]


def cycles(number):
    """The part of an instruction that has the compiler's estimate."""
    return f'backend_config={{"estimated_cycles":"{number}"}}'


def program(entry, *others):
    """A program's text: the instructions of its main computation, and further computations, `(name, instructions)`."""
    texts = [f"%{name} (p: f32[]) -> f32[] {{\n{lines}\n}}\n" for name, lines in others]
    return "HloModule m\n\n" + "\n".join([*texts, f"ENTRY %main (p: f32[]) -> f32[] {{\n{entry}\n}}\n"])


def total(text):
    """Cycles of a program on a TPU v5e."""
    return (cost.seconds(text, V5E) or 0) * (V5E.clock or 0)


BODY = ("body", f"  %a = f32[] fusion(%p), calls=%inner, {cycles(10)}")
INNER = ("inner", f"  ROOT %m = f32[] multiply(%p, %p), {cycles(1000)}")


def counted(n):
    """The condition of a loop of n steps."""
    return ("condition", f"  %n = s32[] constant({n})\n  ROOT %less = pred[] compare(%p, %n), direction=LT")


def loop(tail=""):
    """A loop over `body`."""
    return f"  %w = (f32[]) while(%p), condition=%condition, body=%body{tail}"


def test_instructions_are_added():
    """A fusion's inside is part of the fusion's own estimate. Failed when its computation was counted by itself."""
    text = program(f"  %x = f32[] fusion(%p), calls=%inner, {cycles(7)}\n  %y = f32[] copy(%x), {cycles(5)}", INNER)
    assert total(text) == pytest.approx(12)


@pytest.mark.parametrize(
    ("condition", "tail", "steps"),
    [
        (counted(6), "", 6),
        (counted(6), ', backend_config={"known_trip_count":{"n":"4"}}', 4),
        (("condition", "  ROOT %r = pred[] get-tuple-element(%p), index=3"),
         ', metadata={op_name="jit(f)/at_most_9/while/body/vmap(at_most_30)/while"}', 30),
        (counted(6), ', metadata={op_name="jit(f)/at_most_9/while/body/while"}', 6),
    ],
    ids=["constant", "known", "dynamic", "constant within a dynamic one"],
)  # fmt: skip
def test_a_loop_is_as_often_as_it_runs(condition, tail, steps):
    """Failed when the bound of the loop around a loop was taken for its own."""
    text = program(loop(tail) + f"\n  %y = f32[] copy(%w), {cycles(5)}", INNER, BODY, condition)
    assert total(text) == pytest.approx(5 + 10 * steps)


def test_loops_in_loops():
    """Repetitions multiply."""
    outer = ("outer", loop().replace("%w", "%v"))
    around = "  %w = (f32[]) while(%p), condition=%few, body=%outer"
    few = ("few", "  %n = s32[] constant(3)\n  ROOT %less = pred[] compare(%p, %n), direction=LT")
    assert total(program(around, INNER, BODY, counted(6), few, outer)) == pytest.approx(3 * 6 * 10)


def test_a_loop_without_a_bound():
    """It is named rather than counted once."""
    unknown = ("condition", "  ROOT %r = pred[] get-tuple-element(%p), index=3")
    with pytest.raises(ValueError, match=r"number of iterations of this loop is unknown: .*while"):
        total(program(f"  %y = f32[] copy(%p), {cycles(5)}\n" + loop(), INNER, BODY, unknown))


@pytest.mark.parametrize(
    "instruction",
    [
        "conditional(%p, %a, %b), branch_computations={%cheap, %body}",
        "conditional(%p, %a, %b), true_computation=%body, false_computation=%cheap",
        "call(%p), to_apply=%body",
        "async-start(%p), calls=%body",
    ],
)
def test_what_is_called_is_counted(instruction):
    """Of branches the dearest. Failed when only the first of `branch_computations` was looked at."""
    cheap = ("cheap", f"  ROOT %c = f32[] copy(%p), {cycles(1)}")
    text = program(f"  %y = f32[] {instruction}\n  %z = f32[] copy(%p), {cycles(5)}", INNER, BODY, cheap)
    assert total(text) == pytest.approx(5 + 10)


def test_what_the_compiler_does_not_estimate():
    """Such instructions take the time of moving their result there and back at the published bandwidth.

    Failed when the compiler's mark for "unknown" was added as a number of cycles.
    """
    text = program(
        f"  %s = f32[1024,100]{{1,0}} select-and-scatter(%p, %p, %p), select=%a, scatter=%b\n"
        f"  %t = f32[1024]{{0}} fusion(%s), calls=%inner, {cycles(1 << 62)}\n  %y = f32[] copy(%p), {cycles(5)}", INNER,
    )  # fmt: skip
    assert cost.seconds(text, V5E) == pytest.approx(2 * 4 * 1024 * (100 + 1) / V5E.bandwidth + 5 / 1.5e9, rel=1e-6)


def test_without_estimates_there_is_none():
    """As for CPUs and GPUs."""
    assert cost.seconds(program("  %y = f32[] copy(%p)"), V5E) is None
    assert cost.seconds(program(f"  %y = f32[] copy(%p), {cycles(5)}"), ACCELERATORS["h100"]) is None


def test_operations_of_a_dynamic_loop():
    """Of a dynamic number of steps the bound counts. Failed with the loop counted once."""
    a = jnp.ones((10, 10))
    steps = jax.make_jaxpr(lambda n, a: repeat(n, lambda _, a: a @ a, a, at_most=7))(jnp.int32(2), a)
    assert flops(steps) == 7 * 2000.0
    many = jax.make_jaxpr(jax.vmap(lambda n, a: repeat(n, lambda _, a: a @ a, a, at_most=7)))
    assert flops(many(jnp.zeros(3, jnp.int32), jnp.ones((3, 10, 10)))) == 3 * 7 * 2000.0


def test_operations_of_a_gradient_step():
    """A convolution counts forward and towards its kernel, but for the first one towards its input, by any lowering.

    Failed with the value that a backward pass computes for its gradients alone counted again.
    """
    first, second, dense = 25 * 4 * 8 * 8, 25 * 4 * 6 * 4 * 4, 2 * 2 * 6 * 3
    for conv in ("auto", "patches", "xla"):
        task = fedamp_jax.models.cnn(3, shape=(8, 8), filters=(4, 6), hidden=(), conv=conv)
        variables = task.init(jax.random.key(0))
        x, y = jnp.zeros((5, 8, 8), jnp.uint8), jnp.zeros(5, jnp.int32)
        batch = fedamp_jax.Batch(x, y, jnp.ones(5, bool), jnp.int32(3), jnp.arange(5, dtype=jnp.int32))
        gradient = jax.grad(lambda v, t=task, b=batch: t.loss(v, b, jax.random.key(1))[0])

        def steps(n, v, g=gradient):
            return repeat(n, lambda _, v: g(v), v, at_most=3)

        there = jax.shard_map(steps, mesh=client_mesh(1), in_specs=P(), out_specs=P(), check_vma=False)
        assert flops(jax.make_jaxpr(there)(jnp.int32(3), variables)) == 3 * 2 * 5 * (2 * first + 3 * second + 3 * dense)


def test_operations_of_a_platform():
    """On a CPU a wide convolution takes the products of Winograd's tiles, by hand; elsewhere those of its definition.

    Failed with the general lowering counted for every platform.
    """
    images, side, narrow, wide = 3, 14, 32, 64
    convolve = jax.make_jaxpr(
        lambda x, w: conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    )
    program = convolve(jnp.zeros((images, side, side, narrow)), jnp.zeros((5, 5, narrow, wide)))
    definition = 2.0 * images * side**2 * 25 * narrow * wide
    tiles, entries = images * 4**2, 8**2  # 4 x 4 tiles cover an image, of 8 x 8 inputs each
    kernels = entries * 25 * narrow * wide
    assert flops(program, "cpu") == 2.0 * (entries * tiles * narrow * wide + kernels)
    for platform in (None, "tpu", "gpu", "cuda"):
        assert flops(program, platform) == definition


@pytest.mark.accelerator
def test_a_loop_of_products_takes_its_steps():
    """N steps take N times as long as one, static or not, under `vmap` and within another loop. Failed as above."""
    mesh = topology_or_skip("v5e:1x1")
    known = accelerator(mesh.devices.flat[0])
    there = NamedSharding(mesh, P())

    def taken(fn, *shapes):
        shapes = [jax.ShapeDtypeStruct(s, jnp.int32 if s == () else jnp.float32, sharding=there) for s in shapes]
        return cost.seconds(jax.jit(fn).lower(*shapes).compile().as_text(), known)

    side, n = (8192, 8192), 20  # so large that what a branch copies is little beside a product

    def step(_, c):
        return (c[0], c[0] @ c[1])

    def static(a, b):
        return lax.fori_loop(0, n, step, (a, b))

    def dynamic(k, a, b):
        return repeat(k, step, (a, b), at_most=n)

    def nested(k, a, b):
        return repeat(k, lambda _, c: lax.fori_loop(0, 4, step, c), (a, b), at_most=n // 4)

    def branch(k, a, b):
        return lax.cond(k > 0, lambda a, b: a @ b, lambda a, b: a + b, a, b)

    once = taken(lambda a, b: a @ b, side, side)
    assert taken(static, side, side) == pytest.approx(n * once, rel=0.2)
    assert taken(dynamic, (), side, side) == pytest.approx(n * once, rel=0.2)
    assert taken(nested, (), side, side) == pytest.approx(n * once, rel=0.2)
    assert taken(branch, (), side, side) == pytest.approx(once, rel=0.2)
    several = taken(jax.vmap(dynamic, in_axes=(None, 0, 0)), (), (3, *side), (3, *side))
    assert several == pytest.approx(3 * n * once, rel=0.2)
