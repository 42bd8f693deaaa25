"""What is computed from accuracies and collaboration weights after training.

NumPy in, Python numbers out. Axis letters: `R` evaluated rounds, `M` clients. Accuracies may have any unit and keep it.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedamp_jax import checks

_TOLERANCE = 1e-6  # Accuracies closer than this, relative to the largest, are equal: float32 keeps about 1e-7.


def bmta(accuracy: ArrayLike) -> tuple[float, int]:
    """Best mean test accuracy: the highest, over rounds, of the mean over clients (Section 7 of the FedAMP paper).

    Args:
        accuracy: `[R, M]`, test accuracy of each client after each evaluated round.

    Returns:
        The BMTA, and the index (0 to R - 1) of the first round that reaches it.

    Raises:
        ValueError: `accuracy` is not `[R, M]`, is empty, or holds a value that is not finite.

    >>> bmta([[50.0, 70.0], [80.0, 90.0], [60.0, 100.0]])
    (85.0, 1)
    """
    mean = _finite(accuracy, "accuracy", "RM").mean(axis=1)
    best = int(mean.argmax())
    return float(mean[best]), best


def accuracy_summary(accuracy: ArrayLike, rounds: Sequence[int] | None = None) -> dict[str, Any]:
    """The accuracy entries of one method in the results dictionary, all Python numbers.

    Args:
        accuracy: `[R, M]`, test accuracy of each client after each evaluated round, in percent.
        rounds: `[R]`, the numbers of the evaluated rounds; 0 to R - 1 if not given.

    Returns:
        `bmta`, `best_round` (a member of `rounds`), `final` (mean of the last round), `accuracy` `[M]` of the last
        round, `best_accuracy` `[M]` of the best round, `rounds` `[R]` and `mean_accuracy` `[R]`.

    Raises:
        ValueError: as `bmta`, or `rounds` has another length.

    >>> accuracy_summary([[80.0, 90.0], [60.0, 100.0]], rounds=[5, 10])["best_round"]
    5
    """
    values = _finite(accuracy, "accuracy", "RM")
    numbers = list(range(len(values))) if rounds is None else [int(r) for r in rounds]
    if len(numbers) != len(values):
        raise ValueError(f"rounds has {len(numbers)} entries, but accuracy has {len(values)} rows {values.shape}")
    value, best = bmta(values)
    mean, clients = values.mean(axis=1).tolist(), values.tolist()
    summary = {"bmta": value, "best_round": numbers[best], "final": mean[-1], "accuracy": clients[-1]}
    return {**summary, "best_accuracy": clients[best], "rounds": numbers, "mean_accuracy": mean}


def wilcoxon(a: ArrayLike, b: ArrayLike) -> float:
    """Two-sided p-value of the Wilcoxon signed-rank test between the client accuracies of two methods.

    A small p says that the methods differ, the means say which one is ahead. Clients with equal accuracies are dropped.
    Differences that are equal up to rounding share a rank: ties are the rule with few test samples, and float rounding
    would break them at random. Exact up to 13 clients that differ, or 50 without ties; else the normal approximation.

    Args:
        a, b: `[M]` each, accuracies of the same clients under either method, in the same unit.

    Returns:
        p in [0, 1]; 1.0 where no client differs.

    Raises:
        ValueError: `a` or `b` is not `[M]`, is empty or not finite, or their lengths differ.

    >>> wilcoxon([90.0, 91.0, 92.0, 93.0, 94.0], [89.0, 89.0, 89.0, 89.0, 89.0])
    0.0625
    """
    from scipy import stats  # here and below: half of the time that `import fedamp_jax` would take

    first, second = _finite(a, "a", "M"), _finite(b, "b", "M")
    if first.shape != second.shape:
        raise ValueError(f"a and b must list the same clients, but a is {first.shape} and b is {second.shape}")
    tolerance = _TOLERANCE * max(np.abs(first).max(), np.abs(second).max())
    difference = first - second
    difference = difference[np.abs(difference) > tolerance]
    if not difference.size:
        return 1.0
    # The test sees ranks only: number the distinct sizes 1, 2, ...; a gap above the tolerance starts the next one.
    order = np.argsort(np.abs(difference))
    level = np.empty(difference.size)
    level[order] = 1 + np.concatenate([[0], np.cumsum(np.diff(np.abs(difference)[order]) > tolerance)])
    if level.max() == difference.size or difference.size > 13:
        method = "auto" if level.max() == difference.size else "asymptotic"
        found: Any = stats.wilcoxon(np.sign(difference) * level, method=method)
        return float(found.pvalue)
    # Ties, and few sign patterns: enumerate them, as scipy's wilcoxon would too, but with the ranks given once.
    signed = np.sign(difference) * stats.rankdata(level)
    test = stats.permutation_test((signed,), np.sum, permutation_type="samples", vectorized=True, n_resamples=2**14)
    return float(test.pvalue)


def wilcoxon_table(accuracies: Mapping[str, ArrayLike], of: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    """p-values of `wilcoxon` between methods.

    Args:
        accuracies: method name to `[M]` client accuracies, the same clients in the same order for all.
        of: the methods that get a row, all by default; names that `accuracies` lacks are passed over.

    Returns:
        `table[method][other]`: two-sided p, for every other method, in the order of `accuracies`.

    Raises:
        ValueError: as `wilcoxon`.

    >>> wilcoxon_table({"FedAMP": [90.0, 91.0], "Separate": [90.0, 91.0]}, of=["FedAMP"])
    {'FedAMP': {'Separate': 1.0}}
    """
    rows = [name for name in (accuracies if of is None else of) if name in accuracies]
    return {a: {b: wilcoxon(accuracies[a], accuracies[b]) for b in accuracies if b != a} for a in rows}


def in_group_weight(xi: ArrayLike, groups: ArrayLike) -> float:
    """Share of the attention paid to others that stays inside the client's own group, averaged over clients.

    Left out are the own weights `xi_ii`, and clients that weigh nobody else or have nobody else in their group.

    Args:
        xi: `[M, M]`, `xi[i, j]` the weight of client j's model in the cloud model of client i; off-diagonal >= 0.
        groups: `[M]`, ground-truth group of each client.

    Returns:
        A share from 0 to 1, to be compared with `chance_in_group_weight`; NaN where no client counts.

    Raises:
        ValueError: `xi` is not `[M, M]`, not finite or has negative weights off the diagonal, or `groups` is not `[M]`.

    >>> in_group_weight([[0.5, 0.4, 0.1], [0.3, 0.4, 0.3], [0.2, 0.3, 0.5]], [0, 0, 1])
    0.65
    """
    share, linked = _shares(xi)
    counted = linked & (mate := _mates(groups, len(share))).any(axis=1)
    return float((share * mate).sum(axis=1)[counted].mean()) if counted.any() else float("nan")


def chance_in_group_weight(groups: ArrayLike) -> float:
    """What `in_group_weight` is when every client weighs all others alike; NaN if nobody has group mates.

    Raises ValueError unless `groups` is `[M]`.

    >>> chance_in_group_weight([0, 0, 0, 1, 1])
    0.4
    """
    mate = _mates(groups, None)
    counted = mate.any(axis=1)
    return float(mate[counted].sum(axis=1).mean() / (len(mate) - 1)) if counted.any() else float("nan")


def groups_from_xi(xi: ArrayLike, k: int) -> np.ndarray:
    """Groups of clients found from collaboration weights alone, by average-linkage clustering.

    Off-diagonal weights are scaled to row sums of 1, averaged over both directions, and turned into the dissimilarity
    `-log`: with negative exponential slopes and in HeurFedAMP, the distance or angle that made the weight. A zero is
    taken as half of the smallest positive weight.

    Args:
        xi: `[M, M]` as for `in_group_weight`.
        k: number of groups to look for, 1 to M.

    Returns:
        `[M]` int labels from 0, by first appearance. A constant `xi` gives one group, not `k` arbitrary ones. A client
        without weight to or from anybody is a group of its own, beyond the `k`: pass only the online part of `xi`.

    Raises:
        ValueError: `xi` as for `in_group_weight`, or `k` outside 1 to M.

    >>> groups_from_xi([[0, 0.9, 0.1], [0.9, 0, 0.1], [0.5, 0.5, 0]], k=2).tolist()
    [0, 0, 1]
    """
    from sklearn.cluster import AgglomerativeClustering

    share, _ = _shares(xi)
    checks.whole("k", k, low=1)
    if not 1 <= k <= len(share):
        raise ValueError(f"k must be from 1 to the number of clients {len(share)}, but is {k}")
    similarity = (share + share.T) / 2
    # Lone clients take labels after the k: they were grouped with nobody, and must not use up one of the k groups.
    lone = ~similarity.any(axis=1)
    labels = np.where(lone, k + np.arange(len(share)), 0)
    similarity = similarity[np.ix_(~lone, ~lone)]
    if similarity.size:
        dissimilarity = -np.log(np.maximum(similarity, similarity[similarity > 0].min() / 2))
        np.fill_diagonal(dissimilarity, 0.0)
        pairs = dissimilarity[~np.eye(len(dissimilarity), dtype=bool)]
        if np.ptp(pairs) > 1e-5:  # Below that it is float32 noise, and clustering noise finds blocks by index.
            tree = AgglomerativeClustering(min(k, len(similarity)), metric="precomputed", linkage="average")
            labels[~lone] = tree.fit_predict(dissimilarity)
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def group_recovery(xi: ArrayLike, groups: ArrayLike) -> float:
    """Adjusted Rand index between `groups_from_xi` and the ground truth.

    Args:
        xi: `[M, M]` as for `in_group_weight`.
        groups: `[M]`, ground-truth group of each client; as many groups are looked for as it has.

    Returns:
        1 for perfect recovery, about 0 for chance; NaN if the truth is one group, or has no two clients in a group.

    Raises:
        ValueError: as `in_group_weight`.

    >>> group_recovery([[0, 0.9, 0.1], [0.9, 0, 0.1], [0.5, 0.5, 0]], [7, 7, 3])
    1.0
    """
    from sklearn.metrics import adjusted_rand_score

    share, _ = _shares(xi)
    trivial = not _mates(groups, len(share)).any()
    k = np.unique(np.asarray(groups)).size
    return float("nan") if trivial or k == 1 else float(adjusted_rand_score(groups, groups_from_xi(share, k)))


def _finite(value: ArrayLike, name: str, axes: str) -> np.ndarray:
    """`value` as float64, checked to be non-empty, finite and shaped as `axes` says (MM: square)."""
    array = np.asarray(value, dtype=np.float64)
    wanted = f"[{', '.join(axes)}]"
    if array.ndim != len(axes) or array.size == 0 or (axes == "MM" and array.shape[0] != array.shape[1]):
        raise ValueError(f"{name} must be a non-empty {wanted}, but has shape {array.shape}")
    if not np.isfinite(array).all():
        place = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ValueError(f"{name} {wanted} must be finite, but is {array[tuple(place)]} at {place}")
    return array


def _shares(xi: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Off-diagonal weights with rows scaled to sum 1 (`[M, M]`), and which rows had anything to scale (`[M]` bool)."""
    weight = _finite(xi, "xi", "MM").copy()
    np.fill_diagonal(weight, 0.0)
    if weight.min() < 0:
        i, j = np.unravel_index(weight.argmin(), weight.shape)
        raise ValueError(f"xi must not be negative off the diagonal, but xi[{i}, {j}] is {weight.min()}")
    total = weight.sum(axis=1, keepdims=True)
    return np.divide(weight, total, out=np.zeros_like(weight), where=total > 0), total[:, 0] > 0


def _mates(groups: ArrayLike, clients: int | None) -> np.ndarray:
    """`[M, M]` bool: two different clients of one group."""
    label = np.asarray(groups)
    if label.ndim != 1 or label.size == 0 or clients not in (None, label.size):
        wanted = "" if clients is None else f" with M = {clients} as in xi"
        raise ValueError(f"groups must be a non-empty [M]{wanted}, but has shape {label.shape}")
    return (label[:, None] == label[None, :]) & ~np.eye(label.size, dtype=bool)
