"""Per-FedAvg (Fallah et al. 2020, Algorithm 1, for F_i(w) = f_i(w - alpha grad f_i(w))).

state = {"global": tree}. batches[i] = [(D, D', D'')], three for each local step:

    v = w - alpha grad f_i(w, D),
    w <- w - beta (I - alpha H_i(w, D'')) grad f_i(v, D'); the first order approximation leaves the Hessian H_i out.

Products with the Hessian are central differences of the gradient, whose error in float64 is of the order of 1e-9. As
published w is the plain mean over the clients; here by size, like the others.
"""

from .model import accepted, gradient, sizes
from .trees import add, average, scale, sub

H = 1e-5


def curvature(w, client, rows, direction):
    """H_i(w) direction."""
    ahead, behind = (gradient(add(w, scale(h, direction)), client, rows) for h in (H, -H))
    return scale(1 / (2 * H), sub(ahead, behind))


def local(w, client, batches, alpha, beta, exact):
    """All local steps of one client."""
    for first, second, third in batches:
        v = sub(w, scale(alpha, gradient(w, client, first)))
        g = gradient(v, client, second)
        if exact:
            g = sub(g, scale(alpha, curvature(w, client, third, g)))
        w = sub(w, scale(beta, g))
    return w


def round(state, clients, batches, online, k, *, alpha, beta, exact, rejected=None):
    """One round."""
    online, w = accepted(online, rejected), state["global"]
    sent = [local(w, *each, alpha, beta, exact) if here else None for here, *each in zip(online, clients, batches)]
    return {"global": average(sent, sizes(clients), online, otherwise=w)}


def personalize(state, clients, alpha):
    """One step along the gradient of all examples."""
    return [sub(state["global"], scale(alpha, gradient(state["global"], client))) for client in clients]
