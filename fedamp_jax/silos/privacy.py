"""What a client adds to what it sends: its update is clipped, and noise of its own is added."""

import dataclasses
import json
import secrets
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.extend.core import Literal
from scipy.optimize import brentq
from scipy.stats import norm

from fedamp_jax.checks import check_number
from fedamp_jax.files import replace_file
from fedamp_jax.placement.messages import Refused
from fedamp_jax.placement.stages import Divided


@dataclasses.dataclass(frozen=True, kw_only=True)
class Privacy:
    """Differential privacy of everything that ONE client sends, against the server and all others.

    In each answer the client's update, the difference from what the server already has, is clipped to a norm of `clip`,
    and Gaussian noise of standard deviation `noise * clip` is added to every number, from the machine's own entropy.
    The client goes on from what it has sent. Training losses and accuracies are not sent: they are NaN at the server.

    Attributes:
        clip: largest Euclidean norm of an update, of all parameters together, greater than 0.
        noise: the noise multiplier, greater than 0.
        delta: of the guarantee (epsilon, delta) that `epsilon` computes, in (0, 1).

    Raises:
        TypeError, ValueError: a number out of range.

    >>> round(Privacy(clip=1.0, noise=8.0).epsilon(50), 1)
    8.6
    """

    clip: float
    noise: float
    delta: float = 1e-5

    def __post_init__(self):
        check_number("clip", self.clip, low=0)
        check_number("noise", self.noise, low=0)
        check_number("delta", self.delta, low=0, high=1)

    def epsilon(self, answers: int) -> float:
        """The epsilon of (epsilon, delta)-differential privacy after so many answers, against any change of the data.

        Two data sets of a client can lead to updates that differ by twice the clipping norm. The answers together are
        one Gaussian mechanism, whose privacy has a closed form (Balle and Wang, ICML 2018, Theorem 8; Dong, Roth and
        Su, 2022, Corollary 3.3).
        """
        if answers == 0:
            return 0.0
        mu = 2.0 * np.sqrt(answers) / self.noise

        def excess(epsilon: float) -> float:
            beyond = np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))
            return float(norm.cdf(mu / 2 - epsilon / mu) - beyond - self.delta)

        if excess(0.0) <= 0:
            return 0.0
        found: Any = brentq(excess, 0.0, mu**2 / 2 + 40 * mu)
        return float(found)

    def check(self, cut: Divided) -> None:
        """Checks that all that a method sends can be protected.

        Raises:
            Refused: what is sent is no update of something that the server has.
        """
        for exchange in cut.exchanges:
            for v in exchange.up:
                if _is_number(cut, v):
                    fine = cut.avals[v].dtype == bool or (v in cut.returned and _is_float(cut, v))
                else:
                    fine = _is_float(cut, v) and _reference(cut, v) is not None
                if not fine:
                    raise Refused(
                        f"the method sends {cut.avals[v].str_short()}, which is neither a model nor an update of one "
                        "that the server has: noise is for methods such as FedAvg, FedProx, FedAMP, HeurFedAMP, FedPer "
                        "and Ditto"
                    )

    def protected(self, cut: Divided, up: dict[int, Any], known: Any) -> dict[int, Any]:
        """The rows to send in place of `up`; `known(v)` is the row that the server already has of an array."""
        models = {v: a for v, a in up.items() if not _is_number(cut, v)}
        start = {v: known(_reference(cut, v)) for v in models}
        update = jax.tree.map(jnp.subtract, models, start)
        clipped, _ = optax.clip_by_global_norm(self.clip).update(update, optax.EmptyState())
        key = jax.random.wrap_key_data(jnp.asarray(np.frombuffer(secrets.token_bytes(8), np.uint32)))
        noise = optax.tree.random_like(key, clipped, jax.random.normal)
        sent = jax.tree.map(lambda s, u, e: s + u + self.noise * self.clip * e, start, clipped, noise)
        withheld = {v: jnp.full_like(a, jnp.nan) for v, a in up.items() if v not in models and _is_float(cut, v)}
        return {**up, **sent, **withheld}


class Spent:
    """How many protected answers a client has sent; kept in its folder, if it has one."""

    def __init__(self, folder: Path | None):
        self._path = None if folder is None else folder / "privacy.json"
        known = self._path is not None and self._path.exists()
        self.answers = json.loads(self._path.read_text())["answers"] if known and self._path else 0

    def count(self) -> None:
        """One more; written before the answer is sent."""
        self.answers += 1
        if self._path is not None:
            replace_file(self._path, json.dumps({"answers": self.answers}).encode())


def _is_number(cut: Divided, v: int) -> bool:
    """Whether an array has a single number for each client."""
    return len(cut.avals[v].shape) == 1


def _is_float(cut: Divided, v: int) -> bool:
    return jnp.issubdtype(cut.avals[v].dtype, jnp.floating)


def _reference(cut: Divided, v: int) -> Any:
    """The array that a client's row replaces, if the server has it; None if it has not."""
    op = cut.made_by.get(v)
    if op is None or not op.of_clients:
        return None
    before = op.group(0)[op.outs.index(v)]
    return before if isinstance(before, Literal) or before in cut.server or before in cut.both else None
