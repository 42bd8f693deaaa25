"""What is done differently on each platform, and the numbers that decided it.

The platform is the one that a program is compiled FOR, not the one that traces it: a TPU's round can be compiled on a
laptop (`fedamp_jax.placement.topology`), and a machine with a GPU may train on its CPU.

| | cpu | tpu | gpu |
|---|---|---|---|
| convolution | `loop` | `xla` | `xla` |
| max pooling | `slices` | `window` | `slices` |
| clients side by side | one | one if they convolve, else all | one if they convolve, else all |
| distances | `gram`, in float64 | `differences`, in float32 | `gram`, in float64 |
| rounds of the shuffle | a loop | unrolled | unrolled |

- cpu: measured (benchmarks/RESULTS.md). A vmapped convolution, a grouped one, is 38 times slower than plain ones, one
  client after the other; `patches` are slower than these, and the gradient of `window` is a slow scatter. Products in
  float64 give distances three times as fast as differences do. Batched products are slower than plain ones: one client
  at a time takes 0.54 of the time of 33 of the digits' MLP, and 0.75 of that of 3 of the MLP for 28x28 images. Over a
  base that they share, clients with adapters take about the same time both ways, and an eighth of the memory.
- tpu: by the TPU compiler's own estimate (benchmarks/RESULTS.md), a FedAMP round of MNIST's CNN on a v5e: `xla` with
  one client at a time 1.01 s, ten side by side 1.69 s; `loop` with ten 8.1 s; `patches` with ten 51 s, and refused for
  lack of memory with 100. The digits' MLP: all side by side 0.95 ms, one by one 5.0 ms. float64 is emulated.
- gpu: not measured. Programs compiled for an H100 tell what their kernels read and write, and so the least time at the
  bandwidth of its memory. A FedAMP round of ResNet18 on CIFAR-100, 100 clients: `xla` with one client at a time 25 TB,
  7.3 s, and 11 GiB of memory; `patches` 61 TB, 18 s, and 60 GiB with 25 side by side. MNIST's CNN: `xla` with one
  client at a time 1.1 TB, 0.34 s, but 254,000 kernels; `patches` with 100 side by side 3.1 TB, 0.92 s, and 8,900
  kernels. `window` moves 1.6 TB in place of 1.1. `xla` side by side makes grouped convolutions, gradients of kernels
  with a window as large as the image.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from jax import lax


class Choices(NamedTuple):
    """The column of one platform.

    Attributes:
        convolution: the lowering of convolutions, see `fedamp_jax.models.layers`.
        pooling: the implementation of max pooling, see `fedamp_jax.kernels.pooling`.
        distances: how squared distances are computed, see `fedamp_jax.kernels.distances`.
        together: whether clients that do not convolve are trained side by side, as many as fit into the memory.
    """

    convolution: str
    pooling: str
    distances: str
    together: bool


CHOICES = {
    "cpu": Choices("loop", "slices", "gram", together=False),
    "tpu": Choices("xla", "window", "differences", together=True),
    "gpu": Choices("xla", "slices", "gram", together=True),
}


def on_platform(choice: str, implementations: dict[str, Callable[..., Any]], *args: Any) -> Any:
    """Calls the implementation of the platform that the program is compiled for.

    Args:
        choice: a field of `Choices`.
        implementations: functions of `args` by the values of that field.
        *args: trees of arrays.

    >>> import jax.numpy as jnp
    >>> names = {"loop": jnp.sin, "xla": jnp.cos, "patches": jnp.tan}
    >>> bool(on_platform("convolution", names, 0.5) == jnp.sin(0.5)) or jax.default_backend() != "cpu"
    True
    """
    cpu, tpu, gpu = (implementations[getattr(CHOICES[platform], choice)] for platform in ("cpu", "tpu", "gpu"))
    return lax.platform_dependent(*args, cpu=cpu, tpu=tpu, default=gpu)  # a GPU goes by several names


def default_device() -> Any:
    """The device on which JAX runs what is not placed elsewhere."""
    chosen = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if isinstance(chosen, str):  # the name of a platform
        return jax.local_devices(backend=chosen)[0]
    return chosen or jax.local_devices()[0]


def side_by_side(platform: str, convolves: Callable[[], bool]) -> int | None:
    """How many clients a device trains side by side, as long as its memory allows it: 1, or None for all.

    Args:
        platform: such as `"tpu"`.
        convolves: whether their training convolves; only asked where it matters.

    >>> side_by_side("tpu", lambda: True), side_by_side("tpu", lambda: False), side_by_side("cpu", lambda: False)
    (1, None, 1)
    """
    return None if CHOICES.get(platform, CHOICES["gpu"]).together and not convolves() else 1


def unroll(platform: str, rounds: int) -> int:
    """How many of a short loop's rounds become one step of it: all where each step is a kernel that is launched anew.

    On a CPU the loop is faster, and compiles in less time.

    >>> unroll("cpu", 24), unroll("tpu", 24)
    (1, 24)
    """
    return 1 if platform == "cpu" else rounds
