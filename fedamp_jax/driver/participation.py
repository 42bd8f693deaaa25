"""Who takes part in a round."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedamp_jax.checks import check_number
from fedamp_jax.types import Array, Data


class Participation(NamedTuple):
    """A share of the clients is invited to each round, and a share of those drops out.

    Attributes:
        share: of the clients that are invited, in (0, 1]; a whole number of them, at least one, drawn without
            replacement.
        drop_rate: share in [0, 1) of the invited that drop out, rounded to a whole number of clients, which may be 0.

    >>> import fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> int(Participation(0.5, drop_rate=0.2).online(jax.random.key(0), train).sum())
    8
    """

    share: float = 1.0
    drop_rate: float = 0.0

    def present(self, clients: int) -> int:
        """How many of so many clients take part in each round.

        Raises:
            TypeError, ValueError: if a share is out of range, or if all invited clients drop out.
        """
        check_shares(self.share, self.drop_rate)
        invited = max(1, int(np.round(self.share * clients)))
        staying = invited - int(np.round(self.drop_rate * invited))
        if staying == 0:
            raise ValueError(
                f"no client would ever take part: of {clients} clients participation={self.share} invites {invited}, "
                f"and with drop_rate={self.drop_rate} all of these drop out"
            )
        return staying

    def online(self, key: Array, data: Data) -> Array:
        """Who takes part in a round, `[M]` bool, of those that `data` have online.

        Args:
            key: a PRNG key for this draw.
            data: the clients; the draw follows their ids, so it does not depend on their order.

        Raises:
            TypeError, ValueError: as `present`.
        """
        present = self.present(data.clients)
        return data.online if present == data.clients else _online(data.clients, present, key, data)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _online(clients: int, staying: int, key: Array, data: Data) -> Array:
    drawn = jnp.argsort(jax.random.permutation(key, clients)) < staying
    drawn = drawn[jnp.argsort(jnp.argsort(data.id[:clients]))]
    return data.online & jnp.pad(drawn, (0, len(data.online) - clients))


def check_shares(participation: Any, drop_rate: Any) -> None:
    """Checks that participation is in (0, 1] and the drop rate in [0, 1).

    Raises:
        TypeError: if one is not a number.
        ValueError: if one is out of range.
    """
    for name, share in (("participation", participation), ("drop_rate", drop_rate)):
        if isinstance(share, bool) or not isinstance(share, (int, float, np.number)):
            raise TypeError(f"{name} must be a number, got {share!r}")
    check_number("participation", participation, low=0, high=1)
    if not 0 <= drop_rate < 1:
        raise ValueError(f"drop_rate must be in [0, 1), got {drop_rate}")
