"""pFedMe (Dinh et al. 2020, Algorithm 1): personal models theta_i close to a local copy w_i of the global model.

state = {"global": w, "thetas": [theta_i]}; the personal models are the theta_i.
In the paper all clients train, and those sampled send; here those that are offline do neither. The paper averages
uniformly; here by size, as the authors' code does. That code also adds 0.001 theta to the inner gradient: not followed.
"""

from .model import accepted, sizes, train
from .trees import add, average, scale, sub


def round(
    state,
    clients,
    batches,
    online,
    k,
    *,
    optimizer,
    inner_steps,
    lam,
    eta,
    beta,
    start="local",
    weights=None,
    rejected=None,
):
    """w_i = w; a local round for every minibatch; then w <- (1 - beta) w + beta mean_i w_i.

    A local round: theta_i takes `inner_steps` steps of a fresh `optimizer` on the minibatch's loss
    f_i(theta) + lam / 2 * ||theta - w_i||^2, then w_i <- w_i - eta lam (w_i - theta_i).
    start: theta_i starts each of them from w_i ("local"), or from where the last one left it ("last", the first from
    w, as in the authors' code). The paper leaves this open.
    """
    w = state["global"]
    thetas, sent = list(state["thetas"]), [None] * len(clients)
    online = accepted(online, rejected)
    for i, client in enumerate(clients):
        if online[i]:
            local = theta = w
            for rows in batches[i]:
                first = {"local": local, "last": theta}[start]
                theta = train(first, client, [rows] * inner_steps, optimizer, pull=lam, centre=local)
                local = sub(local, scale(eta * lam, sub(local, theta)))
            thetas[i], sent[i] = theta, local
    mean = average(sent, sizes(clients) if weights is None else weights, online, otherwise=w)
    return {"global": add(scale(1 - beta, w), scale(beta, mean)), "thetas": thetas}
