"""FedFomo (Zhang et al. 2021): models weighted by how much they lower a client's validation loss.

state = {"models": [w_i after the last training], "received": [w_i before the last training]}; without "received" no
client has trained yet. A round also returns "weights" [M, M], which it never reads.

    w_ij = max(0, L_i(b_i) - L_i(w_j)) / ||w_j - b_i||, divided by its sum over j where that is positive,
    w_i <- b_i + sum_j w_ij (w_j - b_i), then local training.

b_i is the client's own model from before its last training ("received", as in the authors' code): its trained model
is then one of the candidates, and is lost where no candidate is better than b_i. Or b_i is the model after its last
training ("trained"): then that is no candidate, and is replaced where any other is better, as the weights sum to 1.
L_i is the mean loss on validation rows. All models of the online clients are candidates. The authors' code downloads
a few, chosen epsilon-greedily, and divides by the 1-norm unless told otherwise.
"""

import numpy as np

from .model import accepted, loss_and_gradient, train
from .trees import add, combine, flatten, sub


def losses(models, clients, validation):
    """L_i(w_j) [M, M] on validation[i], row numbers of client i; 0 for a client without validation rows."""
    table = np.zeros((len(clients), len(models)))
    for i, (client, rows) in enumerate(zip(clients, validation, strict=True)):
        rows = np.asarray(rows, int)
        for j, model in enumerate(models):
            if len(rows):
                table[i, j] = loss_and_gradient(model, client["x"][rows], client["y"][rows], client["classes"])[0]
    return table


def weights(models, losses, online, *, baselines=None, baseline_losses=None):
    """w_ij for losses[i, j] = L_i(w_j), over online i and j; zero rows for the offline clients.

    baselines: [b_i], and baseline_losses: [L_i(b_i)]; w_i and L_i(w_i) unless given.
    """
    m = len(models)
    w = [flatten(model) for model in models]
    b = w if baselines is None else [flatten(model) for model in baselines]
    own = np.diag(losses) if baseline_losses is None else baseline_losses
    result = np.zeros((m, m))
    for i in range(m):
        for j in range(m):
            distance = np.sqrt(np.sum((w[j] - b[i]) ** 2))
            if online[i] and online[j] and distance > 0:
                result[i, j] = max(0.0, own[i] - losses[i][j]) / distance
        if result[i].sum() > 0:
            result[i] /= result[i].sum()
    return result


def round(
    state,
    clients,
    batches,
    online,
    k,
    *,
    optimizer,
    validation,
    baseline="received",
    otherwise="baseline",
    rejected=None,
):
    """One round. A rejected client has received, and the others its model from before the round.

    otherwise: what a client trains from that finds no candidate better than b_i: b_i ("baseline"), as in the authors'
    code, or its own trained model ("trained"), whose weight is then 1.
    """
    models = state["models"]
    b = {"trained": models, "received": state.get("received", models)}[baseline]
    own = np.diag(losses(b, clients, validation))
    xi = weights(models, losses(models, clients, validation), online, baselines=b, baseline_losses=own)
    if otherwise == "trained":
        xi[np.diag_indices(len(xi))] += 1 - xi.sum(axis=1)
    after, received = list(models), list(b)
    for i, client in enumerate(clients):
        if accepted(online, rejected)[i]:
            received[i] = add(b[i], combine(xi[i], [sub(model, b[i]) for model in models]))
            after[i] = train(received[i], client, batches[i], optimizer)
    return {"models": after, "received": received, "weights": xi}
