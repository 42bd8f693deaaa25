"""Faulty clients, for studies of robustness."""

import dataclasses
from collections.abc import Callable
from typing import Any

from fedamp_jax.checks import check_type
from fedamp_jax.types import Algorithm, Array, Data


def corrupted(algorithm: Algorithm, corrupt: Callable[[Array, Data, Any], Any]) -> Algorithm:
    """Wrap an algorithm so that clients send something else than what they trained.

    Args:
        algorithm: the method; its `init` and `personalize` stay as they are.
        corrupt: `(key, client, trained) -> sent` for ONE client: a tree like `trained`, which is all that its local
            training replaces (the model, SCAFFOLD's control variate, PFLEGO's gradient). It has to return `trained`
            for honest clients.

    Returns:
        The `Algorithm`.

    Raises:
        TypeError: if an argument is of the wrong kind.

    >>> import jax, jax.numpy as jnp, optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> base = fedamp_jax.fedavg(task, fedamp_jax.Solver(optax.adam(1e-3)))
    >>> def flip_client_3(key, client, trained):
    ...     return jax.tree.map(lambda a: jnp.where(client.id == 3, -a, a), trained)
    >>> algorithm = corrupted(base, flip_client_3)
    """
    check_type("algorithm", algorithm, Algorithm, "such as fedavg(task, solver)")
    if not callable(corrupt):
        raise TypeError(f"corrupt must be a function (key, client, trained) -> sent, got {corrupt!r}")

    def round(key, state, data):
        placement = dataclasses.replace(data.placement, transmit=corrupt)
        return algorithm.round(key, state, data._replace(placement=placement))

    return algorithm._replace(round=round)
