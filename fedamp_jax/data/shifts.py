"""Groups of clients that disagree: other labels or other images for the same examples (concept and feature shift)."""

from collections.abc import Callable
from typing import Literal

import numpy as np
from scipy import ndimage

from fedamp_jax.checks import check_choice, check_integer, check_number
from fedamp_jax.data.partition.base import Partition, Rows, generators
from fedamp_jax.data.sources import Source

Shift = Literal["labels", "rotation", "both", "brightness", "contrast", "blur", "label-noise"]
SHIFTS: tuple[Shift, ...] = ("labels", "rotation", "both", "brightness", "contrast", "blur", "label-noise")
_AT_ONCE = 1024  # images that are changed at once, in float32


def shifted(source: Source, part: Partition, shift: str = "labels", strength: float = 1.0, *, seed: int) -> Source:
    """The same data set, in which groups of clients disagree: each group's examples are changed in a way of its own.

    Group 0 keeps its examples as they are. What happens to those of group g of G, at full strength:

    - `"labels"`: a permutation of the classes, so that an image has one class here and another there (Sattler, Müller
      and Samek 2021). The permutations are cyclic shifts of the classes, in a random order, by g places: no two groups
      agree on any class. At partial strength only this share of the classes, rounded and at least two, is permuted in a
      group. Which ones they are differs between groups.
    - `"rotation"`: images are turned counterclockwise by g 360 / G degrees (Ghosh et al. 2020, who have four groups);
      at partial strength by this share of the angle. Multiples of 90 degrees are exact, other angles interpolate
      linearly and leave black corners.
    - `"both"`: labels and rotation.
    - `"brightness"`: g / (G - 1) of half of white is added, and what exceeds white is cut off. Here and below, the
      strength is a factor of g / (G - 1).
    - `"contrast"`: g / (G - 1) of 90 % of a pixel's difference from the mean of its image is taken away.
    - `"blur"`: g / (G - 1) of the image is replaced by the image blurred with a Gaussian, whose standard deviation is a
      tenth of the height.
    - `"label-noise"`: g / (G - 1) of the training labels, on average, are replaced by classes drawn at random. Test
      labels stay as they are. A larger strength replaces the same labels and more.

    All but label noise change training and test examples alike. A strength of 0 changes nothing.

    Args:
        source: the data set.
        part: its partition, whose groups share no example, as of `partition.concept`.
        shift: one of `SHIFTS`.
        strength: from 0, no disagreement, to 1.
        seed: decides the order of the classes, and which labels are noise.

    Returns:
        The `Source` with changed copies of what the shift changes, and without superclasses. uint8 stays uint8.

    Raises:
        ValueError: if the shift is unknown, the strength is out of range, there are no groups or two of them share an
            example, there are fewer classes than groups with permuted labels, or the images cannot be changed.

    >>> from fedamp_jax import data
    >>> digits = data.load("digits")
    >>> part = data.partition.concept(digits.y_train, digits.y_test, clients=8, groups=4, seed=0)
    >>> turned = data.shifted(digits, part, "rotation", seed=0)
    >>> last = part.train[-1][0]  # an example of group 3, which is turned by 270 degrees
    >>> bool((turned.x_train[last] == np.rot90(digits.x_train[last], 3)).all())
    True
    """
    check_choice("shift", shift, SHIFTS)
    check_number("strength", strength, low=0, high=1, strict=False)
    if part.groups is None:
        raise ValueError("part has no groups, which a shift needs: use partition.concept")
    groups = int(part.groups.max()) + 1
    check_groups(shift, groups, source.classes)
    if strength == 0:
        return source
    plan, *_ = generators(seed)
    y_train, y_test, x_train, x_test = source.y_train, source.y_test, source.x_train, source.x_test
    of_train = _group_of(part.train, part.groups, len(y_train), "training")
    of_test = _group_of(part.test, part.groups, len(y_test), "test")
    if shift in ("labels", "both"):
        table = permutations(source.classes, groups, strength, plan)
        y_train, y_test = (
            table[np.maximum(of, 0), y].astype(y.dtype) for y, of in ((y_train, of_train), (y_test, of_test))
        )
    if shift == "label-noise":
        noisy = plan.random(len(y_train)) < _levels(groups, strength)[np.maximum(of_train, 0)]
        y_train = np.where(noisy, plan.integers(source.classes, size=len(y_train)), y_train).astype(y_train.dtype)
    elif shift != "labels":
        x_train, x_test = (
            _change(x, of, groups, _changes(shift, groups, strength, x.shape[1]))
            for x, of in ((check_images(x_train), of_train), (check_images(x_test), of_test))
        )
    return Source(source.name, x_train, y_train, x_test, y_test, source.classes)


def check_groups(shift: str, groups: int, classes: int, flag: str = "") -> None:
    """Checks that there are at least two groups, and classes enough to permute; `flag` precedes names in messages."""
    check_integer(f"{flag}groups", groups, low=2)
    if shift in ("labels", "both") and groups > classes:
        raise ValueError(
            f"{flag}groups {groups} with permuted labels need as many classes, but there are {classes}: use at most "
            f"{classes} groups, or {flag}shift rotation"
        )


def check_images(x: np.ndarray) -> np.ndarray:
    """Returns `x` if it holds square uint8 images, which can be turned; raises ValueError if not."""
    if x.dtype != np.uint8 or x.ndim < 3 or x.shape[1] != x.shape[2]:
        raise ValueError(
            f"a shift of images needs square uint8 images [n, height, width, ...], got {x.dtype} {list(x.shape)}: use "
            "shift 'labels' or 'label-noise'"
        )
    return x


def permutations(classes: int, groups: int, strength: float, rng: np.random.Generator) -> np.ndarray:
    """The class that each group has in place of each class, `[G, C]` int64; see `shifted`.

    Args:
        classes: C, at least G.
        groups: G, at least 2.
        strength: share of the classes that a group permutes, greater than 0.
        rng: random generator, for the order of the classes.

    >>> permutations(4, 3, 1.0, np.random.default_rng(0)).tolist()
    [[0, 1, 2, 3], [1, 3, 0, 2], [3, 2, 1, 0]]
    """
    order = rng.permutation(classes)
    count = max(2, round(strength * classes))  # of one class there is no permutation
    table = np.tile(np.arange(classes), (groups, 1))
    for g in range(1, groups):
        # Where only some classes are permuted, no two groups begin at the same one: they never have the same table.
        mine = order[(g * classes // groups + np.arange(count)) % classes]
        table[g, mine] = np.roll(mine, -(1 + (g - 1) % (count - 1)))
    return table


def _group_of(rows: Rows, groups: np.ndarray, n: int, what: str) -> np.ndarray:
    """The group of each of n examples, `[n]`; -1 for those that no client has."""
    found = np.full(n, -1)
    for mine, g in zip(rows, groups, strict=True):
        if len(other := np.unique(found[mine][(found[mine] >= 0) & (found[mine] != g)])):
            raise ValueError(
                f"groups {other[0]} and {g} share {what} examples, which cannot be changed for both: use "
                "partition.concept, which shares none"
            )
        found[mine] = g
    return found


def _levels(groups: int, strength: float) -> np.ndarray:
    """From 0 for the first group to `strength` for the last."""
    return strength * np.arange(groups) / (groups - 1)


def _changes(shift: str, groups: int, strength: float, height: int) -> list[Callable[[np.ndarray], np.ndarray]]:
    """What happens to images `[n, height, width, ...]` uint8 of each group."""
    if shift in ("rotation", "both"):
        return [lambda x, g=g: rotate(x, strength * 360 * g / groups) for g in range(groups)]

    def in_float(change: Callable[[np.ndarray, float], np.ndarray], level: float) -> Callable[[np.ndarray], np.ndarray]:
        return lambda x: np.clip(np.rint(change(x.astype(np.float32), level)), 0, 255).astype(np.uint8)

    def contrast(x: np.ndarray, level: float) -> np.ndarray:
        mean = x.mean(axis=tuple(range(1, x.ndim)), keepdims=True)
        return mean + (1 - 0.9 * level) * (x - mean)

    def blur(x: np.ndarray, level: float) -> np.ndarray:
        width = 0.1 * height
        return x + level * (ndimage.gaussian_filter(x, (0, width, width, *[0] * (x.ndim - 3)), mode="nearest") - x)

    change = {"brightness": lambda x, level: x + 127.5 * level, "contrast": contrast, "blur": blur}[shift]
    return [in_float(change, level) for level in _levels(groups, strength).tolist()]


def rotate(x: np.ndarray, degrees: float) -> np.ndarray:
    """Square images `[n, height, width, ...]`, turned counterclockwise; exactly by multiples of 90 degrees."""
    quarters = degrees / 90
    if np.isclose(quarters, round(quarters)):
        return np.rot90(x, round(quarters), axes=(1, 2))
    return ndimage.rotate(x, degrees, axes=(1, 2), reshape=False, order=1)


def _change(
    x: np.ndarray, of: np.ndarray, groups: int, changes: list[Callable[[np.ndarray], np.ndarray]]
) -> np.ndarray:
    """One copy of `x`, with the examples of each group but the first changed."""
    x = x.copy()
    for g in range(1, groups):
        mine = np.flatnonzero(of == g)
        for rows in np.split(mine, range(_AT_ONCE, len(mine), _AT_ONCE)):
            x[rows] = changes[g](x[rows])
    return x
