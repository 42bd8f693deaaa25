"""Who takes part in a round."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from fedamp_jax import checks
from fedamp_jax.types import Array, Data


def sample_online(
    key: Array, m: int, participation: float = 1.0, drop_rate: float = 0.0, ids: Array | None = None
) -> Array:
    """Who takes part in a round: `participation` of the clients are invited, `drop_rate` of those drop out.

    Args:
        key: a PRNG key.
        m: number of clients.
        participation: share in (0, 1]; a whole number of clients, at least one, drawn without replacement.
        drop_rate: share in [0, 1) of the invited that drop out, rounded to a whole number of clients, which may be 0.
        ids: `[m]` int32, such as `data.id`: the draw follows them, so that it does not depend on the order of clients.
            None: they increase.

    Returns:
        `[m]` bool.

    Raises:
        ValueError: if a share is out of range, or if all that are invited drop out.

    >>> int(sample_online(jax.random.key(0), 100, participation=0.2, drop_rate=0.5).sum())
    10
    """
    checks.whole("m", m, low=1)
    checks.shares(participation, drop_rate)
    invited = max(1, int(np.round(participation * m)))
    staying = invited - int(np.round(drop_rate * invited))
    if staying == 0:
        raise ValueError(
            f"nobody would ever take part: of {m} clients participation={participation} invites {invited}, and with "
            f"drop_rate={drop_rate} all of these drop out"
        )
    online = jnp.argsort(jax.random.permutation(key, m)) < staying
    return online if ids is None else online[jnp.argsort(jnp.argsort(ids))]


@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def online(m: int, participation: float, drop_rate: float, key: Array, data: Data) -> Array:
    """Who takes part in a round: of those that `data` have online."""
    drawn = sample_online(key, m, participation, drop_rate, data.id[:m])
    return data.online & jnp.pad(drawn, (0, len(data.online) - m))
