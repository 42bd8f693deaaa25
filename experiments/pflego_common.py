"""What the experiments of the PFLEGO paper (Nikoloutsopoulos et al. 2023) share: options, methods, what is measured.

The paper leaves open what its test accuracy is measured on. The program that its authors published measures the models
that clients hold right after their local training in a round, before the server averages: "FedAvg" there is a global
model that was fine-tuned. That is `--measure local`, the default, as only so the paper's numbers can be compared; ours
takes every client, theirs those that were sampled. `--measure shared` takes the models as the server leaves them.
In that program all clients have labels of their own, 0..K-1, also those of FedAvg, whose one head they share
(`--labels own`); with `--labels global` a class has the same output everywhere.

Every method gets tau full-batch gradient steps per round. Methods of two phases (FedRep, FedRecon) give each half of
them. The paper has no values for FedProx' mu and Ditto's lambda; FedBABU's momentum is that of the authors' program.
"""

import dataclasses
from typing import Literal

import command_line
import jax.numpy as jnp
import optax
import settings

import fedamp_jax
from fedamp_jax import Algorithm, Solver, Task, Variables, checks
from fedamp_jax.algorithms.pflego import head_steps
from fedamp_jax.heads import head_mask
from fedamp_jax.local import for_each_client

_FULL = 1 << 30  # examples in a step: all that a client has
_BLOCK = 256  # examples that PFLEGO holds at once; changes nothing but memory


@dataclasses.dataclass
class Options(command_line.Options):
    """The settings of one run."""

    tau: int = settings.TAU
    """Full-batch gradient steps of a client in a round."""
    client_rate: float = settings.BETA
    """Learning rate of the clients (the paper's beta)."""
    server_rate: float = settings.RHO
    """Learning rate of PFLEGO's joint step (the paper's rho)."""
    server: Literal["adam", "sgd"] = "adam"
    """PFLEGO's server optimizer: adam as its authors' program, sgd as Eq. 4."""
    measure: Literal["local", "shared"] = "local"
    """Accuracy of the models after local training, as the authors measure, or as the server leaves them."""
    participation: float = settings.PFLEGO_PARTICIPATION
    """Share of the clients invited each round."""
    evaluate_every: int = 10
    """Evaluate after every that many rounds; each of the last 10 is evaluated in any case."""


def finish(options: Options, rounds: int) -> Options:
    """Check the options and fill in what follows from others; `rounds` is the paper's number."""
    rounds = rounds if options.rounds is None else options.rounds
    tau, every = options.tau, options.evaluate_every
    if options.quick:
        rounds, tau, every = min(rounds, 3), min(tau, 5), 1
    checks.whole("tau", tau, low=2)
    checks.number("client_rate", options.client_rate, low=0)
    checks.number("server_rate", options.server_rate, low=0)
    options = dataclasses.replace(options, rounds=rounds, tau=tau, evaluate_every=every)
    command_line.check(options)
    return options


def make_algorithms(options: Options, task: Task, names: tuple[str, ...]) -> dict[str, Algorithm]:
    """The methods `names`, in that order."""
    rate, local = options.client_rate, options.measure == "local"

    def solver(steps: int, momentum: float | None = None) -> Solver:
        return Solver(optax.sgd(rate, momentum=momentum), steps, _FULL, chunk=options.chunk)

    whole, half, rest = solver(options.tau), solver(options.tau // 2), solver(options.tau - options.tau // 2)
    in_blocks = Solver(optax.sgd(rate), options.tau, _BLOCK, chunk=options.chunk)
    server = optax.adam(options.server_rate) if options.server == "adam" else None
    rho = options.server_rate

    def tuned(base: Algorithm) -> Algorithm:
        return fedamp_jax.fine_tuned(task, whole, base=base) if local else base

    def head_tuned(base: Algorithm) -> Algorithm:
        return with_trained_heads(task, in_blocks, base, rate) if local else base

    makers = {
        "FedAvg": lambda: tuned(fedamp_jax.fedavg(task, whole)),
        "FedProx": lambda: tuned(fedamp_jax.fedprox(task, whole, mu=settings.MU)),
        "Ditto": lambda: fedamp_jax.ditto(task, whole, lam=settings.DITTO_LAMBDA),
        "FedPer": lambda: tuned(fedamp_jax.fedper(task, whole)),
        "FedRep": lambda: head_tuned(fedamp_jax.fedrep(task, half, head_solver=rest)),
        "FedBABU": lambda: fedamp_jax.fedbabu(task, solver(options.tau, momentum=0.9), tuner=whole),
        "FedRecon": lambda: fedamp_jax.fedrecon(task, half, head_solver=rest),
        "PFLEGO": lambda: head_tuned(fedamp_jax.pflego(task, in_blocks, beta=rate, rho=rho, server_optimizer=server)),
    }
    return {name: makers[name]() for name in names}


def with_trained_heads(task: Task, solver: Solver, base: Algorithm, rate: float) -> Algorithm:
    """`base`, its models used after `solver.epochs - 1` full-batch steps on the head, as in a round of PFLEGO."""

    def personalize(key, state, data):
        models = base.personalize(key, state, data)
        head = head_mask(task, models.params)
        everybody = data._replace(online=jnp.ones_like(data.online))

        def local(key, client, epochs, mine):
            params = head_steps(task, solver, key, client, mine, head, epochs - 1, jnp.float32(rate))
            return Variables(params, mine.stats), jnp.zeros(())

        return for_each_client(solver, key, everybody, local, models)[0]

    return base._replace(personalize=personalize)
