"""Rounds beside plain PyTorch loops and `torch.func.vmap` on the same card, in turns.

PyTorch runs in a process of its own, which trains on request: the two bring different versions of the same
libraries, and neither must end the other. While one runs, the other's process waits for a line.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from on_gpu.cases import Case, cases
from on_gpu.column import default
from on_gpu.record import Job, Settings
from on_gpu.rounds import Probe, best

LOOPS: dict[str, dict[str, bool]] = {
    "torch": {}, "torch tuned": {"tuned": True}, "torch autocast": {"tuned": True, "autocast": True},
}  # fmt: skip
CLIENTS, EPOCHS = 2, 1
"""Of a loop in PyTorch, whose time is proportional to them; the first epoch is thrown away."""


def side_by_side(case: Case) -> int:
    """Clients of `torch.func.vmap`: as many as surely fit."""
    return min(16 if case.convolves else 100, case.clients)


def client_steps(name: str, case: Case) -> int:
    """Steps of all clients together in one call of a contestant."""
    return (side_by_side(case) if name == "torch vmap" else CLIENTS) * EPOCHS * case.steps


def contestants(case: Case) -> dict[str, Callable[[], Callable[[], Any]]]:
    """PyTorch's, by name, made when they are called; only imported where PyTorch is."""
    import torch
    import torch_loop

    torch.set_float32_matmul_precision("high")  # TF32, as XLA's default
    data = case.data(clients=side_by_side(case))
    x, y = (np.array(a).reshape(data.clients, -1, *a.shape[1:]) for a in (data.x, data.y))
    y[0, : case.classes] = np.arange(case.classes)[: y.shape[1]]  # the largest label tells the number of classes
    few = (case.torch, x[:CLIENTS], y[:CLIENTS], case.batch, EPOCHS, 0.01)
    made = {n: lambda o=options: torch_loop.loop(*few, **o) for n, options in LOOPS.items()}
    if case.torch != "resnet18":
        made["torch vmap"] = lambda: torch_loop.vmapped(case.torch, x, y, case.batch, EPOCHS, 0.01)
    return made


def serve(name: str, tiny: bool) -> None:
    """The other process: a contestant's name comes in, its seconds or what went wrong go out."""
    import bench

    made: dict[str, Any] = {}
    every: dict[str, Any] = {}
    for line in sys.stdin:
        contestant = line.strip()
        try:
            every = every or contestants(cases(tiny)[name])
            if contestant not in made:
                made[contestant] = every[contestant]()
            answer: dict[str, Any] = {"seconds": bench.timed(made[contestant])}
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {str(error)[:300]}"}
        print("ANSWER " + json.dumps(answer), flush=True)


def asked(process: subprocess.Popen, contestant: str) -> float:
    """Seconds of a contestant in the other process."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(contestant + "\n")
    process.stdin.flush()
    for line in process.stdout:
        if line.startswith("ANSWER "):
            answer = json.loads(line[7:])
            if "failed" in answer:
                raise RuntimeError(answer["failed"])
            return answer["seconds"]
    raise RuntimeError("PyTorch's process has ended")


def race(case: Case, name: str, settings: Settings) -> dict[str, Any]:
    """Microseconds of a client's step of every contestant, medians of turns; what fails is named and left out."""
    found: dict[str, Any] = {}
    ours = {"default": default(*case.traits)}
    fastest = best(settings.results.rows(f"rounds {name}"))
    if fastest is not None and fastest != ours["default"] and settings.left > 60:
        ours[f"fastest: {fastest.name}"] = fastest
    calls: dict[str, Callable[[], float]] = {}
    for label, candidate in ours.items():
        probe = Probe(case, candidate)
        steps = probe.once * case.probe * case.steps
        calls[label] = lambda p=probe, s=steps: (p.run(case.steps) - p.run(0)) / s
    command = [sys.executable, str(Path(__file__).parents[1] / "gpu.py"), "--torch", name]
    command += ["--tiny"] if settings.tiny else []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        for label in (*LOOPS, *(["torch vmap"] if case.torch != "resnet18" else [])):
            calls[label] = lambda n=label: asked(other, n) / client_steps(n, case)
        times: dict[str, list[float]] = {label: [] for label in calls}
        for turn in range(4):
            for label, call in list(calls.items()):
                try:
                    seconds = call()
                except Exception as error:
                    found.setdefault("failures", {})[label] = str(error)[:300]
                    del calls[label]
                    continue
                times[label] += [seconds] if turn else []  # the first turn warms up
            if turn and settings.left < 10:
                break
        other.stdin.close()  # pyright: ignore[reportOptionalMemberAccess]
    found["us_per_client_step"] = {n: 1e6 * float(np.median(t)) for n, t in times.items() if t}
    return found


def jobs(settings: Settings) -> Iterator[Job]:
    """The models with convolutions first."""
    for name, case in list(cases(settings.tiny).items())[-1 if settings.tiny else 0 :]:
        yield name, lambda c=case, n=name: race(c, n, settings)
