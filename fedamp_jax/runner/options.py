"""The options that all experiments have in common, and what they mean: methods, participation."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from tyro import conf

from fedamp_jax import Algorithm, Participation, writers
from fedamp_jax.algorithms.registry import PAPER_METHODS
from fedamp_jax.checks import check_integer, check_number
from fedamp_jax.runner import live

T = TypeVar("T")


def chosen(methods: tuple[str, ...], available: Mapping[str, Algorithm]) -> list[str]:
    """The methods asked for, in the order of the tables; names in any case."""
    by_name = {name.lower(): [name] for name in available}
    by_name["all"] = list(available)
    if set(PAPER_METHODS) <= set(available):
        by_name["paper"] = list(PAPER_METHODS)
    unknown = [method for method in methods if method.lower() not in by_name]
    if unknown:
        near = [difflib.get_close_matches(method.lower(), by_name, n=1) for method in unknown]
        meant = [by_name[found[0]][0] if found[0] not in ("all", "paper") else found[0] for found in near if found]
        hint = f" (did you mean {' '.join(meant)}?)" if meant else ""
        there = " ".join([*available, *(name for name in ("paper", "all") if name in by_name)])
        raise ValueError(f"--methods: there is no {' and no '.join(unknown)}{hint}; there are {there}")
    wanted = {name for method in methods for name in by_name[method.lower()]}
    return [name for name in available if name in wanted]


def participation(options: Any, clients: int) -> Participation:
    """Which of the clients take part in a round.

    Raises:
        ValueError: none would.
    """
    shares = Participation(options.participation, options.drop_rate)
    try:
        shares.present(clients)
    except ValueError:
        text = f"--participation {shares.share:g} with --drop-rate {shares.drop_rate:g}"
        raise ValueError(f"{text} leaves none of {clients} clients in a round") from None
    return shares


Unused = Annotated[T, conf.Suppress, conf.Fixed]
"""An inherited option that has no meaning in an experiment: refused there, and left out of its help."""


@dataclasses.dataclass(frozen=True)
class CommonOptions:
    """The options that all experiments have in common; each adds its own."""

    dataset: str = "digits"
    """digits is bundled; others are read from --data-dir, or downloaded."""
    methods: tuple[str, ...] = ("all",)
    """Methods to train, by their names in the tables, or all."""
    rounds: int | None = None
    """Communication rounds. Default: the paper's, fewer for digits."""
    participation: float = 1.0
    """Share of the clients invited to each round."""
    drop_rate: float = 0.0
    """Share of the invited clients that drop out of each round."""
    seed: int = 0
    """Decides partition, initial models, order of examples, who takes part."""
    data_dir: str | None = None
    """Folder with <dataset>.npz (docs/your_own_data.md). Default: download."""
    out: str | None = None
    """Folder for the results. Default: named after the settings, in results/."""
    chunk: int | None = None
    """Clients trained side by side. Default: chosen for the machine."""
    evaluate_every: int = 1
    """Rounds from one evaluation to the next."""
    checkpoint_every: int = 10
    """Rounds from one checkpoint to the next."""
    keep_checkpoints: Literal["auto", "always", "never"] = "auto"
    """The last ones, for more --rounds; auto: below 1 GiB."""
    save_models: bool = False
    """Save personal models as models/METHOD.npz, for fedamp_jax.load_models."""
    devices: int | None = None
    """Devices to spread the clients over. Default: all, or a CPU's cores."""
    offload: bool = False
    """Keep clients in the host's memory; --chunk of them visit the device."""
    dry_run: str | None = None
    """Only print what a round takes there: v5e:2x4, h100, h100:2 or here."""
    log: tuple[live.Log, ...] = ()
    """Where curves go beside history.csv: tensorboard, wandb, or both."""
    resume: bool = False
    """Continue an interrupted run, or a finished one with more --rounds."""
    quick: bool = False
    """A small version: at most 3 rounds of few local steps."""
    precision: Literal["default", "high", "highest"] = "default"
    """default, high or highest: of matrix products on accelerators."""


def check(options: CommonOptions) -> None:
    """Refuse values that no experiment can run with."""
    check_integer("--rounds", options.rounds, low=1)
    check_integer("--evaluate-every", options.evaluate_every, low=1)
    check_integer("--checkpoint-every", options.checkpoint_every, low=1)
    check_integer("--seed", options.seed, low=0)
    if options.chunk is not None:
        check_integer("--chunk", options.chunk, low=1)
    for extra in options.log:
        writers.package(extra)
    check_number("--participation", options.participation, low=0, high=1)
    if not 0 <= options.drop_rate < 1:
        raise ValueError(f"--drop-rate must be in [0, 1), got {options.drop_rate:g}")
