"""FedProto (Tan et al., AAAI 2022): personal models that share nothing but the mean features of each class."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedamp_jax.algorithms.fedrod import check_linear_head
from fedamp_jax.checks import check_choice, check_number
from fedamp_jax.engine import (
    Centroids,
    Local,
    Solver,
    aligned,
    check_features,
    check_parts,
    class_means,
    for_each_client,
    init_centroids,
    init_clients,
    mean_centroids,
    of_clients,
    solve,
)
from fedamp_jax.trees import combine, head_mask, partition
from fedamp_jax.types import Algorithm, Array, Task, Variables

_NEVER = -1e30  # a logit that no other is below; finite, so that differences of logits are


class FedProtoState(NamedTuple):
    """Attributes: clients: `Local [M]`, the personal models. prototypes: the global ones, and of how many examples each
    was computed last, 0 for a class that no client had yet. round: `[]` int32.
    """

    clients: Local
    prototypes: Centroids
    round: Array


def fedproto(
    task: Task, solver: Solver, *, lam: Any = 1.0, predict: str = "head", common_init: bool = True
) -> Algorithm:
    """FedProto (Tan et al. 2022): each client minimises its loss and the distance of its features from
    the global prototypes, `F_i(w_i) + lam * mean of ||h_i(x) - P_y||^2 / F`, and models never leave it.

    A prototype is the mean of a client's features h_i(x) of one class, F of them. A round ends with the mean P_c of the
    clients' prototypes of each class c, weighted by their numbers of examples of it. A class that no client had in the
    round keeps its prototype, and one that none had yet has no term.

    Args:
        task: a classifier that can compute features, such as all of `fedamp_jax.models`.
        solver: local training.
        lam: weight of the second term, at least 0; a number, one per client `[M]`, a schedule of the round or a tracer.
            0 is Separate.
        predict: by the model's head (`"head"`), or by the nearest global prototype (`"prototype"`): then `personalize`
            gives models whose head has the logits `-||h_i(x) - P_c||^2`, up to a number that all classes share. The
            head must be one linear layer with a bias for it.
        common_init: one initial model for all clients, or one each.

    Returns:
        The `Algorithm`. `info.loss` is that of both terms. Running statistics are each client's own.

    Raises:
        ValueError: a number out of range, an unknown word, a task without features or with another head.
        TypeError: in `init`, data without labels.

    Departs from the paper: the distance is that of each example's features, as in the authors' program, where the
    paper takes the class means of a minibatch; it is squared and divided by F, as there. The paper divides the weighted
    mean by the number of clients that have the class once more, which draws prototypes to zero; the authors' program
    takes the plain mean. Prototypes are those of the trained model in evaluation mode; the authors' program averages
    the features that it meets in the last epoch of training.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedproto(task, fedamp_jax.Solver(optax.adam(1e-3)), lam=1.0)
    """
    check_parts(task, solver)
    check_features("FedProto", task)
    check_number("lam", lam, low=0, strict=False, allow_array=True)
    check_choice("predict", predict, ("head", "prototype"))
    if predict == "prototype":
        check_linear_head(task, "FedProto turns prototypes into the rows of a head")

    def init(key, data):
        prototypes = init_centroids("FedProto", task, data)
        clients = init_clients(task, solver, data, key, common=common_init)
        return FedProtoState(clients, prototypes, jnp.zeros((), jnp.int32))

    def round(key, state, data):
        k, prototypes = state.round, state.prototypes

        def local(key, client, epochs, mine, lam_i):
            own, _ = mine
            ours = aligned(task, prototypes, lam_i)
            trained, loss = solve(ours, solver, client, own.variables, key, epochs=epochs, k=k,
                                  optimizer_state=own.optimizer)  # fmt: skip
            return (trained, class_means(task, solver, client, trained.variables, prototypes)), loss

        none = jax.tree.map(lambda a: jnp.zeros((len(data.size), *a.shape), a.dtype), prototypes)
        (clients, sent), info = for_each_client(solver, data, local, (state.clients, none),
                                                of_clients("lam", lam, k, data), key=key)  # fmt: skip
        counts = data.online & ~info.rejected
        return FedProtoState(clients, mean_centroids(sent, counts, prototypes), k + 1), info

    def personalize(key, state, data):
        models = state.clients.variables
        return models if predict == "head" else nearest(models, state.prototypes)

    def nearest(models: Variables, prototypes: Centroids) -> Variables:
        known, mean = prototypes.counts > 0, prototypes.mean
        bias = jnp.where(known, -jnp.sum(jnp.square(mean), axis=1), _NEVER)
        head, body = partition(models.params, head_mask(task, models.params))

        def leaf(a: Array) -> Array:
            rows = bias if a.ndim == 2 else 2.0 * mean.T
            return jnp.where(jnp.any(known), jnp.broadcast_to(rows[None], a.shape), a)  # before any round: the head's

        return models._replace(params=combine(jax.tree.map(leaf, head), body))

    return Algorithm(init, round, personalize)
