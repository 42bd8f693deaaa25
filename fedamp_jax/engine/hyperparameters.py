"""Hyper-parameters inside a round: numbers, tracers, schedules of the round, one number for each client."""

from typing import Any

import jax
import jax.numpy as jnp

from fedamp_jax.types import Array, Data


def at_round(value: Any, k: Array) -> Array:
    """The value of a number, tracer or schedule in round `k [] int32`, as float32."""
    if not callable(value):
        return jnp.asarray(value, jnp.float32)
    with jax.numpy_dtype_promotion("standard"):  # optax's schedules mix the integer round with floats
        return jnp.asarray(value(k), jnp.float32)


def of_clients(name: str, value: Any, k: Array, data: Data) -> Array:
    """`at_round(value, k)` as `[M]`: a number of each client's own, or the same for all.

    Raises:
        ValueError: as `broadcast_to_clients`.
    """
    return broadcast_to_clients(name, at_round(value, k), data)


def broadcast_to_clients(name: str, value: Array, data: Data) -> Array:
    """`value [] or [data.clients]` as `[M]`, one number for each client; 0 for padding clients of an array.

    Raises:
        ValueError: if the number of values is not the number of clients; the message calls them `name`.
    """
    m = len(data.size)
    if value.ndim == 0:
        return jnp.broadcast_to(value, (m,))
    if value.shape[0] != data.clients:
        raise ValueError(f"{name} has {value.shape[0]} numbers for {data.clients} clients")
    return jnp.pad(value, (0, m - data.clients))
