"""Groups of clients that disagree: the same examples with permuted labels, turned images, or a feature shift.

    python experiments/concept.py --shift labels --groups 5 --strength 1.0 --clients 20   # the bundled digits
    python experiments/concept.py --strength 0 0.25 0.5 0.75 1     # from no disagreement to full, with a figure of it
    python experiments/concept.py --dataset mnist --data-dir DIR --model mlp --shift rotation --groups 4

All clients have equally many examples drawn at random, and the groups are alike but for the shift: permuted labels are
from Sattler, Müller and Samek 2021, turned images from Ghosh et al. 2020. A client's training and test data are changed
alike, except that label noise is in training labels alone. `fedamp_jax.data.shifted` says what each shift does and what
its strength means.

The methods have the practical setting's hyper-parameters, except that FedAMP and HeurFedAMP find sigma by themselves
(--sigma auto), as the FedAMP paper has no value for this setting.
"""

import dataclasses
from typing import Any

from fedamp_jax.checks import check_integer, check_number
from fedamp_jax.data.federations import clients_of
from fedamp_jax.data.shifts import Shift, check_groups
from fedamp_jax.data.sources import classes_of
from fedamp_jax.experiments import fedamp_paper
from fedamp_jax.runner.experiment import Panel
from fedamp_jax.runner.options import Options


@dataclasses.dataclass(frozen=True)
class Concept:
    """Clients."""

    shift: Shift = "labels"
    """What groups disagree about: labels, rotation, both, brightness, contrast, blur or label-noise."""
    groups: int = 5
    """Number of groups, of equally many clients where possible."""
    strength: float = 1.0
    """How much groups disagree, from 0 (not at all) to 1."""
    clients: int | None = None
    """Number of clients. Default: 100; 62 for emnist, 20 for digits."""

    @property
    def name(self) -> str:
        """The setting, as `fedamp_jax.data.federation` names it."""
        return "concept"

    def arguments(self) -> dict[str, Any]:
        """Of `fedamp_jax.data.federation`."""
        return dataclasses.asdict(self)


def finish(options: Options) -> Options:
    """As `fedamp_paper.finish`.

    Raises:
        ValueError: there are too few clients or classes for the groups, or a value is out of range.
    """
    own, dataset = options.setting, options.data.dataset
    check_number("--strength", own.strength, low=0, high=1, strict=False)
    check_groups(own.shift, own.groups, classes_of(dataset), "--")
    if own.clients is not None:
        check_integer("--clients", own.clients, low=1)
    clients = own.clients or clients_of(dataset)
    if own.groups > clients:
        raise ValueError(f"--groups {own.groups} of {clients} clients: use at most as many groups as clients")
    return fedamp_paper.finish(options)


def strength(value: float) -> str:
    """The title of a panel: how much groups disagree."""
    return f"strength {value:g}"


CONCEPT = fedamp_paper.experiment(
    "concept",
    __doc__,
    options=Options(setting=Concept(), attention=fedamp_paper.Attention()),
    finish=finish,
    panels={"shift": Panel(str), "strength": Panel(strength), **fedamp_paper.PANELS},
)
