"""What every process of `test_processes.py` runs: loads its own clients, trains with checkpoints; the first one saves
the result.

Arguments: a folder, the number of rounds, and the evaluation in which process 1 is killed (0: none).
"""

import os
import signal
import sys
from pathlib import Path

import jax
import numpy as np
import optax

import fedamp_jax
from fedamp_jax import Checkpoint, Participation
from fedamp_jax.data import from_lists
from fedamp_jax.placement import OnMesh, client_mesh

CLIENTS = 7  # which neither two nor four processes divide
MOST = Participation(0.8)


def clients(seed, which):
    """The data of the clients `which` alone, of different lengths."""
    xs = [np.random.default_rng(100 * seed + int(i)).normal(size=(3 + int(i), 5)).astype(np.float32) for i in which]
    ys = [(x[:, 0] * (1 if i % 2 else -1) > 0).astype(int) for i, x in zip(which, xs)]
    return from_lists(xs, ys, classes=2, ids=which)


def method():
    """A task and FedAMP with small arguments."""
    task = fedamp_jax.models.mlp(classes=2, shape=(5,))
    return task, fedamp_jax.fedamp(task, fedamp_jax.Solver(optax.adam(1e-2), (1, 2), 4), sigma=1.0, self_weight=0.3)


def main(out, rounds, dies):
    place = OnMesh(mesh=client_mesh())
    mine = place.owned(CLIENTS)
    Path(out, f"owned-{jax.process_index()}").write_text(" ".join(map(str, mine)))
    train, test = (place.from_owned(clients(seed, mine), CLIENTS) for seed in (0, 1))
    evaluations = []

    def observe(evaluation):
        evaluations.append(evaluation.round)
        if len(evaluations) == dies and jax.process_index() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        models = jax.tree.leaves(evaluation.models())
        assert all(isinstance(a, np.ndarray) and len(a) == CLIENTS and np.isfinite(a).all() for a in models)
        return {"largest": float(np.asarray(evaluation.info.xi).max())}

    result = fedamp_jax.run(*method(), train, test, rounds=rounds, participation=MOST, progress=False, observe=observe,
                            checkpoint=Checkpoint(Path(out, "checkpoints"), every=1))  # fmt: skip
    if jax.process_index() == 0:
        np.savez(Path(out, "result.npz"), accuracy=result.accuracy, loss=result.loss, xi=result.xi)
    print("said once")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
