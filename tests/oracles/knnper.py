"""kNN-Per (Marfoq et al. 2022).

Rounds are FedAvg's, on the training rows, with means by the number of all examples. With the global model w, for an
example x with features h(x), of which there are H, and client i's memory of rows R:

    p_kNN(y) = sum of K over the k rows of R nearest to x with label y / sum of K over the k rows,
    K = exp(-||h(x) - h(x')||^2 / (H scale)),
    p = lam p_kNN + (1 - lam) softmax(logits), over the client's own classes.

lam is 0 for a client with one example. Otherwise it is the first of 0, 0.1, ..., 1 with the largest likelihood of the
validation rows, with R the training rows; p of other examples has R = all rows.
"""

import numpy as np

from .model import features, logits


def parts(w, client, memory, x, k, scale):
    """p_kNN and softmax of x, [n, C] each."""
    h, there = features(w, x), features(w, client["x"][memory])
    z = logits(w, x)[:, : client["classes"]]
    model = np.exp(z - z.max(axis=1, keepdims=True))
    near = np.zeros_like(model)
    for n, one in enumerate(h):
        far = np.sum((one - there) ** 2, axis=1)
        some = np.argsort(far, kind="stable")[:k]
        kernel = np.exp(-far[some] / (h.shape[1] * scale))
        for weight, y in zip(kernel / kernel.sum(), client["y"][memory][some]):
            near[n, y] += weight
    return near, model / model.sum(axis=1, keepdims=True)


def choose(w, client, training, validation, k, scale):
    """lam of one client."""
    if len(client["y"]) == 1:
        return 0.0
    near, model = parts(w, client, training, client["x"][validation], k, scale)
    grid, y = np.arange(11) / 10, client["y"][validation]
    p = np.stack([lam * near + (1 - lam) * model for lam in grid])[:, np.arange(len(y)), y]
    return grid[np.argmax(np.log(np.maximum(p, 1e-30)).sum(axis=1).round(9))]


def predict(w, client, memory, lam, x, k, scale):
    """log p, [n, the client's classes]."""
    near, model = parts(w, client, memory, x, k, scale)
    return np.log(np.maximum(lam * near + (1 - lam) * model, 1e-30))
