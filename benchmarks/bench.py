"""What the benchmarks share: the machine, its peak, timing of several contestants side by side, tables and JSON."""

import dataclasses
import json
import os
import platform
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import fedamp_jax
from fedamp_jax import Task, Variables


@dataclasses.dataclass
class Common:
    """Options of every benchmark."""

    repeats: int = 5
    """Repetitions of each measurement; medians are reported."""
    out: str | None = None
    """Also write the rows there, as JSON."""


def machine() -> dict[str, Any]:
    """Device, versions, command, and how busy the machine was."""
    device = jax.devices()[0]
    return {
        "command": shlex.join(["python", *sys.argv]),
        "device": f"{device.platform}: {device.device_kind} x{jax.device_count()}, {os.cpu_count()} cores",
        "versions": {"fedamp_jax": fedamp_jax.__version__, "jax": jax.__version__, "python": platform.python_version()},
        "load": list(os.getloadavg()),
    }


def shapes_of_clients(m: int, n: int, shape: tuple[int, ...]) -> fedamp_jax.Data:
    """`m` clients of `n` images each, without their pixels, for a compiler."""
    like = jax.ShapeDtypeStruct
    x, y, each = like((m * n, *shape), jnp.uint8), like((m * n,), jnp.int32), [like((m,), jnp.int32)] * 4
    return fedamp_jax.Data(x, y, *each, like((m,), bool), fedamp_jax.types.Static(n))


def timed(call: Callable[[], Any]) -> float:
    """Seconds until the arrays that `call` returns are there."""
    began = time.perf_counter()
    jax.block_until_ready(call())
    return time.perf_counter() - began


def side_by_side(calls: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Median seconds of each call. They take turns, so that a busy moment of the machine meets all of them alike."""
    for call in calls.values():
        timed(call)  # compiles
    rounds = [{name: timed(call) for name, call in calls.items()} for _ in range(repeats)]
    return {name: float(np.median([r[name] for r in rounds])) for name in calls}


def matmul(dtype: Any = jnp.float32, n: int | None = None) -> tuple[Callable[[], Any], float]:
    """A square matrix product as large as the device likes, and its floating point operations."""
    n = n or (1536 if jax.default_backend() == "cpu" else 8192)
    a = jax.random.normal(jax.random.key(0), (n, n), dtype)
    product = jax.jit(lambda a: a @ a)
    return lambda: product(a), 2.0 * n**3


def layers(task: Task, variables: Variables, x: jax.Array) -> list[float]:
    """Floating point operations of every matrix product and convolution of a prediction, in order.

    Make the task with `conv="xla"`, so that a convolution is one operation.
    """
    found: list[float] = []

    def walk(jaxpr: Any) -> None:
        for eqn in jaxpr.eqns:
            if eqn.primitive.name == "dot_general":
                (contracted, _), _ = eqn.params["dimension_numbers"]
                inner = np.prod([eqn.invars[0].aval.shape[axis] for axis in contracted])
                found.append(2.0 * np.prod(eqn.outvars[0].aval.shape) * inner)
            elif eqn.primitive.name == "conv_general_dilated":
                kernel = eqn.invars[1].aval.shape  # HWIO
                found.append(2.0 * np.prod(eqn.outvars[0].aval.shape) * np.prod(kernel[:3]))
            for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda v: hasattr(v, "jaxpr")):
                inner = getattr(value, "jaxpr", value)
                if hasattr(inner, "eqns"):
                    walk(inner)

    walk(jax.make_jaxpr(task.predict)(variables, x).jaxpr)
    return [float(f) for f in found]


def training_flops(forward: Sequence[float]) -> float:
    """Of a gradient step: each layer forward, towards its kernel, and, but for the first one, towards its input."""
    return 3.0 * sum(forward) - forward[0]


def show(title: str, rows: Sequence[Mapping[str, Any]], notes: Sequence[str] = ()) -> None:
    """Rows as a table; what one of them lacks stays empty."""
    table = Table(title=title)
    longest = max(rows, key=len)
    for name in longest:
        table.add_column(name, justify="left" if isinstance(longest[name], str) else "right")
    for row in rows:
        table.add_row(*(_text(row[name]) if name in row else "" for name in longest))
    console = Console(width=max(140, Console().width))
    console.print(table)
    for note in notes:
        console.print(note, highlight=False)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def write(out: str | None, rows: Sequence[Mapping[str, Any]], **head: Any) -> None:
    """The rows, with the machine, as a JSON file."""
    if out:
        path = Path(out)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**machine(), **head, "rows": list(rows)}, indent=1) + "\n")
        Console().print(f"Written: {path}", highlight=False)
