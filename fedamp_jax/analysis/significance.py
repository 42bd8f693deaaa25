"""Whether two methods differ: Wilcoxon's test over the clients, and Holm's correction for many comparisons."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedamp_jax.analysis.arrays import finite

_TOLERANCE = 1e-6  # relative to the largest accuracy; float32's relative precision is about 1e-7


def wilcoxon(a: ArrayLike, b: ArrayLike) -> float:
    """Two-sided p-value of the Wilcoxon signed-rank test between the client accuracies of two methods.

    Clients with equal accuracies are dropped. Differences that are equal up to rounding share a rank: with few test
    samples many differences are equal, and floating-point rounding would rank them arbitrarily. The p-value is exact
    for up to 13 clients with different accuracies, or up to 50 if there are no ties; beyond that, the normal
    approximation is used.

    Args:
        a: `[M]` accuracies of the clients with one method; clients without test data, NaN in both, are left out.
        b: `[M]` accuracies of the same clients with the other method, in the same unit.

    Returns:
        The p-value, in [0, 1]; 1.0 if no accuracies differ.

    Raises:
        ValueError: if `a` or `b` is not `[M]`, is empty or not finite, or their lengths differ.

    >>> wilcoxon([90.0, 91.0, 92.0, 93.0, 94.0], [89.0, 89.0, 89.0, 89.0, 89.0])
    0.0625
    """
    from scipy import stats  # imported on use, as it is slow to import

    first, second = np.asarray(a, np.float64), np.asarray(b, np.float64)
    if first.shape != second.shape:
        raise ValueError(f"a and b must list the same clients, but a is {first.shape} and b is {second.shape}")
    judged = ~(np.isnan(first) & np.isnan(second))
    if judged.any():
        first, second = first[judged], second[judged]
    first, second = finite(first, "a", "M"), finite(second, "b", "M")
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
    pairs = {frozenset((a, b)): (a, b) for a in rows for b in accuracies if b != a}
    found = {pair: wilcoxon(accuracies[a], accuracies[b]) for pair, (a, b) in pairs.items()}
    return {a: {b: found[frozenset((a, b))] for b in accuracies if b != a} for a in rows}


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
