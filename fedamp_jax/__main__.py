"""The command `fedamp`, also `python -m fedamp_jax`: every experiment, and the names to choose from."""

import difflib
import importlib
import inspect
import sys
from collections.abc import Sequence
from typing import get_args, get_type_hints

import fedamp_jax
from fedamp_jax.algorithms import registry
from fedamp_jax.algorithms.registry import METHODS
from fedamp_jax.data.sources import NAMES
from fedamp_jax.experiments.catalogue import EXPERIMENTS
from fedamp_jax.runner import entry
from fedamp_jax.runner.options import Training

TOOLS = {"compare": "fedamp_jax.runner.compare", "silos": "fedamp_jax.silos.command"}
"""Modules with a `main`, by their command."""

USAGE = """usage: fedamp EXPERIMENT [options]
       fedamp EXPERIMENT --help
       fedamp list                experiments, methods, data sets, models
       fedamp list --methods      hyper-parameters of every method, for --set
       fedamp list --traffic      what a round of every method sends between a server and its clients
       fedamp compare RUN RUN ... one page of several runs
       fedamp silos COMMAND       clients that keep their data (docs/silos.md)
       fedamp --version

  fedamp practical                                  # the bundled digits, two minutes or so
  fedamp practical --dataset mnist --model mlp --methods FedAMP FedAvg-FT --rounds 20
  fedamp dirichlet --alpha 0.1 --clients 20
  fedamp practical --from results/practical-digits/results.json --seeds 0 1 2
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run from the command line.

    Args:
        arguments: the words after `fedamp`; None: those of this process.
    """
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        print(f"{USAGE}\n{experiments()}")
        return
    name, rest = words[0], words[1:]
    if name in ("-V", "--version"):
        print(f"fedamp_jax {fedamp_jax.__version__}")
    elif name == "list":
        print({"--methods": hyperparameters, "--traffic": sent}.get(" ".join(rest), inventory)())
    elif name in TOOLS:
        sys.argv = [f"fedamp {name}", *rest]
        importlib.import_module(TOOLS[name]).main()
    elif name in EXPERIMENTS:
        sys.argv = [f"fedamp {name}", *rest]
        entry.main(EXPERIMENTS[name])
    else:
        near = difflib.get_close_matches(name, [*EXPERIMENTS, *TOOLS, "list"], n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        print(f"fedamp: there is no {name!r}.{hint}\n\n{USAGE}", file=sys.stderr)
        sys.exit(2)


def experiments() -> str:
    """The experiments, a line each."""
    lines = [f"  {name:<13} {(one.text or '').strip().partition(chr(10) * 2)[0]}" for name, one in EXPERIMENTS.items()]
    return "\n".join(["experiments:", *lines])


def inventory() -> str:
    """Experiments, methods, data sets and models."""
    methods = [f"  {name:<13} {method.source}" for name, method in METHODS.items()]
    models = get_args(get_type_hints(Training)["model"])
    return "\n".join(
        [experiments(), "", "methods:", *methods, "", f"data sets: {' '.join(NAMES)}", f"models: {' '.join(models)}"]
    )


def hyperparameters() -> str:
    """The hyper-parameters of every method and their defaults, a line for each method."""
    lines = []
    for name in METHODS:
        found = {key: "" if value is inspect.Parameter.empty else f"={value}" if not callable(value) else "=schedule"
                 for key, value in registry.hyperparameters(name).items()}  # fmt: skip
        lines.append(f"  {name:<13} {' '.join(key + value for key, value in found.items()) or '-'}")
    head = "hyper-parameters, as --set METHOD.NAME=VALUE takes them; without a value: the experiment decides"
    return "\n".join([head, *lines])


def sent() -> str:
    """What a round of every method sends for each client, in models: the MLP on the bundled digits' 20 clients."""
    practical = EXPERIMENTS["practical"]
    options = practical.checked(practical.options)
    federation = practical.clients(options)
    task = practical.model(options, federation)
    names = [name for name, method in METHODS.items() if method.any_model]
    lines = [
        "models to a client and back in a round, on the practical setting's 20 clients of digits",
        f"  {'method':<13} exchanges   down     up",
    ]
    for name, algorithm in practical.methods(options, federation, task, names).items():
        found = fedamp_jax.traffic(algorithm, federation.train)
        down, up = found.down / found.model, found.up / found.model
        lines.append(f"  {name:<13} {found.exchanges:>9} {down:>6.2f} {up:>6.2f}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
