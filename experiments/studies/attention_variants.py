"""Which attention earns its keep? FedAMP with other weights, the same setting for every data set.

    python experiments/studies/attention_variants.py --seeds 0 1 2  # the bundled digits, judged by validation data
    python experiments/studies/attention_variants.py --dataset cifar100 --data-dir DIR --model mlp --train-share 0.2
    python experiments/studies/attention_variants.py --validation-fraction 0 --methods FedAMP perplexity-8 groups mean

Every variant is FedAMP as in `practical.py` but for its attention weights. Choose one by validation data: by default
each client trains on 80 % of its examples and is judged by the rest. Then judge it once by the test data.
`groups` knows the true groups, and `mean` gives all others equal weight: what lies between them is all that attention
can win.
"""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
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
from fedamp_jax.runner.entry import main
from fedamp_jax.runner.experiment import nothing
from fedamp_jax.runner.options import Data, Options
from fedamp_jax.trees import head_mask, partition

SIGMAS = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""The grid over which a person would tune FedAMP's sigma."""

NAMES = (
    "Separate", "FedAvg-FT", "FedAMP", *(f"sigma-{s:g}" for s in SIGMAS), "HeurFedAMP",
    *(f"{kind}-{k}" for k in (3, 4, 8, 15) for kind in ("perplexity", "auto")), "found", "found-cosine", "cosine-8",
    "falling-8", "perplexity-8-FT",
    "mean", "gap", "mixture", "heads-8", "updates-8", "momentum-8", "layers-8", "groups",
)  # fmt: skip
"""The variants, in the order of the tables."""

Score = Callable[..., Any]
"""`(distances [M, M], edges [M, M]) -> scores [M, M]` whose softmax are the weights of the others."""


@dataclasses.dataclass(frozen=True)
class Setting:
    """Clients."""

    setting: Literal["practical", "iid", "dirichlet", "concept"] = "practical"
    """practical: groups of clients; dirichlet: classes by --alpha; concept: by --shift."""
    alpha: float = 0.1
    """Concentration of Dirichlet; the smaller, the fewer classes of a client."""
    train_share: float = 1.0
    """Share of each client's training examples that is used."""
    shift: Literal["labels", "rotation"] = "labels"
    """With --setting concept: what the groups disagree about."""
    after: int = 10
    """Of the variants found and found-cosine: rounds before a client chooses."""

    @property
    def name(self) -> str:
        """The setting, as `fedamp_jax.data.federation` names it."""
        return self.setting

    def arguments(self) -> dict[str, Any]:
        """Of `fedamp_jax.data.federation`."""
        return {"shift": self.shift} if self.setting == "concept" else {"alpha": self.alpha}


@dataclasses.dataclass(frozen=True)
class Sigmas:
    """Attention weights."""

    sigma: float | None = None
    """Of the variant FedAMP. Default: the paper's or ours."""
    heur_sigma: float | None = None
    """Of the variant HeurFedAMP. Default: the paper's or ours."""


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


def variants(options: Options, federation: Federation, task: Task) -> dict[str, Algorithm]:
    """Every variant by its name."""
    solver, m = options.training.solver(), len(federation.train.size)
    self_weight = jnp.asarray(paper_values.self_weights(options.setting.name, federation), jnp.float32)
    common = {"self_weight": self_weight, "lam": paper_values.LAMBDA}
    named = fedamp_paper.methods(options, federation, task, ("Separate", "FedAvg-FT"))
    for name, sigma in (("FedAMP", options.attention.sigma), *((f"sigma-{s:g}", s) for s in SIGMAS)):
        named[name] = fedamp_jax.fedamp(task, solver, sigma=sigma, **common)
    named["HeurFedAMP"] = fedamp_jax.heurfedamp(task, solver, sigma=options.attention.heur_sigma, **common)
    for k in (3, 4, 8, 15):
        named[f"perplexity-{k}"] = fedamp_jax.fedamp(task, solver, sigma=perplexity(k), **common)
        own = {**common, "self_weight": own_weight(k)}
        named[f"auto-{k}"] = fedamp_jax.fedamp(task, solver, sigma=perplexity(k), **own)
    own = {**common, "self_weight": None, "sigma": attention.auto(options.setting.after)}
    named["found"] = fedamp_jax.fedamp(task, solver, **own)
    named["found-cosine"] = fedamp_jax.heurfedamp(task, solver, **own)

    def falling(k: jax.Array) -> jax.Array:
        return jnp.maximum(8.0, (m - 1) * 0.8 ** k.astype(jnp.float32))

    return {
        **named,
        "cosine-8": fedamp_jax.heurfedamp(task, solver, sigma=perplexity(8), **common),
        "falling-8": fedamp_jax.fedamp(task, solver, sigma=perplexity(falling), **common),
        "perplexity-8-FT": one_round_more(named["perplexity-8"]),
        **other_weights(task, solver, self_weight, federation),
    }


def own_weight(k: int) -> float:
    """`xi_ii` of a client that gives weight to about `k` others: its share among `k + 1` equals, as in Appendix C."""
    return 1 / (k + 1)


def other_weights(task: Task, solver: Solver, self_weight: Any, federation: Federation) -> dict[str, Algorithm]:
    """The variants whose weights are not those of `fedamp` or `heurfedamp`, by name."""
    groups, m = federation.groups, len(federation.train.size)

    def variant(weights: Callable[..., Any], memory: Memory | None = None) -> Algorithm:
        """FedAMP with `weights(models, edges, k, own, *remembered) -> [M, M]`."""

        def of_round(models: ByParameters, edges: Any, k: Any, data: Any, *remembered: Any) -> Any:
            own = broadcast_to_clients("self_weight", self_weight, data)
            xi = weights(models, edges, k, own, *remembered)
            return (xi, *remembered) if remembered else xi

        term = proximal(ALPHA, paper_values.LAMBDA)
        return fedamp_jax.attentive(task, solver, of_round, memory=memory, **term)

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

    last_xi = Memory(
        lambda start: jnp.zeros((jax.tree.leaves(start)[0].shape[0],) * 2), lambda memory, begin, info: info.xi
    )
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


def clients(options: Options) -> Federation:
    """The clients with the share of their training examples that is used."""
    federation = fedamp_paper.clients(options)
    if options.setting.train_share < 1:
        train, _ = hold_out(federation.train, 1 - options.setting.train_share, seed=options.schedule.seed)
        federation = federation._replace(train=train)
    return federation


def finish(options: Options) -> Options:
    """As `fedamp_paper.finish`, with the practical setting's sigmas."""
    check_number("--alpha", options.setting.alpha, low=0)
    check_number("--train-share", options.setting.train_share, low=0, high=1)
    practical = fedamp_paper.finish(dataclasses.replace(options, setting="practical"))
    return dataclasses.replace(practical, setting=options.setting)


def methods(options: Options, federation: Federation, task: Task, names: Sequence[str]) -> dict[str, Algorithm]:
    """The variants of these names; `groups` only where there are groups."""
    every = variants(options, federation, task)
    return {name: every[name] for name in names if name in every}


def scales(options: Options) -> Mapping[str, float | None]:
    """FedAMP's sigma; one that is found has a scale for each client."""
    by_perplexity = [name for name in NAMES if name.startswith(("perplexity", "auto", "found"))]
    return {"FedAMP": options.attention.sigma, **dict.fromkeys(by_perplexity)}


EXPERIMENT = fedamp_paper.experiment(
    "attention",
    __doc__,
    options=Options(data=Data(validation_fraction=0.2), setting=Setting(), attention=Sigmas()),
    names=NAMES,
    quick_names=(),
    finish=finish,
    clients=clients,
    methods=methods,
    paper=nothing,
    scales=scales,
    panels={},
)

if __name__ == "__main__":
    main(EXPERIMENT)
