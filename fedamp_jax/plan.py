"""What a round will take, before it takes it: compiled for any number of devices, on data that need not exist."""

import re
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fedamp_jax import driver, layout, sharding
from fedamp_jax.types import Algorithm, Data

_COLLECTIVES = "(?:ragged-)?all-to-all|all-gather|all-reduce|reduce-scatter|collective-permute|collective-broadcast"
_SHAPE = re.compile(r"\b(pred|[a-z]+\d+\w*)\[([\d,]*)\]")
_BITS = re.compile(r"\d+")


class Plan(NamedTuple):
    """One device's share of a compiled round. All numbers are bytes unless they say otherwise.

    Attributes:
        devices: how many there are.
        clients: rows on each, those that are nobody included.
        state: the algorithm's state; it is overwritten by the new one.
        data: the training data.
        working: everything else at the worst moment: cloud models, gradients, optimizer states, activations.
        exchanged: `{collective: [bytes of each]}`, what a device receives in a round, its own part included.
    """

    devices: int
    clients: int
    state: int
    data: int
    working: int
    exchanged: dict[str, list[int]]

    @property
    def memory(self) -> int:
        """What a device must hold at once."""
        return self.state + self.data + self.working

    def __str__(self) -> str:
        parts = [f"{name} {_size(sum(sizes))} in {len(sizes)}" for name, sizes in self.exchanged.items()]
        return (
            f"{self.devices} device(s) of {self.clients} client(s): {_size(self.memory)} each "
            f"(state {_size(self.state)}, data {_size(self.data)}, working memory {_size(self.working)}); "
            f"a round exchanges {', '.join(parts) or 'nothing'}"
        )


def plan(algorithm: Algorithm, data: Data, mesh: Mesh | None = None) -> Plan:
    """Compile a round for the mesh without running it.

    Args:
        algorithm: a method.
        data: arrays, or `jax.ShapeDtypeStruct`s in their place: of any number of clients.
        mesh: from `sharding.client_mesh`, or None for one device. `jax_num_cpu_devices` makes as many devices of a CPU
            as one wants to plan for; the working memory is then what XLA's CPU backend takes, whose layouts and fusions
            are not those of an accelerator.

    Returns:
        A `Plan`.

    >>> import optax, fedamp_jax
    >>> train, test, groups = fedamp_jax.data.federation("digits")
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> algorithm = fedamp_jax.fedamp(task, fedamp_jax.Solver(optax.adam(1e-3)), sigma=1.6, self_weight=1 / 4)
    >>> plan(algorithm, train).clients
    20
    """
    m = data.y.shape[0] if mesh is None else sharding.rows(data.y.shape[0], mesh)
    key = jax.eval_shape(lambda: jax.random.key(0))

    def placed(a: Any, split: bool) -> jax.ShapeDtypeStruct:
        where = None if mesh is None else NamedSharding(mesh, P(layout.AXIS) if split else P())
        return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=where)

    longer = Data(*(placed(jax.ShapeDtypeStruct((m, *a.shape[1:]), a.dtype), True) for a in data))
    with layout.use(mesh):
        state = jax.eval_shape(algorithm.init, key, longer)
        state = jax.tree.map(lambda a: placed(a, bool(a.ndim) and a.shape[0] == m), state)
        program = driver._round.lower(algorithm, state, longer, key).compile()
    used = program.memory_analysis()
    return Plan(
        1 if mesh is None else mesh.size,
        m if mesh is None else m // mesh.size,
        _held(state),
        _held(longer),
        # Outputs that overwrite an argument are counted with it.
        used.temp_size_in_bytes + used.output_size_in_bytes - used.alias_size_in_bytes,
        collectives(program.as_text()),
    )


def collectives(program: str) -> dict[str, list[int]]:
    """Bytes of one device's result of every collective in a compiled program's text (`compiled.as_text()`), by name."""
    found: dict[str, list[int]] = {}
    for results, name in re.findall(rf"= (.*?) ({_COLLECTIVES})(?:-start)?\(", program):
        sizes = [_width(dtype) * int(np.prod([int(n) for n in dims.split(",") if n])) // 8
                 for dtype, dims in _SHAPE.findall(results)]  # fmt: skip
        found.setdefault(name, []).append(sum(sizes))
    return found


def _width(dtype: str) -> int:
    """Bits of one number of an XLA type; a `pred` takes a byte."""
    return 8 if dtype == "pred" else int(_BITS.search(dtype).group())


def _held(tree: Any) -> int:
    """Bytes of the shapes of a tree on one device."""
    leaves = jax.tree.leaves(tree)
    shards = [a.shape if a.sharding is None else a.sharding.shard_shape(a.shape) for a in leaves]
    return sum(int(np.prod(shape)) * jnp.dtype(a.dtype).itemsize for shape, a in zip(shards, leaves))


def _size(number: int) -> str:
    """Such as `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024 or unit == "GiB":
            return f"{number:.4g} {unit}"
        number /= 1024
    raise AssertionError
