"""What a method is made of: training of one client and of all, what a server computes, validation data.

`docs/write_a_method.md` builds a method from these.
"""

from fedamp_jax.engine import server
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
from fedamp_jax.engine.hyperparameters import at_round, per_client
from fedamp_jax.engine.minibatches import for_each_minibatch, full_gradient, mean_loss
from fedamp_jax.engine.solver import Local, Penalty, Prox, Solver, check_parts, solve
from fedamp_jax.engine.validation import cross_losses, split_client

__all__ = [
    "Local",
    "Penalty",
    "Prox",
    "Solver",
    "at_home",
    "at_round",
    "check_parts",
    "cross_losses",
    "draw_epochs",
    "for_each_client",
    "for_each_minibatch",
    "full_gradient",
    "init_clients",
    "init_model",
    "init_optimizer",
    "mean_loss",
    "per_client",
    "resample_epochs",
    "server",
    "solve",
    "split_client",
    "stream",
]
