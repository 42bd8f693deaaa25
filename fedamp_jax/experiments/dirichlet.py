"""Clients without groups: class proportions or sizes drawn from a Dirichlet distribution, or shards of sorted classes.

    python experiments/dirichlet.py --alpha 0.1 --clients 20     # the bundled digits, a few minutes on a laptop
    python experiments/dirichlet.py --dataset cifar10 --data-dir DIR --balanced --alpha 0.3
    python experiments/dirichlet.py --split shards

What most papers since 2020 call non-IID. The methods have the practical setting's hyper-parameters, except that FedAMP
and HeurFedAMP find sigma by themselves (--sigma auto), as the FedAMP paper has no value for clients without groups.
"""

import dataclasses
from typing import Any, Literal

from fedamp_jax.checks import check_integer, check_number
from fedamp_jax.experiments import fedamp_paper
from fedamp_jax.runner.options import Options


@dataclasses.dataclass(frozen=True)
class Dirichlet:
    """Clients."""

    split: Literal["dirichlet", "shards", "quantity"] = "dirichlet"
    """dirichlet, quantity (sizes) or shards (two each)."""
    alpha: float = 0.1
    """Concentration of Dirichlet; the smaller, the more clients differ."""
    balanced: bool = False
    """With --split dirichlet: equally many examples for all clients."""
    clients: int | None = None
    """Number of clients. Default: 100; 62 for emnist, 20 for digits."""

    @property
    def name(self) -> str:
        """The setting, as `fedamp_jax.data.federation` names it."""
        return f"{self.split}-balanced" if self.balanced else self.split

    def arguments(self) -> dict[str, Any]:
        """Of `fedamp_jax.data.federation`."""
        return {"alpha": self.alpha, "clients": self.clients}


def finish(options: Options) -> Options:
    """As `fedamp_paper.finish`.

    Raises:
        ValueError: an option has no meaning together with --split.
    """
    own = options.setting
    check_number("--alpha", own.alpha, low=0)
    if own.split == "shards" and own.alpha != Dirichlet.alpha:
        raise ValueError(f"--alpha {own.alpha:g} is for --split dirichlet and quantity: leave it out")
    if own.clients is not None:
        check_integer("--clients", own.clients, low=1)
    if own.balanced and own.split != "dirichlet":
        raise ValueError(f"--balanced is for --split dirichlet, not for {own.split}: leave it out")
    return fedamp_paper.finish(options)


DIRICHLET = fedamp_paper.experiment(
    "dirichlet",
    __doc__,
    options=Options(setting=Dirichlet(), attention=fedamp_paper.Attention()),
    finish=finish,
)
