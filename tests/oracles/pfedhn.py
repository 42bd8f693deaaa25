"""pFedHN (Shamsian et al. 2021), with all clients of a round in one step of the server.

state = {"network": phi, "embeddings": [v_i], "updates": (of the network, [of each embedding])}, where updates are
optimizers that remember. phi = {"layers": {"0": {"kernel", "bias"}, ...}, "kernels": tree, "biases": tree}.

    a_0 = v W_0 + b_0, a_l = relu(a_{l-1}) W_l + b_l, z = a_L, each array of theta_i is z K + B in its shape;
    theta'_i <- local steps from theta_i,
    phi <- a step along sum_i (d theta_i / d phi)' (theta'_i - theta_i), v_i <- one along (d theta_i / d v_i)' (...).
"""

import numpy as np

from .model import accepted, train
from .trees import add, sub, tree_map, zeros


def forward(network, v):
    """theta_i, z and the values before each layer's product."""
    inputs, a = [], np.asarray(v, np.float64)
    for number in range(len(network["layers"])):
        inputs.append(a if number == 0 else np.maximum(a, 0))
        layer = network["layers"][str(number)]
        a = inputs[-1] @ layer["kernel"] + layer["bias"]
    theta = tree_map(lambda k, b: (a @ k).reshape(b.shape) + b, network["kernels"], network["biases"])
    return theta, a, inputs


def pulled(network, v, direction):
    """The products of the Jacobians' transposes and a tree like theta: by phi, and by v."""
    _, z, inputs = forward(network, v)
    kernels = tree_map(lambda k, g: np.outer(z, g.ravel()), network["kernels"], direction)
    slope = sum(k @ g.ravel() for k, g in zip(leaves(network["kernels"]), leaves(direction)))
    layers = {}
    for number in reversed(range(len(inputs))):
        layers[str(number)] = {"kernel": np.outer(inputs[number], slope), "bias": slope}
        slope = network["layers"][str(number)]["kernel"] @ slope
        if number:
            slope = slope * (inputs[number] > 0)
    return {"layers": layers, "kernels": kernels, "biases": direction}, slope


def leaves(tree):
    """In the order of sorted names."""
    return [a for name in sorted(tree) for a in leaves(tree[name])] if isinstance(tree, dict) else [np.asarray(tree)]


def round(state, clients, batches, online, k, *, optimizer, rejected=None):
    """One round."""
    counts, network, embeddings = accepted(online, rejected), state["network"], list(state["embeddings"])
    total, (of_network, of_each) = zeros(network), state["updates"]
    for i, client in enumerate(clients):
        if counts[i]:
            theta = forward(network, state["embeddings"][i])[0]
            descent = sub(theta, train(theta, client, batches[i], optimizer))
            by_phi, by_v = pulled(network, state["embeddings"][i], descent)
            total, embeddings[i] = add(total, by_phi), of_each[i](embeddings[i], by_v)
    network = of_network(network, total) if any(counts) else network
    return {**state, "network": network, "embeddings": embeddings}


def personalize(state):
    """theta_i."""
    return [forward(state["network"], v)[0] for v in state["embeddings"]]
