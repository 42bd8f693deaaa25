"""SCAFFOLD (Karimireddy et al. 2020, Algorithm 1), options I and II.

state = {"global": x, "c": server control variate, "c_i": [client control variates], "models": [y_i]}
"models" are the local models after the client's last training; the algorithm never reads them.
"""

from .model import accepted, gradient
from .trees import add, combine, scale, sub


def round(state, clients, batches, online, k, *, lr, global_step=1.0, option=2, rejected=None):
    """One round. Uniform means over the online clients S, as published, whatever their sizes."""
    online = accepted(online, rejected)
    x, c = state["global"], state["c"]
    c_i, models = list(state["c_i"]), list(state["models"])
    moves, changes = [], []
    for i, client in enumerate(clients):
        if not online[i]:
            continue
        y = x
        for rows in batches[i]:  # y <- y - lr (g_i(y) - c_i + c)
            y = sub(y, scale(lr, add(sub(gradient(y, client, rows), c_i[i]), c)))
        if option == 1:  # option I: an additional pass over the local data at x
            new = gradient(x, client)
        else:  # option II: c_i - c + (x - y) / (K lr)
            new = add(sub(c_i[i], c), scale(1 / (len(batches[i]) * lr), sub(x, y)))
        moves.append(sub(y, x))
        changes.append(sub(new, c_i[i]))
        c_i[i], models[i] = new, y
    if moves:
        mean = [1 / len(moves)] * len(moves)
        x = add(x, scale(global_step, combine(mean, moves)))
        c = add(c, scale(len(moves) / len(clients), combine(mean, changes)))
    return {"global": x, "c": c, "c_i": c_i, "models": models}
