"""Clients without groups: class proportions or sizes drawn from a Dirichlet distribution, or shards of sorted classes.

    python experiments/dirichlet.py --alpha 0.1 --clients 20     # the bundled digits, a few minutes on a laptop
    python experiments/dirichlet.py --dataset cifar10 --data-dir DIR --balanced --alpha 0.3
    python experiments/dirichlet.py --split shards

What most papers since 2020 call non-IID. The methods have the practical setting's hyper-parameters, except that FedAMP
and HeurFedAMP find sigma by themselves (--sigma auto), as the FedAMP paper has no value for clients without groups.
"""

import dataclasses
from typing import Literal

from fedamp_jax.checks import check_integer, check_number
from fedamp_jax.experiments import fedamp_paper
from fedamp_jax.runner import command_line


@dataclasses.dataclass(frozen=True)
class Options(fedamp_paper.Options):
    """The settings of one run."""

    split: Literal["dirichlet", "shards", "quantity"] = "dirichlet"
    """dirichlet, quantity (sizes) or shards (two each)."""
    alpha: float = 0.1
    """Concentration of Dirichlet; the smaller, the more clients differ."""
    balanced: bool = False
    """With --split dirichlet: equally many examples for all clients."""
    clients: int | None = None
    """Number of clients. Default: 100; 62 for emnist, 20 for digits."""


@dataclasses.dataclass(frozen=True)
class Command(fedamp_paper.Command, Options):  # pyright: ignore[reportIncompatibleVariableOverride]
    """The options of the command."""


def setting_of(options: Options) -> str:
    """The setting, as `fedamp_jax.data.federation` names it.

    Raises:
        ValueError: an option has no meaning together with --split.
    """
    check_number("--alpha", options.alpha, low=0)
    if options.split == "shards" and options.alpha != Options.alpha:
        raise ValueError(f"--alpha {options.alpha:g} is for --split dirichlet and quantity: leave it out")
    if options.clients is not None:
        check_integer("--clients", options.clients, low=1)
    if options.balanced and options.split != "dirichlet":
        raise ValueError(f"--balanced is for --split dirichlet, not for {options.split}: leave it out")
    return f"{options.split}-balanced" if options.balanced else options.split


def main() -> None:
    """Run from the command line."""
    with command_line.experiment(Command, __doc__, "dirichlet") as (command, folder):
        fedamp_paper.run_setting("dirichlet", setting_of(command), command, Options, folder)
