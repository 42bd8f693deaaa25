"""Optimizers from their papers, on trees.

`sgd(0.1)` is a recipe. Calling it, `sgd(0.1)()`, starts a fresh optimizer with no memory of earlier rounds: a function
`update(params, grads) -> params` that keeps its own moments between calls.
"""

import numpy as np

from .trees import add, scale, sub, tree_map, zeros


def sgd(lr):
    """Gradient descent: w <- w - lr * g."""

    def fresh():
        return lambda params, grads: sub(params, scale(lr, grads))

    return fresh


def momentum(lr, decay=0.9):
    """Heavy ball (Polyak 1964; Sutskever 2013): m <- decay * m + g, w <- w - lr * m, from m = 0, no dampening."""

    def fresh():
        memory = {}

        def update(params, grads):
            memory["m"] = add(scale(decay, memory.get("m", zeros(grads))), grads)
            return sub(params, scale(lr, memory["m"]))

        return update

    return fresh


def adam(lr, b1=0.9, b2=0.999, eps=1e-8):
    """Kingma & Ba (2015), Algorithm 1, with both bias corrections and eps outside the square root."""

    def fresh():
        memory = {"t": 0}

        def update(params, grads):
            t = memory["t"] = memory["t"] + 1
            m = memory["m"] = tree_map(lambda m, g: b1 * m + (1 - b1) * g, memory.get("m", zeros(grads)), grads)
            v = memory["v"] = tree_map(lambda v, g: b2 * v + (1 - b2) * g * g, memory.get("v", zeros(grads)), grads)
            m_hat, v_hat = scale(1 / (1 - b1**t), m), scale(1 / (1 - b2**t), v)
            return tree_map(lambda w, m, v: w - lr * m / (np.sqrt(v) + eps), params, m_hat, v_hat)

        return update

    return fresh
