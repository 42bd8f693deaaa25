"""Hospitals with few images each adapt a pretrained model: EMNIST's letters, then MNIST's digits of many clients.

    python examples/adapters/images.py --data-dir DIR                  # the table, and adapters.json
    python examples/adapters/images.py --data-dir DIR --rank 8 --examples 120 --out FOLDER

A CNN is trained on letters, which have no digit among them. Then 40 clients in four groups have 60 digits each; groups
disagree about which digit is which class. Four models of a client are compared, under three methods: one that starts
from nothing, the pretrained one trained as a whole, its head alone, and adapters.

DIR holds emnist.npz and mnist.npz (see `fedamp_jax.data.load`); without it both are downloaded.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import fedamp_jax
from fedamp_jax import Algorithm, Solver, Task, Variables, analysis
from fedamp_jax.data import Federation, Source, from_lists
from fedamp_jax.models import adapted, cnn
from fedamp_jax.placement import OnMesh, client_mesh, split_cpu

DIGITS, LETTERS = 10, 26
RATES = {"from nothing": 3e-3, "whole model": 1e-3, "head": 1e-2, "adapters": 3e-3}
"""Learning rates of Adam: of 1e-3, 3e-3 and 1e-2 the best under Separate and FedAMP, for clients of another seed."""


class Model(NamedTuple):
    """What a client trains. Attributes: name, task. rate: of Adam."""

    name: str
    task: Task
    rate: float


def letters(source: Source, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of letters and which one each is, upper and lower case alike; `count`: at most so many."""
    rows = np.flatnonzero(source.y_train >= DIGITS)[:count]
    return source.x_train[rows], ((source.y_train[rows].astype(np.int32) - DIGITS) % LETTERS)


def network(classes: int) -> Task:
    """A CNN of 114,000 parameters."""
    return cnn(classes, filters=(16, 32), hidden=(64,))


def pretrained(source: Source, count: int, epochs: int) -> Variables:
    """The body of a model of letters: of a single client, which has all of them, trained alone."""
    x, y = letters(source, count)
    data, task = from_lists([x], [y], classes=LETTERS), network(LETTERS)
    algorithm = fedamp_jax.separate(task, Solver(optax.adam(1e-3), epochs=1, batch_size=64))
    run = fedamp_jax.run(task, algorithm, data, data, rounds=epochs, evaluate_every=epochs, progress="letters")
    model = jax.tree.map(lambda a: a[0], algorithm.personalize(jax.random.key(0), run.state, data))
    # Without its head: for digits there will be a new one.
    return model._replace(params={"body": model.params["body"]})


def clients(source: Source, count: int, groups: int, examples: int, seed: int) -> Federation:
    """Clients with so many training and test images each, in groups whose labels are permuted."""
    given = {"source": source, "clients": count, "groups": groups, "seed": seed}
    return fedamp_jax.data.small(fedamp_jax.data.federation("mnist", "concept", **given), count, examples)


def models(base: Variables, rank: int) -> list[Model]:
    """The four models of a client."""
    whole = network(DIGITS)
    tasks = {
        "from nothing": whole,
        "whole model": adapted(whole, base, rank=0, train="*"),
        "head": adapted(whole, base, rank=0, train="head"),
        "adapters": adapted(whole, base, rank=rank, train="head"),
    }
    return [Model(name, task, RATES[name]) for name, task in tasks.items()]


def methods(model: Model, mates: int, epochs: int) -> dict[str, Algorithm]:
    """The three methods; `mates`: how many others there are in a client's group."""
    task, solver = model.task, Solver(optax.adam(model.rate), epochs=epochs, batch_size=10)
    attention: dict[str, Any] = {"sigma": fedamp_jax.attention.perplexity(mates), "self_weight": 1 / (mates + 1)}
    made = {
        "Separate": fedamp_jax.separate(task, solver),
        "FedAvg-FT": fedamp_jax.fine_tuned(task, solver, base=fedamp_jax.fedavg(task, solver)),
        "FedAMP": fedamp_jax.fedamp(task, solver, **attention),
    }
    if model.name == "adapters":
        made["FedAMP, distances of A and B"] = fedamp_jax.fedamp(task, solver, **attention, of="parameters")
    return made


def trained_bytes(task: Task) -> int:
    """What a client sends in a round, and what it receives."""
    return sum(4 * a.size for a in jax.tree.leaves(jax.eval_shape(task.init, jax.random.key(0)).params))


def of_run(model: Model, method: str, algorithm: Algorithm, part: Federation, rounds: int, seed: int) -> dict[str, Any]:
    """One row of the table."""
    seen = fedamp_jax.Snapshots(range(1, rounds + 1))
    label = f"{method}, {model.name}"
    run = fedamp_jax.run(
        model.task, algorithm, part.train, part.test, rounds=rounds, seed=seed, evaluate_every=5, progress=label,
        snapshots=seen if method.startswith("FedAMP") else None, placement=OnMesh(mesh=client_mesh()),
    )  # fmt: skip
    found = {
        "model": model.name, "method": method, "seed": seed,
        "accuracy": float(analysis.mean_over_clients(run.accuracy)[-1]),
        "bytes": 0 if method == "Separate" else trained_bytes(model.task),
    }  # fmt: skip
    if run.snapshot_xi is not None:
        found["in_group"] = [analysis.in_group_weight(xi, part.groups) for xi in run.snapshot_xi]
    return found


def seconds(
    algorithms: dict[tuple[str, str], Algorithm], part: Federation, repeats: int
) -> dict[tuple[str, str], float]:
    """The median round of each, compilation left out. They take turns: a busy moment of the machine meets all alike."""
    key, place = jax.random.key(0), OnMesh(mesh=client_mesh())
    train, spent = place.place(part.train), {name: [] for name in algorithms}
    states = {name: place.init(algorithm, key, train) for name, algorithm in algorithms.items()}
    for _ in range(repeats + 1):
        for name, algorithm in algorithms.items():
            began = time.perf_counter()
            states[name], _ = jax.block_until_ready(fedamp_jax.round(algorithm, states[name], train, key))
            spent[name].append(time.perf_counter() - began)
    return {name: float(np.median(times[1:])) for name, times in spent.items()}


def run(options: argparse.Namespace, emnist: Source, mnist: Source) -> list[dict[str, Any]]:
    """All rows."""
    base, rows = pretrained(emnist, options.letters, options.letter_epochs), []
    mates = options.clients // options.groups - 1
    for seed in options.seeds:
        part = clients(mnist, options.clients, options.groups, options.examples, seed)
        made = {model: methods(model, mates, options.epochs) for model in models(base, options.rank)}
        for model, algorithms in made.items():
            for method, algorithm in algorithms.items():
                rows.append(of_run(model, method, algorithm, part, options.rounds, seed))
        all_of = {(method, model.name): a for model, algorithms in made.items() for method, a in algorithms.items()}
        spent = seconds(all_of, part, repeats=5)
        rows = [{"seconds": spent[row["method"], row["model"]], **row} if row["seed"] == seed else row for row in rows]
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as Markdown, means over seeds."""
    lines = ["| method | a client trains | accuracy | KB sent a round | seconds a round |", "|---|---|---|---|---|"]
    for method, model in sorted({(row["method"], row["model"]): None for row in rows}, key=lambda pair: pair[0]):
        of = [row for row in rows if (row["method"], row["model"]) == (method, model)]
        accuracy, spent = (np.mean([row[name] for row in of]) for name in ("accuracy", "seconds"))
        lines.append(f"| {method} | {model} | {accuracy:.3f} | {of[0]['bytes'] / 1e3:,.1f} | {spent:.2f} |")
    return "\n".join(lines)


def arguments() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", help="folder of emnist.npz and mnist.npz")
    parser.add_argument("--out", default="adapters.json", help="the file of results")
    for name, default, text in (
        ("rank", 4, "of the adapters"),
        ("clients", 40, "their number"),
        ("groups", 4, "their number"),
        ("examples", 60, "training images of a client, and test images"),
        ("rounds", 20, "communication rounds"),
        ("epochs", 2, "local epochs in a round"),
        ("letters", 20_000, "images that the model is pretrained on"),
        ("letter-epochs", 3, "passes over them"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{text} (%(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0], help="of clients and training")
    return parser


def main() -> None:
    """The command."""
    options = arguments().parse_args()
    split_cpu()
    rows = run(options, *(fedamp_jax.data.load(name, options.data_dir) for name in ("emnist", "mnist")))
    Path(options.out).write_text(json.dumps({"settings": vars(options), "rows": rows}, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
