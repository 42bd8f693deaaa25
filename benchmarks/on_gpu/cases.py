"""The rounds of the papers' experiments: four models with data of their shapes, and the same tiny, for a rehearsal."""

from typing import Any, NamedTuple

import bench
import jax.numpy as jnp
import numpy as np
import optax

import fedamp_jax
from fedamp_jax.data import from_lists


class Case(NamedTuple):
    """A FedAMP round.

    Attributes:
        kind: factory in `fedamp_jax.models`.
        torch: its name in `torch_loop.py`.
        clients: in the round.
        examples: of each.
        shape: of one.
        classes: of the labels.
        pools: whether there is max pooling.
        epochs: passes in the round.
        probe: passes in a measurement, from which a round is extrapolated.
        batch: examples of a step.
        options: of the factory.
    """

    kind: str
    torch: str
    clients: int
    examples: int
    shape: tuple[int, ...]
    classes: int
    pools: bool = False
    epochs: int = 10
    probe: int = 10
    batch: int = 100
    options: Any = ()

    @property
    def convolves(self) -> bool:
        """Whether it has convolutions."""
        return self.kind != "mlp"

    @property
    def traits(self) -> tuple[bool, bool, int]:
        """What its candidates depend on: whether it convolves, whether it pools, its clients."""
        return self.convolves, self.pools, self.clients

    @property
    def steps(self) -> int:
        """Of one client in a pass."""
        return -(-self.examples // self.batch)

    def algorithm(
        self, dtype: str = "float32", epochs: int | None = None, optimizer: Any = None
    ) -> fedamp_jax.Algorithm:
        """FedAMP with Adam, as the papers train, or another optimizer, computing in `dtype`."""
        settings = {**dict(self.options), "shape": self.shape, "compute_dtype": jnp.dtype(dtype)}
        task = getattr(fedamp_jax.models, self.kind)(self.classes, **settings)
        solver = fedamp_jax.Solver(optimizer or optax.adam(1e-3), epochs or self.epochs, self.batch)
        return fedamp_jax.fedamp(task, solver, sigma=100.0, self_weight=0.05)

    def data(self, clients: int | None = None, examples: int | None = None) -> fedamp_jax.Data:
        """Noise for images: what is in them does not change the time."""
        m, n = clients or self.clients, examples or self.examples
        rng = np.random.default_rng(0)
        x = rng.integers(0, 256, (m, n, *self.shape), np.uint8)
        y = rng.integers(0, self.classes, (m, n)).astype(np.int32)
        return from_lists(x, y, classes=self.classes)

    def shapes(self) -> fedamp_jax.Data:
        """The data without their numbers, for a compiler."""
        return bench.shapes_of_clients(self.clients, self.examples, self.shape)


CASES = {
    "mnist-cnn": Case("cnn", "cnn", 100, 600, (28, 28), 10, pools=True, probe=2),
    "cifar100-resnet18": Case("resnet18", "resnet18", 100, 500, (32, 32, 3), 100, probe=1),
    "mnist-mlp": Case("mlp", "mlp", 100, 600, (28, 28), 10),
    "digits-mlp": Case("mlp", "small", 20, 90, (8, 8), 10),
}

# Images as large as `torch_loop.py` wants them, all else as small as can be.
_SMALL = {"clients": 2, "examples": 4, "epochs": 2, "probe": 1, "batch": 2, "classes": 3}
TINY = {
    "mnist-cnn": CASES["mnist-cnn"]._replace(**_SMALL, options={"filters": (2,), "hidden": (4,)}.items()),
    "cifar100-resnet18": CASES["cifar100-resnet18"]._replace(
        **_SMALL, shape=(8, 8, 3), options={"widths": (2,)}.items()
    ),
    "mnist-mlp": CASES["mnist-mlp"]._replace(**_SMALL, options={"hidden": (4,)}.items()),
    "digits-mlp": CASES["digits-mlp"]._replace(**_SMALL, options={"hidden": (4,)}.items()),
}


def cases(tiny: bool) -> dict[str, Case]:
    """By name."""
    return TINY if tiny else CASES
