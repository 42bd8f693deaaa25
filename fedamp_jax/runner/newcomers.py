"""Clients that do not train (`--holdout-clients`), and the personal models that they get afterwards."""

import dataclasses
from collections.abc import Mapping

import jax
import numpy as np

import fedamp_jax
from fedamp_jax import Algorithm, Data, Placement, Solver, Task
from fedamp_jax.checks import check_integer
from fedamp_jax.data import Federation
from fedamp_jax.data.federations import part
from fedamp_jax.driver.evaluation import personal_scores
from fedamp_jax.driver.rounds import round_keys
from fedamp_jax.report.schema import NewClients
from fedamp_jax.types import Array


def hold_out(clients: Federation, number: int, seed: int) -> tuple[Federation, Federation]:
    """Divide the clients at random into those that train and `number` others.

    Raises:
        ValueError: if none or all are held out.
    """
    m = len(clients.train.size)
    check_integer("--holdout-clients", number, low=1)
    if number >= m:
        raise ValueError(f"--holdout-clients must leave a client that trains: there are {m}, got {number}")
    out = np.random.default_rng([seed, 0x6E6577]).permutation(m) < number
    return part(clients, ~out), part(clients, out)


def together(first: Federation, second: Federation) -> Federation:
    """The clients of both, those of the second with new ids."""
    train, test = (fedamp_jax.data.concatenate(a, b) for a, b in zip(first[:2], second[:2], strict=True))
    if first.groups is None or second.groups is None:
        return Federation(train, test, None)
    return Federation(train, test, np.concatenate([first.groups, second.groups]))


def last_key(seed: int, result: fedamp_jax.Run) -> Array:
    """The key with which the last evaluation of a run made the personal models."""
    return round_keys(jax.random.key(seed), result.rounds[-1] - 1)[2]


@dataclasses.dataclass(frozen=True)
class Newcomers:
    """The clients that do not train.

    Attributes:
        clients: the newcomers.
        test: test data of all clients, the newcomers last.
        algorithms: the methods, made for all clients.
        solver: of the local training by which a newcomer adapts its model.
    """

    clients: Federation
    test: Data
    algorithms: Mapping[str, Algorithm]
    solver: Solver

    def judge(
        self, name: str, task: Task, train: Data, placement: Placement, seed: int, result: fedamp_jax.Run
    ) -> NewClients:
        """Let the newcomers join after a run, and measure the models that they get.

        Args:
            name: of the method.
            task: the model.
            train: training data of the clients that trained.
            placement: where they live.
            seed: of the run.
            result: the `Run`.
        """
        algorithm, key = self.algorithms[name], jax.random.key(seed)
        train = placement.place(train)
        state, all_clients = fedamp_jax.join(algorithm, result.state, train, self.clients.train, key)
        # What kNN-Per adapts is what it remembers, which newcomers have from the beginning.
        tunes = algorithm.reader is None
        adapted = fedamp_jax.fine_tuned(task, self.solver, base=algorithm) if tunes else algorithm
        test, m, use = placement.place(self.test), train.clients, last_key(seed, result)
        ids = np.asarray(self.clients.train.id)
        order = np.argsort(ids)
        start, after = (
            100.0 * np.asarray(personal_scores(task, one, use, state, all_clients, test))[m:][: len(ids), 0][order]
            for one in (algorithm, adapted)
        )
        return {"clients": ids[order].tolist(), "start": start.tolist(), "adapted": after.tolist()}
