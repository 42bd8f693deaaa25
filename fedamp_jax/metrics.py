"""Metrics of accuracies, predictions and collaboration weights, computed after training.

Functions take NumPy arrays and return Python numbers, except `groups_from_xi` and those of each client. Axes: `R`
evaluated rounds, `M` clients. Accuracies may be fractions or percentages; results are in the same unit.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedamp_jax.checks import check_integer
from fedamp_jax.types import Data

_TOLERANCE = 1e-6  # relative to the largest accuracy; float32's relative precision is about 1e-7


def bmta(accuracy: ArrayLike) -> tuple[float, int]:
    """Best mean test accuracy (BMTA): the maximum over rounds of the mean over clients (FedAMP paper, Section 7).

    Args:
        accuracy: `[R, M]`, test accuracy of each client after each evaluated round.

    Returns:
        The BMTA, and the index (0 to R - 1) of the first round that reaches it.

    Raises:
        ValueError: if `accuracy` is not `[R, M]`, is empty, or has values that are not finite.

    >>> bmta([[50.0, 70.0], [80.0, 90.0], [60.0, 100.0]])
    (85.0, 1)
    """
    mean = _finite(accuracy, "accuracy", "RM").mean(axis=1)
    best = int(mean.argmax())
    return float(mean[best]), best


def accuracy_summary(accuracy: ArrayLike, rounds: Sequence[int] | None = None) -> dict[str, Any]:
    """Summarizes the accuracies of one method as Python numbers and lists.

    Args:
        accuracy: `[R, M]`, test accuracy of each client after each evaluated round.
        rounds: `[R]`, the numbers of the evaluated rounds; None means 0 to R - 1.

    Returns:
        A dictionary with `bmta`, `best_round` (one of `rounds`), `final` (mean over clients in the last round),
        `accuracy` `[M]` (last round), `best_accuracy` `[M]` (best round), `rounds` `[R]` and `mean_accuracy` `[R]`.

    Raises:
        ValueError: as `bmta`; also if `rounds` does not have R entries.

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


def f1_scores(outputs: ArrayLike, data: Data) -> np.ndarray:
    """Each client's F1 score, averaged over the classes that occur in its data (macro average).

    Args:
        outputs: `[M, N, C]` logits, or `[M, N]` or `[M, N, 1]` for a single logit, as `fedamp_jax.predict` gives them.
        data: the examples that were predicted, with integer labels.

    Returns:
        `[M]` float64 in [0, 1]; NaN for a client without examples.

    Raises:
        TypeError: if `data.y` are no labels.
        ValueError: if `outputs` are not of these examples.

    >>> from fedamp_jax.data import from_lists
    >>> clients = from_lists([[[1.0], [2.0], [3.0]]], [[0, 1, 1]], classes=2)
    >>> f1_scores(np.array([[[2.0, 1.0], [0.0, 1.0], [1.0, 0.0]]]), clients).round(3).tolist()
    [0.667]
    """
    from sklearn.metrics import f1_score

    def score(logits: np.ndarray, y: np.ndarray) -> float:
        guess = logits.argmax(axis=1)
        return float(f1_score(y, guess, labels=np.unique(y), average="macro"))

    return _per_client_scores(score, outputs, data)


def auc_scores(outputs: ArrayLike, data: Data) -> np.ndarray:
    """Each client's area under the ROC curve; with more than two classes, of each class against the rest, averaged.

    Args:
        outputs, data: as in `f1_scores`.

    Returns:
        `[M]` float64 in [0, 1], averaged over the classes that occur in the client's data; NaN for a client whose data
        are all of one class, or that has none.

    Raises:
        TypeError, ValueError: as `f1_scores`.

    >>> from fedamp_jax.data import from_lists
    >>> clients = from_lists([[[1.0], [2.0], [3.0]], [[1.0]]], [[0, 1, 1], [1]], classes=2)
    >>> auc_scores(np.array([[-1.0, -2.0, 3.0], [0.0, 0.0, 0.0]]), clients).tolist()
    [0.5, nan]
    """
    from scipy.special import softmax
    from sklearn.metrics import roc_auc_score

    def score(logits: np.ndarray, y: np.ndarray) -> float:
        p, found = softmax(logits, axis=1), np.unique(y)
        if len(found) < 2:
            return float("nan")
        if logits.shape[1] == 2:
            return float(roc_auc_score(y, logits[:, 1] - logits[:, 0]))
        return float(np.mean([roc_auc_score(y == c, p[:, c]) for c in found]))

    return _per_client_scores(score, outputs, data)


def _per_client_scores(score: Callable[[np.ndarray, np.ndarray], float], outputs: ArrayLike, data: Data) -> np.ndarray:
    """`score(logits [n_i, C_i], y [n_i])` for each client, NaN where n_i is 0; a single logit becomes two, 0 and it."""
    values, y, size, classes = (np.asarray(a) for a in (outputs, data.y, data.size, data.classes))
    if y.dtype.kind not in "iu":
        raise TypeError(f"data.y must be integer labels, got {y.dtype}: scores of classes need classes")
    if values.shape[:2] != y.shape or values.ndim > 3:
        raise ValueError(
            f"outputs must be what fedamp_jax.predict gives for these data, [M, N, C] with M, N = {list(y.shape)}, got "
            f"{list(values.shape)}"
        )
    values = values.astype(np.float64).reshape(*y.shape, -1)
    if values.shape[2] == 1:
        values = np.concatenate([np.zeros_like(values), values], axis=2)
    scores = [score(values[i, :n, : classes[i]], y[i, :n]) if n else np.nan for i, n in enumerate(size)]
    return np.array(scores)


def wilcoxon(a: ArrayLike, b: ArrayLike) -> float:
    """Two-sided p-value of the Wilcoxon signed-rank test between the client accuracies of two methods.

    Clients with equal accuracies are dropped. Differences that are equal up to rounding share a rank: with few test
    samples many differences are equal, and floating-point rounding would rank them arbitrarily. The p-value is exact
    for up to 13 clients with different accuracies, or up to 50 if there are no ties; beyond that, the normal
    approximation is used.

    Args:
        a: `[M]` accuracies of the clients with one method.
        b: `[M]` accuracies of the same clients with the other method, in the same unit.

    Returns:
        The p-value, in [0, 1]; 1.0 if no accuracies differ.

    Raises:
        ValueError: if `a` or `b` is not `[M]`, is empty or not finite, or their lengths differ.

    >>> wilcoxon([90.0, 91.0, 92.0, 93.0, 94.0], [89.0, 89.0, 89.0, 89.0, 89.0])
    0.0625
    """
    from scipy import stats  # imported on use, as scikit-learn below: both are slow to import

    first, second = _finite(a, "a", "M"), _finite(b, "b", "M")
    if first.shape != second.shape:
        raise ValueError(f"a and b must list the same clients, but a is {first.shape} and b is {second.shape}")
    tolerance = _TOLERANCE * max(np.abs(first).max(), np.abs(second).max())
    difference = first - second
    difference = difference[np.abs(difference) > tolerance]
    if not difference.size:
        return 1.0
    # The test depends on ranks only: number the sizes 1, 2, ..., with the same number if the gap is within tolerance.
    order = np.argsort(np.abs(difference))
    level = np.empty(difference.size)
    level[order] = 1 + np.concatenate([[0], np.cumsum(np.diff(np.abs(difference)[order]) > tolerance)])
    if level.max() == difference.size or difference.size > 13:
        method = "auto" if level.max() == difference.size else "asymptotic"
        found: Any = stats.wilcoxon(np.sign(difference) * level, method=method)
        return float(found.pvalue)
    # Ties and at most 2^13 sign patterns: compute the exact distribution by enumeration.
    signed = np.sign(difference) * stats.rankdata(level)
    test = stats.permutation_test((signed,), np.sum, permutation_type="samples", vectorized=True, n_resamples=2**14)
    return float(test.pvalue)


def wilcoxon_table(accuracies: Mapping[str, ArrayLike], of: Sequence[str] | None = None) -> dict[str, dict[str, float]]:
    """p-values of `wilcoxon` between methods.

    Args:
        accuracies: `[M]` client accuracies by method name, with the same order of clients for all methods.
        of: the methods that get a row, by default all; names that are not in `accuracies` are ignored.

    Returns:
        `table[method][other]`: two-sided p-value, for every other method in the order of `accuracies`.

    Raises:
        ValueError: as `wilcoxon`.

    >>> wilcoxon_table({"FedAMP": [90.0, 91.0], "Separate": [90.0, 91.0]}, of=["FedAMP"])
    {'FedAMP': {'Separate': 1.0}}
    """
    rows = [name for name in (accuracies if of is None else of) if name in accuracies]
    return {a: {b: wilcoxon(accuracies[a], accuracies[b]) for b in accuracies if b != a} for a in rows}


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values of several comparisons, corrected for their number by Holm's method (1979).

    Below a level, they keep the probability that any of them is there by chance below that level.

    Args:
        p_values: of all comparisons that are made together.

    Returns:
        The corrected p-values in the same order, at most 1.

    >>> holm([0.01, 0.04, 0.03])
    [0.03, 0.06, 0.06]
    """
    p = np.asarray(p_values, np.float64)
    order = np.argsort(p)
    corrected = np.empty(p.size)
    corrected[order] = np.minimum(np.maximum.accumulate(p[order] * np.arange(p.size, 0, -1)), 1.0)
    return corrected.tolist()


def collaborators(xi: ArrayLike) -> np.ndarray:
    """How many others each client effectively listens to: `exp` of the entropy of its off-diagonal weights.

    A client that gives k others equal weights has k; one that gives almost all to one other has almost 1.

    Args:
        xi: `[M, M]` as for `in_group_weight`.

    Returns:
        `[M]`, from 1 to M - 1; NaN for a client with no off-diagonal weight.

    Raises:
        ValueError: if `xi` is not `[M, M]`, is not finite or has negative off-diagonal weights.

    >>> collaborators([[0.2, 0.4, 0.4], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]).round(3).tolist()
    [2.0, nan, 1.0]
    """
    share, linked = _shares(xi)
    entropy = -np.where(share > 0, share * np.log(np.where(share > 0, share, 1.0)), 0.0).sum(axis=1)
    return np.where(linked, np.exp(entropy), np.nan)


def in_group_weights(xi: ArrayLike, groups: ArrayLike) -> np.ndarray:
    """Each client's share of off-diagonal weights that goes to its own group, `[M]`; arguments as `in_group_weight`.

    NaN for a client with no off-diagonal weight, or no other client in its group.

    >>> in_group_weights([[0.5, 0.4, 0.1], [0.3, 0.4, 0.3], [0.2, 0.3, 0.5]], [0, 0, 1]).tolist()
    [0.8, 0.5, nan]
    """
    share, linked = _shares(xi)
    mate = _mates(groups, len(share))
    return np.where(linked & mate.any(axis=1), (share * mate).sum(axis=1), np.nan)


def in_group_weight(xi: ArrayLike, groups: ArrayLike) -> float:
    """Share of a client's off-diagonal weights that goes to its own group, averaged over clients.

    Self-weights `xi[i, i]` are ignored, and so are clients with no off-diagonal weight or no other client in their
    group.

    Args:
        xi: `[M, M]`, `xi[i, j]` is the weight of client j's model in client i's cloud model; off-diagonal >= 0.
        groups: `[M]`, ground-truth group of each client.

    Returns:
        The mean share, in [0, 1], to be compared with `chance_in_group_weight`; NaN if all clients are ignored.

    Raises:
        ValueError: if `xi` is not `[M, M]`, is not finite or has negative off-diagonal weights, or if `groups` is not
            `[M]`.

    >>> in_group_weight([[0.5, 0.4, 0.1], [0.3, 0.4, 0.3], [0.2, 0.3, 0.5]], [0, 0, 1])
    0.65
    """
    own = in_group_weights(xi, groups)
    counted = own[~np.isnan(own)]
    return float(counted.mean()) if counted.size else float("nan")


def chance_in_group_weight(groups: ArrayLike) -> float:
    """The value of `in_group_weight` if each client gives all other clients the same weight.

    Args:
        groups: `[M]`, ground-truth group of each client.

    Returns:
        The mean share, in [0, 1]; NaN if every client is alone in its group.

    Raises:
        ValueError: if `groups` is not `[M]`.

    >>> chance_in_group_weight([0, 0, 0, 1, 1])
    0.4
    """
    mate = _mates(groups, None)
    counted = mate.any(axis=1)
    return float(mate[counted].sum(axis=1).mean() / (len(mate) - 1)) if counted.any() else float("nan")


def groups_from_xi(xi: ArrayLike, k: int) -> np.ndarray:
    """Finds groups of clients from collaboration weights, by average-linkage clustering.

    Off-diagonal weights are scaled to row sums of 1 and averaged over both directions; the dissimilarity is minus the
    logarithm of the result. Zeros are replaced by half of the smallest positive value.

    Args:
        xi: `[M, M]` as for `in_group_weight`.
        k: number of groups, 1 to M.

    Returns:
        `[M]` integer labels from 0, in order of first appearance. A constant `xi` gives one group rather than `k`
        arbitrary ones. A client with no weight to or from any other is a group of its own, in addition to the `k`:
        pass the rows and columns of online clients only.

    Raises:
        TypeError: if `k` is not an integer.
        ValueError: as `in_group_weight`; also if `k` is not in 1 to M.

    >>> groups_from_xi([[0, 0.9, 0.1], [0.9, 0, 0.1], [0.5, 0.5, 0]], k=2).tolist()
    [0, 0, 1]
    """
    from sklearn.cluster import AgglomerativeClustering

    share, _ = _shares(xi)
    check_integer("k", k, low=1)
    if not 1 <= k <= len(share):
        raise ValueError(f"k must be from 1 to the number of clients {len(share)}, but is {k}")
    similarity = (share + share.T) / 2
    # Clients without any weight get labels of their own after the k groups, so that they do not use up one of them.
    isolated = ~similarity.any(axis=1)
    labels = np.where(isolated, k + np.arange(len(share)), 0)
    similarity = similarity[np.ix_(~isolated, ~isolated)]
    if similarity.size:
        dissimilarity = -np.log(np.maximum(similarity, similarity[similarity > 0].min() / 2))
        np.fill_diagonal(dissimilarity, 0.0)
        pairs = dissimilarity[~np.eye(len(dissimilarity), dtype=bool)]
        if np.ptp(pairs) > 1e-5:  # smaller differences are float32 rounding: the groups would follow client order
            tree = AgglomerativeClustering(min(k, len(similarity)), metric="precomputed", linkage="average")
            labels[~isolated] = tree.fit_predict(dissimilarity)
    _, first, inverse = np.unique(labels, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse]


def group_recovery(xi: ArrayLike, groups: ArrayLike) -> float:
    """Adjusted Rand index between `groups_from_xi` and the ground truth.

    Args:
        xi: `[M, M]` as for `in_group_weight`.
        groups: `[M]`, ground-truth group of each client; `k` is the number of distinct groups.

    Returns:
        1 for perfect recovery, about 0 for chance; NaN if there is only one group, or every client is alone in its
        group.

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
    """Returns `value` as float64, after checking that it is non-empty, finite and has the given axes (MM: square)."""
    array = np.asarray(value, dtype=np.float64)
    wanted = f"[{', '.join(axes)}]"
    if array.ndim != len(axes) or array.size == 0 or (axes == "MM" and array.shape[0] != array.shape[1]):
        raise ValueError(f"{name} must be a non-empty {wanted}, but has shape {array.shape}")
    if not np.isfinite(array).all():
        place = np.argwhere(~np.isfinite(array))[0].tolist()
        raise ValueError(f"{name} {wanted} must be finite, but is {array[tuple(place)]} at {place}")
    return array


def _shares(xi: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Off-diagonal weights with rows scaled to sum 1, `[M, M]`, and whether the row's sum was positive, `[M]` bool."""
    weight = _finite(xi, "xi", "MM").copy()
    np.fill_diagonal(weight, 0.0)
    if weight.min() < 0:
        i, j = np.unravel_index(weight.argmin(), weight.shape)
        raise ValueError(f"xi must not be negative off the diagonal, but xi[{i}, {j}] is {weight.min()}")
    total = weight.sum(axis=1, keepdims=True)
    return np.divide(weight, total, out=np.zeros_like(weight), where=total > 0), total[:, 0] > 0


def _mates(groups: ArrayLike, clients: int | None) -> np.ndarray:
    """`[M, M]` bool: whether two different clients belong to the same group."""
    label = np.asarray(groups)
    if label.ndim != 1 or label.size == 0 or clients not in (None, label.size):
        wanted = "" if clients is None else f" with M = {clients} as in xi"
        raise ValueError(f"groups must be a non-empty [M]{wanted}, but has shape {label.shape}")
    return (label[:, None] == label[None, :]) & ~np.eye(label.size, dtype=bool)
