"""Accuracy of the honest clients while others send corrupted models, for every method.

In each round, faulty clients train as usual, but then send their model with the sign flipped (`sign`), scaled by ten
(`scale`), or replaced by noise of the same size (`random`). `absent` leaves these clients out from the start, which is
the best that a server which knew them could do. All results of local training are corrupted: the model, SCAFFOLD's
control variate, PFLEGO's gradient. Where the server keeps a model of each client (FedAMP, Separate), a faulty client
continues from the model it sent.

Measured after the last round is the mean test accuracy of the clients that are honest at every share, so that all
numbers are of the same clients. For methods that weight clients, the faulty clients' share of the weight that honest
clients give to others is measured too.

    python experiments/studies/faulty.py                          # the bundled digits
    python experiments/studies/faulty.py --methods FedAvg FedAMP --attacks sign --dataset mnist --data-dir DIR
"""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure
from result_types import KINDS, AttackResults, FaultyMethodResults, FaultyResults
from rich.table import Table

import fedamp_jax
from fedamp_jax import Algorithm, Info, Placement, Task
from fedamp_jax.checks import check_number
from fedamp_jax.data import Federation
from fedamp_jax.driver.rounds import round_keys
from fedamp_jax.experiments import fedamp_paper
from fedamp_jax.report import figures, files
from fedamp_jax.report.schema import Head
from fedamp_jax.runner import command_line, machine, messages, provenance, run_folder
from fedamp_jax.runner.messages import console, say
from fedamp_jax.runner.options import Options, participation

Attack = Literal["sign", "scale", "random", "absent"]
ATTACKS: dict[Attack, str] = {
    "sign": "sign flipped",
    "scale": "scaled by ten",
    "random": "noise of the same size",
    "absent": "absent (for comparison)",
}


@dataclasses.dataclass(frozen=True)
class Faults:
    """Faulty clients."""

    attacks: tuple[Attack, ...] = tuple(ATTACKS)
    """The model times -1 (sign) or 10 (scale), random, or absent."""
    shares: tuple[float, ...] = (0.1, 0.2, 0.3)
    """Shares of the clients that are faulty."""

    name = "practical"

    def arguments(self) -> dict[str, Any]:
        """Of `fedamp_jax.data.federation`: none."""
        return {}


MEANINGLESS = (
    "evaluate_every", "checkpoint_every", "keep_checkpoints", "save_models", "holdout_clients", "validation_fraction",
    "devices", "log", "offload", "dry_run",
)  # fmt: skip
"""Options that are refused: a run is one compiled program, and evaluated once."""


class Fault(NamedTuple):
    """Which clients are faulty, and how.

    Attributes:
        bad: `[M]` bool, the faulty clients.
        kind: `[]` int32, position of the attack in `ATTACKS`.
    """

    bad: jax.Array
    kind: jax.Array


def corruption(fault: Fault) -> Callable[[jax.Array, fedamp_jax.Data, Any], Any]:
    """The second argument of `fedamp_jax.corrupted`. Here, a client's id is its position."""

    def corrupt(key: jax.Array, client: fedamp_jax.Data, trained: Any) -> Any:
        def leaf(number: int, a: jax.Array) -> jax.Array:
            if not jnp.issubdtype(a.dtype, jnp.floating):
                return a
            noise = jax.random.normal(jax.random.fold_in(key, number), a.shape, a.dtype)
            noise = noise * jnp.sqrt(jnp.mean(jnp.square(a)))
            sent = jnp.select([fault.kind == 0, fault.kind == 1, fault.kind == 2], [-a, 10 * a, noise], a)
            return jnp.where(fault.bad[client.id], sent, a)

        leaves, tree = jax.tree.flatten(trained)
        return jax.tree.unflatten(tree, [leaf(i, a) for i, a in enumerate(leaves)])

    return corrupt


def trainer(algorithm: Algorithm, options: Options, federation: Federation, task: Task) -> Callable[[Fault], tuple]:
    """A compiled program for every fault of one method: `Fault -> (accuracy [M], xi [M, M] or None, rejected [M])`."""
    rounds, key = options.schedule.number_of_rounds, jax.random.key(options.schedule.seed)
    train, test = (Placement(chunk=options.machine.chunk).place(data) for data in federation[:2])
    who = participation(options.schedule, len(train.size))

    def weights_and_rejected(key: jax.Array, state: Any, info: Info) -> tuple[jax.Array | None, jax.Array]:
        return info.xi, info.rejected

    @jax.jit
    def run(fault: Fault) -> tuple[jax.Array, jax.Array | None, jax.Array]:
        there = ~(fault.bad & (fault.kind == 3))
        state, (xi, rejected) = fedamp_jax.scan_rounds(
            fedamp_jax.corrupted(algorithm, corruption(fault)), algorithm.init(key, train),
            train._replace(online=there), rounds, key, participation=who, each=weights_and_rejected,
        )  # fmt: skip
        models = algorithm.personalize(round_keys(key, rounds - 1)[2], state, train)
        accuracy = fedamp_jax.evaluate(task, models, test)
        return accuracy, None if xi is None else xi[-1], jnp.sum(rejected, axis=0)

    return run


def weight_to_bad(xi: np.ndarray, bad: np.ndarray) -> float:
    """The faulty clients' share of the weight that honest clients give to others; NaN if these give none."""
    others = xi * ~np.eye(len(xi), dtype=bool)
    given = others[~bad].sum(axis=1)
    giving = given > 0
    return float((others[~bad][:, bad].sum(axis=1)[giving] / given[giving]).mean()) if giving.any() else np.nan


def measure(algorithm: Algorithm, options: Options, federation: Federation, task: Task) -> FaultyMethodResults:
    """One method's entry in results.json; accuracies in percent."""
    m = len(federation.train.size)
    order = np.random.default_rng(options.schedule.seed).permutation(m)
    bad = {share: np.isin(np.arange(m), order[: round(share * m)]) for share in sorted(options.setting.shares)}
    always_honest = ~np.any(list(bad.values()), axis=0)
    began, run = time.perf_counter(), trainer(algorithm, options, federation, task)

    def train(mask: np.ndarray, attack: Attack) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        fault = Fault(jnp.asarray(mask), jnp.asarray(list(ATTACKS).index(attack), jnp.int32))
        accuracy, xi, rejected = run(fault)
        return 100.0 * np.asarray(accuracy, np.float64), None if xi is None else np.asarray(xi), np.asarray(rejected)

    clean = train(np.zeros(m, bool), "sign")[0][always_honest]
    attacks: dict[str, AttackResults] = {}
    for attack in options.setting.attacks:
        results = [train(mask, attack) for mask in bad.values()]
        given: list[float | None] = [
            weight_to_bad(xi, mask) for (_, xi, _), mask in zip(results, bad.values()) if xi is not None
        ]
        attacks[attack] = {
            "shares": list(bad),
            "accuracy": [float(accuracy[always_honest].mean()) for accuracy, _, _ in results],
            "worst_client": [float(accuracy[always_honest].min()) for accuracy, _, _ in results],
            "weight_to_faulty": given or None,
            "rejected": [int((rejected > 0).sum()) for _, _, rejected in results],
        }
    seconds = time.perf_counter() - began
    honest = np.flatnonzero(always_honest).tolist()
    return {"clean": float(clean.mean()), "attacks": attacks, "honest": honest, "seconds": seconds}


def draw(results: FaultyResults) -> Figure:
    """Accuracy of the honest clients over the share of faulty ones, with a panel per attack and a line per method."""
    panels: dict[str, dict[str, figures.Curve]] = {}
    for attack in results["settings"]["attacks"]:
        curves: dict[str, figures.Curve] = {}
        for name, method in results["methods"].items():
            row = method["attacks"][attack]
            percent = [0.0, *(100 * share for share in row["shares"])]
            curves[name] = figures.Curve(percent, [method["clean"], *row["accuracy"]])
        panels[ATTACKS[attack]] = curves
    figure = figures.curve_panels(panels)
    for panel in figure.axes:
        panel.set(xlabel="faulty clients (%)", ylim=(0, 100))
    figure.suptitle(f"Accuracy of the honest clients: {results['dataset']}")
    return figure


def table(results: FaultyResults) -> Table:
    """Accuracies at the largest share, and the share of their weight that honest clients give to faulty ones."""
    attacks = results["settings"]["attacks"]
    largest = messages.percent(max(results["settings"]["shares"]))
    shown = Table(title=f"Honest clients' accuracy (%), {largest} faulty; in brackets: weight given to the faulty (%)")
    for column in ("method", "none", *attacks):
        shown.add_column(column, justify="left" if column == "method" else "right")
    for name, method in results["methods"].items():
        cells = []
        for attack in attacks:
            row = method["attacks"][attack]
            weights = row["weight_to_faulty"]
            given = "" if weights is None or weights[-1] is None else f" ({100 * weights[-1]:.1f})"
            cells.append(f"{row['accuracy'][-1]:.2f}{given}")
        shown.add_row(name, f"{method['clean']:.2f}", *cells)
    return shown


def check_shares(shares: tuple[float, ...], m: int) -> None:
    """Refuse shares that amount to the same number of `m` clients, or to none."""
    seen: dict[int, float] = {}
    for share in sorted(shares):
        faulty = round(share * m)
        if faulty == 0:
            raise ValueError(f"--shares {share:g} is none of {m} clients; give at least {1 / m:.2g}")
        if faulty in seen:
            both = f"--shares {seen[faulty]:g} and {share:g} are both {faulty} of {m} clients"
            raise ValueError(f"{both}; leave out one of them")
        seen[faulty] = share


def finish(options: Options) -> Options:
    """As `fedamp_paper.finish`, with 15 rounds for digits.

    Raises:
        ValueError: a share is no share, or an option has no meaning here.
    """
    defaults, given = Options().flat(), options.flat()
    if wrong := [name for name in MEANINGLESS if given[name] != defaults[name]]:
        flag = wrong[0].replace("_", "-")
        raise ValueError(f"--{flag} has no meaning here, as a run is one program that is evaluated once: leave it out")
    for share in options.setting.shares:
        check_number("--shares", share, low=0, high=0.9)
    if options.schedule.rounds is None and options.data.dataset == "digits":
        options = options.replace(rounds=15)
    return fedamp_paper.finish(options)


EXPERIMENT = fedamp_paper.experiment(
    "faulty",
    __doc__,
    options=Options(setting=Faults(), attention=fedamp_paper.Attention()),
    quick_names=(),
    finish=finish,
    panels={},
)


def execute(options: Options, folder: Path) -> None:
    """Measure every chosen method, writing results into `folder` after each one."""
    machine.configure(options.machine.precision, options.training.dtype)
    data = options.data
    federation = fedamp_jax.data.federation(
        data.dataset, "practical", data_dir=data.data_dir, seed=options.schedule.seed
    )
    check_shares(options.setting.shares, len(federation.train.size))
    participation(options.schedule, len(federation.train.size))
    task, names = fedamp_paper.model(options, federation), EXPERIMENT.chosen(options)
    done, head = run_folder.open_folder(folder, options, "faulty", KINDS)
    order = [name for name in EXPERIMENT.names if name in names or name in done]
    available = fedamp_paper.methods(options, federation, task, order)
    kept = cast(Head, head) if all(n in done for n in order) else provenance.describe("faulty", options)
    results: FaultyResults = {**kept, "clients": len(federation.train.size), "methods": {}}
    for name in order:
        if name not in done:
            done[name] = measure(available[name], options, federation, task)
        say(f"{name}: {done[name]['seconds']:.0f} s")
        results["methods"] = {n: done[n] for n in order if n in done}
        files.write_json(results, folder / "results.json")
    figures.save(draw(results), folder / "faulty.png")
    console.print(table(results))
    say(f"Figure: {folder / 'faulty.png'}")


def main() -> None:
    """Run from the command line."""
    with command_line.readable_errors(resumable=True):
        command = command_line.parse(EXPERIMENT, kinds=KINDS)
        if command.seeds:
            raise ValueError("--seeds is for experiments with curves: give --seed here, and another --out for each")
        execute(command.variants[0].options, command_line.folder_of(command, "faulty"))


if __name__ == "__main__":
    main()
