"""CFL (Sattler, Müller and Samek, TNNLS 2021): clusters that are split where their clients' updates disagree."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from fedamp_jax.algorithms.ifca import cluster_means, least_loss, membership, train_in_clusters
from fedamp_jax.checks import check_integer, check_number, check_type
from fedamp_jax.engine import Solver, at_round, check_parts, init_model, init_optimizer, server
from fedamp_jax.placement.placement import ByParameters
from fedamp_jax.trees import broadcast, take
from fedamp_jax.types import Algorithm, Array, PyTree, Task, Variables

NOWHERE = -1
"""The cluster of a client that has none yet: at its next use it takes the one of least training loss."""

_FAR = -2.0  # less than any cosine


class CFLState(NamedTuple):
    """The clusters and their models.

    Attributes:
        models: `Variables [k_max, ...]`, a cluster's running statistics with its parameters.
        cluster: `[M]` int32, each client's cluster, or `NOWHERE`.
        clusters: `[]` int32, how many there are.
        largest: `[]` float32, the largest norm of a client's update so far.
        optimizer: the clients' optimizer states `[M, ...]` if the solver keeps them, else `()`.
        round: `[]` int32.
    """

    models: Variables
    cluster: Array
    clusters: Array
    largest: Array
    optimizer: PyTree
    round: Array


def bipartition(cosines: Array, members: Array) -> Array:
    """One of the two parts into which the largest cosine between them is least: `[M]` bool.

    The parts are those of single-linkage clustering, or of a maximum spanning tree without its weakest edge. Prim's
    algorithm adds clients in an order in which all behind the weakest edge form one part.

    Args:
        cosines: `[M, M]` float32.
        members: `[M]` bool, who is divided; at least two.

    >>> cosines = jnp.array([[1.0, 0.1, 0.8], [0.1, 1.0, 0.2], [0.8, 0.2, 1.0]])
    >>> bipartition(cosines, jnp.array([True, True, True])).tolist()
    [False, True, False]
    """
    m, near = len(members), jnp.where(members[:, None] & members[None], cosines, 2 * _FAR)

    def add(t: Array, carry: tuple) -> tuple:
        nearest, place, edge = carry
        i = jnp.argmax(jnp.where(place < 0, nearest, -jnp.inf))
        return jnp.maximum(nearest, near[i]), place.at[i].set(t), edge.at[i].set(nearest[i])

    start = jnp.where(members, _FAR, 2 * _FAR), jnp.full((m,), -1, jnp.int32), jnp.zeros((m,), jnp.float32)
    _, place, edge = lax.fori_loop(0, m, add, start)
    weakest = jnp.argmin(jnp.where(members & (place > 0), edge, jnp.inf))
    return members & (place >= place[weakest])


def divide(
    state: CFLState, begin: Array, weights: Array, moved: ByParameters, eps1: Array, eps2: Array, relative: bool
) -> tuple[Array, Array, Array]:
    """The clusters after a round: `(cluster [M] int32, the one that was divided [] int32, the largest norm so far [])`.

    Args:
        state: before the round.
        begin: `[M]` int32, the clusters that clients trained in.
        weights: `[M]` float32, 0 for clients that do not count.
        moved: the clients' updates.
        eps1, eps2, relative: as of `cfl`, in this round; if no cluster is divided, the second result is `NOWHERE`.
    """
    cosines, norms, place = server.cosines(moved), jnp.sqrt(server.sq_norms(moved)), moved.placement
    norms, weights, cluster = place.replicate((norms, weights, begin))
    every = jnp.arange(len(jax.tree.leaves(state.models)[0]), dtype=jnp.int32)
    members = (cluster[None] == every[:, None]) & (weights > 0)[None]
    share = jnp.where(members, weights[None], 0.0)
    length = norms[None] * share / jnp.maximum(jnp.sum(share, axis=1, keepdims=True), 1.0)
    square = jnp.einsum("ci,ij,cj->c", length, cosines, length, precision="highest")
    mean, most = jnp.sqrt(jnp.maximum(square, 0.0)), jnp.max(jnp.where(members, norms[None], 0.0), axis=1)

    largest = jnp.maximum(state.largest, jnp.max(most))
    unit = largest if relative else 1.0
    ready = (mean < eps1 * unit) & (most > eps2 * unit)
    ready &= (jnp.sum(members, axis=1) > 1) & (state.clusters < len(every))
    c = jnp.argmax(jnp.where(ready, most, -1.0)).astype(jnp.int32)
    cluster = jnp.where(ready[c] & bipartition(cosines, members[c]), state.clusters, cluster)
    return cluster, jnp.where(ready[c], c, NOWHERE), largest


def cfl(
    task: Task, solver: Solver, *, eps1: Any = 0.4, eps2: Any = 0.9, k_max: int = 10, relative: bool = True
) -> Algorithm:
    """CFL, Sattler et al. 2021: FedAvg in each cluster; all clients begin in one. A cluster c is divided in two where
    `||sum_i p_i dw_i|| < eps1` and `max_i ||dw_i|| > eps2`, for updates dw_i of its clients i and their shares p_i of
    the examples: the mean hardly moves, and yet there are clients that want to.

    The division is the one for which the largest cosine between updates of different parts is least (`bipartition`).

    Args:
        task: the model.
        solver: local training.
        eps1: how small the norm of a cluster's mean update must be, greater than 0; a number, a schedule of the round
            or a tracer. Larger values divide earlier, and clusters of fewer clients: a mean of few updates is longer.
        eps2: how large the largest norm of an update in the cluster must be, greater than 0; likewise. Larger values
            leave clusters alone whose clients agree, as their updates become shorter while they learn.
        k_max: the most clusters that there may be, at least 1. 1 is FedAvg.
        relative: `eps1` and `eps2` are shares of the largest norm of a client's update so far; False: norms, as in the
            paper.

    Returns:
        The `Algorithm`; `info.xi` holds the clusters: a row has the weights of the mean that became the client's model.

    Raises:
        ValueError, TypeError: if a hyper-parameter is out of range or of the wrong kind.

    To choose the thresholds, run `fedavg` on clients that are alike: there the largest norm must have fallen below
    `eps2` before that of the mean falls below `eps1`. The defaults are for Adam, whose updates hardly become shorter;
    with SGD, whose updates do, `eps2=0.7` finds all groups on digits.

    Departs from the paper: thresholds are relative by default, as norms depend on the model, the optimizer and the
    number of steps. In one round one cluster is divided, the one with the largest update, and its parts have means of
    their own in that round already, as in the authors' program. The paper's second condition, on the cosine between the
    parts (gamma_max), is left out; so are its conditions on rounds and on clusters of two, which only the program has.
    That program divides by complete linkage, not by the paper's algorithm. A client that is new, or was not there when
    its cluster was divided, takes the cluster whose model has the least loss on its training data; the paper sends it
    down the tree of divisions by the cosines of an update.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.cfl(task, fedamp_jax.Solver(optax.adam(1e-3)))
    """
    check_parts(task, solver)
    check_number("eps1", eps1, low=0)
    check_number("eps2", eps2, low=0)
    check_integer("k_max", k_max, low=1)
    check_type("relative", relative, bool, "True or False")

    def init(key, data):
        start, m = init_model(task, key), len(data.size)
        return CFLState(
            models=broadcast(start, k_max),
            cluster=jnp.full((m,), NOWHERE, jnp.int32),
            clusters=jnp.ones((), jnp.int32),
            largest=jnp.zeros((), jnp.float32),
            optimizer=init_optimizer(solver, data, broadcast(start.params, m)),
            round=jnp.zeros((), jnp.int32),
        )

    def located(state, data):
        new = state.cluster == NOWHERE
        waiting = data._replace(size=jnp.where(new, data.size, 0))  # the others cost nothing
        return jnp.where(new, least_loss(task, solver, waiting, state.models, state.clusters), state.cluster)

    def round(key, state, data):
        place = data.placement
        begin = located(state, data._replace(size=jnp.where(data.online, data.size, 0)))
        received, sent, info = train_in_clusters(task, solver, key, state, data, begin)
        weights = server.sample_weights(data, info)
        moved = jax.tree.map(jnp.subtract, sent.variables.params, received.variables.params)
        thresholds = at_round(eps1, state.round), at_round(eps2, state.round)
        end, divided, largest = divide(state, begin, weights, place.by_parameters(moved), *thresholds, relative)
        models = cluster_means(weights, end, sent.variables, state.models)
        absent = jnp.where(state.cluster == divided, NOWHERE, state.cluster)
        cluster = jnp.where(weights > 0, end, absent)
        info = info._replace(xi=place.replicate(membership(weights, end)))
        clusters = jnp.where(divided == NOWHERE, state.clusters, state.clusters + 1)
        return CFLState(models, cluster, clusters, largest, sent.optimizer, state.round + 1), info

    def personalize(key, state, data):
        return take(state.models, located(state, data))

    return Algorithm(init, round, personalize)
