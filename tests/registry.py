"""Every algorithm, with small arguments: each test of `test_algorithms.py` runs over all of this list.

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
from fedamp_jax.data import from_lists

FEATURES, HIDDEN, CLASSES = 5, 4, 3
SIZES = (7, 3, 10, 1, 5, 10, 4, 6)


def tiny_task() -> Task:
    """features = tanh(x W_b + b_b), logits = features W_h + b_h; statistics that follow the mean of x and nothing
    reads.
    """

    def init(key):
        body, head = jax.random.split(key)
        return Variables(
            {
                "body": {"kernel": jax.random.normal(body, (FEATURES, HIDDEN)) / 2, "bias": jnp.zeros(HIDDEN)},
                "head": {"kernel": jax.random.normal(head, (HIDDEN, CLASSES)) / 2, "bias": jnp.zeros(CLASSES)},
            },
            {"mean": jnp.zeros(FEATURES)},
        )

    def body(params, x):
        return jnp.tanh(x @ params["body"]["kernel"] + params["body"]["bias"][None])

    def head(params, h):
        return h @ params["head"]["kernel"] + params["head"]["bias"][None]

    def predict(variables, x):
        return head(variables.params, body(variables.params, x))

    def features(variables, batch, key):
        x = jnp.where(batch.mask[:, None], batch.x, 0.0)
        mean = jnp.sum(x, axis=0) / jnp.maximum(jnp.sum(batch.mask, dtype=jnp.float32), 1.0)
        return body(variables.params, x), {"mean": 0.9 * variables.stats["mean"] + 0.1 * mean}

    def head_loss(variables, h, batch):
        return fedamp_jax.cross_entropy(head(variables.params, h), batch)

    def loss(variables, batch, key):
        h, stats = features(variables, batch, key)
        return head_loss(variables, h, batch), stats

    return Task(init, loss, predict, ("head",), features, head_loss)


def federation(seed: int = 0, sizes: tuple[int, ...] = SIZES, kinds: int = 2) -> Data:
    """Eight clients of different sizes; with two kinds they have opposite labels, so that methods differ."""
    rng = np.random.default_rng(seed)
    rule = rng.normal(size=(FEATURES, CLASSES))
    xs = [rng.normal(size=(n, FEATURES)).astype(np.float32) for n in sizes]
    ys = [np.argmax((-1) ** (i % kinds) * x @ rule, axis=1) for i, x in enumerate(xs)]
    return from_lists(xs, ys, classes=CLASSES)


class Entry(NamedTuple):
    """A name, how to make it, and what is peculiar to it.

    `rejected_is_offline`: that a client's update is thrown away is for the others the same as if it had been offline.
    `own_steps`: the method has a step rule of its own and ignores the solver's optimizer.
    """

    name: str
    make: Callable[[Task, Solver], Algorithm]
    rejected_is_offline: bool = True
    own_steps: bool = False


def _entry(factory: str, name: str | None = None, rejected_is_offline=True, own_steps=False, **hyper) -> Entry:
    def make(task, solver):
        return getattr(fedamp_jax, factory)(task, solver, **hyper)

    return Entry(name or factory, make, rejected_is_offline, own_steps)


def _tuned(base: str, **hyper) -> Entry:
    def make(task, solver):
        return fedamp_jax.fine_tuned(task, solver, base=getattr(fedamp_jax, base)(task, solver, **hyper))

    return Entry(f"fine_tuned({base})", make)


_AMP = {"sigma": 2.0, "self_weight": 0.25, "alpha": 10.0, "lam": 1.0}

ENTRIES = [
    _entry("separate"),
    _entry("separate", "separate, own init", common_init=False),
    _entry("fedavg"),
    _entry("fedprox", mu=0.1),
    _tuned("fedavg"),
    _tuned("fedprox", mu=0.1),
    _entry("fedamp", "fedamp, Eq. 5", False, sigma=2.0, self_weight=None, alpha=0.05, lam=0.02, common_init=False),
    _entry("fedamp", "fedamp", False, **_AMP),
    _entry("fedamp", "fedamp, scad", False, **_AMP, slope=attention.scad, start="personal"),
    _entry("fedamp", "fedamp, mcp, stale", **_AMP, slope=attention.mcp, stale="include", stats="mix"),
    _entry("fedamp", "fedamp, schedules", False, sigma=2.0, self_weight=0.25, lam=lambda k: 1.0 + k,
           alpha=optax.exponential_decay(10.0, 2, 0.1, staircase=True)),
    _entry("heurfedamp", rejected_is_offline=False, sigma=5.0, self_weight=0.25),
    _entry("scaffold", own_steps=True, learning_rate=0.2),
    _entry("scaffold", "scaffold, I, global", own_steps=True, learning_rate=0.2, option="I", personal="global"),
    _entry("apfl", own_steps=True, learning_rate=0.2),
    _entry("apfl", "apfl, adaptive", own_steps=True, learning_rate=0.2, adapt_alpha=True, alpha=0.5),
    _entry("ditto"),
    _entry("ditto", "ditto, own solver", own_steps=True, lam=1.0,
           personal_solver=Solver(optax.adam(0.02), epochs=1, batch_size=4)),
    _entry("fedper", common_init=False),
    _entry("fedrep"),
    _entry("fedrep", "fedrep, head solver", head_solver=Solver(optax.sgd(0.5), epochs=3, batch_size=4)),
    _entry("fedbabu"),
    _entry("fedrecon"),
    _entry("pflego", rejected_is_offline=False, own_steps=True, beta=0.5, rho=0.2),
    _entry("pflego", "pflego, server Adam", False, True, beta=0.5, rho=0.2, server_optimizer=optax.adam(0.05)),
]  # fmt: skip


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
    """A fixture: all tests of one entry, which share its compiled rounds, then those of the next."""

    @pytest.fixture(scope="module", params=entries, ids=lambda entry: entry.name)
    def entry(request):
        yield request.param
        made.cache_clear()
        jax.clear_caches()

    return entry


def run_rounds(algorithm: Algorithm, data: Data, rounds: int = 3, state=None, first: int = 0, seed: int = 1):
    """`(state, [info])` after `rounds` rounds; the keys follow the round's number."""
    key = jax.random.key(seed)
    state = algorithm.init(key, data) if state is None else state
    infos = []
    for k in range(first, first + rounds):
        state, info = fedamp_jax.round(algorithm, state, data, jax.random.fold_in(key, k))
        infos.append(info)
    return state, infos
