"""Whole rounds as the defaults have them: seconds, memory, the CPU's result, the same bits twice or not."""

import time
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import fedamp_jax
from on_gpu.cases import Case, cases
from on_gpu.record import Job, Results, Settings

KEY = jax.random.key(0)
TOLERANCE = 1e-5
"""Relative, of parameters: what docs/faq.md promises of results whose sums are rounded in another order."""


def small(case: Case) -> tuple[fedamp_jax.Algorithm, fedamp_jax.Data]:
    """A round that a CPU trains in seconds: 3 clients, 2 steps each.

    By gradient descent: Adam divides by a gradient's size, also where it is nothing but rounding.
    """
    case = case._replace(epochs=1, examples=2 * case.batch if case.steps > 1 else case.examples)
    return case.algorithm(optimizer=optax.sgd(0.1)), case.data(clients=3)


def one_round(algorithm: fedamp_jax.Algorithm, data: fedamp_jax.Data, device: Any, precision: str) -> Any:
    """The models after a round from the CPU's initial ones, as numpy arrays."""
    cpu = jax.devices("cpu")[0]
    with jax.default_device(cpu):
        state = jax.jit(algorithm.init)(KEY, jax.device_put(data, cpu))
    with jax.default_device(device), jax.default_matmul_precision(precision):
        state, data = jax.device_put((state, data), device)
        state, _ = fedamp_jax.round(algorithm, state, data, jax.device_put(KEY, device))
        return jax.tree.map(np.asarray, state.clients.variables)


def apart(one: Any, other: Any) -> float:
    """The largest difference of two trees, relative to the largest number of its leaf."""
    worst = [np.abs(a - b).max() / max(np.abs(b).max(), 1e-30) for a, b in zip(*map(jax.tree.leaves, (one, other)))]
    return float(max(worst))


def reproduced(case: Case) -> dict[str, Any]:
    """A small round here, twice, and on the CPU; in full float32, and as XLA's default for the platform has it."""
    device, cpu = jax.devices()[0], jax.devices("cpu")[0]
    algorithm, data = small(case)
    runs = {p: [one_round(algorithm, data, device, p) for _ in range(2)] for p in ("highest", "default")}
    same = {p: apart(*found) == 0 for p, found in runs.items()}
    right = one_round(*small(case), cpu, "highest")
    error = {p: apart(found[0], right) for p, found in runs.items()}
    return {
        "same_bits_float32": same["highest"], "same_bits_default": same["default"],
        "from_cpu_float32": error["highest"], "from_cpu_default": error["default"],
        "within_tolerance": error["highest"] <= TOLERANCE,
    }  # fmt: skip


def whole(case: Case, name: str, results: Results, left: float) -> dict[str, Any]:
    """A round of all clients, or of as many as there is time for, after one without training has compiled it."""
    rows = results.rows(f"rounds {name}")
    expected = next((row["round"] for row in rows if row.get("round")), 1.0)
    clients = max(1, min(case.clients, int(case.clients * 0.5 * max(left, 1.0) / expected)))
    algorithm, data = case.algorithm(), case.data()
    state = jax.jit(algorithm.init)(KEY, data)
    times = {}
    for label, online in (("compiling", 0), ("server", 0), ("trained", clients)):
        present = data._replace(online=jnp.arange(case.clients) < online)
        began = time.perf_counter()
        state, info = jax.block_until_ready(fedamp_jax.round(algorithm, state, present, KEY))
        times[label] = time.perf_counter() - began
    each = (times["trained"] - times["server"]) / clients
    stats = jax.devices()[0].memory_stats() or {}
    return {
        "round": times["server"] + case.clients * each, "server": times["server"], "clients_trained": clients,
        "expected": expected, "compiling": times["compiling"], "finite": bool(jnp.all(jnp.isfinite(info.loss))),
        "peak_gib": stats.get("peak_bytes_in_use", 0) / 2**30,
    }  # fmt: skip


def jobs(settings: Settings) -> Iterator[Job]:
    """The models with convolutions first: the others' rounds take milliseconds."""
    every = cases(settings.tiny)
    cnn, resnet, mlp, digits = every
    order = [(cnn, True), (cnn, False), (resnet, False), (digits, True), (resnet, True), (mlp, False), (digits, False),
             (mlp, True)]  # fmt: skip
    if settings.tiny:
        order = [(digits, True), (digits, False)]
    for name, small_one in order:
        if small_one:
            yield f"{name} reproduced", lambda c=every[name]: reproduced(c)
        else:
            yield f"{name} round", lambda c=every[name], n=name: whole(c, n, settings.results, settings.left)
