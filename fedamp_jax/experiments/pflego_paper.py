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
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import optax

import fedamp_jax
from fedamp_jax import Algorithm, Data, Solver, Task, Variables
from fedamp_jax.algorithms import registry
from fedamp_jax.algorithms.pflego import head_steps
from fedamp_jax.checks import check_integer, check_number
from fedamp_jax.engine import at_home, for_each_client
from fedamp_jax.experiments import paper_values
from fedamp_jax.runner.options import FULL, Options
from fedamp_jax.trees import head_mask

_BLOCK = 256  # examples that PFLEGO processes at once; affects memory only


@dataclasses.dataclass(frozen=True)
class FullBatch:
    """Local training."""

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

    dtype: ClassVar[str] = "float32"
    batch_size: ClassVar[int] = FULL

    @property
    def passes(self) -> int:
        """Passes over a client's data in a round."""
        return self.tau

    def solver(self, steps: int | None = None, momentum: float | None = None, block: int = FULL) -> Solver:
        """Full-batch steps, tau of them unless `steps` says otherwise."""
        return Solver(optax.sgd(self.client_rate, momentum=momentum), steps or self.tau, block)


def finish(options: Options, rounds: int) -> Options:
    """Check the options and fill in those that depend on others; `rounds` is the default."""
    own, schedule = options.training, options.schedule
    schedule = dataclasses.replace(schedule, rounds=rounds if schedule.rounds is None else schedule.rounds)
    check_integer("--tau", own.tau, low=2)
    check_number("--client-rate", own.client_rate, low=0)
    check_number("--server-rate", own.server_rate, low=0)
    if options.data.quick:
        own = dataclasses.replace(own, tau=min(own.tau, 5))
        schedule = dataclasses.replace(schedule, rounds=min(schedule.number_of_rounds, 3), evaluate_every=1)
    return dataclasses.replace(options, training=own, schedule=schedule)


def methods(options: Options, task: Task, names: Sequence[str]) -> dict[str, Algorithm]:
    """The methods of these names, in that order, with the paper's hyper-parameters."""
    own, changes = options.training, registry.parse(options.schedule.set, names)
    local, common = own.measure == "local", {"common_init": own.initial_heads == "common"}
    whole, half, rest = own.solver(), own.solver(own.tau // 2), own.solver(own.tau - own.tau // 2)
    in_blocks = own.solver(block=_BLOCK)
    server = optax.adam(own.server_rate) if own.server == "adam" else None
    rates = {"beta": own.client_rate, "rho": own.server_rate, "server_optimizer": server}
    arguments: Mapping[str, tuple[Solver, Mapping[str, Any]]] = {
        "FedAvg": (whole, {}),
        "FedProx": (whole, {"mu": paper_values.MU}),
        "Ditto": (whole, {"lam": paper_values.DITTO_LAMBDA}),
        "FedPer": (whole, common),
        "FedRep": (half, {"head_solver": rest, **common}),
        "FedBABU": (own.solver(momentum=0.9), {"tuner": whole}),
        "FedRecon": (half, {"head_solver": rest}),
        "PFLEGO": (in_blocks, {**rates, **common}),
    }

    def all_tuned(base: Algorithm) -> Algorithm:
        return fedamp_jax.fine_tuned(task, whole, base=base)

    def head_tuned(base: Algorithm) -> Algorithm:
        return with_trained_heads(task, in_blocks, base, own.client_rate)

    measured: Mapping[str, Callable[[Algorithm], Algorithm]] = {
        **dict.fromkeys(("FedAvg", "FedProx", "FedPer"), all_tuned),
        **dict.fromkeys(("FedRep", "PFLEGO"), head_tuned),
    }
    made = {}
    for name in names:
        solver, usual = arguments[name]
        base = registry.METHODS[name].factory(task, solver, **{**usual, **changes.get(name, {})})
        made[name] = measured[name](base) if local and name in measured else base
    return made


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
