"""BERT (Devlin et al. 2019), one text at a time in float64; arrays have the names of Hugging Face's `BertModel`."""

import math

import numpy as np

_ERF = np.vectorize(math.erf)


def sentence(weights, ids, layers, heads, epsilon):
    """The mean of the last layer's vectors of a text's tokens `ids`, which have no padding, of length 1."""
    w = {name: np.asarray(a, np.float64) for name, a in weights.items()}

    def dense(x, name):
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(x, name):
        centred = x - x.mean(axis=1, keepdims=True)
        return centred / np.sqrt(centred.var(axis=1, keepdims=True) + epsilon) * w[f"{name}.weight"] + w[f"{name}.bias"]

    embeddings = [w[f"embeddings.{kind}_embeddings.weight"] for kind in ("word", "position", "token_type")]
    x = norm(embeddings[0][ids] + embeddings[1][: len(ids)] + embeddings[2][0], "embeddings.LayerNorm")
    for i in range(layers):
        layer = f"encoder.layer.{i}"
        q, k, v = (dense(x, f"{layer}.attention.self.{name}") for name in ("query", "key", "value"))
        size, parts = x.shape[1] // heads, []
        for h in range(heads):
            own = slice(h * size, (h + 1) * size)
            score = np.exp(q[:, own] @ k[:, own].T / math.sqrt(size))
            parts.append(score / score.sum(axis=1, keepdims=True) @ v[:, own])
        x = norm(
            x + dense(np.concatenate(parts, 1), f"{layer}.attention.output.dense"),
            f"{layer}.attention.output.LayerNorm",
        )
        hidden = dense(x, f"{layer}.intermediate.dense")
        hidden = hidden * (1 + _ERF(hidden / math.sqrt(2))) / 2
        x = norm(x + dense(hidden, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    mean = x.mean(axis=0)
    return mean / np.linalg.norm(mean)
