"""PFLEGO (Nikoloutsopoulos et al. 2023, Algorithm 1, Eq. 3 and 4): exact SGD with heads W_i and a shared body theta.

state = {"body": theta, "heads": [W_i]}. Full-batch: `batches` is not read.
"""

from .model import accepted, gradient, sizes
from .trees import add, scale, sub, zeros


def round(state, clients, batches, online, k, *, tau, beta, rho, head_alpha=False, rejected=None):
    """Take tau - 1 head steps at the received theta, then one joint gradient, shared by client and server.

    head_alpha: multiply alpha_i into the head's last step, as Eq. 5 has it and Eq. 3 and Algorithm 1 do not.
    """
    online = accepted(online, rejected)
    heads, total = list(state["heads"]), zeros(state["body"])
    examples, clients_online = sum(sizes(clients)), sum(bool(here) for here in online)
    for i, client in enumerate(clients):
        if not online[i]:
            continue
        alpha, boost = sizes(clients)[i] / examples, len(clients) / clients_online  # N_i / sum_j N_j over ALL; I / r
        for _ in range(tau - 1):  # W_i <- W_i - beta grad_W l_i(W_i, theta)
            heads[i] = sub(heads[i], scale(beta, gradient({"body": state["body"], "head": heads[i]}, client)["head"]))
        joint = gradient({"body": state["body"], "head": heads[i]}, client)
        heads[i] = sub(heads[i], scale(rho * boost * (alpha if head_alpha else 1.0), joint["head"]))  # Eq. 3
        total = add(total, scale(boost * alpha, joint["body"]))
    return {"body": sub(state["body"], scale(rho, total)), "heads": heads}  # Eq. 4


def personalize(state):
    """Shared theta under each client's own head."""
    return [{"body": state["body"], "head": head} for head in state["heads"]]
