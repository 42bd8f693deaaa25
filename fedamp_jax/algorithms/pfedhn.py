"""pFedHN (Shamsian et al., ICML 2021): a hypernetwork at the server makes each client's model of its embedding."""

import itertools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from fedamp_jax.checks import check_integer, check_number
from fedamp_jax.engine import (
    Local,
    Solver,
    at_round,
    check_parts,
    for_each_client,
    init_model,
    init_optimizer,
    of_clients,
    server,
    solve,
    stream,
)
from fedamp_jax.trees import broadcast, where
from fedamp_jax.types import Algorithm, Array, PyTree, Task, Variables


def falling_rate(k: Array) -> Array:
    """The default rate of the server's Adam in round k, 1e-3 at first, and half of it after ten rounds.

    Adam's steps do not become smaller as the directions do: with 1e-3 in all rounds, the training loss on digits grew
    to 1e5, and the accuracy fell by four points after its best round.
    """
    return 1e-3 / (1.0 + k / 10)


class Hypernetwork(NamedTuple):
    """Attributes: layers: of the perceptron, a kernel `[.., H]` and a bias `[H]` each. kernels: a tree like the model's
    parameters, `[H, size of the leaf]`. biases: the same, leaves as the parameters themselves.
    """

    layers: tuple[tuple[Array, Array], ...]
    kernels: PyTree
    biases: PyTree


class PFedHNState(NamedTuple):
    """What the server keeps.

    Attributes:
        network: the hypernetwork phi.
        embeddings: `[M, E]`, the clients' v_i.
        server: states of the server's optimizer, of the network and, leaves `[M, ...]`, of the embeddings.
        stats: running statistics `[M, ...]`.
        trained: `[M]` bool, who has trained; see `engine.server.statistics_policy`.
        optimizer: the clients' optimizer states `[M, ...]` if the solver keeps them, else `()`.
        round: `[]` int32.
    """

    network: Hypernetwork
    embeddings: Array
    server: tuple[PyTree, PyTree]
    stats: PyTree
    trained: Array
    optimizer: PyTree
    round: Array


def generated(network: Hypernetwork, embedding: Array) -> PyTree:
    """The parameters of ONE client's model, `theta_i = h(v_i; phi)`, of its embedding `[E]`."""
    z = embedding[None]
    for number, (kernel, bias) in enumerate(network.layers):
        z = jax.nn.relu(z) if number else z
        z = jnp.matmul(z, kernel, precision="highest") + bias[None]

    def leaf(kernel: Array, bias: Array) -> Array:
        return jnp.matmul(z, kernel, precision="highest").reshape(bias.shape) + bias

    return jax.tree.map(leaf, network.kernels, network.biases)


def init_network(params: PyTree, key: Array, widths: tuple[int, ...]) -> Hypernetwork:
    """Uniform kernels and biases as in PyTorch's linear layers; the biases of the last ones are `params`."""

    def uniform(name: str, inputs: int, *shape: int) -> Array:
        bound = inputs**-0.5
        return jax.random.uniform(stream(name, key), shape, jnp.float32, -bound, bound)

    pairs = enumerate(itertools.pairwise(widths))
    layers = tuple((uniform(f"kernel {i}", a, a, b), uniform(f"bias {i}", a, b)) for i, (a, b) in pairs)
    leaves, tree = jax.tree.flatten(params)
    last = [uniform(f"leaf {i}", widths[-1], widths[-1], a.size) for i, a in enumerate(leaves)]
    return Hypernetwork(layers, jax.tree.unflatten(tree, last), params)


def pfedhn(
    task: Task,
    solver: Solver,
    *,
    embedding_dim: int = 16,
    hidden: int = 100,
    hidden_layers: int = 3,
    rate: Any = falling_rate,
    embedding_rate: Any = None,
    server_optimizer: optax.GradientTransformation | None = None,
    stats: str = "mix",
) -> Algorithm:
    """pFedHN (Shamsian et al. 2021): client i trains from `theta_i = h(v_i; phi)` to theta'_i, and the
    server moves phi and v_i along `J' (theta'_i - theta_i)`, where J is the Jacobian of theta_i by phi or by v_i.

    The hypernetwork h is a perceptron of the client's embedding v_i, with a linear layer for each of the model's
    parameter arrays. It never leaves the server.

    Args:
        task: the model.
        solver: local training.
        embedding_dim: numbers in an embedding, at least 1.
        hidden: width of the perceptron's layers, at least 1. The hypernetwork is about so many times as large as the
            model.
        hidden_layers: further layers of this width after the first one, at least 0.
        rate: of the server's optimizer, Adam, at least 0; a number, a schedule of the round or a tracer. By default it
            falls with the rounds, see `falling_rate`.
        embedding_rate: likewise for the embeddings, or one per client `[M]`; None for `rate`.
        server_optimizer: the optax optimizer of network and embeddings in place of Adam, without these rates.
        stats: as in `fedprox`.

    Returns:
        The `Algorithm`. A newcomer gets an embedding of its own, drawn as in `init`.

    Raises:
        ValueError, TypeError: if an argument is out of range or of the wrong kind, or an `embedding_rate` comes with a
            `server_optimizer`.

    Departs from the paper: all clients that are online train in a round, and their directions are added, where a round
    of the paper has one client. The biases of the last layers start as the model's own initial parameters, and not at
    random, so that every model starts where its layers want to. By default, the authors' program takes SGD, with a rate
    of 0.01, momentum 0.9, weight decay 0.001 and gradients of a norm of at most 50; where directions are added, it was
    less stable than Adam, which the program has as an option. It embeds M clients in 1 + M / 4 numbers; here their
    number does not change when clients join.

    >>> import optax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.pfedhn(task, fedamp_jax.Solver(optax.adam(1e-3)))
    """
    check_parts(task, solver)
    check_integer("embedding_dim", embedding_dim, low=1)
    check_integer("hidden", hidden, low=1)
    check_integer("hidden_layers", hidden_layers, low=0)
    check_number("rate", rate, low=0, strict=False)
    if embedding_rate is not None:
        check_number("embedding_rate", embedding_rate, low=0, strict=False, allow_array=True)
        if server_optimizer is not None:
            raise ValueError("embedding_rate is for Adam: with a server_optimizer leave it out")
    new_stats = server.statistics_policy(stats)

    def moved(gradient: PyTree, state: PyTree, before: PyTree, rate: Array) -> tuple[PyTree, PyTree]:
        with jax.numpy_dtype_promotion("standard"):  # optax raises a float to an integer count
            updates, state = (server_optimizer or optax.adam(rate)).update(gradient, state, before)
        return optax.apply_updates(before, updates), state

    def init(key, data):
        start, m = init_model(task, key), len(data.size)
        network = init_network(start.params, stream("network", key), (embedding_dim, *[hidden] * (hidden_layers + 1)))
        keys = jax.vmap(lambda i: jax.random.fold_in(stream("embedding", key), i))(data.id)
        embeddings = jax.vmap(lambda key: jax.random.normal(key, (embedding_dim,), jnp.float32))(keys)
        optimizer = server_optimizer or optax.adam(0.0)
        states = optimizer.init(network), jax.vmap(optimizer.init)(embeddings)
        clients = init_optimizer(solver, data, broadcast(start.params, m))
        trained, k = jnp.zeros((m,), bool), jnp.zeros((), jnp.int32)
        return PFedHNState(network, embeddings, states, broadcast(start.stats, m), trained, clients, k)

    def models(network: Hypernetwork, embeddings: Array) -> PyTree:
        return jax.vmap(generated, in_axes=(None, 0))(network, embeddings)

    def round(key, state, data):
        k = state.round
        received, pull = jax.vjp(models, state.network, state.embeddings)

        def local(key, client, epochs, mine):
            return solve(task, solver, client, mine.variables, key, epochs=epochs, k=k, optimizer_state=mine.optimizer)

        begin = Local(Variables(received, state.stats), state.optimizer)
        sent, info = for_each_client(solver, data, local, begin, key=key)
        here = data.online & ~info.rejected
        after = sent.variables
        descent = jax.tree.map(jnp.subtract, received, after.params)
        of_network, of_embeddings = pull(where(here, descent, jax.tree.map(jnp.zeros_like, descent)))
        rates = of_clients("embedding_rate", rate if embedding_rate is None else embedding_rate, k, data)
        network, embeddings = (
            moved(of_network, state.server[0], state.network, at_round(rate, k)),
            jax.vmap(moved)(of_embeddings, state.server[1], state.embeddings, rates),
        )
        network = where(jnp.any(here), network, (state.network, state.server[0]))
        embeddings = where(here, embeddings, (state.embeddings, state.server[1]))
        weights = server.sample_weights(data, info)
        running, trained = new_stats(weights, after.stats, state.stats, state.trained)
        states = network[1], embeddings[1]
        return PFedHNState(network[0], embeddings[0], states, running, trained, sent.optimizer, k + 1), info

    def personalize(key, state, data):
        return Variables(models(state.network, state.embeddings), state.stats)

    def join(state, fresh):
        return fresh._replace(stats=server.statistics_of_newcomers(state.stats, state.trained, fresh.stats))

    return Algorithm(init, round, personalize, join=join)
