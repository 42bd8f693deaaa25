"""The attention weights that a run keeps of a few rounds: which rounds, what they follow from, and after a resume."""

import jax
import numpy as np
import optax
import pytest

import fedamp_jax
from fedamp_jax import Checkpoint, Placement, Snapshots, attention
from fedamp_jax.algorithms import fedamp
from fedamp_jax.placement import InHostMemory, OnMesh, client_mesh
from fedamp_jax.report import attention_history
from fedamp_jax.runner import train
from tests.registry import federation, tiny_task

SIGMA = 0.5


def run(method="fedamp", rounds=5, kept=(1, 3, 5), **changes):
    task, solver = tiny_task(), fedamp_jax.Solver(optax.sgd(0.1), epochs=1, batch_size=4)
    made = {
        "fedamp": lambda: fedamp_jax.fedamp(task, solver, sigma=SIGMA, self_weight=0.25),
        "fedavg": lambda: fedamp_jax.fedavg(task, solver),
    }[method]()
    own = fedamp.distances if method == "fedamp" else None
    usual = {"rounds": rounds, "progress": False, "snapshots": Snapshots(kept, own), "evaluate_every": 2}
    return fedamp_jax.run(task, made, federation(), federation(), **{**usual, **changes})


PLACES = {
    "one": Placement(),
    "host": InHostMemory(device=jax.devices()[5], chunk=3),
    "mesh": OnMesh(mesh=client_mesh(3)),
}


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES)
def test_weights_follow_from_the_distances(place):
    """Of the same round, whatever the placement. Failed with distances measured after the round, and with rows of
    padding clients.
    """
    result = run(placement=PLACES[place])
    m = len(federation().size)
    assert result.snapshot_rounds == [1, 3, 5] and result.snapshot_distances.shape == (3, m, m)
    np.testing.assert_array_equal(result.snapshot_xi[-1], result.xi)
    for xi, distances in zip(result.snapshot_xi, result.snapshot_distances, strict=True):
        others = ~np.eye(m, dtype=bool)
        expected = attention.normalize(-distances / SIGMA, others, np.float32(0.25))
        np.testing.assert_allclose(xi, expected, rtol=1e-4, atol=1e-6)
    assert result.snapshot_distances[0].max() == 0 < result.snapshot_distances[1].max()


@pytest.mark.slow
def test_a_resumed_run_has_them_all(tmp_path):
    """Failed when a checkpoint left out the matrices, and when it left out their rounds."""
    whole = run()
    run(rounds=2, checkpoint=Checkpoint(tmp_path, 1, {"sigma": SIGMA}))
    resumed = run(checkpoint=Checkpoint(tmp_path, 1, {"sigma": SIGMA}))
    assert resumed.snapshot_rounds == whole.snapshot_rounds
    np.testing.assert_array_equal(resumed.snapshot_xi, whole.snapshot_xi)
    np.testing.assert_array_equal(resumed.snapshot_distances, whole.snapshot_distances)


def test_methods_without_weights_have_none():
    """Failed when rounds were listed without weights."""
    result = run("fedavg", rounds=2)
    assert result.snapshot_rounds == [] and result.snapshot_xi is None
    assert attention_history.entry(result) is None


def test_what_a_result_file_holds():
    """Four significant digits, pairs in the order of the upper triangle. Failed with the lower one."""
    xi = np.full((2, 4, 4), 1 / 3, np.float32)
    numbers = np.arange(4)
    upper = np.triu(10 * numbers[:, None] + numbers + 0.14159265, 1)
    kept = fedamp_jax.Run(
        None, snapshot_rounds=[1, 4], snapshot_xi=xi, snapshot_distances=np.stack([upper + upper.T] * 2)
    )
    entry = attention_history.entry(kept)
    assert entry["rounds"] == [1, 4] and entry["xi"][1][2] == [0.3333] * 4
    assert entry["distances"] == [[1.142, 2.142, 3.142, 12.14, 13.14, 23.14]] * 2


def test_which_rounds():
    """First and last, at most twelve, evaluated ones. Failed with rounds that no evaluation falls on."""
    for rounds, every, clients in ((1, 1, 20), (7, 3, 20), (600, 1, 100), (600, 7, 300), (90, 100, 5000)):
        kept = sorted(train.snapshots(rounds, every, clients, True).rounds)
        assert kept[-1] == rounds and kept[0] == min(every, rounds) and len(kept) <= 12
        assert all(k % every == 0 or k == rounds for k in kept)
        assert clients <= 100 or len(kept) <= 2
