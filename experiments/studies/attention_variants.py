"""Which attention earns its keep? FedAMP with other weights, the same setting for every data set.

    python experiments/studies/attention_variants.py --seeds 0 1 2  # the bundled digits, judged by validation data
    python experiments/studies/attention_variants.py --dataset cifar100 --data-dir DIR --model mlp --train-share 0.2
    python experiments/studies/attention_variants.py --validation-fraction 0 --methods FedAMP perplexity-8 groups mean

Every variant is FedAMP as in `practical.py` but for its attention weights. Choose one by validation data: by default
each client trains on 80 % of its examples and is judged by the rest. Then judge it once by the test data.
`groups` knows the true groups, and `mean` hears everybody alike: what lies between them is all that attention can win.
"""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

import fedamp_jax
from fedamp_jax import Algorithm, Solver, Task, attention
from fedamp_jax.algorithms.fedamp import ALPHA, proximal
from fedamp_jax.attention import Memory, normalize, perplexity
from fedamp_jax.checks import check_number
from fedamp_jax.data import Federation, hold_out
from fedamp_jax.engine import broadcast_to_clients, server
from fedamp_jax.experiments import fedamp_paper, paper_values
from fedamp_jax.placement import ByParameters
from fedamp_jax.report.schema import RunResults
from fedamp_jax.runner import command_line, cost, grid, run_folder
from fedamp_jax.runner.options import Unused
from fedamp_jax.runner.train import train_methods
from fedamp_jax.trees import head_mask, partition

SIGMAS = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""The grid over which a person would tune FedAMP's sigma."""

Score = Callable[..., Any]
"""`(distances [M, M], edges [M, M]) -> scores [M, M]` whose softmax are the weights of the others."""


@dataclasses.dataclass(frozen=True)
class Options(fedamp_paper.Options):
    """The settings of one run."""

    methods: tuple[str, ...] = ("all",)
    """Variants to train, by name (FedAMP, perplexity-8, ...), or all."""
    validation_fraction: float = 0.2
    """Share of the training data to judge by, in place of test data."""
    setting: Literal["practical", "dirichlet"] = "practical"
    """practical: groups of clients; dirichlet: classes by --alpha."""
    alpha: float = 0.1
    """Concentration of Dirichlet; the smaller, the fewer classes of a client."""
    train_share: float = 1.0
    """Share of each client's training examples that is used."""
    sigma: float | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """Of the variant FedAMP. Default: the paper's or ours."""
    heur_sigma: float | None = None  # pyright: ignore[reportIncompatibleVariableOverride]
    """Of the variant HeurFedAMP. Default: the paper's or ours."""
    sgd_learning_rate: Unused[float] = paper_values.SGD_LEARNING_RATE
    holdout_clients: Unused[int] = 0


@dataclasses.dataclass(frozen=True)
class Command(Options):
    """The options of the command."""

    seeds: tuple[int, ...] = ()
    """Several seeds instead of --seed; mean and deviation are reported."""


def softmax_of(k: Any) -> Score:
    """Scores of perplexity k."""

    def score(t: jax.Array, edges: jax.Array) -> jax.Array:
        return -t / attention.scales(lambda sigma: -t / sigma, t, edges, jnp.float32(k))

    return score


def largest_gap(t: jax.Array, edges: jax.Array) -> jax.Array:
    """Equal scores for all before the largest gap in a client's sorted distances, none for those behind it."""
    far = jnp.where(edges, t, jnp.inf)
    near = jnp.sort(far, axis=1)
    gaps = jnp.where(jnp.isfinite(near[:, 1:]), near[:, 1:] - near[:, :-1], -jnp.inf)
    last = jnp.take_along_axis(near, jnp.argmax(gaps, axis=1)[:, None], axis=1)
    return jnp.where(far <= last, 0.0, -jnp.inf)


def by_layer(models: ByParameters, edges: jax.Array) -> jax.Array:
    """Squared distances, those of each layer relative to their mean."""
    total = jnp.zeros(edges.shape, jnp.float32)
    for leaf in jax.tree.leaves(models.tree):
        t = server.sq_dists(models.placement.by_parameters(leaf))
        total += t / jnp.maximum(jnp.mean(t), 1e-30)
    return total


def make_algorithms(options: Options, federation: Federation, task: Task) -> dict[str, Algorithm]:
    """Every variant by its name."""
    solver, m = fedamp_paper.make_solver(options), len(federation.train.size)
    self_weight = jnp.asarray(paper_values.self_weights(options.setting, federation), jnp.float32)
    common = {"self_weight": self_weight, "lam": paper_values.LAMBDA}
    published = fedamp_paper.make_algorithms(options.setting, options, federation, task)
    named = {name: published[name] for name in ("Separate", "FedAvg-FT")}
    for name, sigma in (("FedAMP", options.sigma), *((f"sigma-{s:g}", s) for s in SIGMAS)):
        named[name] = fedamp_jax.fedamp(task, solver, sigma=sigma, **common)
    named["HeurFedAMP"] = fedamp_jax.heurfedamp(task, solver, sigma=options.heur_sigma, **common)
    for k in (4, 8, 15):
        named[f"perplexity-{k}"] = fedamp_jax.fedamp(task, solver, sigma=perplexity(k), **common)
        own = {**common, "self_weight": own_weight(k)}
        named[f"auto-{k}"] = fedamp_jax.fedamp(task, solver, sigma=perplexity(k), **own)
    falling = lambda k: jnp.maximum(8.0, (m - 1) * 0.8 ** k.astype(jnp.float32))  # noqa: E731
    return {
        **named,
        "cosine-8": fedamp_jax.heurfedamp(task, solver, sigma=perplexity(8), **common),
        "falling-8": fedamp_jax.fedamp(task, solver, sigma=perplexity(falling), **common),
        "perplexity-8-FT": one_round_more(named["perplexity-8"]),
        **other_weights(task, solver, self_weight, federation),
    }


def own_weight(k: int) -> float:
    """`xi_ii` of a client that listens to about `k` others: its share among `k + 1` equals, as in Appendix C."""
    return 1 / (k + 1)


def other_weights(task: Task, solver: Solver, self_weight: Any, federation: Federation) -> dict[str, Algorithm]:
    """The variants whose weights are not those of `fedamp` or `heurfedamp`, by name."""
    groups, m = federation.groups, len(federation.train.size)

    def variant(weights: Callable[..., Any], memory: Memory | None = None) -> Algorithm:
        """FedAMP with `weights(models, edges, k, own, *remembered) -> [M, M]`."""

        def of_round(models: ByParameters, edges: Any, k: Any, data: Any, *remembered: Any) -> Any:
            own = broadcast_to_clients("self_weight", self_weight, data)
            return weights(models, edges, k, own, *remembered)

        penalty = proximal(ALPHA, paper_values.LAMBDA)
        return fedamp_jax.attentive(task, solver, of_round, memory=memory, penalty=penalty)

    def by_score(score: Score, models: ByParameters, edges: Any, k: Any, own: Any) -> Any:
        return normalize(score(server.sq_dists(models), edges), edges, own)

    def fixed(score: Any) -> Callable[..., Any]:
        """Scores that the models do not decide; on a mesh the rows of padding clients are filled up."""

        def weights(models: Any, edges: Any, k: Any, own: Any) -> Any:
            extra = edges.shape[0] - m
            return normalize(jnp.pad(score, ((0, extra), (0, extra))), edges, own)

        return weights

    def mixture(models: Any, edges: Any, k: Any, own: Any) -> Any:
        few, all_others = by_score(softmax_of(4), models, edges, k, own), normalize(jnp.zeros(edges.shape), edges, own)
        return (few + all_others) / 2

    def heads(models: ByParameters, edges: Any, k: Any, own: Any) -> Any:
        head = partition(models.tree, head_mask(task, models.tree))[0]
        return by_score(softmax_of(8), models.placement.by_parameters(head), edges, k, own)

    def updates(models: ByParameters, edges: Any, k: Any, own: Any, begun: Any) -> Any:
        moved = models.placement.by_parameters(jax.tree.map(jnp.subtract, models.tree, begun))
        return by_score(softmax_of(8), moved, edges, k, own)

    def momentum(models: Any, edges: Any, k: Any, own: Any, last: Any) -> Any:
        new = by_score(softmax_of(8), models, edges, k, own)
        return jnp.where(k == 0, new, (new + last) / 2)

    def layers(models: ByParameters, edges: Any, k: Any, own: Any) -> Any:
        return normalize(softmax_of(8)(by_layer(models, edges), edges), edges, own)

    rows = lambda start: jax.tree.leaves(start)[0].shape[0]  # noqa: E731
    last_xi = Memory(lambda start: jnp.zeros((rows(start),) * 2), lambda memory, begin, info: info.xi)
    begun = Memory(lambda start: start.params, lambda memory, begin, info: begin.params)
    made = {
        "mean": variant(fixed(jnp.zeros((m, m)))),
        "gap": variant(functools.partial(by_score, largest_gap)),
        "mixture": variant(mixture),
        "heads-8": variant(heads),
        "updates-8": variant(updates, begun),
        "momentum-8": variant(momentum, last_xi),
        "layers-8": variant(layers),
    }
    if groups is not None:
        made["groups"] = variant(fixed(jnp.where(groups[:, None] == groups[None], 0.0, -jnp.inf)))
    return made


def one_round_more(base: Algorithm) -> Algorithm:
    """`base`, whose models are used after one more mix and training, as fine-tuned methods use theirs."""

    def personalize(key: Any, state: Any, data: Any) -> Any:
        state, _ = base.round(key, state, data._replace(online=data.size > 0))
        return base.personalize(key, state, data)

    return base._replace(personalize=personalize)


def prepare(options: Options) -> tuple[Federation, Task, dict[str, Algorithm]]:
    """The clients, the model, and every variant by its name."""
    federation = fedamp_paper.load(dataclasses.replace(options, validation_fraction=0.0), options.setting)
    if options.train_share < 1:
        train, _ = hold_out(federation.train, 1 - options.train_share, seed=options.seed)
        federation = federation._replace(train=train)
    federation = fedamp_paper.judged(options, federation)
    task = fedamp_paper.make_task(options, federation)
    return federation, task, make_algorithms(options, federation, task)


def execute(options: Options, folder: Path) -> RunResults:
    """Train every chosen variant, writing results into `folder` after each one; returns the results."""
    federation, task, algorithms = prepare(options)
    sigmas = {
        "FedAMP": options.sigma,
        **dict.fromkeys(name for name in algorithms if name.startswith(("perplexity", "auto"))),
    }
    results = train_methods("attention", options, folder, federation, task, algorithms, {}, sigmas=sigmas)
    run_folder.write_files(results, folder)
    return results


def main() -> None:
    """Run from the command line."""
    with command_line.experiment(Command, __doc__, "attention") as (command, folder):
        fields = {f.name: getattr(command, f.name) for f in dataclasses.fields(Options)}
        options = fedamp_paper.finish(Options(**fields), "practical")
        check_number("--alpha", options.alpha, low=0)
        check_number("--train-share", options.train_share, low=0, high=1)
        if options.dry_run is not None:
            federation, _, algorithms = prepare(options)
            return cost.show(options, federation, algorithms)
        grid.run("attention", [grid.Variant("", options)], command.seeds, folder, execute)


if __name__ == "__main__":
    main()
