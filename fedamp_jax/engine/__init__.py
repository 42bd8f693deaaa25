"""What a method is made of: training of one client and of all, what a server computes, validation data.

This is the interface for authors of methods: `docs/write_a_method.md` and `fedamp_jax.algorithms` import nothing else
of the engine.
"""

from fedamp_jax.checks import check_number
from fedamp_jax.engine import low_rank, server
from fedamp_jax.engine.clients import (
    at_home,
    draw_epochs,
    for_each_client,
    init_clients,
    init_model,
    init_optimizer,
    resample_epochs,
    stream,
)
from fedamp_jax.engine.features import (
    Centroids,
    aligned,
    check_features,
    class_means,
    feature_statistics,
    flat_features,
    init_centroids,
    mean_centroids,
)
from fedamp_jax.engine.hyperparameters import at_round, broadcast_to_clients, of_clients
from fedamp_jax.engine.minibatches import (
    as_client,
    for_each_minibatch,
    full_gradient,
    mean_loss,
    sample_batch,
    share_of,
    take_batch,
)
from fedamp_jax.engine.solver import Local, Penalty, Prox, Solver, check_parts, solve
from fedamp_jax.engine.validation import cross_losses, loss_difference, split_client

__all__ = [
    "Centroids",
    "Local",
    "Penalty",
    "Prox",
    "Solver",
    "aligned",
    "as_client",
    "at_home",
    "at_round",
    "broadcast_to_clients",
    "check_features",
    "check_number",
    "check_parts",
    "class_means",
    "cross_losses",
    "draw_epochs",
    "feature_statistics",
    "flat_features",
    "for_each_client",
    "for_each_minibatch",
    "full_gradient",
    "init_centroids",
    "init_clients",
    "init_model",
    "init_optimizer",
    "loss_difference",
    "low_rank",
    "mean_centroids",
    "mean_loss",
    "of_clients",
    "resample_epochs",
    "sample_batch",
    "server",
    "share_of",
    "solve",
    "split_client",
    "stream",
    "take_batch",
]
