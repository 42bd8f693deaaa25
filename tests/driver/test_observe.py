"""What watches a run (`observe`) and what ends it (`until`)."""

import functools

import jax
import numpy as np
import pytest

import fedamp_jax
from fedamp_jax import Checkpoint, Patience, Placement
from fedamp_jax.models import MAE, MSE
from fedamp_jax.placement import InHostMemory, OnMesh, client_mesh
from tests.registry import federation, find, made

PLACEMENTS = {
    "one device": lambda: Placement(),
    "chunks": lambda: Placement(chunk=3),
    "a mesh with padding": lambda: OnMesh(mesh=client_mesh(3)),
    "the host's memory": lambda: InHostMemory(device=jax.devices()[0], chunk=3),
}


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACEMENTS)
def test_the_models_of_an_evaluation(place):
    """They are those that were evaluated: fine-tuning draws minibatches from the same key, and padding is cut off.

    Failed with the key of the round, with padding rows, and with the models of the last round for all.
    """
    task, algorithm = made(find("fine_tuned(fedavg)"), epochs=(1, 3))
    clients, seen = federation(), []

    def keep(evaluation):
        seen.append((evaluation, evaluation.models()))

    run = functools.partial(fedamp_jax.run, task, algorithm, clients, clients, placement=PLACEMENTS[place]())
    result = run(rounds=4, evaluate_every=2, observe=keep, progress=False)
    assert [evaluation.round for evaluation, _ in seen] == result.rounds == [2, 4]
    for k, (evaluation, models) in enumerate(seen):
        assert {a.shape[0] for a in jax.tree.leaves((models, evaluation.info.loss))} == {8}
        np.testing.assert_array_equal(evaluation.metrics["accuracy"], result.accuracy[k])
        np.testing.assert_array_equal(fedamp_jax.evaluate(task, models, clients), result.accuracy[k])
        assert evaluation.loss == result.loss[k]
    if "host" not in place:
        with pytest.raises(ValueError, match="this state was donated to an earlier round"):
            seen[0][0].models()
    assert any(np.any(np.asarray(a) != np.asarray(b)) for a, b in zip(*(jax.tree.leaves(m) for _, m in seen)))


def test_several_observers():
    """One after the other; each sees what those before it returned. Failed with the order turned round."""
    task, algorithm = made(find("separate"))
    clients, seen = federation(), []

    def first(one):
        return {"twice": 2 * one.round}

    def second(one):
        return {"four times": 2 * one.observed["twice"]}

    run = functools.partial(fedamp_jax.run, task, algorithm, clients, clients, rounds=2, progress=False)
    result = run(observe=[first, second, lambda one: seen.append(one.numbers())])
    assert result.observed == {"twice": [2.0, 4.0], "four times": [4.0, 8.0]}
    mean = float(result.accuracy[1].mean(dtype=np.float64))
    assert seen[1] == {"accuracy": mean, "loss": result.loss[1], "twice": 4.0, "four times": 8.0}


def test_means_are_of_those_with_test_data():
    """Failed with NaN in place of the mean."""
    task, algorithm = made(find("separate"))
    clients, seen = federation(), []
    test = clients._replace(size=clients.size.at[2].set(0))
    fedamp_jax.run(task, algorithm, clients, test, rounds=1, observe=seen.append, progress=False)
    assert np.isnan(seen[0].metrics["accuracy"]).sum() == 1
    assert seen[0].numbers()["accuracy"] == pytest.approx(np.nanmean(seen[0].metrics["accuracy"]))


# --- early stopping ---------------------------------------------------------------------------------------------------


def after(rounds):
    """Ends a run at its first evaluation after so many rounds."""
    return lambda result: result.rounds[-1] >= rounds


def test_a_run_that_is_ended(tmp_path):
    """Where `until` says, with a checkpoint; it is the beginning of a longer run, and continuing it trains nothing.

    Failed when a resumed run trained on to `rounds`, and when the checkpoint of the last rounds was not written.
    """
    task, algorithm = made(find("fedamp"), epochs=(1, 3))
    clients, saving = federation(), Checkpoint(tmp_path, every=3, fingerprint={})
    run = functools.partial(fedamp_jax.run, task, algorithm, clients, clients, evaluate_every=2, progress=False)
    whole = run(rounds=5)
    ended = run(rounds=20, until=after(3), checkpoint=saving)
    assert ended.rounds == [2, 4] and whole.rounds == [2, 4, 5]
    np.testing.assert_array_equal(ended.accuracy, whole.accuracy[:2])
    again = run(rounds=20, until=after(3), checkpoint=saving)
    assert again.rounds == [2, 4] and again.starts == 1 and again.seconds == ended.seconds
    np.testing.assert_array_equal(again.accuracy, ended.accuracy)
    longer = run(rounds=20, until=after(5), checkpoint=saving)
    assert longer.rounds == [2, 4, 6] and longer.starts == 2


def test_what_ends_a_run_is_asked_at_evaluations_alone(tmp_path):
    """A checkpoint between two evaluations is no reason to ask anew. Failed when every round asked."""
    task, algorithm = made(find("separate"))
    asked, clients = [], federation()

    def until(result):
        return asked.append(list(result.rounds))

    run = functools.partial(fedamp_jax.run, task, algorithm, clients, clients, until=until, progress=False)
    run(rounds=5, evaluate_every=3, checkpoint=Checkpoint(tmp_path, 1, {}))
    assert asked == [[3]]


def test_the_progress_of_a_run_that_is_ended(capsys):
    """A line for its last evaluation. Failed when the run went on, and without that line."""
    task, algorithm = made(find("separate"))
    clients = federation()
    fedamp_jax.run(task, algorithm, clients, clients, rounds=9, until=after(2), progress="Separate")
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 1 and lines[0].startswith("Separate: round 2 of 9")


def run_of(name, means):
    """A `Run` whose clients have these means; the last one has no test data."""
    scores = np.array([[m - 0.1, m + 0.1, np.nan] for m in means], np.float32)
    return fedamp_jax.Run(None, list(range(1, len(means) + 1)), {name: scores})


@pytest.mark.parametrize(("metric", "means", "ended"), [
    (fedamp_jax.models.ACCURACY, [0.1, 0.2, 0.3, 0.4], False),
    (fedamp_jax.models.ACCURACY, [0.4, 0.3, 0.35], True),  # better than the last one, not than the best one
    (fedamp_jax.models.ACCURACY, [0.3, 0.4, 0.4], False),  # one evaluation without improvement
    (fedamp_jax.models.ACCURACY, [0.3, 0.4, 0.4, 0.4], True),
    (MSE, [4.0, 3.0, 2.0, 1.0], False), (MSE, [1.0, 2.0, 3.0], True),
    (MSE, [np.nan, np.nan, 1.0], False), (MSE, [np.nan, np.nan, np.nan], True),
])  # fmt: skip
def test_patience(metric, means, ended):
    """Failed with errors that had to rise, and with a comparison to the last evaluation."""
    assert Patience(2, metric)(run_of(metric.name, means)) == ended


def test_patience_ends_a_run():
    """A method that changes nothing does not improve. Failed with one evaluation too many."""
    task, algorithm = made(find("separate"))
    still = algorithm._replace(round=lambda key, state, data: (state, algorithm.round(key, state, data)[1]))
    clients = federation()
    result = fedamp_jax.run(task, still, clients, clients, rounds=9, until=Patience(3), progress=False)
    assert result.rounds == [1, 2, 3, 4]


@pytest.mark.parametrize(("given", "kind", "message"), [
    ({"until": 3}, TypeError, r"until must be a function Run -> bool, such as fedamp_jax.Patience\(5\), got 3"),
    ({"until": Patience(3, MAE)}, ValueError, "waits for the metric 'mae', but the task has 'accuracy': give Patience"),
    ({"observe": 3}, TypeError, "observe must be a function Evaluation -> numbers by name, or several of them, got 3"),
    ({"observe": [print, "csv"]}, TypeError, "observe must be a function Evaluation"),
])  # fmt: skip
def test_what_is_refused(given, kind, message):
    """Before anything compiles. Failed after the first round."""
    task, algorithm = made(find("separate"))
    never = algorithm._replace(init=None)
    with pytest.raises(kind, match=message):
        fedamp_jax.run(task, never, federation(), federation(), rounds=1, **given)


def test_what_patience_refuses():
    """Failed when the name of a metric, which does not say what is better, was taken."""
    with pytest.raises(TypeError, match=r"metric must be of type Metric \(one of task.metrics\), got mse"):
        Patience(3, "mse")
    with pytest.raises(ValueError, match="evaluations must be at least 1, got 0"):
        Patience(0)
