"""Every method, with small arguments: each test of `test_algorithms.py` runs over all of this list.

The list follows `fedamp_jax.algorithms.registry.METHODS`: a method that is added there is examined.

The model is the two-layer one of `tests/oracles/model.py`, written by hand as a `Task`.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Algorithm, Data, Solver, Task, Variables, attention
from fedamp_jax.algorithms.registry import METHODS
from fedamp_jax.data import from_lists
from fedamp_jax.engine import take_batch
from tests import conftest

FEATURES, HIDDEN, CLASSES = 5, 4, 3
SIZES = (7, 3, 10, 1, 5, 10, 4, 6)


def tiny_task(features: int = FEATURES, hidden: int = HIDDEN, classes: int = CLASSES) -> Task:
    """features = tanh(x W_b + b_b), logits = features W_h + b_h; statistics that follow the mean of x and nothing
    reads.
    """

    def init(key):
        body, head = jax.random.split(key)
        return Variables(
            {
                "body": {"kernel": jax.random.normal(body, (features, hidden)) / 2, "bias": jnp.zeros(hidden)},
                "head": {"kernel": jax.random.normal(head, (hidden, classes)) / 2, "bias": jnp.zeros(classes)},
            },
            {"mean": jnp.zeros(features)},
        )

    def body(params, x):
        return jnp.tanh(x @ params["body"]["kernel"] + params["body"]["bias"][None])

    def head(params, h):
        return h @ params["head"]["kernel"] + params["head"]["bias"][None]

    def predict(variables, x):
        return head(variables.params, body(variables.params, x))

    def body_of(variables, batch, key):
        x = jnp.where(batch.mask[:, None], batch.x, 0.0)
        mean = jnp.sum(x, axis=0) / jnp.maximum(jnp.sum(batch.mask, dtype=jnp.float32), 1.0)
        return body(variables.params, x), {"mean": 0.9 * variables.stats["mean"] + 0.1 * mean}

    def head_loss(variables, h, batch):
        return fedamp_jax.cross_entropy(head(variables.params, h), batch)

    def loss(variables, batch, key):
        h, stats = body_of(variables, batch, key)
        return head_loss(variables, h, batch), stats

    def features_of(variables, x):
        return body(variables.params, x)

    return Task(init, loss, predict, ("head",), body_of, head_loss, predict_features=features_of)


def federation(seed: int = 0, sizes: tuple[int, ...] = SIZES, kinds: int = 2, classes: Sequence[int] = ()) -> Data:
    """Eight clients of different sizes; with two kinds they have opposite labels, so that methods differ.

    `classes`: each client's number of them, if not all have all.
    """
    rng = np.random.default_rng(seed)
    rule = rng.normal(size=(FEATURES, CLASSES))
    xs = [rng.normal(size=(n, FEATURES)).astype(np.float32) for n in sizes]
    own = np.array(classes or [CLASSES] * len(sizes))
    ys = [np.argmax(((-1) ** (i % kinds) * x @ rule)[:, : own[i]], axis=1) for i, x in enumerate(xs)]
    return from_lists(xs, ys, classes=own)


def rows(data: Data, i: int) -> slice:
    """Where the examples of client i lie in `data.x` and `data.y`."""
    start, size = int(data.start[i]), int(data.size[i])
    return slice(start, start + size)


@jax.jit
def batch_of(client: Data) -> fedamp_jax.Batch:
    """All of ONE client's examples as one batch, filled up to the length of the longest client."""
    rows = jnp.arange(client.longest, dtype=jnp.int32)
    return take_batch(client, rows, rows < client.size)


def wide(m: int = 16) -> tuple[Task, Data]:
    """A task whose models are large beside everything else that a round moves, and `m` clients of few examples."""
    rng = np.random.default_rng(0)
    xs = [rng.normal(size=(3 + i % 3, 33)).astype(np.float32) for i in range(m)]
    data = from_lists(xs, [rng.integers(0, 10, len(x)) for x in xs], classes=10)
    return tiny_task(33, 200, 10), data


class Entry(NamedTuple):
    """A name, how to make it, and what is peculiar to it.

    Attributes:
        name: of the factory, and what else tells it from the other entries.
        factory: its name; of a wrapper, the wrapped method's. States and messages follow from it.
        make: `(task, solver) -> Algorithm`.
        rejected_is_offline: that a client's update is thrown away is for the others the same as if it had been offline.
            Otherwise they received its last model in the same round, and notice nothing.
        own_steps: the method has a step rule of its own and ignores the solver's optimizer.
    """

    name: str
    factory: str
    make: Callable[[Task, Solver], Algorithm]
    rejected_is_offline: bool = True
    own_steps: bool = False


RECEIVE_FIRST = {"fedamp", "heurfedamp", "pfedgraph", "fedfomo"}
"""Methods whose clients receive the others' last models before they train."""
OWN_STEPS = {"scaffold", "apfl", "pflego", "pfedme", "perfedavg"}


def _entry(factory: Callable[..., Algorithm], name: str | None = None, own_steps: bool = False, **hyper) -> Entry:
    used = factory.__name__
    offline = used not in RECEIVE_FIRST or hyper.get("stale") == "include"
    return Entry(
        name or used,
        used,
        lambda task, solver: factory(task, solver, **hyper),
        offline,
        own_steps or used in OWN_STEPS,
    )


def _tuned(base: Callable[..., Algorithm], **hyper) -> Entry:
    def make(task, solver):
        return fedamp_jax.fine_tuned(task, solver, base=base(task, solver, **hyper))

    return Entry(f"fine_tuned({base.__name__})", base.__name__, make)


_AMP = {"sigma": 2.0, "self_weight": 0.25, "alpha": 10.0, "lam": 1.0}

VARIANTS: dict[str, list[Entry]] = {
    "Separate": [
        _entry(fedamp_jax.separate),
        _entry(fedamp_jax.separate, "separate, own init", common_init=False),
    ],
    "FedProx": [_entry(fedamp_jax.fedprox, mu=0.1)],
    "FedAvg-FT": [_tuned(fedamp_jax.fedavg)],
    "FedProx-FT": [_tuned(fedamp_jax.fedprox, mu=0.1)],
    "FedAMP": [
        _entry(fedamp_jax.fedamp, **_AMP),
        _entry(fedamp_jax.fedamp, "fedamp, Eq. 5", sigma=2.0, self_weight=None, alpha=0.05, lam=0.02,
               common_init=False),
        _entry(fedamp_jax.fedamp, "fedamp, scad", **_AMP, slope=attention.scad, start="personal"),
        _entry(fedamp_jax.fedamp, "fedamp, mcp, stale", **_AMP, slope=attention.mcp, stale="include", stats="mix"),
        _entry(fedamp_jax.fedamp, "fedamp, auto", sigma=attention.auto(1, 0.0), self_weight=None, alpha=10.0),
        _entry(fedamp_jax.fedamp, "fedamp, schedules", sigma=2.0, self_weight=0.25, lam=lambda k: 1.0 + k,
               alpha=optax.exponential_decay(10.0, 2, 0.1, staircase=True)),
    ],
    "HeurFedAMP": [_entry(fedamp_jax.heurfedamp, sigma=5.0, self_weight=0.25)],
    "SCAFFOLD": [
        _entry(fedamp_jax.scaffold, learning_rate=0.2),
        _entry(fedamp_jax.scaffold, "scaffold, I, global", learning_rate=0.2, option="I", personal="global"),
    ],
    "APFL": [
        _entry(fedamp_jax.apfl, learning_rate=0.2),
        _entry(fedamp_jax.apfl, "apfl, adaptive", learning_rate=0.2, adapt_alpha=True, alpha=0.5),
    ],
    "Ditto": [
        _entry(fedamp_jax.ditto),
        _entry(fedamp_jax.ditto, "ditto, own solver", own_steps=True, lam=1.0,
               personal_solver=Solver(optax.adam(0.02), epochs=1, batch_size=4)),
    ],
    "FedPer": [_entry(fedamp_jax.fedper, common_init=False)],
    "FedRep": [
        _entry(fedamp_jax.fedrep),
        _entry(fedamp_jax.fedrep, "fedrep, head solver",
               head_solver=Solver(optax.sgd(0.5), epochs=3, batch_size=4)),
    ],
    "IFCA": [_entry(fedamp_jax.ifca, k=3)],
    # Both are divided: the largest cluster in each round, and one by norms after the first round.
    "CFL": [
        _entry(fedamp_jax.cfl, eps1=2.0, eps2=0.5, k_max=3),
        _entry(fedamp_jax.cfl, "cfl, norms", eps1=0.5, eps2=0.1, k_max=2, relative=False),
    ],
    "FedBN": [_entry(fedamp_jax.fedbn, layers=("body/bias",))],  # as if it were a layer's
    "Per-FedAvg": [
        _entry(fedamp_jax.perfedavg, alpha=0.1, beta=0.3),
        _entry(fedamp_jax.perfedavg, "perfedavg, exact", alpha=0.1, beta=0.3, hessian="exact"),
    ],
    "FedALA": [
        _entry(fedamp_jax.fedala, eta=5.0),
        _entry(fedamp_jax.fedala, "fedala, all layers", eta=5.0, share=1.0, layers=("body", "head"), stats="mix"),
    ],
    "FedPAC": [_entry(fedamp_jax.fedpac, head_solver=Solver(optax.sgd(0.3), epochs=1, batch_size=4))],
    "pFedHN": [_entry(fedamp_jax.pfedhn, embedding_dim=3, hidden=4, hidden_layers=1, rate=0.02)],
    "kNN-Per": [
        _entry(fedamp_jax.knnper, k=2, lam=None),
        _entry(fedamp_jax.knnper, "knnper, some", k=2, capacity=3),
    ],
    "FedProto": [
        _entry(fedamp_jax.fedproto),
        _entry(fedamp_jax.fedproto, "fedproto, prototypes", predict="prototype"),
    ],
    # With the default pull Adam's steps are larger than the way to the minimum.
    "pFedMe": [_entry(fedamp_jax.pfedme, lam=1.0, eta=0.5)],
    "PFLEGO": [
        _entry(fedamp_jax.pflego, beta=0.5, rho=0.2),
        _entry(fedamp_jax.pflego, "pflego, server Adam", beta=0.5, rho=0.2, server_optimizer=optax.adam(0.05)),
    ],
}  # fmt: skip
"""Entries of methods that need arguments or have several forms; a method without is tried as its factory makes it."""

ENTRIES = [
    entry
    for name, method in METHODS.items()
    for entry in (VARIANTS[name] if name in VARIANTS else [_entry(method.factory)])
]


_FIRST = {VARIANTS[name][0].name if name in VARIANTS else METHODS[name].factory.__name__ for name in METHODS}
_REPRESENTATIVE = {"fedavg", "fedamp", "scaffold"}
_COMPILES_AGAIN = {
    "test_eight_devices_equal_one", "test_the_hosts_memory_equals_a_device", "test_what_crosses_between_devices",
    "test_newcomers_of_every_method", "test_chunks_do_not_matter", "test_no_other_examples_are_read",
    "test_resumed_equals_uninterrupted", "test_spread_arrays_without_a_placement_are_refused",
    "test_an_update_that_is_not_finite_is_as_good_as_none", "test_a_loss_that_explodes_harms_no_other",
    "test_silos_equal_the_simulation",
    "test_every_method_trains_adapters", "test_a_program_of_their_own_for_small_clients_changes_nothing",
}  # fmt: skip
_DEAR = {
    "test_absent_clients_keep_everything", "test_clients_may_be_permuted", "test_a_diverged_client_harms_nobody",
}  # fmt: skip
_PLACED_FORMS = {"fedamp, mcp, stale", "fedamp, auto"}


def is_run(entry: Entry, test: str) -> bool:
    """Whether a test of an entry is run at all.

    A method's further forms are made of the parts of its first one: of the tests that compile a round once more, only
    the form that sends most is run.
    """
    return test not in _COMPILES_AGAIN or entry.name in _FIRST | _PLACED_FORMS


def is_slow(entry: Entry, test: str) -> bool:
    """Whether a test of an entry is left to `pytest -m slow`.

    Those of a method's further forms are; and of the tests that take longest, those of methods that are made of the
    same parts as another one.
    """
    return entry.name not in _FIRST or (test in _COMPILES_AGAIN | _DEAR and entry.name not in _REPRESENTATIVE)


def make(entry: Entry, **solver) -> tuple[Task, Algorithm]:
    """The tiny task and the algorithm; Adam, two epochs of batches of four unless `solver` says otherwise."""
    task = tiny_task()
    arguments = {"optimizer": optax.adam(0.05), "epochs": 2, "batch_size": 4, **solver}
    return task, entry.make(task, Solver(**arguments))


@functools.cache
def made(entry: Entry, **solver) -> tuple[Task, Algorithm]:
    """`make`: the same object for the same arguments, which compiles once."""
    return make(entry, **solver)


def find(name: str) -> Entry:
    """The entry of that name."""
    return next(entry for entry in ENTRIES if entry.name == name)


def one_after_the_other(entries: Sequence[Entry]):
    """A fixture: all tests of one entry, on one worker and with its compiled rounds, then those of the next."""
    params = [pytest.param(e, id=e.name, marks=pytest.mark.xdist_group(e.name)) for e in entries]

    @pytest.fixture(scope="module", params=params)
    def entry(request):
        yield request.param
        made.cache_clear()
        conftest.drop_programs()

    return entry


@functools.partial(jax.jit, static_argnums=0)
def initial(algorithm: Algorithm, key: jax.Array, data: Data):
    """The state before the first round; compiled, as every eager operation is a program of its own."""
    return algorithm.init(key, data)


def run_rounds(algorithm: Algorithm, data: Data, rounds: int = 3, state=None, first: int = 0, seed: int = 1):
    """`(state, [info])` after `rounds` rounds; the keys follow the round's number."""
    key = jax.random.key(seed)
    if state is None:
        place = type(data.placement) is fedamp_jax.Placement
        state = initial(algorithm, key, data) if place else data.placement.init(algorithm, key, data)
    infos = []
    for k in range(first, first + rounds):
        state, info = fedamp_jax.round(algorithm, state, data, jax.random.fold_in(key, k))
        infos.append(info)
    return state, infos
