"""Attention weights xi: what they give to a client's group and to how many others, and which groups they form."""

import numpy as np
from numpy.typing import ArrayLike

from fedamp_jax.analysis.arrays import finite
from fedamp_jax.checks import check_integer


def collaborators(xi: ArrayLike) -> np.ndarray:
    """Effective number of collaborators of each client: `exp` of the entropy of its off-diagonal weights.

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


def _shares(xi: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Off-diagonal weights with rows scaled to sum 1, `[M, M]`, and whether the row's sum was positive, `[M]` bool."""
    weight = finite(xi, "xi", "MM").copy()
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
