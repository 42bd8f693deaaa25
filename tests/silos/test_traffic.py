"""What each method sends, as its own program says, and what must never leave a client."""

import jax
import jax.numpy as jnp
import optax
import pytest

import fedamp_jax
from fedamp_jax.algorithms.registry import METHODS
from tests import registry
from tests.registry import wide

BODY, HEAD = "body", "head"
MEANS = 10 * 200 / 8810
"""Mean features of ten classes, as a share of the model of `wide`."""

SENT = {
    "Separate": (1, 0, 0),
    "FedAvg": (1, 1, 1),
    "FedProx": (1, 1, 1),
    "FedAvg-FT": (1, 1, 1),
    "FedProx-FT": (1, 1, 1),
    "SCAFFOLD": (1, 2, 2),
    "APFL": (1, 1, 1),
    "FedAMP": (1, 1, 1),
    "HeurFedAMP": (1, 1, 1),
    "Ditto": (1, 1, 1),
    "FedPer": (1, BODY, BODY),
    "FedRep": (1, BODY, BODY),
    "FedBABU": (1, BODY, BODY),
    "FedRecon": (1, BODY, BODY),
    "PFLEGO": (2, BODY, BODY),
    "pFedMe": (1, 1, 1),
    "FedFomo": (2, 17, 1),  # the models of all 16 clients, and their mixture
    "pFedGraph": (1, 1, 1),
    "IFCA": (2, 4, 1),  # three clusters, and the one that it trains
    "CFL": (2, 4, 1),  # likewise, for a client that is in no cluster yet
    "LG-FedAvg": (1, HEAD, HEAD),
    "FedBN": (1, 1, 1),
    "FedRoD": (1, 1, 1),
    "Per-FedAvg": (1, 1, 1),
    "FedProto": (1, MEANS, MEANS),
    "kNN-Per": (1, 1, 1),
    "FedALA": (1, 1, 1),
    "FedPAC": (1, 1 + MEANS, 1 + 2 * MEANS),  # up, its statistics beside the mean features
    "pFedHN": (1, 1, 1),
}
"""Exchanges of a round, and models to a client and back."""


def first_form(name):
    forms = registry.VARIANTS.get(name)
    return forms[0].make if forms else METHODS[name].factory


@pytest.mark.parametrize("name", METHODS)
def test_what_a_round_sends(name):
    """In models, but for a few numbers of each client.

    Failed with a global model that was sent for each of its uses, and with clients' rows of a state at the server.
    """
    task, data = wide()
    sent = fedamp_jax.traffic(first_form(name)(task, fedamp_jax.Solver(optax.adam(1e-3), epochs=2, batch_size=4)), data)
    shapes = jax.eval_shape(task.init, jax.random.key(0)).params
    share = {part: sum(4 * a.size for a in jax.tree.leaves(shapes[part])) / sent.model for part in (BODY, HEAD)}
    exchanges, down, up = SENT[name]
    down, up = (share.get(part, part) for part in (down, up))
    # Beside models there are keys, sizes, losses, weights and the 33 statistics of the tiny model.
    assert sent.exchanges == exchanges
    assert abs(sent.down / sent.model - down) < 0.05 + 0.01 * down
    assert abs(sent.up / sent.model - up) < 0.05


def test_personal_heads_stay():
    """With as many clients as classes and as hidden units, which makes a head look like numbers of all clients.

    Failed when arrays of a shape [M, M] or [M] were taken for numbers that the server needs.
    """
    data = registry.federation(sizes=(4, 4, 4))
    task = registry.tiny_task(hidden=3)  # three classes, three clients
    sent = fedamp_jax.traffic(fedamp_jax.fedper(task, fedamp_jax.Solver(optax.sgd(0.1))), data)
    assert {name for name in sent.stays if "head" in name} == {"own/head/bias", "own/head/kernel"}
    body = 4 * (5 * 3 + 3)
    assert sent.up == body + 4 * 5 + 4 + 1  # and the statistics, the loss and whether it was rejected


def test_statistics_need_no_second_exchange():
    """A mean of running statistics is made at the server, and comes with the next round.

    Failed when clients waited for it at the end of a round.
    """
    data = registry.federation()
    for factory in (fedamp_jax.fedavg, fedamp_jax.fedper, fedamp_jax.ditto):
        for stats in ("mix", "local"):
            algorithm = factory(registry.tiny_task(), fedamp_jax.Solver(optax.sgd(0.1)), stats=stats)
            assert fedamp_jax.traffic(algorithm, data).exchanges == 1


def test_bfloat16_halves_models():
    """Failed with the numbers of clients, such as sizes, in bfloat16, too."""
    task, data = wide()
    algorithm = fedamp_jax.fedavg(task, fedamp_jax.Solver(optax.sgd(0.1)))
    whole, half = (fedamp_jax.traffic(algorithm, data, dtype=dtype) for dtype in (None, "bfloat16"))
    assert abs(half.down / whole.down - 0.5) < 0.02
    assert abs(half.up / whole.up - 0.5) < 0.02


def test_a_server_that_reads_examples_is_refused():
    task, data = wide()
    base = fedamp_jax.fedavg(task, fedamp_jax.Solver(optax.sgd(0.1)))

    def leaks(key, state, data):
        state, info = base.round(key, state, data)
        return state._replace(params=jax.tree.map(lambda p: p + jnp.mean(data.x), state.params)), info

    with pytest.raises(ValueError, match=r"reads clients' examples \(float32\[5,33\]\)"):
        fedamp_jax.traffic(base._replace(round=leaks), data)


@pytest.mark.parametrize("loop", ["cond", "scan"])
def test_training_inside_of_a_loop_is_refused(loop):
    task, data = wide()
    base = fedamp_jax.fedavg(task, fedamp_jax.Solver(optax.sgd(0.1)))

    def inside(key, state, data):
        if loop == "cond":
            info = base.round(key, state, data)[1]
            return jax.lax.cond(state.round < 3, lambda: base.round(key, state, data), lambda: (state, info))
        _, info = base.round(key, state, data)
        return jax.lax.scan(lambda s, k: (base.round(k, s, data)[0], None), state, key[None])[0], info

    with pytest.raises(ValueError, match=f"inside of {loop}"):
        fedamp_jax.traffic(base._replace(round=inside), data)


def test_numbers_of_clients_in_a_state_are_refused():
    task, data = wide()
    algorithm = fedamp_jax.apfl(task, fedamp_jax.Solver(optax.sgd(0.1)), alpha=jnp.full(16, 0.5), learning_rate=0.1)
    with pytest.raises(ValueError, match="give it one number for all"):
        fedamp_jax.traffic(algorithm, data)
