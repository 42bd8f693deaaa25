"""Local training against this machine's matrix product, and against other ways to train the same clients.

python benchmarks/local_training.py
python benchmarks/local_training.py --models cnn --clients 100 --devices 2

`engine` is what `fedamp_jax.round` runs for every client. `xla` is the same with XLA's own convolutions, all clients
in one vmap; `loop` a Python loop over clients around one jitted step. Where PyTorch is installed, `torch` is a plain
loop over clients, `best torch` the fastest float32 loop (also with channels last and a fused Adam, one client on
all cores or one on each), `torch autocast` the faster of two such loops in bfloat16, `torch vmap` all clients at once.
Same model, batch of 100, Adam with the proximal term, number of steps.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import bench
import jax
import jax.numpy as jnp
import numpy as np
import optax
import tyro

import fedamp_jax
from fedamp_jax import Solver, placement, trees
from fedamp_jax.data import from_lists
from fedamp_jax.engine import Prox, for_each_client, init_clients, solve
from fedamp_jax.types import Batch

BATCH, PROX = 100, 0.01
SHAPES = {"small": (8, 8), "mlp": (28, 28), "cnn": (28, 28), "resnet18": (32, 32, 3)}
# The papers train 10 epochs in a round. In fewer, what a call costs once, such as memory that is touched for the first
# time, is a larger share of it.
EPOCHS = {"small": 10, "mlp": 10, "cnn": 5, "resnet18": 2}
EXAMPLES = 300  # of each client


@dataclasses.dataclass
class Command(bench.Common):
    """What to measure."""

    models: tuple[Literal["small", "mlp", "cnn", "resnet18"], ...] = ("small", "mlp", "cnn", "resnet18")
    clients: tuple[int, ...] = (1, 8, 32, 100)
    """Numbers of clients."""
    conv: Literal["auto", "loop", "patches", "xla"] = "auto"
    """The engine's lowering of convolutions."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the engine's arithmetic; parameters stay float32."""
    precision: Literal["default", "high", "highest"] = "default"
    """Precision of float32 matrix products, the peak's among them, where the device offers less."""
    chunk: int | None = None
    """Clients that the engine trains side by side. Default: its own choice."""
    devices: int = 1
    """Cut the CPU into so many devices for the engine."""
    without: tuple[str, ...] = ()
    """Contestants to leave out."""
    budget: float = 60.0
    """Seconds: a contestant whose clients would take longer in one repetition, by the row before, is left out (`-`)."""


def make(name: str, **options: Any) -> fedamp_jax.Task:
    """The model, ten classes; `small` is the MLP on the digits' 8x8 pixels."""
    if name in ("small", "mlp"):
        options.pop("conv", None)
    return getattr(fedamp_jax.models, name.replace("small", "mlp"))(10, shape=SHAPES[name], **options)


def data_of(name: str, m: int) -> fedamp_jax.Data:
    """Clients with noise for images: what is in them does not change the time."""
    rng = np.random.default_rng(0)
    xs = [rng.integers(0, 256, (EXAMPLES, *SHAPES[name])).astype(np.uint8) for _ in range(m)]
    ys = [np.arange(EXAMPLES) % 10 for _ in range(m)]
    return from_lists(xs, ys, classes=10)


def engine(task: fedamp_jax.Task, epochs: int, data: fedamp_jax.Data) -> Callable[[], Any]:
    """The engine's local training, from the cloud models, as in FedAMP's round."""
    solver = Solver(optax.adam(1e-3), epochs, BATCH)

    def one(key, client, epochs, keep, center):
        return solve(task, solver, client, keep.variables, key, epochs=epochs, k=jnp.zeros((), jnp.int32),
                     penalty=Prox(center, jnp.float32(PROX)))  # fmt: skip

    def all_of(key, data, models, center):
        return for_each_client(solver, data, one, models, center, key=key)[0]

    made = jax.jit(data.placement.program(lambda key, data: init_clients(task, solver, data, key)))
    models = data.placement.settle(made(jax.random.key(0), data), len(data.size))
    train = jax.jit(data.placement.program(all_of))
    return lambda: train(jax.random.key(1), data, models, models.variables.params)


def stacked(data: fedamp_jax.Data) -> tuple[np.ndarray, np.ndarray]:
    """`(x [M, N, ...], y [M, N])` of clients of one size."""
    m = len(data.size)
    return tuple(np.array(a).reshape(m, -1, *a.shape[1:]) for a in (data.x, data.y))  # pyright: ignore


def python_loop(task: fedamp_jax.Task, epochs: int, data: fedamp_jax.Data) -> Callable[[], Any]:
    """One jitted step, called from Python for every client and batch."""
    optimizer = optax.adam(1e-3)
    models = trees.broadcast(task.init(jax.random.key(0)), len(data.size))
    clients = [jax.tree.map(lambda a, i=i: a[i], models) for i in range(len(data.size))]

    @jax.jit
    def step(variables, state, center, x, y, key):
        batch = Batch(x, y, jnp.ones(y.shape, bool), jnp.int32(10))
        grads, stats = jax.grad(lambda p: task.loss(variables._replace(params=p), batch, key), has_aux=True)(
            variables.params
        )
        grads = jax.tree.map(lambda g, w, c: g + PROX * (w - c), grads, variables.params, center)
        updates, state = optimizer.update(grads, state, variables.params)
        return variables._replace(params=optax.apply_updates(variables.params, updates), stats=stats), state

    (xs, ys), rng = stacked(data), np.random.default_rng(0)

    def call() -> Any:
        done = []
        for i, variables in enumerate(clients):
            center, state = variables.params, optimizer.init(variables.params)
            for epoch in range(epochs):
                order = rng.permutation(ys.shape[1])
                for first in range(0, len(order), BATCH):
                    rows = order[first : first + BATCH]
                    key = jax.random.key(epoch)
                    variables, state = step(variables, state, center, xs[i, rows], ys[i, rows], key)
            done.append(variables)
        return done

    return call


def contestants(name: str, m: int, command: Command) -> dict[str, Callable[[], Any]]:
    """Every way to train `m` clients, by name; nothing is run yet."""
    data, epochs = data_of(name, m), EPOCHS[name]
    own = make(name, conv=command.conv, compute_dtype=jnp.dtype(command.dtype))
    here = placement.Placement(chunk=command.chunk)
    if command.devices > 1:
        here = placement.OnMesh(mesh=placement.client_mesh(command.devices), chunk=command.chunk)
    calls = {
        "engine": engine(own, epochs, here.place(data)),
        "xla": engine(make(name, conv="xla"), epochs, placement.Placement(chunk=m).place(data)),
        "loop": python_loop(make(name), epochs, data),
    }
    try:
        import torch_loop
    except ImportError:
        return calls
    x, y = stacked(data)
    return {**calls, **torch_loop.contestants(name, x, y, BATCH, epochs, PROX)}


def measure(name: str, m: int, command: Command, each: dict[str, float]) -> dict[str, Any]:
    """One row. `each`: seconds per client and contestant of the row before, to see what would take too long."""
    calls = contestants(name, m, command)
    calls = {n: call for n, call in calls.items() if m * each.get(n, 0.0) < command.budget and n not in command.without}
    product, flops = bench.matmul()
    times = bench.side_by_side({**calls, "peak": product}, command.repeats)
    each.update({n: times[n] / m for n in calls})
    task = make(name, conv="xla")
    forward = bench.layers(task, task.init(jax.random.key(0)), jnp.zeros((BATCH, *SHAPES[name]), jnp.uint8))
    steps = EPOCHS[name] * -(-EXAMPLES // BATCH)
    achieved, peak = m * steps * bench.training_flops(forward) / times["engine"], flops / times["peak"]
    groups = {n: (n,) for n in ("xla", "loop", "torch", "torch vmap")}
    groups["best torch"] = ("torch", "torch tuned", "torch tuned, side by side")
    groups["torch autocast"] = ("torch autocast", "torch autocast, side by side")
    fastest = {group: min((times[n] for n in names if n in times), default=None) for group, names in groups.items()}
    ratios = {f"{n} / engine": None if t is None else t / times["engine"] for n, t in fastest.items()}
    return {
        "model": name, "clients": m, "GFLOP per step": bench.training_flops(forward) / 1e9,
        "ms per step": 1e3 * times["engine"] / m / steps, "GFLOP/s": achieved / 1e9, "peak GFLOP/s": peak / 1e9,
        "of peak": achieved / peak, **ratios,
    }  # fmt: skip


def main() -> None:
    """The command line."""
    command = tyro.cli(Command, description=__doc__)
    if command.devices > 1:
        placement.split_cpu(command.devices)
    jax.config.update("jax_default_matmul_precision", None if command.precision == "default" else command.precision)
    rows = []
    for name in command.models:
        each: dict[str, float] = {}
        for m in command.clients:
            if m * each.get("engine", 0.0) < command.budget:
                rows.append(measure(name, m, command, each))
                bench.show(__doc__.splitlines()[0], rows)
    notes = "FLOPs: twice the multiplications of every layer, forward, towards its kernel and towards its input."
    bench.write(command.out, rows, note=notes)


if __name__ == "__main__":
    main()
