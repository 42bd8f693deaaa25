"""Some clients send rubbish: what becomes of the honest ones, under every method.

In each round a share of the clients trains honestly and then sends its model with the sign turned (`sign`), ten times
too large (`scale`), or as noise of the same size (`random`); `absent` leaves the same clients out from the start, which
is the best that a server which knew them could do. What is corrupted is all that local training replaces: the model,
SCAFFOLD's control variate, PFLEGO's gradient. Where the server holds a client's own model (FedAMP, Separate), the liar
goes on from what it sent.

Measured is the mean test accuracy of those clients that are honest at every share, so that all numbers are of the same
clients, after the last round; and, for the methods that weigh clients, how much of the weight that an honest client
gives to others goes to faulty ones.

    python experiments/faulty.py                          # the bundled digits
    python experiments/faulty.py --methods FedAvg FedAMP --attacks sign --dataset mnist --data-dir DIR
"""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, NamedTuple

import command_line
import common
import jax
import jax.numpy as jnp
import numpy as np
import outputs
import runner
from command_line import Unused
from matplotlib.figure import Figure
from rich.table import Table

import fedamp_jax
from fedamp_jax import Task, checks, plotting, report
from fedamp_jax.data import Federation

Attack = Literal["sign", "scale", "random", "absent"]
ATTACKS = {
    "sign": "sign turned",
    "scale": "ten times too large",
    "random": "noise of the same size",
    "absent": "absent (for comparison)",
}


@dataclasses.dataclass
class Options(common.Options):
    """The settings of one run. Without any, everything runs on the bundled digits."""

    rounds: int | None = None
    """Communication rounds. Default: the paper's 90; 15 on digits."""
    attacks: tuple[Attack, ...] = tuple(ATTACKS)
    """What faulty clients send; absent: nothing."""
    shares: tuple[float, ...] = (0.1, 0.2, 0.3)
    """Shares of the clients that are faulty."""
    # All faults of a method are one program that is evaluated once: these have no meaning here.
    evaluate_every: Unused[int] = 1
    checkpoint_every: Unused[int] = 10
    sigma_sweep: Unused[bool] = False
    devices: Unused[int | None] = None
    offload: Unused[bool] = False


class Fault(NamedTuple):
    """Attributes: bad: `[M]` bool, who is faulty. kind: `[]` int32, the attack's place in `ATTACKS`."""

    bad: jax.Array
    kind: jax.Array


def corruption(fault: Fault) -> Callable[[jax.Array, fedamp_jax.Data, Any], Any]:
    """The `Solver.corrupt` of a fault. Client ids are positions here."""

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


def trainer(name: str, options: Options, federation: Federation, task: Task) -> Callable[[Fault], tuple]:
    """One compiled program for all faults of a method: `Fault -> (accuracy [M], xi [M, M] or None, rejected [M])`."""
    train, test, _ = federation
    key = jax.random.key(options.seed)

    @jax.jit
    def run(fault: Fault) -> tuple[jax.Array, jax.Array | None, jax.Array]:
        with jax.ensure_compile_time_eval():  # it looks at the data to choose hyper-parameters
            algorithm = common.make_algorithms("practical", options, federation, task, corruption(fault))[name]
        there = ~(fault.bad & (fault.kind == 3))

        def step(state: Any, k: jax.Array) -> tuple[Any, fedamp_jax.Info]:
            key_online, key_round = jax.random.split(jax.random.fold_in(key, k))
            invited = fedamp_jax.sample_online(key_online, len(train.size), options.participation, options.drop_rate)
            return algorithm.round(key_round, state, train._replace(online=invited & there))

        state, infos = jax.lax.scan(step, algorithm.init(key, train), jnp.arange(options.rounds, dtype=jnp.int32))
        accuracy = fedamp_jax.evaluate(task, algorithm.personalize(key, state, train), test)
        return accuracy, None if infos.xi is None else infos.xi[-1], jnp.sum(infos.rejected, axis=0)

    return run


def weight_to_bad(xi: np.ndarray, bad: np.ndarray) -> float:
    """Share of the weight which honest clients give to others that goes to faulty ones; NaN if they give none."""
    others = xi * ~np.eye(len(xi), dtype=bool)
    given = others[~bad].sum(axis=1)
    listening = given > 0
    return float((others[~bad][:, bad].sum(axis=1)[listening] / given[listening]).mean()) if listening.any() else np.nan


def measure(name: str, options: Options, federation: Federation, task: Task) -> dict[str, Any]:
    """One method's entry in results.json; accuracies in percent."""
    m = len(federation.train.size)
    order = np.random.default_rng(options.seed).permutation(m)
    bad = {share: np.isin(np.arange(m), order[: round(share * m)]) for share in sorted(options.shares)}
    always_honest = ~np.any(list(bad.values()), axis=0)
    began, run = time.perf_counter(), trainer(name, options, federation, task)

    def train(mask: np.ndarray, attack: str) -> tuple[np.ndarray, np.ndarray | None, np.ndarray]:
        fault = Fault(jnp.asarray(mask), jnp.asarray(list(ATTACKS).index(attack), jnp.int32))
        accuracy, xi, rejected = run(fault)
        return 100.0 * np.asarray(accuracy, np.float64), None if xi is None else np.asarray(xi), np.asarray(rejected)

    clean = train(np.zeros(m, bool), "sign")[0][always_honest]
    entry: dict[str, Any] = {"clean": float(clean.mean()), "attacks": {}}
    for attack in options.attacks:
        rows = [train(mask, attack) for mask in bad.values()]
        given = None if rows[0][1] is None else [weight_to_bad(row[1], mask) for row, mask in zip(rows, bad.values())]
        entry["attacks"][attack] = {
            "shares": list(bad),
            "accuracy": [float(row[0][always_honest].mean()) for row in rows],
            "worst_client": [float(row[0][always_honest].min()) for row in rows],
            "weight_to_faulty": given,
            "rejected": [int((row[2] > 0).sum()) for row in rows],
        }
    return {**entry, "honest": np.flatnonzero(always_honest).tolist(), "seconds": time.perf_counter() - began}


def draw(results: dict[str, Any]) -> Figure:
    """Accuracy of the honest clients over the share of faulty ones: a panel per attack, a line per method."""
    panels = {}
    for attack in results["settings"]["attacks"]:
        curves = {}
        for name, method in results["methods"].items():
            row = method["attacks"][attack]
            percent = [0.0, *(100 * share for share in row["shares"])]
            curves[name] = {"rounds": percent, "mean_accuracy": [method["clean"], *row["accuracy"]]}
        panels[ATTACKS[attack]] = {"methods": curves}
    figure = plotting.panels({**results, "parts": panels})
    for panel in figure.axes:
        panel.set(xlabel="faulty clients (%)", ylim=(0, 100))
    figure.suptitle(f"Accuracy of the clients that stay honest: {results['dataset']}")
    return figure


def table(results: dict[str, Any]) -> Table:
    """Accuracies at the largest share, and what part of their weight honest clients give to the faulty ones."""
    attacks = results["settings"]["attacks"]
    largest = outputs.percent(max(results["settings"]["shares"]))
    shown = Table(title=f"Honest clients' accuracy (%), {largest} faulty; in brackets: weight given to these (%)")
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
    """Refuse shares that are the same clients, or nobody, of `m`."""
    seen: dict[int, float] = {}
    for share in sorted(shares):
        faulty = round(share * m)
        if faulty == 0:
            raise ValueError(f"--shares {share:g} is none of {m} clients; give at least {1 / m:.2g}")
        if faulty in seen:
            both = f"--shares {seen[faulty]:g} and {share:g} are {faulty} of {m} clients both"
            raise ValueError(f"{both}; leave out one of them")
        seen[faulty] = share


def execute(options: Options, folder: Path) -> None:
    """Measure every chosen method, writing results into `folder` after each one."""
    for share in options.shares:
        checks.number("shares", share, low=0, high=0.9)
    runner.configure(options.precision)
    federation = fedamp_jax.data.federation(options.dataset, "practical", data_dir=options.data_dir, seed=options.seed)
    check_shares(options.shares, len(federation.train.size))
    task = common.make_task(options, federation)
    available = common.make_algorithms("practical", options, federation, task)
    names = runner.chosen(options.methods, available)
    done = outputs.open_folder(folder, options, "faulty")
    results = {**outputs.describe_run("faulty", options), "clients": len(federation.train.size), "methods": {}}
    for name in [n for n in available if n in names or n in done]:
        results["methods"][name] = done.get(name) or measure(name, options, federation, task)
        outputs.console.print(f"{name}: {results['methods'][name]['seconds']:.0f} s", highlight=False)
        report.write_json(results, folder / "results.json")
    plotting.save(draw(results), folder / "faulty.png")
    outputs.console.print(table(results))
    outputs.console.print(f"Figure: {folder / 'faulty.png'}", highlight=False, soft_wrap=True)


def main() -> None:
    """Run from the command line."""
    command = command_line.parse(Options, __doc__, "faulty")
    with command_line.errors_for_people():
        folder = Path(command.out) if command.out else outputs.default_folder("faulty", command)
        rounds = 15 if command.rounds is None and command.dataset == "digits" else command.rounds
        execute(common.finish(dataclasses.replace(command, rounds=rounds), "practical"), folder)


if __name__ == "__main__":
    main()
