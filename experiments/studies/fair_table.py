"""All methods on equal terms: each one's hyper-parameters chosen on validation data, from eight settings.

    python experiments/studies/fair_table.py run --out fair.jsonl      # the bundled digits; goes on if it was stopped
    python experiments/studies/fair_table.py run --dataset mnist --data-dir DIR --share 0.1 --pool 2 --out fair.jsonl
    python experiments/studies/fair_table.py report fair*.jsonl --figure fair.png    # the table, and the ranks

In each setting (practical, pathological, Dirichlet with 0.1, and groups that disagree about labels or turn images) the
eight settings of a method are trained on four fifths of the clients' training examples of seed 0, and compared by their
mean accuracy on the last fifth. The best one is then trained on all training examples of three seeds. Test data are
read once, for these.
"""

import argparse
import dataclasses
import itertools
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from scipy import stats

import fedamp_jax
from fedamp_jax import Solver, Task, attention
from fedamp_jax.algorithms.registry import METHODS
from fedamp_jax.files import local_path
from fedamp_jax.runner.messages import say

SETTINGS: dict[str, dict[str, Any]] = {
    "practical": {},
    "pathological": {},
    "dirichlet": {"alpha": 0.1},
    "labels": {"setting": "concept", "shift": "labels"},
    "rotation": {"setting": "concept", "shift": "rotation"},
}
SHAPES = {"digits": (10, (8, 8)), "mnist": (10, (28, 28, 1)), "cifar100": (100, (32, 32, 3))}
"""Classes and images of the data sets."""

RATES = (3e-4, 1e-3, 3e-3, 1e-2)
EIGHT_RATES = (1e-4, 3e-4, 1e-3, 2e-3, 3e-3, 5e-3, 1e-2, 3e-2)


class Grid(NamedTuple):
    """Eight settings of a method: the product of learning rates and values of a hyper-parameter.

    Attributes:
        rates: learning rates of Adam.
        name: of the hyper-parameter, "" if there is none.
        values: of it.
        make: `(rate, value) -> arguments` of the factory beside task and solver; None: `{name: value}`.
    """

    rates: Sequence[float] = EIGHT_RATES
    name: str = ""
    values: Sequence[Any] = (None,)
    make: Callable[[Any, Any], dict[str, Any]] | None = None

    def arguments(self, rate: Any, value: Any) -> dict[str, Any]:
        if self.make is not None:
            return self.make(rate, value)
        return {self.name: value} if self.name else {}

    @property
    def all(self) -> list[tuple[float, Any]]:
        return list(itertools.product(self.rates, self.values))


def _attentive(rate: Any, others: Any) -> dict[str, Any]:
    return {"sigma": attention.perplexity(others), "self_weight": 1.0 / (others + 1.0)}


GRIDS: dict[str, Grid] = {
    "FedProx": Grid(RATES, "mu", (0.01, 0.1)),
    "FedProx-FT": Grid(RATES, "mu", (0.01, 0.1)),
    "SCAFFOLD": Grid(EIGHT_RATES, make=lambda rate, value: {"learning_rate": 10.0 * rate}),
    "APFL": Grid(RATES, "alpha", (0.25, 0.75), lambda rate, value: {"alpha": value, "learning_rate": 10.0 * rate}),
    "FedAMP": Grid((1e-3, 3e-3), "others", (1.0, 3.0, 8.0, 16.0), _attentive),
    "HeurFedAMP": Grid((1e-3, 3e-3), "others", (1.0, 3.0, 8.0, 16.0), _attentive),
    "Ditto": Grid(RATES, "lam", (0.1, 1.0)),
    "PFLEGO": Grid(RATES, "beta", (0.01, 0.1), lambda rate, value: {
        "beta": value, "rho": rate, "server_optimizer": optax.adam(rate)}),
    "pFedMe": Grid(RATES, "lam", (1.0, 15.0)),
    "IFCA": Grid((1e-3, 3e-3), "k", (2, 3, 5, 8)),
    "CFL": Grid((1e-3, 3e-3), "eps1", (0.2, 0.4, 0.6, 0.8)),
    "Per-FedAvg": Grid(RATES, "alpha", (0.01, 0.1), lambda rate, value: {"alpha": value, "beta": 10.0 * rate}),
    "FedProto": Grid(RATES, "lam", (1.0, 10.0)),
    "kNN-Per": Grid(RATES, "lam", (0.3, 0.6)),
    "FedALA": Grid(RATES, "eta", (0.1, 1.0)),
    "FedPAC": Grid(RATES, "lam", (0.1, 1.0)),
    "pFedHN": Grid(RATES, "rate", (3e-4, 1e-3)),
}  # fmt: skip
"""By method; the others have eight learning rates."""


@dataclasses.dataclass(frozen=True)
class Cell:
    """What is run: one method in one setting."""

    dataset: str
    setting: str
    method: str
    rounds: int
    epochs: int
    batch: int
    share: float
    pool: int
    data_dir: str | None

    @property
    def key(self) -> tuple:
        return self.dataset, self.setting, self.method

    def federation(self, seed: int) -> fedamp_jax.data.Federation:
        """The clients of a seed, with a share of their training examples, and smaller images."""
        chosen = {"setting": self.setting, **SETTINGS[self.setting]}
        found = fedamp_jax.data.federation(self.dataset, data_dir=self.data_dir, seed=seed, **chosen)
        size = jnp.asarray(np.maximum(1, np.round(self.share * np.asarray(found.train.size))), jnp.int32)
        train = found.train._replace(x=pooled(found.train.x, self.pool), size=size)
        return found._replace(train=train, test=found.test._replace(x=pooled(found.test.x, self.pool)))

    def task(self) -> Task:
        """A perceptron with one hidden layer, for images of the data set."""
        classes, (height, width, *channels) = SHAPES[self.dataset]
        return fedamp_jax.models.mlp(classes=classes, shape=(height // self.pool, width // self.pool, *channels))

    def program(self) -> Callable[..., float]:
        """`(rate, value, train, test, seed) -> accuracy`, the clients' mean after training.

        Compiled once for all numbers and for data of the same shapes.
        """
        values, task = GRIDS.get(self.method, Grid()).values, self.task()

        def trained(rate: Any, value: Any, train: fedamp_jax.Data, test: fedamp_jax.Data, key: jax.Array) -> jax.Array:
            algorithm = self.algorithm(rate, value)
            state = algorithm.init(key, train)
            state, _ = fedamp_jax.scan_rounds(algorithm, state, train, self.rounds, key)
            reads = task if algorithm.reader is None else algorithm.reader(train)
            scores = fedamp_jax.evaluate(reads, algorithm.personalize(key, state, train), test)
            return jnp.nanmean(scores)

        traced = isinstance(values[0], float)
        compiled = jax.jit(trained, static_argnums=() if traced else (1,))

        def accuracy(rate: float, value: Any, train: fedamp_jax.Data, test: fedamp_jax.Data, seed: int) -> float:
            value = jnp.float32(value) if traced else value
            return float(compiled(jnp.float32(rate), value, train, test, jax.random.key(seed)))

        return accuracy

    def algorithm(self, rate: Any, value: Any) -> fedamp_jax.Algorithm:
        """The method with these numbers."""
        grid, method, task = GRIDS.get(self.method, Grid()), METHODS[self.method], self.task()
        solver = Solver(optax.adam(rate), epochs=self.epochs, batch_size=self.batch)
        arguments = grid.arguments(rate, value)
        if method.base is None:
            return method.factory(task, solver, **arguments)
        return method.factory(task, solver, base=METHODS[method.base].factory(task, solver, **arguments))

    def run(self, seeds: Sequence[int]) -> dict[str, Any]:
        """Choose on validation data, then train with the choice for each seed.

        `seconds` are those of the processor, so that other processes do not count: of the fastest setting, without
        compilation, as at least two settings share a program.
        """
        grid, accuracy = GRIDS.get(self.method, Grid()), self.program()
        part, validation = fedamp_jax.data.hold_out(self.federation(0).train, 0.2, seed=0)
        tried, seconds = [], []
        for rate, value in grid.all:
            before = time.process_time()
            found = accuracy(rate, value, part, validation, 0)
            seconds.append(time.process_time() - before)
            tried.append({"rate": rate, "value": value, "validation": found})
        best = max(tried, key=lambda one: (np.nan_to_num(one["validation"], nan=-1.0), -one["rate"]))
        federations = [self.federation(seed) for seed in seeds]
        test = [
            accuracy(best["rate"], best["value"], one.train, one.test, seed)
            for seed, one in zip(seeds, federations, strict=True)
        ]
        sent = fedamp_jax.traffic(self.algorithm(best["rate"], best["value"]), federations[0].train)
        return {**dataclasses.asdict(self), "name": grid.name, "tried": tried, "best": best, "seeds": list(seeds),
                "test": test, "down": sent.down, "up": sent.up, "model": sent.model,
                "seconds": min(seconds)}  # fmt: skip


def pooled(x: jax.Array, side: int) -> jax.Array:
    """Images `[N, height, width, ...]` as means over squares.

    >>> pooled(jnp.arange(16.0).reshape(1, 4, 4), 2)[0]
    Array([[ 2.5,  4.5],
           [10.5, 12.5]], dtype=float32)
    """
    if side == 1:
        return x
    n, height, width, *rest = x.shape
    return x.reshape(n, height // side, side, width // side, side, *rest).mean((2, 4)).astype(x.dtype)


def run(options: argparse.Namespace) -> None:
    """Run what is not in the file yet."""
    path = local_path(options.out, "--out")
    done = {(one["dataset"], one["setting"], one["method"]) for one in read(path)} if path.exists() else set()
    names = options.methods or [name for name, method in METHODS.items() if method.any_model]
    for setting, name in itertools.product(options.settings, names):
        cell = Cell(options.dataset, setting, name, options.rounds, options.epochs, options.batch, options.share,
                    options.pool, options.data_dir)  # fmt: skip
        if cell.key in done:
            continue
        found = cell.run(options.seeds)
        with open(path, "a") as file:
            file.write(json.dumps(found) + "\n")
        say(f"{setting:<13} {name:<12} {100 * np.mean(found['test']):5.1f} % "
            f"(rate {found['best']['rate']}, {found['name'] or 'nothing else'} {found['best']['value']})")  # fmt: skip


def read(path: str | Path) -> Iterator[dict[str, Any]]:
    """The cells of a file."""
    with open(path) as file:
        yield from map(json.loads, file)


def columns(cells: Sequence[dict[str, Any]]) -> tuple[list[str], list[tuple[str, str]], np.ndarray]:
    """Methods, `(dataset, setting)` where all of them were run, and mean test accuracies `[methods, columns]`."""
    methods = list(dict.fromkeys(one["method"] for one in cells))
    found = {(one["method"], (one["dataset"], one["setting"])): np.mean(one["test"]) for one in cells}
    blocks = [b for b in dict.fromkeys(b for _, b in found) if all((m, b) in found for m in methods)]
    return methods, blocks, 100 * np.array([[found[m, b] for b in blocks] for m in methods])


def critical_difference(methods: int, blocks: int, level: float = 0.05) -> float:
    """Nemenyi's: mean ranks that differ by more are different at this level (Demsar 2006, Section 3.2.2).

    >>> round(critical_difference(5, 30), 2)
    1.11
    """
    q = stats.studentized_range.ppf(1 - level, methods, np.inf) / np.sqrt(2)
    return float(q * np.sqrt(methods * (methods + 1) / (6 * blocks)))


def table(cells: Sequence[dict[str, Any]]) -> str:
    """A Markdown table: means and half of the range over seeds, in percent, ranks, models that are sent, and seconds.

    What is sent and the seconds are those of the first column's setting.
    """
    methods, blocks, means = columns(cells)
    by = {(one["method"], (one["dataset"], one["setting"])): one for one in cells}
    ranks = stats.rankdata(-means, axis=0).mean(axis=1)
    lines = [
        "| method | " + " | ".join(f"{d}, {s}" for d, s in blocks) + " | mean rank | models down, up | seconds |",
        "|---|" + "--:|" * (len(blocks) + 3),
    ]
    for i in np.argsort(ranks, kind="stable"):
        shown = []
        for block in blocks:
            test = 100 * np.array(by[methods[i], block]["test"])
            shown.append(f"{test.mean():.1f} ± {(test.max() - test.min()) / 2:.1f}")
        one = by[methods[i], blocks[0]]
        sent = f"{one['down'] / one['model']:.2f}, {one['up'] / one['model']:.2f}"
        lines.append(f"| {methods[i]} | {' | '.join(shown)} | {ranks[i]:.1f} | {sent} | {one['seconds']:.1f} |")
    return "\n".join(lines)


def figure(cells: Sequence[dict[str, Any]]) -> Figure:
    """Mean ranks, best on top, each with half of the critical difference to both sides."""
    methods, blocks, means = columns(cells)
    ranks = stats.rankdata(-means, axis=0).mean(axis=1)
    order, half = np.argsort(-ranks, kind="stable"), critical_difference(len(methods), len(blocks)) / 2
    made = Figure(figsize=(6.4, 0.24 * len(methods) + 1.2), layout="constrained")
    panel = made.add_subplot()
    panel.errorbar(ranks[order], np.arange(len(methods)), xerr=half, fmt="o", color="#0b5fa5", elinewidth=1)
    panel.set_yticks(np.arange(len(methods)), [methods[i] for i in order])
    panel.set_xlabel(f"mean rank over {len(blocks)} settings\n(intervals that do not overlap differ: Nemenyi, 5 %)")
    panel.grid(axis="x", alpha=0.3)
    panel.spines[["top", "right"]].set_visible(False)
    return made


def report(options: argparse.Namespace) -> None:
    """Print the table, and write the figure."""
    cells = [cell for file in options.files for cell in read(file)]
    say(table(cells))
    if options.figure:
        figure(cells).savefig(local_path(options.figure, "--figure"), dpi=150)


def main(words: Sequence[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("run", help="train, and append a line to the file for each method and setting")
    one.add_argument("--dataset", default="digits", choices=list(SHAPES))
    one.add_argument("--data-dir")
    one.add_argument("--share", type=float, default=1.0, help="of each client's training examples")
    one.add_argument("--pool", type=int, default=1, help="images are averaged over squares of this side")
    one.add_argument("--settings", nargs="+", default=list(SETTINGS), choices=list(SETTINGS))
    one.add_argument("--methods", nargs="+", choices=list(METHODS))
    one.add_argument("--rounds", type=int, default=30)
    one.add_argument("--epochs", type=int, default=10)
    one.add_argument("--batch", type=int, default=100)
    one.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    one.add_argument("--out", required=True)
    two = commands.add_parser("report", help="the table of what is there, and the figure")
    two.add_argument("files", nargs="+")
    two.add_argument("--figure")
    options = parser.parse_args(words)
    {"run": run, "report": report}[options.command](options)


if __name__ == "__main__":
    main()
