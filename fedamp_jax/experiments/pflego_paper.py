"""What the experiments of the PFLEGO paper (Nikoloutsopoulos et al. 2023) share: options, methods, what is measured.

The paper does not say which models its test accuracy is measured on. Its authors' program measures the models that
clients hold right after their local training, before the server averages them: "FedAvg" there is a fine-tuned global
model. `--measure local`, the default, does the same, as only then can the numbers be compared; here all clients are
measured, there only those sampled. `--measure shared` measures the models as the server leaves them.
In that program every client has its own labels, 0..K-1, even in FedAvg, where clients share one head (`--labels own`).
With `--labels global` a class has the same output for all clients.
The heads of PFLEGO, FedPer and FedRep start from draws of the clients' own, as in Algorithm 1 and that program
(`--initial-heads own`); with `common` all start from the same. Where all clients have the same classes, that is worth
several points: heads that start alike, and a body that is shared, stay comparable. The program draws the heads from
U[0, 1), here they are drawn as the model's other layers.

Every method takes tau full-batch gradient steps per round; methods of two phases (FedRep, FedRecon) take half of them
in each. The paper has no values for FedProx's mu and Ditto's lambda. FedBABU's momentum is that of its authors'
program. Two methods are not those of that program, so that their numbers cannot be compared with the paper's one to
one: its FedRecon takes tau steps of the head on all examples and one step of the server's optimizer along the gradient
of the body, and keeps the heads; its FedBABU is measured after local training of the body alone.
"""

import dataclasses
from typing import Any, Literal, TypeVar

import jax
import jax.numpy as jnp
import optax

import fedamp_jax
from fedamp_jax import Algorithm, Data, Solver, Task, Variables
from fedamp_jax.algorithms.pflego import head_steps
from fedamp_jax.checks import check_integer, check_number
from fedamp_jax.engine import at_home, for_each_client
from fedamp_jax.experiments import paper_values
from fedamp_jax.runner.options import CommonOptions, check
from fedamp_jax.trees import head_mask

_FULL = 1 << 30  # batch size: all examples of a client
_BLOCK = 256  # examples that PFLEGO processes at once; affects memory only


@dataclasses.dataclass(frozen=True)
class Options(CommonOptions):
    """The settings of one run."""

    tau: int = paper_values.TAU
    """Full-batch gradient steps of a client in a round."""
    client_rate: float = paper_values.BETA
    """Learning rate of the clients (the paper's beta)."""
    server_rate: float = paper_values.RHO
    """Learning rate of PFLEGO's joint step (the paper's rho)."""
    server: Literal["adam", "sgd"] = "adam"
    """Optimizer of PFLEGO's server: adam as its authors', sgd as in Eq. 4."""
    measure: Literal["local", "shared"] = "local"
    """Models after local training, or as the server leaves them (shared)."""
    initial_heads: Literal["own", "common"] = "own"
    """Of PFLEGO, FedPer and FedRep: one for each client (own), or one for all."""
    participation: float = paper_values.PFLEGO_PARTICIPATION
    """Share of the clients invited to each round."""
    evaluate_every: int = 10
    """Rounds between evaluations; the last 10 are all evaluated."""


AnyOptions = TypeVar("AnyOptions", bound=Options)


def finish(options: AnyOptions, rounds: int) -> AnyOptions:
    """Check the options and fill in those that depend on others; `rounds` is the default."""
    rounds = rounds if options.rounds is None else options.rounds
    tau, every = options.tau, options.evaluate_every
    if options.quick:
        rounds, tau, every = min(rounds, 3), min(tau, 5), 1
    check_integer("--tau", tau, low=2)
    check_number("--client-rate", options.client_rate, low=0)
    check_number("--server-rate", options.server_rate, low=0)
    options = dataclasses.replace(options, rounds=rounds, tau=tau, evaluate_every=every)
    check(options)
    return options


def make_algorithms(options: Options, task: Task, names: tuple[str, ...]) -> dict[str, Algorithm]:
    """The given methods, in that order."""
    rate, local = options.client_rate, options.measure == "local"

    def solver(steps: int, momentum: float | None = None) -> Solver:
        return Solver(optax.sgd(rate, momentum=momentum), steps, _FULL)

    whole, half, rest = solver(options.tau), solver(options.tau // 2), solver(options.tau - options.tau // 2)
    in_blocks = Solver(optax.sgd(rate), options.tau, _BLOCK)
    server = optax.adam(options.server_rate) if options.server == "adam" else None
    rho, common = options.server_rate, options.initial_heads == "common"

    def tuned(base: Algorithm) -> Algorithm:
        return fedamp_jax.fine_tuned(task, whole, base=base) if local else base

    def head_tuned(base: Algorithm) -> Algorithm:
        return with_trained_heads(task, in_blocks, base, rate) if local else base

    makers = {
        "FedAvg": lambda: tuned(fedamp_jax.fedavg(task, whole)),
        "FedProx": lambda: tuned(fedamp_jax.fedprox(task, whole, mu=paper_values.MU)),
        "Ditto": lambda: fedamp_jax.ditto(task, whole, lam=paper_values.DITTO_LAMBDA),
        "FedPer": lambda: tuned(fedamp_jax.fedper(task, whole, common_init=common)),
        "FedRep": lambda: head_tuned(fedamp_jax.fedrep(task, half, head_solver=rest, common_init=common)),
        "FedBABU": lambda: fedamp_jax.fedbabu(task, solver(options.tau, momentum=0.9), tuner=whole),
        "FedRecon": lambda: fedamp_jax.fedrecon(task, half, head_solver=rest),
        "PFLEGO": lambda: head_tuned(
            fedamp_jax.pflego(task, in_blocks, beta=rate, rho=rho, server_optimizer=server, common_init=common)
        ),
    }
    return {name: makers[name]() for name in names}


def with_trained_heads(task: Task, solver: Solver, base: Algorithm, rate: float) -> Algorithm:
    """`base` whose models take `solver.epochs - 1` full-batch steps on the head before use, as in a round of PFLEGO."""

    def personalize(key: jax.Array, state: Any, data: Data) -> Variables:
        models = base.personalize(key, state, data)
        head = head_mask(task, models.params)

        def local(key, client, epochs, mine):
            params = head_steps(task, solver, client, mine, head, epochs - 1, jnp.float32(rate), key)
            return Variables(params, mine.stats), jnp.zeros(())

        return for_each_client(solver, at_home(data), local, models, key=key)[0]

    return base._replace(personalize=personalize)
