"""IFCA (Ghosh et al., NeurIPS 2020): k global models, of which each client takes the one of least loss."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedamp_jax.checks import check_integer
from fedamp_jax.engine import (
    Local,
    Solver,
    check_parts,
    for_each_client,
    init_model,
    init_optimizer,
    mean_loss,
    server,
    solve,
)
from fedamp_jax.trees import broadcast, take
from fedamp_jax.types import Algorithm, Array, Data, Info, PyTree, Task, Variables


class IFCAState(NamedTuple):
    """The models of the clusters.

    Attributes:
        models: `Variables [k, ...]`, a cluster's running statistics with its parameters.
        optimizer: the clients' optimizer states `[M, ...]` if the solver keeps them, else `()`.
        round: `[]` int32.
    """

    models: Variables
    optimizer: PyTree
    round: Array


def least_loss(task: Task, solver: Solver, data: Data, models: Variables, count: Array | int) -> Array:
    """The model with the least mean loss on ALL of each client's data, `[M]` int32; of equal ones the first.

    Args:
        task: the model.
        solver: for the batch size.
        data: all clients' data; a client of size 0 costs nothing, and gets 0.
        models: `Variables [k, ...]`.
        count: how many of them there are to choose from, the first ones.

    >>> import optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> models = jax.vmap(task.init)(jax.random.split(jax.random.key(0), 3))
    >>> least_loss(task, fedamp_jax.Solver(optax.sgd(0.1)), train, models, 1).shape
    (20,)
    """

    def choose(client: Data, _: Array) -> Array:
        losses = jax.lax.map(lambda variables: mean_loss(task, solver, client, variables), models)
        candidate = (jnp.arange(len(losses), dtype=jnp.int32) < count) & ~jnp.isnan(losses)
        return jnp.argmin(jnp.where(candidate, losses, jnp.inf)).astype(jnp.int32)

    return data.placement.for_each_client(choose, data, jnp.zeros(len(data.size), jnp.int32), work=data.size)


def train_in_clusters(
    task: Task, solver: Solver, key: Array, state: Any, data: Data, cluster: Array
) -> tuple[Local, Local, Info]:
    """Each client trains from its cluster's model: `(received, sent, info)`, the first two with leaves `[M, ...]`.

    Args:
        task, solver: the model and local training.
        key: the round's.
        state: with `models`, `Variables [k, ...]`, and the clients' `optimizer`, and `round`.
        data: all clients' data.
        cluster: `[M]` int32, in 0..k-1.
    """

    def local(key, client, epochs, mine):
        return solve(task, solver, client, mine.variables, key, epochs=epochs, k=state.round,
                     optimizer_state=mine.optimizer)  # fmt: skip

    received = Local(take(state.models, cluster), state.optimizer)
    sent, info = for_each_client(solver, data, local, received, key=key)
    return received, sent, info


def cluster_means(weights: Array, cluster: Array, sent: Variables, models: Variables) -> Variables:
    """The weighted mean of the models `sent [M, ...]` in each cluster, `[k, ...]`; of no clients: as in `models`.

    Args:
        weights: `[M]` float32, 0 for clients that do not count.
        cluster: `[M]` int32, in 0..k-1.
        sent: the clients' models.
        models: `[k, ...]`, those of the clusters before.
    """
    k = len(jax.tree.leaves(models)[0])
    members = cluster[None] == jnp.arange(k, dtype=jnp.int32)[:, None]
    return jax.vmap(server.weighted_mean, in_axes=(0, None, 0))(jnp.where(members, weights[None], 0.0), sent, models)


def membership(weights: Array, cluster: Array) -> Array:
    """The clusters as mixing weights `[M, M]` float32: row i has the shares of the members of client i's cluster.

    A client with weight 0 gets weight 1 for its own model.

    >>> membership(jnp.array([1.0, 3.0, 2.0]), jnp.array([0, 0, 1])).tolist()
    [[0.25, 0.75, 0.0], [0.25, 0.75, 0.0], [0.0, 0.0, 1.0]]
    """
    together = jnp.where(cluster[:, None] == cluster[None], weights[None], 0.0)
    counts = weights[:, None] > 0
    share = together / jnp.where(counts, jnp.sum(together, axis=1, keepdims=True), 1.0)
    return jnp.where(counts, share, jnp.eye(len(weights), dtype=jnp.float32))


def ifca(task: Task, solver: Solver, *, k: int = 5) -> Algorithm:
    """IFCA, Algorithm 1 of Ghosh et al. 2020 with model averaging: `j_i = argmin_j F_i(theta_j)`, client i trains from
    `theta_{j_i}`, and each `theta_j` becomes the mean of the models of the clients that chose it.

    A model that no client chose stays as it is, and a client without a round yet, such as one that joins later, is
    treated as all others: to use the models, each client chooses again by its training loss.

    Args:
        task: the model.
        solver: local training (tau steps in the paper), and the batch size of the losses.
        k: number of models, at least 1: that of the groups, if it is known. Of more, some stay unused or divide a
            group; with fewer, groups share a model. 1 is FedAvg.

    Returns:
        The `Algorithm`; `info.xi` holds the clusters: a row has the weights of the mean that became the client's model.

    Raises:
        ValueError, TypeError: if `k` is no integer, or less than 1.

    Departs from the paper: means weigh clients by their number of examples, as `fedavg` does, where the paper's clients
    all have the same number. The paper tries several random initial models and keeps the best run; here there is one
    run, of k independent initial models. The losses are those of training (`mean_loss`): a model with dropout is
    compared under the same noise. Gradient averaging and layers that all clusters share are left out.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.ifca(task, fedamp_jax.Solver(optax.adam(1e-3)), k=5)
    """
    check_parts(task, solver)
    check_integer("k", k, low=1)

    def init(key, data):
        keys = jnp.stack([key, *(jax.random.fold_in(key, j) for j in range(1, k))])
        models = jax.vmap(lambda key: init_model(task, key))(keys)
        start = broadcast(jax.tree.map(lambda a: a[0], models.params), len(data.size))
        return IFCAState(models, init_optimizer(solver, data, start), jnp.zeros((), jnp.int32))

    def round(key, state, data):
        online = data._replace(size=jnp.where(data.online, data.size, 0))
        chosen = least_loss(task, solver, online, state.models, k)
        _, sent, info = train_in_clusters(task, solver, key, state, data, chosen)
        weights = server.sample_weights(data, info)
        models = cluster_means(weights, chosen, sent.variables, state.models)
        xi = data.placement.replicate(membership(weights, chosen))
        return IFCAState(models, sent.optimizer, state.round + 1), info._replace(xi=xi)

    def personalize(key, state, data):
        return take(state.models, least_loss(task, solver, data, state.models, k))

    return Algorithm(init, round, personalize)
