"""`fedamp_jax.data.partition`: exact counts, disjointness, determinism, and error messages."""

import os
from pathlib import Path

import numpy as np
import pytest

from fedamp_jax import data
from fedamp_jax.data import partition

# Samples per class, (train, test): MNIST's, and those of a set with EMNIST's classes and some rare letters.
MNIST = (
    [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
    [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
)
EMNIST = ([5000] * 10 + [700 + 100 * i for i in range(26)] + [431 + 40 * i for i in range(26)], [900] * 10 + [86] * 52)


def labels(name):
    """`(y_train, y_test, coarse_of_fine)`: shuffled labels with the data set's class counts."""
    counts = {
        "digits": ([130] * 9 + [127], [50] * 10),
        "mnist": MNIST,
        "fashion_mnist": ([6000] * 10, [1000] * 10),
        "emnist": EMNIST,
        "cifar100": ([500] * 100, [100] * 100),
    }[name]
    rng = np.random.default_rng(5)
    pools = [rng.permutation(np.repeat(np.arange(len(c)), c)) for c in counts]
    return *pools, (rng.permutation(np.repeat(np.arange(20), 5)) if name == "cifar100" else None)


SETTINGS = {
    "digits": ([4] * 5, [70, 60, 50, 40, 30], [2] * 5),
    "mnist": ([20] * 5, [500, 400, 300, 200, 100], [2] * 5),
    "fashion_mnist": ([20] * 5, [600, 500, 400, 300, 200], [2] * 5),
    "emnist": ([10, 26, 26], [1000, 700, 400], [10, 26, 26]),
    "cifar100": ([5] * 20, np.repeat([500, 400, 300, 200, 100], 4).tolist(), [5] * 20),
}


def assert_disjoint(rows, n):
    """Asserts that no sample is used twice and that all indices are in 0..n-1; returns the number of samples used."""
    used = np.concatenate(rows)
    assert len(np.unique(used)) == len(used) and used.min() >= 0 and used.max() < n
    return len(used)


@pytest.mark.parametrize("name", SETTINGS)
def test_practical_is_the_papers_setting_exactly(name):
    """Sizes, the share of 80% and disjointness, from Section 7 and Appendix C.

    Fails if the share is drawn per sample instead of counted, if a client's other samples come from all classes, or if
    CIFAR-100's superclass g is taken to be the fine labels 5g..5g+4.
    """
    y_train, y_test, coarse = labels(name)
    groups = partition.practical_groups(name, coarse)
    part = partition.practical(y_train, y_test, groups, seed=3)
    clients, sizes, dominating = SETTINGS[name]
    assert part.groups.dtype == np.int32
    np.testing.assert_array_equal(part.groups, np.repeat(np.arange(len(clients)), clients))
    assert [len(g.classes) for g in groups] == dominating
    if coarse is not None:
        assert all(set(coarse[list(g.classes)]) == {i} for i, g in enumerate(groups))
    for i, g in enumerate(part.groups):
        own = list(groups[g].classes)
        assert len(part.train[i]) == sizes[g] and len(part.test[i]) == 100
        assert np.isin(y_train[part.train[i]], own).sum() == sizes[g] * 4 // 5
        assert np.isin(y_test[part.test[i]], own).sum() == 80
        assert len(np.unique(part.test[i])) == 100
    assert assert_disjoint(part.train, len(y_train)) == sum(c * s for c, s in zip(clients, sizes, strict=True))
    assert sum(len(g.classes) for g in groups) == len(set().union(*(g.classes for g in groups))) == y_train.max() + 1


def test_practical_draws_uniformly_from_the_pool():
    """Class frequencies follow the pool. Fails if each dominating class gets the same number of samples."""
    y = np.repeat([0, 1, 2, 3], [900, 300, 900, 300])
    part = partition.practical(y, y, [partition.Group(1, (0, 1), 1000)], seed=0)
    counts = np.bincount(y[part.train[0]], minlength=4)
    np.testing.assert_allclose(counts, [600, 200, 150, 50], atol=30)  # about 4 standard deviations


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar100"])
def test_training_and_test_sets_have_one_distribution(name):
    """ "Every client has 100 testing samples with the same distribution as its training data" (Section 7).

    Compares the 20% of other classes, group by group. Fails if the training samples that remain after the dominating
    draws are drawn with equal probability: 17% of the others are then of MNIST's classes 0 and 1 instead of 26%.
    """
    y_train, y_test, coarse = labels(name)
    groups = partition.practical_groups(name, coarse)
    clients = np.concatenate([np.full(g.clients, i) for i, g in enumerate(groups)])
    owner = np.zeros(y_train.max() + 1, int)
    for g, group in enumerate(groups):
        owner[list(group.classes)] = g
    parts = [partition.practical(y_train, y_test, groups, seed=seed) for seed in range(5)]
    for g, group in enumerate(groups):

        def shares(side, y, g=g):
            rows = np.concatenate([getattr(p, side)[i] for p in parts for i in np.flatnonzero(clients == g)])
            rest = owner[y[rows]][owner[y[rows]] != g]
            return np.bincount(rest, minlength=len(groups)) / len(rest), len(rest)

        (train, n), (test, m) = shares("train", y_train), shares("test", y_test)
        noise = np.sqrt(np.maximum(test, 0.01) * (1 / n + 1 / m))
        np.testing.assert_allclose(train, test, atol=5 * noise.max(), err_msg=f"group {g}, {group.classes}")


def test_practical_rounds_the_share():
    """Fails if the share is truncated: 0.7 * 10 = 6.999... becomes 6."""
    y = np.arange(400) % 4
    for size, share, expected in ((10, 0.7, 7), (7, 0.8, 6), (3, 0.0, 0), (5, 1.0, 5)):
        part = partition.practical(y, y, [partition.Group(2, (1,), size)], seed=0, dominating=share, test_size=10)
        assert [(y[rows] == 1).sum() for rows in part.train] == [expected] * 2


def test_all_dominating_parts_are_drawn_first():
    """A large group precedes one that needs 80 of its 100 samples. Fails if each group draws its others immediately."""
    y = np.repeat([0, 1, 2], [1000, 100, 500])
    groups = [partition.Group(10, (0,), 100), partition.Group(10, (1,), 10)]
    for seed in range(5):
        assert assert_disjoint(partition.practical(y, y, groups, seed=seed, test_size=10).train, 1600) == 1100


def test_replace_lets_clients_share_but_not_repeat():
    """Fails if replace=True draws with repetition within a client."""
    y = np.arange(100) % 2
    groups = [partition.Group(5, (0,), 50)]
    with pytest.raises(ValueError, match="5 x 40 = 200 training"):
        partition.practical(y, y, groups, seed=0, test_size=10)
    part = partition.practical(y, y, groups, seed=0, test_size=10, replace=True)
    assert all(len(np.unique(rows)) == 50 for rows in part.train)
    assert len({tuple(rows) for rows in part.train}) == 5


def test_test_size_does_not_move_the_training_sets():
    """Fails if both draws use one generator, test first."""
    y_train, y_test, _ = labels("digits")
    groups = partition.practical_groups("digits")
    a, b = (partition.practical(y_train, y_test, groups, seed=1, test_size=n) for n in (20, 100))
    for rows_a, rows_b in zip(a.train, b.train, strict=True):
        np.testing.assert_array_equal(rows_a, rows_b)


def test_iid_uses_everything_evenly_and_at_random():
    """Fails if the pool is split in order: with sorted labels a client then has one class."""
    y = np.repeat(np.arange(10), 60)
    part = partition.iid(y, y[:205], 20)
    assert assert_disjoint(part.train, 600) == 600 and {len(r) for r in part.train} == {30}
    assert assert_disjoint(part.test, 205) == 205 and {len(r) for r in part.test} == {10, 11}
    assert min(len(np.unique(y[rows])) for rows in part.train) > 5
    assert part.groups is None


@pytest.mark.parametrize(
    ("name", "clients", "k"),
    [("mnist", 100, 2), ("cifar100", 100, 2), ("emnist", 62, 2), ("digits", 20, 2), ("digits", 7, 3), ("digits", 3, 10),
     ("digits", 3, 2), ("mnist", 13, 9)],
)  # fmt: skip
def test_pathological_gives_distinct_classes_in_equal_shards(name, clients, k):
    """Fails if shuffled shards are assigned in order: a client gets two shards of one class."""
    y_train, y_test, _ = labels(name)
    classes = y_train.max() + 1
    for seed in range(3):
        part = partition.pathological(y_train, y_test, clients, k, seed=seed)
        held = [set(y_train[rows]) for rows in part.train]
        assert [len(h) for h in held] == [k] * clients
        assert all(set(y_test[rows]) <= h for rows, h in zip(part.test, held, strict=True))
        holders = np.array([sum(c in h for h in held) for c in range(classes)])
        assert holders.max() - holders.min() <= 1
        for c in np.flatnonzero(holders):
            shards = [(y_train[rows] == c).sum() for rows, h in zip(part.train, held, strict=True) if c in h]
            assert max(shards) - min(shards) <= 1
        everything = clients * k >= classes
        assert (assert_disjoint(part.train, len(y_train)) == len(y_train)) == everything


def test_pathological_has_no_groups_of_like_clients():
    """Fails if clients take the classes 2i and 2i+1 in turn: 20 clients then share each pair."""
    y_train, y_test, _ = labels("mnist")
    part = partition.pathological(y_train, y_test, 100, seed=0)
    pairs = {tuple(np.unique(y_train[rows])) for rows in part.train}
    assert len(pairs) > 30  # of 45


@pytest.mark.parametrize(("clients", "k"), [(100, 2), (100, 5), (100, 10), (5, 2), (3, 2), (6, 2)])
def test_degrees_shares_each_class_among_its_clients(clients, k):
    """Fails if every class is split over all clients and then filtered, or, for (6, 2), if undrawn classes stay so."""
    y_train, y_test, _ = labels("mnist")
    for seed in range(4):
        part = partition.degrees(y_train, y_test, clients, k, seed=seed)
        held = [set(y_train[rows]) for rows in part.train]
        assert [len(h) for h in held] == [k] * clients
        assert [set(y_test[rows]) for rows in part.test] == held
        if clients * k >= 10:
            assert assert_disjoint(part.train, len(y_train)) == len(y_train)
            assert assert_disjoint(part.test, len(y_test)) == len(y_test)
        for c in set().union(*held):
            shares = [(y_train[rows] == c).sum() for rows, h in zip(part.train, held, strict=True) if c in h]
            assert max(shares) - min(shares) <= 1


def test_degrees_draws_classes_independently():
    """PFLEGO draws at random, so classes differ in frequency. Fails with the balanced shards of `pathological`."""
    y_train, y_test, _ = labels("mnist")
    part = partition.degrees(y_train, y_test, 100, 2, seed=0)
    holders = [sum(c in y_train[rows] for rows in part.train) for c in range(10)]
    assert max(holders) - min(holders) > 4


def test_rare_test_classes_do_not_stop_degrees():
    """86 test samples of a letter and 100 clients. Fails if test shares are checked like training shares."""
    y_train, y_test, _ = labels("emnist")
    part = partition.degrees(y_train, y_test, 100, 62, seed=0)
    assert assert_disjoint(part.test, len(y_test)) == len(y_test)
    assert (
        max(map(len, part.test)) - min(map(len, part.test)) < 30
    )  # the odd samples do not all go to the first clients


def test_relabel_counts_each_clients_classes_from_zero():
    """Fails if train and test labels are renumbered separately: without 3s in the test set, its 7s become 0."""
    y_train, y_test = np.array([3, 7, 9, 7, 3]), np.array([7, 9])
    part = partition.Partition([np.array([0, 1]), np.array([2, 3, 4])], [np.array([0]), np.array([1, 0])])
    train, test, classes = partition.relabel(y_train, y_test, part)
    assert [t.tolist() for t in train] == [[0, 1], [2, 1, 0]]
    assert [t.tolist() for t in test] == [[1], [2, 1]]
    assert classes == [2, 3] and train[0].dtype == np.int32
    with pytest.raises(
        ValueError, match=r"client 0 has test samples of class 9, but its training classes are \[3, 7\]"
    ):
        partition.relabel(y_train, y_test, part._replace(test=[np.array([1]), np.array([0])]))


@pytest.mark.parametrize("alpha", [1e-9, 0.05, 1.0, 1e6])
def test_dirichlet_uses_everything_once_and_no_client_is_empty(alpha):
    """Fails for small alpha without `_fill_empty`, which raises, or if a sample is copied instead of moved."""
    y_train, y_test, _ = labels("digits")
    for seed in range(4):
        part = partition.dirichlet(y_train, y_test, 20, alpha, seed=seed)
        assert assert_disjoint(part.train, len(y_train)) == len(y_train)
        assert assert_disjoint(part.test, len(y_test)) == len(y_test)


def test_dirichlet_test_follows_training_and_alpha_sets_the_skew():
    """Fails if proportions are drawn again for the test pool, or if alpha is divided by the number of classes."""
    y = np.repeat(np.arange(5), 4000)
    for alpha, expected in ((0.5, (1 / 8) * (7 / 8) / (4 + 1)), (5.0, (1 / 8) * (7 / 8) / (40 + 1))):
        shares = []
        for seed in range(20):
            part = partition.dirichlet(y, y, 8, alpha, seed=seed)
            counts = [[np.bincount(y[r], minlength=5) / 4000 for r in rows] for rows in (part.train, part.test)]
            np.testing.assert_allclose(*counts, atol=2e-3)
            shares.append(counts[0])
        assert abs(np.var(shares) / expected - 1) < 0.2  # variance of one component of Dirichlet(alpha, ..., alpha)


def test_dirichlet_draws_until_clients_are_large_enough():
    """Failed when the first draw was taken, and when a draw beyond the limit was: both had clients of few samples."""
    y = np.arange(2000) % 10
    first = partition.dirichlet(y, y, 20, 0.3, seed=1)
    assert min(map(len, first.train)) < 25
    part = partition.dirichlet(y, y, 20, 0.3, min_size=25, seed=1)
    assert min(map(len, part.train)) >= 25 and assert_disjoint(part.train, 2000) == 2000
    assert [r.tolist() for r in partition.dirichlet(y, y, 20, 0.3, min_size=1, seed=1).train] == [
        r.tolist() for r in first.train
    ]
    assert {len(r) for r in partition.dirichlet(y, y, 20, 5.0, balanced=True, min_size=100, seed=0).train} == {100}


def test_dirichlet_tests_clients_on_classes_that_they_train_on():
    """Failed with shares of the two pools rounded on their own: a share of 0.4 samples is none, of 0.6 is one."""
    rng = np.random.default_rng(0)
    y_train, y_test = rng.integers(0, 10, 1400), rng.integers(0, 10, 1997)
    for seed in range(3):
        part = partition.dirichlet(y_train, y_test, 20, 0.1, seed=seed)
        assert assert_disjoint(part.test, 1997) == 1997
        for train, test in zip(part.train, part.test, strict=True):
            assert set(y_test[test]) <= set(y_train[train])
    whole = [0, 0, 1, 1] * 5
    with pytest.warns(UserWarning, match=r"2 of 2 clients have test samples .* first client 0 of \[2\]"):
        partition.dirichlet(whole, [2] * 4, 2, 100.0, seed=0)
    for seed in range(3):
        part = partition.dirichlet(y_train, y_train, 4, 5.0, balanced=True, seed=seed)
        assert {len(r) for r in part.test} == {350}


@pytest.mark.parametrize("alpha", [0.01, 0.5, 100.0])
def test_balanced_dirichlet_gives_equal_clients(alpha):
    """Failed when each class was split over the clients; did not end when a class that had run out was drawn on."""
    y_train, y_test, _ = labels("digits")
    for seed in range(4):
        part = partition.dirichlet(y_train, y_test, 20, alpha, balanced=True, seed=seed)
        for rows, y in ((part.train, y_train), (part.test, y_test)):
            assert {len(r) for r in rows} == {len(y) // 20}
            assert assert_disjoint(rows, len(y)) == len(y) // 20 * 20


@pytest.mark.slow
def test_balanced_dirichlet_draws_a_clients_proportions():
    """From Dir(alpha p), in training as in testing. Failed with proportions drawn anew for the test pool and without p.

    A pool so large that no class runs out: half of the samples are of class 0, so E[share] = p and
    var(share) = p (1 - p) / (alpha + 1).
    """
    y, p, alpha = np.repeat([0, 1, 2], [20000, 10000, 10000]), np.array([0.5, 0.25, 0.25]), 4.0
    shares = []
    for seed in range(300):
        part = partition.dirichlet(y, y, 2, alpha, balanced=True, seed=seed)
        counts = [np.bincount(y[rows[0]], minlength=3) / 20000 for rows in (part.train, part.test)]
        np.testing.assert_allclose(*counts, atol=0.03)
        shares.append(counts[0])
    np.testing.assert_allclose(np.mean(shares, 0), p, atol=0.03)


def test_shards_are_consecutive_and_equal():
    """Failed when shards were cut from the unsorted pool, and with test shards drawn independently of training."""
    y = np.random.default_rng(0).permutation(np.arange(6000) % 10)
    part = partition.shards(y, y[:600], 10, 2, seed=0)
    assert {len(rows) for rows in part.train} == {600} and assert_disjoint(part.train, 6000) == 6000
    for train, test in zip(part.train, part.test, strict=True):
        held = np.unique(y[train])
        assert len(held) <= 2  # classes have as many samples as two shards
        assert np.isin(y[:600][test], [*held - 1, *held, *held + 1]).all()  # frequencies differ a little
    assert any(len(np.unique(y[rows])) == 2 for rows in part.train)
    with pytest.raises(ValueError, match="8 clients need a test sample each, but there are 5"):
        partition.shards(y, y[:5], 4, 2, seed=0)


def test_quantity_skew_is_in_size_alone():
    """Failed when each class was split by its own draw, and when test sizes were drawn anew."""
    y = np.random.default_rng(0).permutation(np.arange(40000) % 4)
    part = partition.quantity_skew(y, y[:20000], 10, 0.5, seed=1)
    assert assert_disjoint(part.train, 40000) == 40000 and assert_disjoint(part.test, 20000) == 20000
    sizes = np.array([len(rows) for rows in part.train])
    assert sizes.max() > 5 * sizes.min()
    np.testing.assert_allclose(sizes / 2, [len(rows) for rows in part.test], atol=2)
    big = y[part.train[int(np.argmax(sizes))]]
    np.testing.assert_allclose(np.bincount(big) / len(big), 0.25, atol=0.02)


def test_dirichlet_gives_a_lone_test_sample_of_a_trained_class():
    """Fails if the moved sample is drawn regardless of the classes that the client trains on."""
    y = np.repeat(np.arange(10), 40)
    for seed in range(10):
        part = partition.dirichlet(y, y, 30, 1e-9, seed=seed)
        assert all(np.isin(y[b], y[a]).any() for a, b in zip(part.train, part.test, strict=True))


def test_natural_pairs_clients_by_name():
    """Fails if test clients are in the order of their first rows."""
    part = partition.natural(["Ulm", "Bern", "Ulm", "Köln"], ["Köln", "Ulm", "Bern", "Bern"])
    assert [r.tolist() for r in part.train] == [[1], [3], [0, 2]]
    assert [r.tolist() for r in part.test] == [[2, 3], [0], [1]]
    with pytest.raises(ValueError, match="client 'Köln' is in clients_train but not in clients_test"):
        partition.natural(["Ulm", "Köln"], ["Ulm"])
    with pytest.raises(ValueError, match="client 'Köln' is in clients_test but not in clients_train"):
        partition.natural(["Ulm"], ["Köln", "Ulm"])
    with pytest.raises(ValueError, match="clients_train is empty"):
        partition.natural([], [])


def test_omniglot_splits_inside_each_character():
    """Fails if an alphabet's drawings are split as a whole: characters then have 3 to 8 test drawings."""
    rng = np.random.default_rng(0)
    order = rng.permutation(20 * (14 + 55 + 26))
    alphabet = np.repeat([0, 1, 2], [20 * 14, 20 * 55, 20 * 26])[order]
    character = np.concatenate([np.repeat(np.arange(1, n + 1), 20) for n in (14, 55, 26)])[order]
    part = partition.omniglot(alphabet, character, seed=0)
    assert assert_disjoint([*part.train, *part.test], len(order)) == len(order)
    for a, (train, test) in enumerate(zip(part.train, part.test, strict=True)):
        assert set(alphabet[train]) == set(alphabet[test]) == {a}
        assert set(np.bincount(character[train])[1:]) == {15} and set(np.bincount(character[test])[1:]) == {5}
    train, test, classes = partition.relabel(character, character, part)
    assert classes == [14, 55, 26] and [t.max() + 1 for t in test] == classes
    np.testing.assert_array_equal(train[1], character[part.train[1]] - 1)


def draw(name, seed):
    """A partition of the digits' labels."""
    y_train, y_test, _ = labels("digits")
    return {
        "iid": lambda: partition.iid(y_train, y_test, 6, seed=seed),
        "concept": lambda: partition.concept(y_train, y_test, 6, 3, seed=seed),
        "pathological": lambda: partition.pathological(y_train, y_test, 10, seed=seed),
        "practical": lambda: partition.practical(y_train, y_test, partition.practical_groups("digits"), seed=seed),
        "degrees": lambda: partition.degrees(y_train, y_test, 10, 3, seed=seed),
        "dirichlet": lambda: partition.dirichlet(y_train, y_test, 10, 0.5, seed=seed),
        "dirichlet, balanced": lambda: partition.dirichlet(y_train, y_test, 10, 0.5, balanced=True, seed=seed),
        "shards": lambda: partition.shards(y_train, y_test, 10, seed=seed),
        "quantity": lambda: partition.quantity_skew(y_train, y_test, 10, 0.5, seed=seed),
        "omniglot": lambda: partition.omniglot(y_train % 2, y_train, seed=seed),
    }[name]()


@pytest.mark.parametrize("name", ["iid", "concept", "pathological", "practical", "degrees", "dirichlet",
                                  "dirichlet, balanced", "shards", "quantity", "omniglot"])  # fmt: skip
def test_a_seed_determines_everything_and_indices_ascend(name):
    """Fails with NumPy's global generator, or if indices are in the order of the draw."""
    a, b, other = draw(name, 7), draw(name, 7), draw(name, 8)
    for rows_a, rows_b in zip([*a.train, *a.test], [*b.train, *b.test], strict=True):
        np.testing.assert_array_equal(rows_a, rows_b)
        assert rows_a.dtype == np.int64 and (np.diff(rows_a) > 0).all()
    assert any(x.tolist() != y.tolist() for x, y in zip(a.train, other.train, strict=True))
    assert any(x.tolist() != y.tolist() for x, y in zip(a.test, other.test, strict=True))


Z = np.arange(40) % 4
G = partition.Group
REFUSED = {
    "float labels": (lambda: partition.iid([0.0, 1.0], Z, 1), TypeError, "y_train must hold integer labels"),
    "no labels": (lambda: partition.iid(Z, Z[:0], 1), ValueError, "y_test must be non-negative labels .* got shape"),
    "negative labels": (lambda: partition.iid(Z - 1, Z, 1), ValueError, "minimum -1"),
    "two axes": (lambda: partition.iid(Z[:, None], Z, 1), ValueError, r"shape \[40, 1\]"),
    "no clients": (lambda: partition.iid(Z, Z, 0), ValueError, "clients must be at least 1, got 0"),
    "half a client": (lambda: partition.iid(Z, Z, 1.5), TypeError, "clients must be a whole number"),
    "seed": (lambda: partition.iid(Z, Z, 1, seed=-1), ValueError, "seed must be at least 0"),
    "too many clients": (lambda: partition.iid(Z, Z[:5], 9), ValueError, r"client 5 \(of 9\) would get no test"),
    "too many classes": (lambda: partition.degrees(Z, Z, 3, 5, seed=0), ValueError, "= 5, but y_train has 4 classes"),
    "no classes": (lambda: partition.pathological(Z, Z, 3, 0, seed=0), ValueError, "classes_per_client must be"),
    "rare class": (
        lambda: partition.pathological(Z, Z, 40, 2, seed=0), ValueError,
        "class 0 is needed by 20 clients but has 10 training samples: use fewer clients",
    ),
    "no test class": (lambda: partition.pathological(Z, Z[Z > 1], 2, 1, seed=0), ValueError, "would get no test"),
    "alpha": (lambda: partition.dirichlet(Z, Z, 3, 0.0, seed=0), ValueError, "alpha must be greater than 0"),
    "min_size": (
        lambda: partition.dirichlet(Z, Z, 8, 0.001, min_size=4, seed=0), ValueError,
        "in 1000 draws with alpha = 0.001 some of 8 clients always had fewer than min_size = 4",
    ),
    "large min_size": (
        lambda: partition.dirichlet(Z, Z, 4, 1.0, min_size=11, seed=0), ValueError, "need 44 training samples, but",
    ),
    "dirichlet": (lambda: partition.dirichlet(Z, Z, 41, 1.0, seed=0), ValueError, "41 clients need a training"),
    "alpha of sizes": (lambda: partition.quantity_skew(Z, Z, 3, -1.0, seed=0), ValueError, "alpha must be greater"),
    "no shards": (lambda: partition.shards(Z, Z, 3, 0, seed=0), ValueError, "shards_per_client must be at least 1"),
    "no groups": (lambda: partition.practical(Z, Z, [], seed=0), ValueError, "groups is empty"),
    "unknown class": (
        lambda: partition.practical(Z, Z, [G(1, (0,), 4), G(1, (1, 4), 4)], seed=0), ValueError,
        r"classes of group 1 must be distinct labels of y_train, which has \[0, 1, 2, 3\]; got \[1, 4\]",
    ),
    "class twice": (lambda: partition.practical(Z, Z, [G(1, (1, 1), 4)], seed=0), ValueError, r"got \[1, 1\]"),
    "no class": (lambda: partition.practical(Z, Z, [G(1, (), 4)], seed=0), ValueError, r"got \[\]"),
    "empty group": (lambda: partition.practical(Z, Z, [G(0, (1,), 4)], seed=0), ValueError, "clients of group 0"),
    "size": (lambda: partition.practical(Z, Z, [G(1, (1,), 0)], seed=0), ValueError, "train_size of group 0"),
    "share": (lambda: partition.practical(Z, Z, [G(1, (1,), 4)], seed=0, dominating=1.1), ValueError, "dominating"),
    "too few dominating": (
        lambda: partition.practical(Z, Z, [G(1, (0,), 5), G(3, (1, 2), 10)], seed=0, test_size=5), ValueError,
        r"group 1 \(classes \[1, 2\]\) needs 3 x 8 = 24 training samples of its dominating classes, but 20 are left"
        r": use fewer clients, replace=True, a smaller train_size, or another value of dominating",
    ),
    "too few others": (
        lambda: partition.practical(Z, Z, [G(2, (0, 1, 2), 14)], seed=0, test_size=5, dominating=0.5), ValueError,
        "2 x 7 = 14 training samples of its other classes, but 10 are left",
    ),
    "too few for a test": (
        lambda: partition.practical(Z, Z, [G(1, (0,), 5)], seed=0), ValueError,
        "1 x 80 = 80 test samples of its dominating classes, but 10 are available: use a smaller test_size",
    ),
    "set without groups": (lambda: partition.practical_groups("cifar10"), ValueError, "did you mean 'cifar100'"),
    "no superclasses": (lambda: partition.practical_groups("cifar100"), ValueError, "cifar100 needs coarse_of_fine"),
    "other superclasses": (lambda: partition.practical_groups("cifar100", Z), ValueError, "100 fine labels"),
    "two superclasses": (lambda: partition.superclasses([0, 1, 0], [0, 0, 1]), ValueError, "fine label 0 has two"),
    "lost fine label": (lambda: partition.superclasses([0, 2], [0, 0]), ValueError, "fine label 1 has no samples"),
    "fine and coarse": (lambda: partition.superclasses([0, 2], [0]), ValueError, "fine has 2 labels, but"),
    "one drawing": (lambda: partition.omniglot([0, 0, 0], [1, 1, 2], seed=0), ValueError, "character 2 of alphabet 0"),
    "columns": (lambda: partition.omniglot([0, 0], [1], seed=0), ValueError, "alphabet has 2 entries, but"),
    "fraction": (lambda: partition.omniglot([0], [1], seed=0, test_fraction=0), ValueError, "test_fraction must be"),
}  # fmt: skip


@pytest.mark.parametrize(("call", "error", "message"), REFUSED.values(), ids=REFUSED)
def test_refuses(call, error, message):
    """Fails for "too few for a test" if the whole pool is compared with the demand instead of the class."""
    with pytest.raises(error, match=message):
        call()


@pytest.mark.skipif("FEDAMP_JAX_DATA" not in os.environ, reason="FEDAMP_JAX_DATA names no folder with real data sets")
@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "emnist", "cifar100", "omniglot"])
def test_every_setting_is_feasible_on_real_labels(name):
    """Fails for a set with rare letters if a class must have a test sample for every client."""
    folder = os.environ["FEDAMP_JAX_DATA"]
    if not (Path(folder) / f"{name}.npz").is_file():
        pytest.skip(f"{name}.npz is not in {folder}")
    source = data.load(name, folder)
    if isinstance(source, data.Omniglot):
        assert len(partition.omniglot(source.alphabet, source.character, seed=0).train) == 50
        return
    y = source.y_train, source.y_test
    coarse = None if source.coarse_train is None else partition.superclasses(source.y_train, source.coarse_train)
    clients = 62 if name == "emnist" else 100
    partition.practical(*y, partition.practical_groups(name, coarse), seed=0)
    partition.iid(*y, clients)
    data.shifted(source, partition.concept(*y, clients, seed=0), "labels", seed=0)
    partition.pathological(*y, clients, seed=0)
    partition.dirichlet(*y, clients, 0.1, seed=0)
    for k in (2, source.classes // 2, source.classes):
        partition.degrees(*y, 100, k, seed=0)
