"""Results compared with values computed by hand. Each docstring names wrong implementations that the test catches."""

import itertools

import numpy as np
import pytest

from fedamp_jax import analysis

BLOCKS = np.kron(np.eye(3), np.ones((4, 4)))  # 12 clients in 3 groups of 4: weights are 1 within groups, 0 across
GROUPS = [0] * 4 + [1] * 4 + [2] * 4


def test_bmta_is_the_best_round_mean_over_clients():
    """Fails for the mean of each client's own best accuracy (95), and for the last of several best rounds."""
    assert analysis.bmta([[90, 60], [70, 100], [75, 95], [80, 80]]) == (85.0, 1)


def test_summary_keeps_final_and_best_apart():
    """Fails if `best_round` is an index instead of a round number, or if the final round is taken for the best."""
    summary = analysis.accuracy_summary(np.float32([[80, 90], [60, 100]]), rounds=np.array([5, 10]))
    assert summary == {
        "bmta": 85.0,
        "best_round": 5,
        "final": 80.0,
        "accuracy": [60.0, 100.0],
        "best_accuracy": [80.0, 90.0],
        "rounds": [5, 10],
        "mean_accuracy": [85.0, 80.0],
    }
    assert all(type(value) in (int, float, list) for value in summary.values())


def test_clients_without_test_data_are_left_out_of_every_mean():
    """They are NaN in every round. Failed as NaN with `.mean()`, and with zeros in their place; `bmta` refused them."""
    nan, lone = float("nan"), np.float32([[0.5, np.nan, 0.75], [1.0, np.nan, 0.75]])
    assert analysis.mean_over_clients(lone).tolist() == [0.625, 0.875]
    assert analysis.mean_over_clients(lone[0]) == 0.625 and type(analysis.mean_over_clients(lone[0])) is float
    assert np.isnan(analysis.mean_over_clients([nan])) and np.isnan(analysis.mean_over_clients([]))
    assert analysis.bmta(lone) == (0.875, 1)
    summary = analysis.accuracy_summary(lone)
    assert summary["final"] == 0.875 and summary["mean_accuracy"] == [0.625, 0.875]
    few, all_of = analysis.wilcoxon([1, nan, 2, 4], [2, nan, 3, 3]), analysis.wilcoxon([1, 2, 4], [2, 3, 3])
    assert few == all_of


def test_wilcoxon_of_five_clients_that_all_improve():
    """2 / 2^5 by hand. Fails for the one-sided test (0.03125) and for the normal approximation (0.0431)."""
    assert analysis.wilcoxon([91, 92, 93, 94, 95], [90, 90, 90, 90, 90]) == pytest.approx(2 / 2**5)


def test_wilcoxon_with_ties_is_exact_for_few_clients():
    """Enumerates all 2^n sign patterns of the mid-ranks. Fails for `method="asymptotic"` and `method="exact"`."""
    difference = np.array([1, 1, 1, 2, 2, -3, 4, -1])
    ranks = np.array([2.5, 2.5, 2.5, 5.5, 5.5, 7, 8, 2.5])
    positive = ranks[difference > 0].sum()
    sums = np.array([ranks @ signs for signs in itertools.product([0, 1], repeat=8)])
    expected = min(1.0, 2 * min((sums >= positive).mean(), (sums <= positive).mean()))
    assert analysis.wilcoxon(90.0 + difference, np.full(8, 90.0)) == pytest.approx(expected)


@pytest.mark.parametrize("scale", [1.0, 0.01, np.float32(0.01)])
def test_wilcoxon_ignores_rounding_of_ties(scale):
    """Percentages, fractions and float32 agree. Fails without the tolerance: 0.93 - 0.9 and 0.83 - 0.8 then differ."""
    rng = np.random.default_rng(0)
    a, b = rng.integers(80, 95, 40), rng.integers(78, 93, 40)
    assert analysis.wilcoxon(a * scale, b * scale) == pytest.approx(analysis.wilcoxon(a, b), rel=1e-12)


def test_wilcoxon_of_identical_clients_is_one_and_of_swapped_methods_the_same():
    """Fails for scipy's function alone, which returns NaN for identical vectors."""
    assert analysis.wilcoxon([90.0, 80.0], [90.0, 80.0]) == 1.0
    assert analysis.wilcoxon([0.0], [0.0]) == 1.0
    a, b = [91.0, 92.0, 93.0, 80.0], [90.0, 90.0, 90.0, 90.0]
    assert analysis.wilcoxon(a, b) == analysis.wilcoxon(b, a)


def test_wilcoxon_table_has_the_rows_asked_for():
    """Fails if a method is compared with itself, or if an unknown name in `of` raises an error."""
    accuracy = {"Separate": [90.0, 91.0, 92.0], "FedAMP": [91.0, 93.0, 95.0], "HeurFedAMP": [91.0, 93.0, 95.0]}
    rows = analysis.wilcoxon_table(accuracy, of=["FedAMP", "PFLEGO"])
    assert rows == {"FedAMP": {"Separate": pytest.approx(0.25), "HeurFedAMP": 1.0}}
    assert list(analysis.wilcoxon_table(accuracy)) == list(accuracy)


def test_in_group_weight_by_hand():
    """Client 0 has 3/4, client 1 has 1/2, and client 2 is alone in its group. Fails if the diagonal is included, if
    rows are summed before the division, or if rows and columns are swapped.
    """
    xi = [[0.2, 0.6, 0.2], [0.15, 0.7, 0.15], [0.3, 0.2, 0.5]]
    assert analysis.in_group_weight(xi, [0, 0, 1]) == pytest.approx((0.75 + 0.5) / 2)


def test_in_group_weight_leaves_out_rows_without_weight():
    """Fails if a row of zeros counts as 0 (giving 0.5), or causes a division by zero."""
    xi = np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]])
    assert analysis.in_group_weight(xi, ["a", "a", "b"]) == 1.0
    assert np.isnan(analysis.in_group_weight(np.eye(3), [0, 0, 0]))
    assert np.isnan(analysis.in_group_weight(np.ones((3, 3)), [0, 1, 2]))
    assert np.isnan(analysis.in_group_weight([[1.0]], [0]))


def test_chance_is_what_uniform_weights_give():
    """Groups of 3, 2 and 1. Fails for size / M, and if the client that is alone in its group counts as 0."""
    groups = [5, 5, 5, 2, 2, 9]
    assert analysis.chance_in_group_weight(groups) == pytest.approx((3 * 2 / 5 + 2 * 1 / 5) / 5)
    assert analysis.chance_in_group_weight(groups) == pytest.approx(analysis.in_group_weight(np.ones((6, 6)), groups))
    assert np.isnan(analysis.chance_in_group_weight([0]))


@pytest.mark.parametrize("shuffled", [False, True])
def test_groups_are_found_from_faint_weights_of_unequal_scale(shuffled):
    """In-group weights are 10 times the others, rows are scaled by 1e-9 to 1, and self-weights are larger than all
    others. Fails if rows are not scaled to sum 1, or if xi itself is used as the dissimilarity.
    """
    rng = np.random.default_rng(1)
    xi = np.where(BLOCKS > 0, 1.0, 0.1) * rng.uniform(0.8, 1.2, (12, 12)) * np.logspace(-9, 0, 12)[:, None]
    np.fill_diagonal(xi, 5.0)
    order = rng.permutation(12) if shuffled else np.arange(12)
    assert analysis.group_recovery(xi[np.ix_(order, order)], np.array(GROUPS)[order]) == 1.0


def test_groups_are_found_from_weights_over_many_orders_of_magnitude():
    """exp(-d^2 / sigma), with sigma so small that close pairs have nearly all of the weight. Fails if the
    dissimilarity is linear in the weight: all distant pairs then look the same.
    """
    points = np.array([0.0, 0.1, 10.0, 10.1, 2.0, 2.1, 12.0, 12.1])
    xi = np.exp(-((points[:, None] - points) ** 2) / 0.08)
    assert analysis.groups_from_xi(xi, 2).tolist() == [0, 0, 1, 1, 0, 0, 1, 1]


def test_constant_weights_recover_nothing():
    """Fails if constant weights are not detected: ties are merged in the order of the clients, which is by group."""
    for noise in (0.0, 1e-7):
        xi = 1.0 + noise * np.random.default_rng(0).random((12, 12))
        assert analysis.groups_from_xi(xi, 3).tolist() == [0] * 12
        assert analysis.group_recovery(xi, GROUPS) == 0.0


def test_a_client_without_weights_is_a_group_of_its_own():
    """Fails if it uses up one of the k groups, so that two true groups are merged, or if -log(0) is computed."""
    xi = BLOCKS.copy()
    xi[5], xi[:, 5] = 0.0, 0.0
    assert analysis.groups_from_xi(xi, 3).tolist() == [0] * 4 + [1, 2, 1, 1] + [3] * 4
    assert analysis.groups_from_xi(np.eye(4), 2).tolist() == [0, 1, 2, 3]
    assert analysis.group_recovery(np.zeros((40, 40)), np.arange(40) // 4) == 0.0


def test_recovery_is_undefined_for_trivial_groups():
    """Fails for the adjusted Rand index alone, which is 1 for a single group and for groups of one client."""
    assert np.isnan(analysis.group_recovery(np.ones((3, 3)), [0, 0, 0]))
    assert np.isnan(analysis.group_recovery(np.ones((3, 3)), [0, 1, 2]))
    assert analysis.groups_from_xi([[1.0]], 1).tolist() == [0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: analysis.bmta([1.0, 2.0]), r"accuracy must be a non-empty \[R, M\], but has shape \(2,\)"),
        (lambda: analysis.bmta(np.zeros((0, 3))), r"accuracy .* \(0, 3\)"),
        (lambda: analysis.bmta([[1.0, 0.5], [1.0, np.nan]]), r"accuracy .* finite, but is nan at \[1, 1\]"),
        (lambda: analysis.bmta([[np.nan]]), r"accuracy .* finite, but is nan at \[0, 0\]"),
        (lambda: analysis.mean_over_clients(0.5), "values must be .* one value per client, got the single number"),
        (lambda: analysis.wilcoxon([1.0, np.nan], [1.0, 2.0]), r"a .* finite, but is nan at \[1\]"),
        (lambda: analysis.accuracy_summary([[1.0]], rounds=[1, 2]), "rounds has 2 entries, but accuracy has 1"),
        (lambda: analysis.wilcoxon([1.0], [1.0, 2.0]), r"a is \(1,\) and b is \(2,\)"),
        (lambda: analysis.wilcoxon([1.0, np.inf], [1.0, 2.0]), "a .* inf at"),
        (lambda: analysis.in_group_weight(np.ones((2, 3)), [0, 0]), r"xi .* \(2, 3\)"),
        (lambda: analysis.in_group_weight(np.ones((2, 2)), [0, 0, 1]), "groups .* M = 2 as in xi"),
        (lambda: analysis.in_group_weight([[1.0, -0.5], [0.5, 1.0]], [0, 0]), r"xi\[0, 1\] is -0.5"),
        (lambda: analysis.chance_in_group_weight([[0], [1]]), "groups must be a non-empty"),
        (lambda: analysis.groups_from_xi(np.ones((2, 2)), 3), "k must be from 1 to the number of clients 2"),
        (lambda: analysis.groups_from_xi(np.ones((2, 2)), 0), "k must be at least 1"),
    ],
)
def test_bad_input_is_named(call, message):
    """Fails if any of the checks is removed."""
    with pytest.raises(ValueError, match=message):
        call()
