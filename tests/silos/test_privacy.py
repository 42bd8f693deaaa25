"""What clients add to what they send."""

import jax
import numpy as np
import pytest

from fedamp_jax import silos
from tests.registry import find, made
from tests.silos.test_silos import SEED, Watched, clients, data, run


def private(task, algorithm, privacy, folder=None):
    train, test = data()
    return [
        silos.Silo(task, algorithm, train.select([i]), test.select([i]), privacy=privacy,
                   folder=folder and folder / str(i))
        for i in range(4)
    ]  # fmt: skip


class Recorded(Watched):
    """Keeps messages and answers."""

    def __init__(self, silos):
        super().__init__(silos, self.keep)
        self.seen = []

    def keep(self, i, message, answer):
        self.seen.append((message, answer))
        return answer


def updates(there, silo):
    """The differences between what FedAvg's clients send in a round and the global model that they got."""
    cut = silo._cut("compiled_round")[1]
    found = []
    for message, answer in there.seen:
        if message.program != "compiled_round":
            continue
        models = {v: a for v, a in answer.rows.items() if a.ndim > 1 and v in cut.made_by}
        got = [*message.whole.values(), *(a[0] for a in message.rows.values())]
        found.append(({a.shape: a for a in got}, [a[0] for a in models.values()], answer))
    return found


def test_updates_are_clipped_and_noised():
    """With hardly any noise an update has the clipping norm; with much, its deviation. Failed with noise of deviation
    1 in place of `noise * clip`, and when each array was clipped alone.
    """
    task, algorithm = made(find("fedprox"))
    for noise, expected in ((1e-6, 0.01), (50.0, None)):
        there = Recorded(private(task, algorithm, silos.Privacy(clip=0.01, noise=noise)))
        run(task, algorithm, *there.connect(seed=SEED), rounds=1)
        for got, sent, answer in updates(there, there.silos[0]):
            difference = np.concatenate([(s - got[s.shape]).ravel() for s in sent])
            if expected is not None:
                np.testing.assert_allclose(np.linalg.norm(difference), expected, rtol=1e-3)
            else:
                assert 0.3 < difference.std() < 0.7
            assert all(np.isnan(a).all() for a in answer.rows.values() if a.ndim == 1 and a.dtype.kind == "f")


def test_the_noise_is_the_clients_own():
    """Two runs of the same seed differ. Failed with a key that the server had sent."""
    task, algorithm = made(find("fedavg"))
    found = []
    for _ in range(2):
        there = silos.InProcess(private(task, algorithm, silos.Privacy(clip=1.0, noise=1.0)))
        found.append(run(task, algorithm, *there.connect(seed=SEED), rounds=1).state.params)
    assert not np.allclose(found[0]["body"]["kernel"], found[1]["body"]["kernel"])


def test_a_client_goes_on_from_what_it_has_sent():
    """The server's copy of a model is the client's own. Failed when the client kept the model without noise."""
    task, algorithm = made(find("fedamp"))
    there = silos.InProcess(private(task, algorithm, silos.Privacy(clip=1.0, noise=1.0)))
    train, test = there.connect(seed=SEED)
    result = run(task, algorithm, train, test, rounds=2)
    assert np.isnan(result.accuracy).all()
    assert np.isnan(result.loss).all()
    silos.deliver(algorithm, result, train)
    for i, silo in enumerate(there.silos):
        copy = jax.tree.map(lambda a, i=i: np.asarray(a[i]), result.state.clients.variables.params)
        for a, b in zip(jax.tree.leaves(copy), jax.tree.leaves(silo.model.params), strict=True):
            np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["scaffold", "fedfomo", "ifca"])
def test_what_cannot_be_protected_is_refused(name):
    """A difference of variates, weights that follow from losses, a choice of a cluster."""
    task, algorithm = made(find(name))
    with pytest.raises(silos.Refused, match="noise is for methods such as"):
        silos.InProcess(private(task, algorithm, silos.Privacy(clip=1.0, noise=1.0))).connect()


def test_what_was_spent_is_kept(tmp_path):
    """Failed when a silo that was started anew began at 0."""
    task, algorithm = made(find("fedavg"))
    privacy = silos.Privacy(clip=1.0, noise=8.0)
    there = silos.InProcess(private(task, algorithm, privacy, tmp_path))
    run(task, algorithm, *there.connect(seed=SEED), rounds=2)
    again = private(task, algorithm, privacy, tmp_path)
    assert again[0].spent == (privacy.epsilon(2), 1e-5)
    assert clients(task, algorithm)[0].spent is None


@pytest.mark.parametrize(("noise", "answers", "epsilon"), [(8.0, 50, 8.59587), (2.0, 1, 4.37718), (10.0, 1, 0.72552)])
def test_epsilon(noise, answers, epsilon):
    """What dp-accounting 0.6's accountant of privacy loss distributions gives for half of the noise multiplier.

    Failed without the factor 2 between the clipping norm and the most that two updates can differ by.
    """
    np.testing.assert_allclose(silos.Privacy(clip=1.0, noise=noise).epsilon(answers), epsilon, rtol=1e-4)


def test_epsilon_by_its_definition():
    """delta is the most that probabilities differ by, `E max(0, 1 - exp(epsilon - loss))`, by numerical integration."""
    privacy, answers = silos.Privacy(clip=3.0, noise=4.0, delta=1e-3), 7
    mu = 2.0 * np.sqrt(answers) / 4.0
    x = np.linspace(-12.0, 12.0 + mu, 2_000_001)
    p, q = (np.exp(-((x - c) ** 2) / 2) / np.sqrt(2 * np.pi) for c in (mu, 0.0))
    found = np.trapezoid(np.maximum(p - np.exp(privacy.epsilon(answers)) * q, 0.0), x)
    np.testing.assert_allclose(found, 1e-3, rtol=1e-4)
    assert privacy.epsilon(0) == 0.0


@pytest.mark.parametrize("wrong", [{"clip": 0.0}, {"noise": -1.0}, {"delta": 2.0}])
def test_numbers_out_of_range(wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        silos.Privacy(**{"clip": 1.0, "noise": 1.0, **wrong})
