"""Arithmetic on nested dicts of float64 arrays ("trees"): just enough to write a paper's equation in one line."""

import numpy as np


def tree_map(function, *trees):
    """Apply `function` leaf by leaf."""
    if isinstance(trees[0], dict):
        return {name: tree_map(function, *(tree[name] for tree in trees)) for name in trees[0]}
    return np.asarray(function(*(np.asarray(leaf, np.float64) for leaf in trees)), np.float64)


def add(a, b):
    """Sum a + b."""
    return tree_map(lambda x, y: x + y, a, b)


def sub(a, b):
    """Difference a - b."""
    return tree_map(lambda x, y: x - y, a, b)


def scale(factor, a):
    """Product factor * a."""
    return tree_map(lambda x: factor * x, a)


def zeros(a):
    """A tree of zeros with the shapes of `a`."""
    return tree_map(np.zeros_like, a)


def combine(weights, trees):
    """Sum of weights[j] * trees[j]; a tree of weight 0 is left out, whatever it holds."""
    total = zeros(trees[0])
    for weight, tree in zip(weights, trees, strict=True):
        if weight != 0:
            total = add(total, scale(weight, tree))
    return total


def flatten(a):
    """All leaves as one vector, dict keys in sorted order."""
    if isinstance(a, dict):
        return np.concatenate([flatten(a[name]) for name in sorted(a)])
    return np.asarray(a, np.float64).ravel()


def dot(a, b):
    """Inner product over all leaves."""
    return float(flatten(a) @ flatten(b))


def average(trees, sizes, online, otherwise):
    """Mean of the online clients' trees, weighted by their sizes; `otherwise` where nobody is online."""
    present = [i for i, here in enumerate(online) if here]
    if not present:
        return otherwise
    total = sum(sizes[i] for i in present)
    return combine([sizes[i] / total for i in present], [trees[i] for i in present])
