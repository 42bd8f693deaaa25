"""F1 and AUC of each client, from a model's outputs."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from fedamp_jax.layout import positions
from fedamp_jax.types import Data


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
    m, n = len(size), data.longest
    if y.dtype.kind not in "iu":
        raise TypeError(f"data.y must be integer labels, got {y.dtype}: scores of classes need classes")
    if values.shape[:2] != (m, n) or values.ndim > 3:
        raise ValueError(
            f"outputs must be what fedamp_jax.predict gives for these data, [M, N, C] with M, N = {[m, n]}, got "
            f"{list(values.shape)}"
        )
    values = values.astype(np.float64).reshape(m, n, -1)
    if values.shape[2] == 1:
        values = np.concatenate([np.zeros_like(values), values], axis=2)
    labels = np.split(y[positions(data)], np.cumsum(size)[:-1])
    return np.array([score(values[i, :n, : classes[i]], labels[i]) if n else np.nan for i, n in enumerate(size)])
