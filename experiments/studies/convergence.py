"""Theorems 1 and 2 of the FedAMP paper (Huang et al. 2021, Section 5): measured gap and bound for K = 10 to 1000.

    python experiments/studies/convergence.py
    python experiments/studies/convergence.py --clients 20 --rounds 10 100 1000

Runs Eq. 3 and 4 in float64 with alpha = lam / sqrt(K), Eq. 4 solved to 1e-12 by Newton's method.

Theorem 1 requires a convex calA(W) = sum_ij A(||w_i - w_j||^2). None of the paper's three examples of A gives one, as
they saturate. A(t) = sigma (sqrt(1 + t / sigma) - 1) does, as A(||d||^2) is the pseudo-Huber norm of d; it satisfies
Definition 1 (increasing, concave, A(0) = 0, A' finite at 0). The losses are logistic regressions. Theorem 2 is measured
with the paper's A(t) = 1 - exp(-t / sigma) and non-convex losses, r^2 / (1 + r^2) of the residual r of a linear model.

The third curve is Eq. 5 as printed, which omits the factor 2 of the gradient in Eq. 3. Half the step on calA, together
with the full proximal weight of Eq. 4, minimizes F + lam / 2 calA in place of G, so its gap to G* does not vanish.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypedDict

import numpy as np
import tyro
from matplotlib.figure import Figure
from objective import Array, Problem, logistic, minimize, neg_exp, prox, pseudo_huber, robust
from result_types import KINDS, ConvergenceResults, TheoremResults

from fedamp_jax.checks import check_integer, check_number
from fedamp_jax.files import local_path
from fedamp_jax.report import figures, files
from fedamp_jax.report.provenance import describe_run
from fedamp_jax.runner import command_line, run_folder
from fedamp_jax.runner.messages import say


@dataclasses.dataclass(frozen=True)
class Options:
    """The settings of one run."""

    clients: int = 8
    """Number of clients, m."""
    dimension: int = 5
    """Number of parameters of a client's model, d."""
    examples: int = 30
    """Number of examples per client."""
    lam: float = 1.0
    """The paper's lambda."""
    sigma: float = 1.0
    """Scale of the squared distance in A (the paper's sigma)."""
    rounds: tuple[int, ...] = (10, 18, 32, 56, 100, 178, 316, 562, 1000)
    """Numbers of rounds, K. Each value is a separate run."""
    seed: int = 0
    """Random seed: decides the data and the initial models W^0."""
    out: str = "results/convergence"
    """Folder for results.json and convergence.png."""


class Gaps(TypedDict):
    """The part of a theorem's results that does not depend on the theorem."""

    K: list[int]
    gap: list[float]
    B: list[float]
    gap_eq5: list[float]
    slope: float


class Trace(NamedTuple):
    """What is recorded in a run of K rounds.

    Attributes:
        value: `[K + 1]`, G.
        norm: `[K + 1]`, the norm of its gradient.
        largest: the B of Assumption 1.
    """

    value: Array
    norm: Array
    largest: float


def run(problem: Problem, start: Array, rounds: int, *, printed: bool = False) -> Trace:
    """Algorithm 1 with `alpha = lam / sqrt(K)`.

    Args:
        problem: Eq. 1.
        start: W^0.
        rounds: K.
        printed: Eq. 5 as printed in place of Eq. 3: half the gradient of calA.
    """
    alpha, w = problem.lam / np.sqrt(rounds), start
    values, norms, largest = [], [], 0.0
    for k in range(rounds + 1):
        if k:
            w = prox(problem.loss, w - alpha * (0.5 if printed else 1.0) * problem.pull(w), problem.lam / alpha)
        of_f, of_a = np.linalg.norm(problem.loss.slope(w)), np.linalg.norm(problem.pull(w))
        largest = max(largest, of_f, problem.lam * of_a)
        values.append(problem.value(w))
        norms.append(np.linalg.norm(problem.gradient(w)))
    return Trace(np.array(values), np.array(norms), float(largest))


def theorem1(options: Options) -> TheoremResults:
    """The convex case: `min_k G(W^k) - G*` against `(||W^0 - W*||^2 + 5 B^2) / sqrt(K)`."""
    rng = np.random.default_rng(options.seed)
    loss = logistic(rng, options.clients, options.examples, options.dimension)
    problem = Problem(loss, pseudo_huber(options.sigma), options.lam)
    start = 3 * rng.normal(size=(options.clients, options.dimension))
    best, least = minimize(problem, [start])
    halved, _ = minimize(problem._replace(lam=options.lam / 2), [start])
    rows = measure(problem, start, options.rounds, lambda trace: trace.value.min() - least)
    apart = float(np.sum((start - best) ** 2))
    bound = [(apart + 5 * big**2) / np.sqrt(rounds) for rounds, big in zip(rows["K"], rows["B"], strict=True)]
    return {**rows, "bound": bound, "best": least, "eq5_floor": problem.value(halved) - least}


def theorem2(options: Options) -> TheoremResults:
    """The smooth case: `min_k ||grad G(W^k)||^2` against `18 (G(W^0) - G* + 20 L B^2) / sqrt(K)`.

    The theorem's O(1/K) is left out, and G* is the best of several minima found, which is not below the true G*. Both
    make this bound smaller than the theorem's.
    """
    rng = np.random.default_rng(options.seed)
    loss = robust(rng, options.clients, options.examples, options.dimension)
    problem = Problem(loss, neg_exp(options.sigma), options.lam)
    start = rng.normal(size=(options.clients, options.dimension))
    _, least = minimize(problem, [start, *(rng.normal(size=start.shape) for _ in range(5))])
    rows = measure(problem, start, options.rounds, lambda trace: trace.norm.min() ** 2)
    fall, big_l = problem.value(start) - least, problem.smooth(options.clients)
    bound = [
        18 * (fall + 20 * big_l * big**2) / np.sqrt(rounds) for rounds, big in zip(rows["K"], rows["B"], strict=True)
    ]
    return {**rows, "bound": bound, "best": least, "L": big_l}


def measure(problem: Problem, start: Array, rounds: tuple[int, ...], gap: Callable[[Trace], float]) -> Gaps:
    """Run for every K, and once more with Eq. 5 as printed."""
    traces = [run(problem, start, k) for k in rounds]
    gaps = [float(gap(trace)) for trace in traces]
    printed = [float(gap(run(problem, start, k, printed=True))) for k in rounds]
    largest = [trace.largest for trace in traces]
    return {"K": list(rounds), "gap": gaps, "B": largest, "gap_eq5": printed, "slope": slope(rounds, gaps)}


def slope(rounds: Sequence[float], gap: Sequence[float]) -> float:
    """Least-squares slope of log gap over log K; the theorems promise -1/2 or less."""
    return float(np.polyfit(np.log(rounds), np.log(np.maximum(gap, 1e-300)), 1)[0])


def draw(results: ConvergenceResults) -> Figure:
    """Measured gap and bound over K, with a log-log panel for each theorem."""
    figure = Figure(figsize=(9.5, 4.2), layout="constrained")
    titles = {
        "theorem1": ("Theorem 1, convex", "min G(W) - G*"),
        "theorem2": ("Theorem 2, smooth, not convex", "min ||grad G(W)||^2"),
    }
    for axes, (key, (title, label)) in zip(figure.subplots(1, 2), titles.items(), strict=True):
        rows = results[key]
        axes.loglog(rows["K"], rows["bound"], "--", color="#000000", label="bound of the theorem")
        axes.loglog(rows["K"], rows["gap_eq5"], "v-.", color="#E69F00", label="measured, Eq. 5 as printed")
        if rows.get("eq5_floor"):
            axes.axhline(rows["eq5_floor"], color="#E69F00", linestyle=":", label="limit of Eq. 5 as printed")
        axes.loglog(rows["K"], rows["gap"], "o-", color="#0072B2", label=f"measured (slope {rows['slope']:.2f})")
        axes.set(title=title, xlabel="rounds K, alpha = lam / sqrt(K)", ylabel=label)
        axes.grid(visible=True, color="0.9")
        axes.legend(frameon=False, fontsize=9)
    return figure


def execute(options: Options) -> ConvergenceResults:
    """Measure both theorems; writes `results.json` and `convergence.png`, returns the results."""
    for name in ("clients", "dimension", "examples"):
        check_integer(f"--{name}", getattr(options, name), low=2)
    for name in ("lam", "sigma"):
        check_number(f"--{name}", getattr(options, name), low=0)
    for rounds in options.rounds:
        check_integer("--rounds", rounds, low=1)
    folder = local_path(options.out, "--out")
    options = dataclasses.replace(options, rounds=tuple(sorted(set(options.rounds))))
    if len(options.rounds) < 2:
        raise ValueError(f"--rounds needs at least two values of K, for a slope; got {options.rounds}")
    settings = {name: value for name, value in json.loads(json.dumps(vars(options))).items() if name != "out"}
    run_folder.results_in(folder, {"experiment": "convergence", **settings}, KINDS)
    head = describe_run("convergence", "made up", settings, list(options.rounds))
    results: ConvergenceResults = {**head, "theorem1": theorem1(options), "theorem2": theorem2(options)}
    files.write_json(results, folder / "results.json")
    figures.save(draw(results), folder / "convergence.png")
    for key, rows in (("theorem1", results["theorem1"]), ("theorem2", results["theorem2"])):
        worst = max(g / b for g, b in zip(rows["gap"], rows["bound"], strict=True))
        text = f"{key}: slope {rows['slope']:.2f}, largest measured / bound {worst:.2g}"
        say(text)
    return results


def main() -> None:
    """Run from the command line."""
    options = tyro.cli(Options, description=__doc__)
    with command_line.readable_errors():
        execute(options)


if __name__ == "__main__":
    main()
