"""Which clients take part in a round."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fedamp_jax import Participation
from fedamp_jax.placement import OnMesh, client_mesh
from tests.registry import federation


def of(clients):
    """Data of so many clients, of one example each."""
    return federation(sizes=(1,) * clients)


def test_participation_and_dropping_are_whole_numbers():
    """Failed with one Bernoulli draw per client."""
    for seed in range(5):
        key = jax.random.key(seed)
        assert int(Participation(0.2).online(key, of(100)).sum()) == 20
        assert int(Participation(1.0, 0.3).online(key, of(10)).sum()) == 7
        assert int(Participation(0.1).online(key, of(3)).sum()) == 1
    ten = of(10)
    draws = np.stack([Participation(0.5).online(jax.random.key(s), ten) for s in range(40)])
    assert draws.any(0).all() and not draws.all(0).any()


@pytest.mark.parametrize("share", [0.01, 0.5, 1.0])
def test_shares_are_whole_numbers_of_clients(share):
    """At least one is invited, and each client sooner or later. Failed with independent coin tosses."""
    ten = of(10)
    drawn = np.stack([Participation(share).online(jax.random.key(k), ten) for k in range(60)])
    assert set(drawn.sum(axis=1)) == {max(1, round(10 * share))} == {Participation(share).present(10)}
    assert drawn.any(axis=0).all()


def test_the_draw_follows_the_ids():
    """Clients in another order take part in the same rounds. Failed when the draw followed the rows."""
    data, order = federation(), jnp.array([3, 0, 7, 5, 1, 6, 2, 4])
    moved = data.select(order)
    for seed in range(5):
        a, b = (Participation(0.5, 0.25).online(jax.random.key(seed), d) for d in (data, moved))
        assert a[order].tolist() == b.tolist()


@pytest.mark.parametrize("share", [0.6, 1.0])
def test_padding_clients_and_offline_clients_stay_away(share):
    """On a mesh the same clients are drawn as without. Failed with a draw from all rows, and with all of them online
    where nothing is drawn.
    """
    data = federation()._replace(online=jnp.arange(8) != 3)
    spread = OnMesh(mesh=client_mesh(3)).place(data)
    for seed in range(5):
        a, b = (np.asarray(Participation(share).online(jax.random.key(seed), d)) for d in (data, spread))
        assert a.tolist() == b[:8].tolist() and b.shape == (9,) and not b[8] and not a[3]


@pytest.mark.parametrize(("share", "drop_rate", "kind", "message"), [
    (0.0, 0.0, ValueError, "participation must be greater than 0 and at most 1, got 0"),
    (1.1, 0.0, ValueError, "participation must be greater than 0 and at most 1, got 1.1"),
    (float("nan"), 0.0, ValueError, "participation must be finite, got nan"),
    ("all", 0.0, TypeError, "participation must be a number, got 'all'"),
    (True, 0.0, TypeError, "participation must be a number, got True"),
    (1.0, 1.0, ValueError, "drop_rate must be in [0, 1), got 1.0"),
    (1.0, -0.1, ValueError, "drop_rate must be in [0, 1), got -0.1"),
    (1.0, None, TypeError, "drop_rate must be a number, got None"),
    (0.25, 0.6, ValueError, "no client would ever take part: of 4 clients participation=0.25 invites 1"),
], ids=str)  # fmt: skip
def test_bad_shares_are_refused(share, drop_rate, kind, message):
    """Each failed with its check taken out; the last one with rounds in which no client trained."""
    with pytest.raises(kind, match=re.escape(message)):
        Participation(share, drop_rate).online(jax.random.key(0), of(4))
