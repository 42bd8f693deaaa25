"""`partition.concept` and `data.shifted`: who disagrees with whom, about what, and what stays as it is."""

import functools
import itertools
import tracemalloc

import numpy as np
import pytest
from scipy import ndimage

from fedamp_jax import data
from fedamp_jax.data import partition
from fedamp_jax.data.shifts import SHIFTS, permutations, rotate

DIGITS = data.load("digits")
OF_IMAGES = tuple(shift for shift in SHIFTS if shift not in ("labels", "label-noise"))


def dealt(clients=20, groups=5, seed=0):
    return partition.concept(DIGITS.y_train, DIGITS.y_test, clients, groups, seed=seed)


def rows_of(part, group, side):
    return np.concatenate([rows for rows, g in zip(getattr(part, side), part.groups, strict=True) if g == group])


@pytest.mark.parametrize(("clients", "groups"), [(20, 5), (62, 5), (7, 7), (100, 3)])
def test_clients_are_those_of_iid_in_groups_of_equal_sizes(clients, groups):
    """Every sample at one client. Failed with draws of its own, and with the remainder in the last group."""
    part = dealt(clients, groups)
    iid = partition.iid(DIGITS.y_train, DIGITS.y_test, clients, seed=0)
    for side, n in (("train", 1297), ("test", 500)):
        used = np.concatenate(getattr(part, side))
        assert len(np.unique(used)) == len(used) == n
        assert all((a == b).all() for a, b in zip(getattr(part, side), getattr(iid, side), strict=True))
    assert np.ptp(np.bincount(part.groups, minlength=groups)) == (clients % groups > 0)
    assert part.groups.dtype == np.int32 and (np.diff(part.groups) >= 0).all() and part.groups.max() == groups - 1


@pytest.mark.parametrize("shift", SHIFTS)
def test_without_strength_clients_are_iid(shift):
    """Bit for bit. Failed where two classes are permuted at the least strength, and at none."""
    disagreeing = data.federation("digits", "concept", shift=shift, strength=0.0, seed=3)
    alike = data.federation("digits", "iid", seed=3)
    for ours, theirs in ((disagreeing.train, alike.train), (disagreeing.test, alike.test)):
        assert ours.x.dtype == np.uint8
        for name in ("x", "y", "start", "size", "id"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
    assert disagreeing.groups.tolist() == np.repeat(range(5), 4).tolist() and alike.groups is None


@pytest.mark.parametrize(("classes", "groups"), [(10, 5), (10, 10), (62, 5), (100, 20), (2, 2)])
def test_at_full_strength_groups_agree_on_no_class(classes, groups):
    """Between each pair. Failed with independent random permutations, which agree on one class on average."""
    table = permutations(classes, groups, 1.0, np.random.default_rng(0))
    assert (np.sort(table, axis=1) == np.arange(classes)).all() and (table[0] == np.arange(classes)).all()
    assert all((a != b).all() for a, b in itertools.combinations(table, 2))


@pytest.mark.parametrize("strength", [0.01, 0.25, 0.5, 0.75, 0.99])
@pytest.mark.parametrize(("classes", "groups"), [(10, 5), (10, 10), (62, 5), (100, 20), (3, 3)])
def test_strength_is_the_share_of_the_classes_that_are_permuted(classes, groups, strength):
    """In each group but the first, and no two groups agree on all classes.

    Failed with the same classes in all groups, where two classes have one permutation only.
    """
    table = permutations(classes, groups, strength, np.random.default_rng(1))
    assert (np.sort(table, axis=1) == np.arange(classes)).all()
    assert ((table != np.arange(classes)).sum(axis=1) == [0] + [max(2, round(strength * classes))] * (groups - 1)).all()
    assert all((a != b).any() for a, b in itertools.combinations(table, 2))


def test_labels_of_a_client_follow_one_permutation():
    """In training and in test data, with images as they were. Failed with test labels as they are."""
    part = dealt()
    other = data.shifted(DIGITS, part, "labels", seed=0)
    assert other.x_train is DIGITS.x_train and other.x_test is DIGITS.x_test
    assert other.y_train.dtype == DIGITS.y_train.dtype
    tables = []
    for group in range(5):
        train, test = rows_of(part, group, "train"), rows_of(part, group, "test")
        table = {
            (a, b)
            for rows, old, new in ((train, DIGITS.y_train, other.y_train), (test, DIGITS.y_test, other.y_test))
            for a, b in zip(old[rows].tolist(), new[rows].tolist(), strict=True)
        }
        assert len(table) == 10
        tables.append(dict(table))
    assert tables[0] == {c: c for c in range(10)}
    assert all(a[c] != b[c] for a, b in itertools.combinations(tables, 2) for c in range(10))


def test_four_groups_are_turned_by_quarters_exactly():
    """Training and test images alike, labels untouched. Failed with clockwise turns."""
    part = dealt(8, 4)
    other = data.shifted(DIGITS, part, "rotation", seed=0)
    assert other.y_train is DIGITS.y_train and other.y_test is DIGITS.y_test
    for group, side in itertools.product(range(4), ("train", "test")):
        rows = rows_of(part, group, side)
        old, new = getattr(DIGITS, f"x_{side}"), getattr(other, f"x_{side}")
        for row in rows[:20]:
            np.testing.assert_array_equal(new[row], np.rot90(old[row], group))


def test_angles():
    """A turn by nearly 90 degrees is nearly np.rot90's, of colours as well; half the strength is half the angle.

    Failed where other angles turned clockwise.
    """
    smooth = np.add.outer(np.arange(32), 3 * np.arange(32)).astype(np.uint8)[None, :, :, None].repeat(3, axis=3)
    inner = (slice(None), slice(2, -2), slice(2, -2))
    nearly, exact = rotate(smooth, 89.9).astype(int), np.rot90(smooth, 1, axes=(1, 2)).astype(int)
    assert np.abs(nearly - exact)[inner].max() <= 1 and rotate(smooth, 89.9).dtype == np.uint8
    part = dealt(4, 2)
    half = data.shifted(DIGITS, part, "rotation", 0.5, seed=0)
    row = rows_of(part, 1, "train")[0]
    np.testing.assert_array_equal(half.x_train[row], np.rot90(DIGITS.x_train[row], 1))
    third = data.shifted(DIGITS, dealt(3, 3), "rotation", 1.0, seed=0)
    row = rows_of(dealt(3, 3), 1, "test")[0]
    np.testing.assert_array_equal(third.x_test[row], rotate(DIGITS.x_test[row][None], 120.0)[0])


def test_both_is_labels_and_rotation():
    """Failed with labels alone."""
    part = dealt(8, 4)
    both, labels, turned = (data.shifted(DIGITS, part, shift, 0.5, seed=2) for shift in ("both", "labels", "rotation"))
    np.testing.assert_array_equal(both.y_test, labels.y_test)
    np.testing.assert_array_equal(both.x_test, turned.x_test)
    assert (both.y_train != DIGITS.y_train).any() and (both.x_train != DIGITS.x_train).any()


@pytest.mark.parametrize("shift", OF_IMAGES)
def test_images_change_in_all_groups_but_the_first(shift):
    """By other amounts in each, training and test images, in a copy; uint8. Failed with the source overwritten."""
    part, before = dealt(), DIGITS.x_train.copy()
    other = data.shifted(DIGITS, part, shift, seed=0)
    np.testing.assert_array_equal(DIGITS.x_train, before)
    for side in ("train", "test"):
        old, new = getattr(DIGITS, f"x_{side}"), getattr(other, f"x_{side}")
        assert new.dtype == np.uint8 and new.shape == old.shape
        rows = [rows_of(part, g, side) for g in range(5)]
        moved = [np.abs(new[mine].astype(int) - old[mine]).mean() for mine in rows]
        assert moved[0] == 0 and min(moved[1:]) > 1
        if "rotation" not in shift and shift != "both":
            assert (np.diff(moved) > 0).all()  # the further the group, the stronger


def test_amounts_of_feature_shifts():
    """What `shifted` says of the last group. Failed with contrast around the mean of all images."""
    part = dealt()
    last = rows_of(part, 4, "train")
    x = DIGITS.x_train[last].astype(float)
    bright, flat, soft = (data.shifted(DIGITS, part, shift, seed=0).x_train[last] for shift in OF_IMAGES[2:])
    np.testing.assert_allclose(bright, np.minimum(x + 127.5, 255), atol=0.5)
    mean = x.mean(axis=(1, 2), keepdims=True)
    np.testing.assert_allclose(flat, mean + 0.1 * (x - mean), atol=0.501)
    blurred = ndimage.gaussian_filter(x, (0, 0.8, 0.8), mode="nearest")
    np.testing.assert_allclose(soft, blurred, atol=0.501)
    half = data.shifted(DIGITS, part, "contrast", 0.5, seed=0).x_train[last]
    np.testing.assert_allclose(half, mean + 0.55 * (x - mean), atol=0.501)


def test_blur_leaves_colours_apart():
    """Failed with a Gaussian over the channels, too."""
    x = np.zeros((4, 8, 8, 3), np.uint8)
    x[:, 3:5, 3:5, 0] = 255
    source = data.Source("mine", x, np.zeros(4, np.int32), x, np.zeros(4, np.int32), 2)
    part = partition.concept(source.y_train, source.y_test, 2, 2, seed=0)
    blurred = data.shifted(source, part, "blur", seed=0)
    last = rows_of(part, 1, "train")
    assert 0 < blurred.x_train[last, :, :, 0].max() < 255 and (blurred.x_train[..., 1:] == 0).all()


def test_label_noise_is_in_training_labels_alone():
    """None in the first group, all drawn anew in the last; more strength replaces more.

    Failed with noisy test labels.
    """
    part = dealt()
    full, half = (data.shifted(DIGITS, part, "label-noise", strength, seed=0) for strength in (1.0, 0.5))
    for noisy in (full, half):
        np.testing.assert_array_equal(noisy.y_test, DIGITS.y_test)
        assert noisy.x_train is DIGITS.x_train
    wrong = [np.mean((full.y_train != DIGITS.y_train)[rows_of(part, g, "train")]) for g in range(5)]
    np.testing.assert_allclose(wrong, 0.9 * np.arange(5) / 4, atol=0.1)  # one label in ten is drawn to be itself
    changed = half.y_train != DIGITS.y_train
    np.testing.assert_array_equal(half.y_train[changed], full.y_train[changed])
    assert 0.3 < changed.sum() / (full.y_train != DIGITS.y_train).sum() < 0.7


@pytest.mark.parametrize("shift", SHIFTS)
def test_a_seed_determines_the_shift(shift):
    """Failed with NumPy's global generator."""
    part = dealt()
    one, same, other = (data.shifted(DIGITS, part, shift, seed=seed) for seed in (1, 1, 2))
    for a, b in zip(one, same, strict=True):
        np.testing.assert_array_equal(a, b)
    if shift in ("labels", "both", "label-noise"):
        assert (one.y_train != other.y_train).any()


def test_superclasses_are_left_out():
    """They would be those of other labels. Failed with the coarse labels of the source."""
    source = DIGITS._replace(coarse_train=DIGITS.y_train // 5, coarse_test=DIGITS.y_test // 5)
    other = data.shifted(source, dealt(), seed=0)
    assert other.coarse_train is None and other.coarse_test is None


Z = np.arange(40) % 4
OBLONG = data.Source("mine", np.zeros((40, 4, 6), np.uint8), Z, np.zeros((40, 4, 6), np.uint8), Z, 4)
FLOATS = OBLONG._replace(x_train=np.zeros((40, 4, 4)), x_test=np.zeros((40, 4, 4)))
unread = functools.partial(data.federation, "mnist", "concept", data_dir="/nowhere")
TWO = partition.concept(Z, Z, 4, 2, seed=0)
REFUSED = {
    "one group": (lambda: partition.concept(Z, Z, 4, 1, seed=0), "groups must be at least 2, got 1"),
    "more groups than clients": (lambda: partition.concept(Z, Z, 4, 5, seed=0), "5 groups of 4 clients: use at most"),
    "no group": (lambda: data.shifted(OBLONG, partition.iid(Z, Z, 4), seed=0), "part has no groups"),
    "unknown": (lambda: data.shifted(OBLONG, TWO, "label", seed=0), "shift must be one of .* did you mean 'labels'"),
    "strength": (lambda: data.shifted(OBLONG, TWO, strength=1.5, seed=0), "strength must be at least 0 and at most 1"),
    "more groups than classes": (
        lambda: data.shifted(OBLONG, partition.concept(Z, Z, 8, 5, seed=0), seed=0),
        "groups 5 with permuted labels need as many classes, but there are 4",
    ),
    "oblong": (lambda: data.shifted(OBLONG, TWO, "rotation", seed=0), r"square uint8 images .* got uint8 \[40, 4, 6\]"),
    "floats": (lambda: data.shifted(FLOATS, TWO, "blur", seed=0), r"square uint8 images .* got float64"),
    "shared": (
        lambda: data.shifted(OBLONG, TWO._replace(test=[np.arange(40)] * 4), seed=0),
        "groups 0 and 1 share test examples",
    ),
    "other setting": (lambda: data.federation("mnist", "iid", data_dir="/nowhere", strength=0.5),
                      "strength is for the setting 'concept', not for 'iid': leave it out"),
    "unknown, unread": (lambda: unread(shift="x"), "shift must be one of"),
    "strength, unread": (lambda: unread(strength=-1), "strength must be at least 0"),
    "groups, unread": (lambda: unread(groups=11), "groups 11 with permuted labels need as many classes"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "message"), REFUSED.values(), ids=REFUSED)
def test_refuses(call, message):
    """Those of a federation before its data are read. Failed where the file that is not there was looked for."""
    with pytest.raises(ValueError, match=message):
        call()


def test_examples_are_copied_once():
    """The peak of memory is one copy, whatever the number of clients. Failed with a copy for each group."""
    x = np.zeros((40_000, 16, 16), np.uint8)
    y = (np.arange(len(x)) % 10).astype(np.int32)
    source = data.Source("mine", x, y, x[:1000], y[:1000], 10)
    part = partition.concept(y, y[:1000], 100, 5, seed=0)
    tracemalloc.start()
    try:
        data.shifted(source, part, "contrast", seed=0)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert x.nbytes < peak < 1.8 * x.nbytes
