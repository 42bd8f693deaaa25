"""A shared body under personal heads: FedPer, FedRep and FedBABU, and what all methods of that kind share.

They differ in which parameters stay with the client, the head or others (`shared_body`'s `own`), in what a client
trains, in which order (`Phase`), and in what becomes of its own part.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedamp_jax.algorithms.fine_tuned import tune
from fedamp_jax.checks import check_choice
from fedamp_jax.engine import (
    Local,
    Solver,
    at_round,
    check_parts,
    for_each_client,
    init_model,
    init_optimizer,
    resample_epochs,
    server,
    solve,
)
from fedamp_jax.trees import broadcast, broadcast_like, combine, head_mask, inverse, partition
from fedamp_jax.types import Algorithm, Array, Data, PyTree, Task, Variables


class PartlySharedState(NamedTuple):
    """Global parameters, such as a body, beside every client's own, such as a head.

    Attributes:
        shared: the global parameters; None where a leaf is each client's own.
        own: the others, leaves `[M, ...]`; None where a leaf is shared.
        stats: running statistics `[M, ...]`.
        trained: `[M]` bool, who has trained; see `engine.server.statistics_policy`.
        optimizer: the clients' optimizer states of the last phase `[M, ...]` if the solver keeps them, else `()`.
        round: `[]` int32.
    """

    shared: PyTree
    own: PyTree
    stats: PyTree
    trained: Array
    optimizer: PyTree
    round: Array


class Phase(NamedTuple):
    """One of the trainings that a client does in a round.

    Attributes:
        part: what it trains: `"head"`, `"body"` or `"all"`.
        solver: how; None means as the method's solver, and as many epochs as were drawn for the round.
        data: which of its data it sees: `(key, client) -> client`; None for all.
    """

    part: str
    solver: Solver | None = None
    data: Callable[[Array, Data], Data] | None = None


def mask_of(part: str, head: PyTree) -> PyTree | None:
    """What a phase trains, as a tree of bools, from the head's mask."""
    return {"all": None, "head": head, "body": inverse(head)}[part]


def assemble(state: PartlySharedState, data: Data) -> Variables:
    """The global parameters beside each client's own, `Variables [M, ...]`."""
    return Variables(combine(state.own, broadcast(state.shared, len(data.size))), state.stats)


def init_body(
    task: Task,
    solver: Solver,
    data: Data,
    key: Array,
    *,
    common: bool,
    part: str,
    own: Callable[[PyTree], PyTree] | None = None,
    edit: Callable[[PyTree], PyTree] | None = None,
) -> PartlySharedState:
    """The state before the first round: what clients have of their own starts the same (`common`) or as one each.

    `own` and `edit` as in `shared_body`; `part` as in `Phase`.
    """
    start = init_model(task, key)
    m, mine = len(data.size), own(start.params) if own else head_mask(task, start.params)
    params = broadcast(edit(start.params) if edit else start.params, m)
    if not common:
        each = jax.vmap(lambda i: task.init(jax.random.fold_in(key, i)).params)(data.id)
        params = jax.tree.map(lambda of_client, a, b: a if of_client else b, mine, each, params)
    kept, sent = partition(params, mine)
    optimizer = init_optimizer(solver, data, params, mask_of(part, mine))
    shared, stats = jax.tree.map(lambda a: a[0], sent), broadcast(start.stats, m)
    return PartlySharedState(shared, kept, stats, jnp.zeros((m,), bool), optimizer, jnp.zeros((), jnp.int32))


def shared_body(
    task: Task,
    solver: Solver,
    phases: Sequence[Phase],
    *,
    stats: str = "local",
    own: Callable[[PyTree], PyTree] | None = None,
    own_stats: bool = False,
    of_client: Callable[[Data], Task] | None = None,
    common_init: bool = True,
    edit: Callable[[PyTree], PyTree] | None = None,
    keep_own: bool = True,
    server_step: Any = 1.0,
) -> Algorithm:
    """The method that trains `phases` on each client from (shared parameters, its own) and averages the shared ones.

    Args:
        task: the model.
        solver: local training of the last phase, and of others that have no solver of their own.
        phases: in order.
        stats: `"local"` or `"mix"`.
        own: which parameters stay with the client: from the parameters, or from their shapes, a tree of Python bools
            like them. None for those of `task.head`.
        own_stats: running statistics are each client's own whatever `stats` is, as they belong to parameters that are:
            clients that have not trained have initial ones.
        of_client: what ONE client trains, a task with the parameters of `task` and a loss of its own; None for `task`.
        common_init: the clients' own parameters start the same, or as one model each.
        edit: changes the initial parameters.
        keep_own: what is the client's own persists; otherwise every round starts from its initial values.
        server_step: `shared += server_step * (mean of what the clients sent - shared)`.
    """
    check_parts(task, solver, **{f"{phase.part}_solver": phase.solver for phase in phases})
    new_stats = server.statistics_policy(stats)

    def init(key, data):
        return init_body(task, solver, data, key, common=common_init, part=phases[-1].part, own=own, edit=edit)

    def round(key, state, data):
        begin = assemble(state, data)
        mask = own(begin.params) if own else head_mask(task, begin.params)

        def local(key, client, epochs, mine):
            result, loss = mine, jnp.zeros(())
            theirs = of_client(client) if of_client else task
            for number, phase in enumerate(phases):
                key_phase = jax.random.fold_in(key, number) if len(phases) > 1 else key
                last = number == len(phases) - 1  # the only phase whose optimizer may be kept
                how = dataclasses.replace(phase.solver or solver, keep_optimizer=solver.keep_optimizer and last)
                passes = epochs if phase.solver is None else resample_epochs(how, epochs, key_phase)
                result, loss = solve(
                    theirs, how, phase.data(key, client) if phase.data else client, result.variables, key_phase,
                    epochs=passes, k=state.round, trainable=mask_of(phase.part, mask), optimizer_state=mine.optimizer,
                )  # fmt: skip
            return result, loss

        sent, info = for_each_client(solver, data, local, Local(begin, state.optimizer), key=key)
        kept, moved = partition(sent.variables.params, mask)
        weights = server.sample_weights(data, info)
        mean = server.weighted_mean(weights, moved, state.shared)
        step = at_round(server_step, state.round)
        shared = jax.tree.map(lambda old, new: old + step * (new - old), state.shared, mean)
        kept = kept if keep_own else state.own
        new, old = (() if own_stats else tree for tree in (sent.variables.stats, state.stats))
        running, trained = new_stats(weights, new, old, state.trained)
        running = sent.variables.stats if own_stats else running
        return PartlySharedState(shared, kept, running, trained, sent.optimizer, state.round + 1), info

    def personalize(key, state, data):
        return assemble(state, data)

    def join(state, fresh):
        never = all(phase.part == "body" for phase in phases)
        kept, running = fresh.own, fresh.stats
        if not own_stats:
            running = server.statistics_of_newcomers(state.stats, state.trained, fresh.stats)
        if never or not keep_own:  # all clients have the same
            kept = broadcast_like(jax.tree.map(lambda a: a[0], state.own), fresh.own)
        return fresh._replace(own=kept, stats=running)

    return Algorithm(init, round, personalize, join=join)


def fedper(task: Task, solver: Solver, *, common_init: bool = True, stats: str = "mix") -> Algorithm:
    """FedPer (Arivazhagan et al. 2019): body and head are trained jointly, only the body is sent and averaged.

    Args:
        task: the model; `task.head` says what the head is.
        solver: local training.
        common_init: one initial head for all clients, or one each.
        stats: BatchNorm statistics are averaged as the body is (`"mix"`); or a client keeps its own from its last
            training (`"local"`), which fit the body of that round. Clients that have not trained, newcomers too, have
            the average either way.

    Returns:
        The `Algorithm`. Bodies are weighted by the number of examples.

    Raises:
        ValueError: unknown `stats`; in `init`, a `task.head` that selects nothing or everything.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedper(task, fedamp_jax.Solver(optax.adam(1e-3)))
    """
    return shared_body(task, solver, [Phase("all")], stats=stats, common_init=common_init)


def fedrep(
    task: Task, solver: Solver, *, head_solver: Solver | None = None, common_init: bool = True, stats: str = "mix"
) -> Algorithm:
    """FedRep (Collins et al. 2021, Algorithm 1): the head over the frozen body, then the body under the new head.

    Args:
        task: the model; `task.head` says what the head is.
        solver: the body's training.
        head_solver: the head's optimizer, epochs and batch size, if they differ; the paper gives the head more epochs
            than the body.
        common_init: one initial head for all clients, or one each.
        stats: as in `fedper`.

    Returns:
        The `Algorithm`. Departs from the paper: bodies are weighted by the number of examples, where the paper's
        clients are of equal size.

    Raises:
        ValueError: as `fedper`.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> body, head = fedamp_jax.Solver(optax.sgd(0.1), epochs=1), fedamp_jax.Solver(optax.sgd(0.1), epochs=10)
    >>> algorithm = fedamp_jax.fedrep(task, body, head_solver=head)
    """
    phases = [Phase("head", head_solver), Phase("body")]
    return shared_body(task, solver, phases, stats=stats, common_init=common_init)


def fedbabu(
    task: Task, solver: Solver, *, tuner: Solver | None = None, tune_part: str = "all", stats: str = "mix"
) -> Algorithm:
    """FedBABU (Oh et al. 2022, Algorithm 1): body training under a fixed head, fine-tuning before use.

    Args:
        task: the model; `task.head` says what the head is. Its kernels are made orthogonal and never trained.
        solver: the body's training.
        tuner: the fine-tuning's optimizer, epochs and batch size, if they differ.
        tune_part: what fine-tuning trains: `"all"` or `"head"`.
        stats: as in `fedper`.

    Returns:
        The `Algorithm`; `personalize` fine-tunes. Bodies are weighted by the number of examples, where the authors'
        program takes their plain mean.

    Raises:
        ValueError: unknown `tune_part`, and as `fedper`.

    The orthogonal head is PFLEGO's reading of the method (Nikoloutsopoulos et al. 2023); a random one is the paper's.
    It is the same in all runs, whatever their seed.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedbabu(task, fedamp_jax.Solver(optax.adam(1e-3)))
    """
    check_parts(task, solver, tuner=tuner)
    check_choice("tune_part", tune_part, ("all", "head"))

    def orthogonal_head(params: PyTree) -> PyTree:
        def leaf(path: tuple, of_head: bool, a: Array) -> Array:
            if not of_head or a.ndim < 2:
                return a
            # A fixed key: the head is the same for all clients and all runs, whatever their seed.
            return jax.nn.initializers.orthogonal()(jax.random.key(0), a.shape, a.dtype)

        return jax.tree_util.tree_map_with_path(leaf, head_mask(task, params), params)

    base = shared_body(task, solver, [Phase("body")], stats=stats, edit=orthogonal_head)

    def personalize(key, state, data):
        models = base.personalize(key, state, data)
        trainable = mask_of(tune_part, head_mask(task, models.params))
        return tune(task, tuner or solver, data, models, state, key, trainable)

    return base._replace(personalize=personalize)
