"""Data sets of the published sizes without their content: for what depends on shapes only, such as a dry run."""

import numpy as np

from fedamp_jax.checks import check_choice
from fedamp_jax.data.sources import Source

# Training and test images, shape of one, classes.
_SIZES = {
    "mnist": (60_000, 10_000, (28, 28), 10),
    "fashion_mnist": (60_000, 10_000, (28, 28), 10),
    "emnist": (697_932, 116_323, (28, 28), 62),
    "cifar10": (50_000, 10_000, (32, 32, 3), 10),
    "cifar100": (50_000, 10_000, (32, 32, 3), 100),
}


def blank(name: str) -> Source:
    """Blank images, as many as the data set has, whose labels are its classes in turn.

    Args:
        name: `"mnist"`, `"fashion_mnist"`, `"emnist"` (byclass), `"cifar10"` or `"cifar100"`.

    Returns:
        A `Source`; its images take no memory.

    Raises:
        ValueError: for any other name.

    >>> blank("mnist").x_train.shape, blank("cifar100").coarse_train[:6].tolist()
    ((60000, 28, 28), [0, 0, 0, 0, 0, 1])
    """
    check_choice("name", name, tuple(_SIZES))
    *sizes, shape, classes = _SIZES[name]
    (x_train, y_train), (x_test, y_test) = (
        (np.broadcast_to(np.zeros(shape, np.uint8), (n, *shape)), np.arange(n, dtype=np.int32) % classes) for n in sizes
    )
    coarse = (y_train // 5, y_test // 5) if name == "cifar100" else (None, None)
    return Source(name, x_train, y_train, x_test, y_test, classes, *coarse)
