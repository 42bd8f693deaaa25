"""The command `fedamp`, also `python -m fedamp_jax`: every experiment, and what there is to choose from."""

import difflib
import importlib
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, get_args, get_type_hints

import fedamp_jax


class Experiment(NamedTuple):
    """An experiment, as the command line names it.

    Attributes:
        text: what it does, in a line.
        module: in `fedamp_jax.experiments`, with a function `main`.
        arguments: of `main`.
    """

    text: str
    module: str
    arguments: tuple[Any, ...] = ()


EXPERIMENTS = {
    "practical": Experiment("groups of clients with dominating classes (FedAMP paper)", "fedamp_paper", ("practical",)),
    "pathological": Experiment("two classes per client (FedAMP paper)", "fedamp_paper", ("pathological",)),
    "iid": Experiment("clients that do not differ (FedAMP paper)", "fedamp_paper", ("iid",)),
    "dirichlet": Experiment("Dirichlet class proportions or sizes, or shards", "dirichlet"),
    "degrees": Experiment("2, half or all of the classes per client (PFLEGO paper)", "degrees"),
    "omniglot": Experiment("50 alphabets (PFLEGO paper)", "omniglot"),
}

TOOLS = ("compare",)
"""Modules in `fedamp_jax.runner`, each with a `main`, for results that are there."""

USAGE = """usage: fedamp EXPERIMENT [options]
       fedamp EXPERIMENT --help
       fedamp list                what there is: experiments, methods, data sets, models
       fedamp compare RUN RUN ... one page of several runs
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
        print(inventory())
    elif name in TOOLS or name in EXPERIMENTS:
        sys.argv = [f"fedamp {name}", *rest]
        if name in TOOLS:
            return importlib.import_module(f"fedamp_jax.runner.{name}").main()
        found = EXPERIMENTS[name]
        run: Callable[..., None] = importlib.import_module(f"fedamp_jax.experiments.{found.module}").main
        run(*found.arguments)
    else:
        near = difflib.get_close_matches(name, [*EXPERIMENTS, *TOOLS, "list"], n=1)
        hint = f" Did you mean {near[0]}?" if near else ""
        print(f"fedamp: there is no {name!r}.{hint}\n\n{USAGE}", file=sys.stderr)
        sys.exit(2)


def experiments() -> str:
    """The experiments, a line each."""
    return "\n".join(["experiments:", *(f"  {name:<13} {one.text}" for name, one in EXPERIMENTS.items())])


def inventory() -> str:
    """Experiments, methods, data sets and models."""
    from fedamp_jax.algorithms.registry import METHODS
    from fedamp_jax.data.sources import NAMES
    from fedamp_jax.experiments.fedamp_paper import Options

    methods = [f"  {name:<13} {method.source}" for name, method in METHODS.items()]
    models = get_args(get_type_hints(Options)["model"])
    return "\n".join(
        [experiments(), "", "methods:", *methods, "", f"data sets: {' '.join(NAMES)}", f"models: {' '.join(models)}"]
    )


if __name__ == "__main__":
    main()
