"""How methods look in figures: no two of them share colour, line and marker."""

import itertools
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

MANY = 12
"""At most so many lines can be followed in one panel."""


class Style(NamedTuple):
    """Attributes: colour: `#RRGGBB`. line, marker: as matplotlib names them."""

    colour: str
    line: str
    marker: str

    @property
    def width(self) -> float:
        """A solid line is the widest, so that a broken one with the same values lies on it and hides nothing."""
        return {"-": 2.8, "-.": 2.2}.get(self.line, 1.8)

    @property
    def rank(self) -> int:
        """The order of drawing."""
        return LINES.index(self.line)


# Colours of Okabe and Ito, which colour-blind readers can distinguish; grey and brown in place of their black and
# yellow, which do not show on black or white.
RED, BLUE, GREEN, ORANGE = "#D55E00", "#0072B2", "#009E73", "#E69F00"
PINK, SKY, GREY, BROWN = "#CC79A7", "#56B4E9", "#8C8C8C", "#A0674F"
COLOURS = (RED, BLUE, GREEN, ORANGE, PINK, SKY, GREY, BROWN)
LINES = ("-", "-.", "--", ":")
MARKERS = "soDv^<>PXphd8H*x+1234|_"

# fmt: off
KNOWN = {
    "Separate": Style(GREY, ":", "s"), "FedAvg": Style(SKY, "-", "o"), "FedProx": Style(GREEN, "--", "v"),
    "FedAvg-FT": Style(BROWN, "-", "P"), "FedProx-FT": Style(GREEN, ":", "^"), "SCAFFOLD": Style(ORANGE, "-", "<"),
    "APFL": Style(PINK, "-", ">"), "FedAMP": Style(RED, "-", "D"), "HeurFedAMP": Style(BLUE, "--", "*"),
    "Ditto": Style(GREEN, "-", "X"), "FedPer": Style(ORANGE, "-.", "p"), "FedRep": Style(PINK, ":", "h"),
    "FedBABU": Style(GREY, "-.", "d"), "FedRecon": Style(BROWN, "-.", "8"), "PFLEGO": Style(BLUE, "-.", "H"),
    "pFedMe": Style(SKY, "-.", "x"), "FedFomo": Style(BROWN, ":", "+"), "pFedGraph": Style(GREEN, "-.", "4"),
    "IFCA": Style(BLUE, "-", "1"), "CFL": Style(RED, "-.", "2"), "LG-FedAvg": Style(ORANGE, ":", "3"),
    "FedBN": Style(PINK, "-.", "|"), "FedRoD": Style(RED, ":", "_"), "Per-FedAvg": Style(SKY, "--", "<"),
    "FedProto": Style(GREY, "--", ">"), "kNN-Per": Style(BLUE, ":", "v"),
    "FedALA": Style(ORANGE, "--", "s"), "FedPAC": Style(PINK, "--", "o"),
    "pFedHN": Style(BROWN, "--", "D"),
}
# fmt: on
# Neighbours differ in all three. 8 colours and 4 lines make 32 pairs, and 23 markers share no factor with 32.
_ALL = [Style(COLOURS[i % 8], LINES[(i + i // 8) % 4], MARKERS[5 * i % len(MARKERS)]) for i in range(32 * len(MARKERS))]
_SPARE = [style for style in _ALL if style not in set(KNOWN.values())]


def styles(methods: Iterable[str]) -> dict[str, Style]:
    """A style for each method: always the same one for those of the registry, for others one by their order.

    >>> styles(["FedAMP"])["FedAMP"].marker
    'D'
    """
    names = list(methods)
    unknown = [name for name in names if name not in KNOWN]
    spare = dict(zip(unknown, itertools.cycle(_SPARE)))
    return {name: KNOWN.get(name) or spare[name] for name in names}


def late_limits(curves: Iterable[np.ndarray]) -> tuple[float, float] | None:
    """Limits of a value axis for many curves `[R]`, which show how they end and not where they begin: from almost the
    lowest value after the first fifth of the rounds to the highest one. None if there is no value.

    >>> late_limits([np.array([10.0, 90.0, 91.0, 92.0, 93.0]), np.array([20.0, 95.0, 95.0, 95.0, 95.0])])
    (89.654, 95.486)
    """
    late = np.concatenate([curve[len(curve) // 5 :] for curve in curves])
    late = late[np.isfinite(late)]
    if not late.size:
        return None
    low, high = np.percentile(late, 2), late.max()
    room = 0.1 * (high - low) or 1.0
    return float(low - room), float(high + room)
