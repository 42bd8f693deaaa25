"""The transport over FLARE's calls, with sites that are only objects."""

import threading

import numpy as np
import pytest

pytest.importorskip("nvflare", reason="needs pip install 'fedamp_jax[flare]'")

from nvflare.collab.api.exceptions import RunAborted

from fedamp_jax.placement.messages import Away, Message, Refused
from fedamp_jax.silos.flare_app import Sites

pytestmark = pytest.mark.filterwarnings("default")


class Site:
    """Answers with its number, or hangs, or fails."""

    def __init__(self, number, answer=None):
        self.number, self.given, self.asked, self.free = number, answer, 0, threading.Event()

    def __call__(self, timeout):
        return self

    def ping(self):
        return True

    def answer(self, method, message):
        self.asked += 1
        if isinstance(self.given, Exception):
            raise self.given
        if self.given == "hangs":
            self.free.wait(30)
        return (
            {"rows": {"3": np.full((1, 2), self.number * 10 + message["made"])}}
            if self.given in (None, "hangs")
            else self.given
        )


def message(made):
    return Message("round", 1, 1, "", 0, made, {}, {})


def test_a_stale_answer_is_not_taken_for_a_new_one():
    """Of a site that hangs over one round and answers in the next. Failed when the old answer was used."""
    slow, fast = Site(1, "hangs"), Site(0)
    with Sites({"fast": fast, "slow": slow}, ["fast", "slow"], "FedAvg", deadline=-4.5) as sites:
        first = sites({0: message(1), 1: message(1)})
        assert first[0].rows[3][0, 0] == 1
        assert isinstance(first[1], TimeoutError)
        assert isinstance(sites({0: message(2), 1: message(2)})[1], TimeoutError)
        assert slow.asked == 1
        slow.given = None
        slow.free.set()
        sites._waiting["slow"].result()
        third = sites({0: message(3), 1: message(3)})
        assert third[1].rows[3][0, 0] == 13


def test_answers_of_every_kind():
    """A site that is away, one that refuses, one that fails, one that answers nonsense."""
    kinds = {
        "refuses": Site(0, {"refused": "no"}), "fails": Site(1, {"error": "ValueError at the site"}),
        "nonsense": Site(2, 7), "breaks": Site(3, ConnectionError("gone")), "answers": Site(4),
    }  # fmt: skip
    names = [*kinds, "away"]
    with Sites(kinds, names, "FedAvg", deadline=5.0) as sites:
        assert sites.present.tolist() == [True] * 5 + [False]
        found = sites({i: message(1) for i in range(6)})
    assert isinstance(found[0], Refused)
    assert [type(found[i]) for i in (1, 2, 3, 5)] == [RuntimeError, TypeError, ConnectionError, Away]
    assert found[4].rows[3].shape == (1, 2)


def test_a_job_that_is_ended_ends_the_run():
    """Its sites are not lost: the round is run again in the next job. Failed when they did not count in it."""
    sites = {"answers": Site(0), "ended": Site(1, RunAborted("run is aborted"))}
    with Sites(sites, list(sites), "FedAvg", deadline=5.0) as there, pytest.raises(RunAborted):
        there({0: message(1), 1: message(1)})


def test_an_unknown_site_is_refused():
    with pytest.raises(RuntimeError, match="stranger are no sites of this federation: north are"):
        Sites({"stranger": Site(0)}, ["north"], "FedAvg", deadline=5.0)
