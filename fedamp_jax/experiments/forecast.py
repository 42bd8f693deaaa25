"""How long a run will take at least, told before its first round: counted operations, and a second of measuring."""

import functools
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fedamp_jax import Data, Placement, Task
from fedamp_jax.placement import OnMesh
from fedamp_jax.placement.programs import flops
from fedamp_jax.types import Batch

_SIDE = 2048
_SHORT = 60.0
"""Seconds: nothing is said of a run that is not longer."""


def at_least(task: Task, train: Data, placement: Placement, options: Any, rounds_left: Mapping[str, int]) -> str | None:
    """What to tell a person before a long run; None if it is short, or if its local steps are not told by epochs.

    Args:
        task: the model.
        train: training data.
        placement: where the clients will live.
        options: with `batch_size`, `epochs` and `epochs_range`, as the FedAMP paper's experiments have them.
        rounds_left: how many rounds each method still has to be trained.
    """
    if not hasattr(options, "batch_size") or placement.platform != "cpu":
        return None
    steps = np.ceil(np.asarray(train.size) / options.batch_size).sum() * np.mean(options.epochs_range or options.epochs)
    counted = step_flops(task, train, options.batch_size, placement.platform) * steps
    counted *= options.participation * (1 - options.drop_rate)
    total = sum(rounds_left.values())
    if counted * total / 2e12 < _SHORT:  # faster than any CPU
        return None
    speed = product_speed(placement) * placement.devices
    if counted * total / speed < _SHORT:
        return None
    each = {name: readable(counted * rounds / speed) for name, rounds in rounds_left.items()}
    alike = len(set(each.values())) == 1 < len(each)
    many = f"{len(each)} methods, {min(each.values())} each" if alike else ", ".join(map(" ".join, each.items()))
    rounds = "-".join(str(n) for n in sorted({min(rounds_left.values()), max(rounds_left.values())}))
    return (
        f"This will take at least {readable(counted * total / speed)}: {many}; {rounds} rounds of "
        f"{len(train.size)} clients, {counted / 1e12:.3g} TFLOP a round, at the {speed / 1e9:.3g} GFLOP/s of a matrix "
        f"product measured here. Quicker: fewer --methods or --rounds, --model mlp, or an accelerator "
        f"(--dry-run v5e:1x1 tells what it takes there). After an interruption, --resume continues."
    )


def step_flops(task: Task, train: Data, batch_size: int, platform: str) -> float:
    """Floating point operations of a platform's matrix products and convolutions in one local step; traces it only."""
    size = min(batch_size, train.y.shape[1])
    kinds = ((size, *train.x.shape[2:]), train.x.dtype), ((size,), jnp.int32), ((size,), bool), ((), jnp.int32)
    shapes: list[Any] = [jax.ShapeDtypeStruct(*kind) for kind in kinds]
    key = jax.random.key(0)
    model = jax.eval_shape(task.init, key)
    step = jax.make_jaxpr(jax.grad(lambda p, s, b: task.loss(model._replace(params=p, stats=s), b, key), has_aux=True))
    return flops(step(model.params, model.stats, Batch(*shapes)), platform)


@functools.cache
def product_speed(placement: Placement) -> float:
    """FLOP/s of each device in a float32 matrix product on all of them, measured once, for about a second."""
    each = jnp.ones((placement.devices, _SIDE, _SIDE), jnp.float32)
    if isinstance(placement, OnMesh):
        each = jax.device_put(each, jax.NamedSharding(placement.mesh, jax.P("clients")))
    product = jax.jit(lambda a: a @ a)
    jax.block_until_ready(product(each))
    times = []
    while sum(times) < 1.0:
        began = time.perf_counter()
        jax.block_until_ready(product(each))
        times.append(time.perf_counter() - began)
    return 2.0 * _SIDE**3 / min(times)


def readable(seconds: float) -> str:
    """Such as `1.5 h`.

    >>> readable(5400), readable(90), readable(3)
    ('1.5 h', '1.5 min', '3 s')
    """
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"
