"""Hyper-parameters that are out of range or of the wrong kind are refused by name before anything compiles."""

import jax
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Placement, Solver, checks
from fedamp_jax.placement import InHostMemory, OnMesh, client_mesh
from tests.registry import tiny_task

TASK, SGD = tiny_task(), Solver(optax.sgd(0.1))
TINY = float(np.finfo(np.float32).tiny)


def amp(solver=SGD, **change):
    return fedamp_jax.fedamp(TASK, solver, **{"sigma": 1.0, "self_weight": 0.1, **change})


def heur(**change):
    return fedamp_jax.heurfedamp(TASK, SGD, **{"sigma": 1.0, "self_weight": 0.1, **change})


REFUSED = {
    "sigma zero": (lambda: amp(sigma=0.0), r"sigma must be at least 1.18e-38 \(float32's smallest .*\), got 0"),
    "sigma subnormal": (lambda: amp(sigma=TINY / 2), "sigma must be at least 1.18e-38.*, got 5.8"),
    "sigma subnormal, heuristic": (lambda: heur(sigma=1e-40), "sigma must be at least 1.18e-38.*, got 1e-40"),
    "sigma text": (lambda: amp(sigma="1"), "sigma must be a number"),
    "sigma NaN": (lambda: heur(sigma=float("nan")), "sigma must be finite, got nan"),
    "sigma of each": (lambda: amp(sigma=[1.0, -2.0]), r"sigma must be at least .* at position 1"),
    "sigma masked": (lambda: amp(sigma=np.ma.masked_array([1.0, 2.0], [False, True])), "masked, at position 1"),
    "alpha of each": (lambda: amp(alpha=[1.0, 2.0]), "alpha must be a number or a schedule"),
    "lam": (lambda: amp(lam=-1.0), "lam must be at least 0"),
    "alpha": (lambda: amp(alpha=0.0), "alpha must be greater than 0"),
    "self_weight": (lambda: amp(self_weight=1.5), "self_weight must be at least 0 and at most 1"),
    "self_weights": (lambda: amp(self_weight=np.array([0.1, -0.2])), "self_weight must be at least 0.*position 1"),
    "no self_weight": (lambda: heur(self_weight=None), "self_weight must be given"),
    "start": (lambda: amp(start="clod"), "start must be one of.*did you mean 'cloud'"),
    "stale": (lambda: amp(stale="exlude"), "stale must be one of.*did you mean 'exclude'"),
    "stats": (lambda: fedamp_jax.fedavg(TASK, SGD, stats="global"), "stats must be one of"),
    "mu": (lambda: fedamp_jax.fedprox(TASK, SGD, mu=-0.1), "mu must be at least 0"),
    "solver": (lambda: fedamp_jax.fedavg(TASK, optax.sgd(0.1)), "solver must be of type Solver"),
    "solver of fedamp": (lambda: amp(None), "solver must be of type Solver"),
    "head solver": (lambda: fedamp_jax.fedrep(TASK, SGD, head_solver=optax.sgd(0.1)), "head_solver must be of type"),
    "reconstruction": (lambda: fedamp_jax.fedrecon(TASK, SGD, head_solver=3), "head_solver must be of type Solver"),
    "tuner": (lambda: fedamp_jax.fedbabu(TASK, SGD, tuner=optax.sgd(0.1)), "tuner must be of type Solver"),
    "own solver": (lambda: fedamp_jax.ditto(TASK, SGD, personal_solver=0), "personal_solver must be of type Solver"),
    "task": (lambda: fedamp_jax.separate(SGD, SGD), "task must be of type Task"),
    "base": (lambda: fedamp_jax.fine_tuned(TASK, SGD, base=fedamp_jax.fedavg), "base must be of type Algorithm"),
    "penalty": (
        lambda: fedamp_jax.fine_tuned(TASK, SGD, base=fedamp_jax.fedavg(TASK, SGD), penalty=0.01),
        r"penalty must be a function \(start, k\)",
    ),
    "support": (lambda: fedamp_jax.fedrecon(TASK, SGD, support=1.0), "support must be below 1"),
    "apfl alpha": (lambda: fedamp_jax.apfl(TASK, SGD, alpha=1.1), "alpha must be at least 0 and at most 1"),
    "apfl schedule": (lambda: fedamp_jax.apfl(TASK, SGD, alpha=lambda k: 0.5), "alpha must be a number or one for"),
    "option": (lambda: fedamp_jax.scaffold(TASK, SGD, option="III"), "option must be one of.*did you mean 'I"),
    "chunk": (lambda: Placement(chunk=0), "chunk must be at least 1, got 0"),
    "half a chunk": (lambda: Placement(chunk=2.5), "chunk must be a whole number, got 2.5"),
    "chunk of a mesh": (lambda: OnMesh(mesh=client_mesh(2), chunk=0), "chunk must be at least 1, got 0"),
    "chunk on the host": (lambda: InHostMemory(device=jax.devices()[0], chunk=0), "chunk must be at least 1, got 0"),
    "transmit": (lambda: Placement(transmit="sign"), "transmit must be a function"),
    "mesh": (lambda: OnMesh(mesh=2), "mesh must be of type Mesh .*client_mesh.*got 2"),
    "axis": (lambda: OnMesh(mesh=jax.make_mesh((2,), ("data",))), r"one axis 'clients'.*client_mesh.*\('data',\)"),
    "two axes": (
        lambda: OnMesh(mesh=jax.make_mesh((2, 2), ("clients", "model"))),
        r"one axis 'clients'.*\('clients', 'model'\)",
    ),
    "device": (lambda: InHostMemory(device="cpu"), r"device must be of type Device .*jax.devices\(\).*got cpu"),
    "corrupt": (lambda: fedamp_jax.corrupted(amp(), "sign"), "corrupt must be a function"),
    "corrupt what": (lambda: fedamp_jax.corrupted(fedamp_jax.fedavg, lambda *a: a), "algorithm must be of type"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_bad_arguments_are_refused_by_name(case):
    """Each failed with its check taken out."""
    call, message = REFUSED[case]
    with pytest.raises((ValueError, TypeError), match=message):
        call()


def test_the_smallest_sigma_is_allowed():
    """Failed when the bound itself was refused."""
    assert amp(sigma=TINY).explain is None


def test_tracers_and_schedules_are_not_known_yet():
    """A swept or scheduled number has no value to check."""
    checks.check_number("sigma", lambda k: -1.0, low=0)
    assert jax.jit(lambda s: (checks.check_number("sigma", s, low=0), s)[1])(-1.0) == -1.0
