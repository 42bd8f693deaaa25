"""Data sets of the published sizes without their content: for what depends on shapes only, such as a dry run."""

import numpy as np

from fedamp_jax.checks import check_choice
from fedamp_jax.data.sources import Omniglot, Source

# Training and test images, shape of one, classes.
_SIZES = {
    "mnist": (60_000, 10_000, (28, 28), 10),
    "fashion_mnist": (60_000, 10_000, (28, 28), 10),
    "emnist": (697_932, 116_323, (28, 28), 62),
    "cifar10": (50_000, 10_000, (32, 32, 3), 10),
    "cifar100": (50_000, 10_000, (32, 32, 3), 100),
}
# Omniglot: characters of each alphabet, each of which 20 persons drew once.
_CHARACTERS = (
    20, 29, 26, 41, 40, 24, 46, 14, 26, 34, 33, 22, 26, 43, 24, 48, 22, 16, 52, 47, 40, 26, 40, 41, 33,
    14, 42, 23, 17, 55, 20, 26, 26, 26, 26, 26, 45, 45, 41, 26, 47, 40, 30, 45, 46, 28, 23, 25, 42, 26,
)  # fmt: skip
_DRAWERS = 20


def blank(name: str) -> Source | Omniglot:
    """Blank images, as many as the data set has, whose labels are its classes in turn.

    Args:
        name: `"mnist"`, `"fashion_mnist"`, `"emnist"` (byclass), `"cifar10"`, `"cifar100"` or `"omniglot"`.

    Returns:
        A `Source`, or an `Omniglot`; its images take no memory.

    Raises:
        ValueError: for any other name.

    >>> blank("mnist").x_train.shape, blank("cifar100").coarse_train[:6].tolist()
    ((60000, 28, 28), [0, 0, 0, 0, 0, 1])
    """
    check_choice("name", name, (*_SIZES, "omniglot"))
    if name == "omniglot":
        character = np.concatenate([np.repeat(np.arange(1, n + 1), _DRAWERS) for n in _CHARACTERS]).astype(np.int32)
        alphabet = np.repeat(np.arange(len(_CHARACTERS), dtype=np.int32), _DRAWERS * np.array(_CHARACTERS))
        drawer = np.tile(np.arange(1, _DRAWERS + 1, dtype=np.int32), sum(_CHARACTERS))
        x = np.broadcast_to(np.zeros((28, 28), np.uint8), (len(character), 28, 28))
        return Omniglot(name, x, alphabet, character, drawer)
    *sizes, shape, classes = _SIZES[name]
    (x_train, y_train), (x_test, y_test) = (
        (np.broadcast_to(np.zeros(shape, np.uint8), (n, *shape)), np.arange(n, dtype=np.int32) % classes) for n in sizes
    )
    coarse = (y_train // 5, y_test // 5) if name == "cifar100" else (None, None)
    return Source(name, x_train, y_train, x_test, y_test, classes, *coarse)
