"""What is sent between a server and its clients: arrays by number, and the fingerprint of the program with the numbers.

Nothing else is sent: no code, no program, no pickle.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

Arrays = dict[int, np.ndarray]


class Message(NamedTuple):
    """From the server to ONE client.

    Attributes:
        program: its name.
        exchange: its number within the program, from 1.
        first: the first exchange that the client has not taken part in, usually the same.
        fingerprint: of the program, which the client compares with its own.
        base: the last call whose result of this client the server has; 0 is the client's initial state.
        made: the number of the call whose result the program makes; 0 for a program that changes no state.
        rows: the client's rows, `[1, ...]`.
        whole: what all clients get.
    """

    program: str
    exchange: int
    first: int
    fingerprint: str
    base: int
    made: int
    rows: Arrays
    whole: Arrays


class Answer(NamedTuple):
    """From ONE client to the server: its rows, `[1, ...]`."""

    rows: Arrays


class Away(Exception):
    """A client is known not to be there, so that its silence needs no warning."""


class Refused(Exception):
    """A client does not take part in what it is asked for, and says why; asking again would not help."""


def written(a: Any, dtype: str | None = None) -> np.ndarray:
    """An array as it is sent: NumPy's, of a dtype that NumPy itself can write.

    Args:
        a: an array; keys of a random generator are sent as their words.
        dtype: of floating-point vectors and matrices on their way, None for their own.

    >>> written(jnp.array([[1.0, 2.0]]), "bfloat16")
    array([[16256, 16384]], dtype=uint16)
    """
    if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(a))
    sent = np.asarray(a)
    if _narrowed(a, dtype):
        sent = sent.astype(np.dtype(dtype))
    return sent.view(np.uint16) if sent.dtype == ml_dtypes.bfloat16 else sent


def read(sent: np.ndarray, aval: Any, dtype: str | None = None) -> Any:
    """The inverse of `written`, for an array of the kind of `aval`; NumPy's but for keys."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(jnp.asarray(sent))
    on_way = _on_way(aval, dtype)
    found = sent.view(ml_dtypes.bfloat16) if on_way == ml_dtypes.bfloat16 else sent
    return found.astype(aval.dtype)


def refuse_unlike(sent: Mapping[int, Any], avals: Mapping[int, Any], dtype: str | None, *, rows: bool = True,
                  finite: bool = True) -> None:  # fmt: skip
    """Checks arrays that came from another machine.

    Args:
        sent: by number.
        avals: what is expected, by number.
        dtype: as of `written`.
        rows: whether they are one client's rows of these.
        finite: whether vectors and matrices must be finite.

    Raises:
        ValueError: it says which array is not what the program says.
    """
    if set(sent) != set(avals):
        raise ValueError(f"arrays {sorted(sent)} came in place of {sorted(avals)}")
    for v, aval in avals.items():
        a, kind = sent[v], _sent_as(aval, dtype)
        shape = (1, *kind.shape[1:]) if rows else kind.shape
        if not isinstance(a, np.ndarray) or (a.shape, a.dtype) != (shape, kind.dtype):
            got = f"{a.dtype} {list(a.shape)}" if isinstance(a, np.ndarray) else type(a).__name__
            raise ValueError(f"array {v} is {got} in place of {kind.dtype} {list(shape)}")
        checked = finite and len(aval.shape) > 1 and jnp.issubdtype(aval.dtype, jnp.floating)
        if checked and not np.isfinite(read(a, aval, dtype)).all():
            raise ValueError(f"array {v} has numbers that are not finite")


def sent_bytes(aval: Any, dtype: str | None = None) -> int:
    """Bytes of an array on its way."""
    kind = _sent_as(aval, dtype)
    return int(np.prod(kind.shape)) * kind.dtype.itemsize


def _narrowed(a: Any, dtype: str | None) -> bool:
    """Whether an array is sent in fewer bits: models are; numbers of clients, such as a rate, are not."""
    return dtype is not None and len(a.shape) > 1 and a.dtype == jnp.float32


def _on_way(aval: Any, dtype: str | None) -> np.dtype:
    return np.dtype(dtype) if _narrowed(aval, dtype) else np.dtype(aval.dtype)


def _sent_as(aval: Any, dtype: str | None) -> jax.ShapeDtypeStruct:
    """The shape and dtype of what `written` makes."""
    if jnp.issubdtype(aval.dtype, jax.dtypes.prng_key):
        return jax.eval_shape(jax.random.key_data, jax.ShapeDtypeStruct(aval.shape, aval.dtype))
    kind = _on_way(aval, dtype)
    return jax.ShapeDtypeStruct(aval.shape, np.dtype(np.uint16) if kind == ml_dtypes.bfloat16 else kind)
