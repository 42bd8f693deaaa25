"""What runs in a job of NVIDIA FLARE, at the server and at each site. Needs `pip install 'fedamp_jax[flare]'`.

A job names these two classes and carries no code. What they compute is in a Python file that each machine's owner has
put there (`fedamp_jax.silos.Settings`).
"""

import concurrent.futures
import contextvars
import json
import os
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from nvflare.collab import collab
from nvflare.collab.api.exceptions import RunAborted

import fedamp_jax
from fedamp_jax.files import replace_file
from fedamp_jax.placement.messages import Answer, Away, Message, Refused
from fedamp_jax.silos.federation import connect, deliver
from fedamp_jax.silos.silo import Kind, Place, Silo
from fedamp_jax.silos.site import FOLDER, SETTINGS, Settings

_PING = 5.0
"""Seconds that a site has to say that it is there after it has missed a deadline."""


def _own(name: str) -> Path:
    value = os.environ.get(name)
    if not value:
        raise RuntimeError(f"the environment variable {name} is not set: fedamp_jax.silos.flare.start sets it")
    return Path(value)


class Client:
    """A site's part of a job."""

    def __init__(self):
        self._settings: Settings | None = None
        self._silos: dict[str, Silo] = {}
        self._lock = threading.Lock()  # a question that came too late may still be computed when the next one comes

    @collab.publish
    def ping(self) -> bool:
        """That the site is there."""
        return True

    @collab.publish
    def join(self, method: str) -> dict[str, Any]:
        """A description of the site's data, `Kind` as JSON."""
        return self._answered(lambda: {"kind": json.dumps(self._silo(method).kind)})

    @collab.publish
    def admit(self, method: str, place: str) -> dict[str, Any]:
        """Take a `Place`, as JSON."""

        def admitted() -> dict[str, Any]:
            row, clients, seed, longest, dtype = json.loads(place)
            silo = self._silo(method)
            silo.admit(Place(row, clients, seed, tuple(longest), dtype))
            print(f"{method}: {silo.sends}", flush=True)  # in the site's log, before anything is sent
            return {}

        return self._answered(admitted)

    @collab.publish
    def answer(self, method: str, message: dict[str, Any]) -> dict[str, Any]:
        """The answer to a message, or why there is none."""

        def answered() -> dict[str, Any]:
            arrays = [{int(v): a for v, a in message[name].items()} for name in ("rows", "whole")]
            fixed = (message[name] for name in Message._fields[:-2])
            rows = self._silo(method).answer(Message(*fixed, *arrays)).rows
            return {"rows": {str(v): a for v, a in rows.items()}}

        return self._answered(answered)

    def _silo(self, method: str) -> Silo:
        if self._settings is None:
            self._settings = Settings(_own(SETTINGS))
        if method not in self._silos:
            self._silos[method] = self._settings.silo(collab.site_name, method, _own(FOLDER) / method)
        return self._silos[method]

    def _answered(self, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The result, or an error without what other libraries write into theirs, which may be values of the data."""
        try:
            with self._lock:
                return compute()
        except Refused as error:
            return {"refused": str(error)}
        except Exception as error:
            return {"error": f"{type(error).__name__} at the site, whose log says more"}


class Server:
    """The server's part of a job: runs methods one after the other, each from its last checkpoint.

    Args:
        methods: their names, which the settings files know.
        rounds: of each.
        sites: the names of all sites; the order is that of the clients. The first job needs all of them; in a later one
            those that are away are offline.
        seed: of everything random.
        deadline: seconds that a site has for an answer.
        dtype: of models on their way, None for their own.
    """

    def __init__(
        self, methods: Sequence[str], rounds: int, sites: Sequence[str], seed: int = 0, deadline: float = 300.0,
        dtype: str | None = None,
    ):  # fmt: skip
        self.methods, self.rounds, self.sites = list(methods), rounds, list(sites)
        self.seed, self.deadline, self.dtype = seed, deadline, dtype

    @collab.main
    def run(self) -> None:
        """Run what is not finished yet."""
        settings, folder = Settings(_own(SETTINGS)), _own(FOLDER)
        for name in self.methods:
            if not (folder / name / "result.json").exists():
                self._run(settings, folder / name, name)

    def _run(self, settings: Settings, folder: Path, name: str) -> None:
        with Sites({client.name: client for client in collab.clients}, self.sites, name, self.deadline) as sites:
            kinds = self._kinds(folder / "clients.json", sites)
            train, test, places = connect(kinds, sites, seed=self.seed, dtype=self.dtype)
            sites.admit(places)
            train = train._replace(online=jnp.asarray(sites.present))
            task, algorithm = settings.method(name)
            checkpoint = fedamp_jax.Checkpoint(folder / "checkpoint", every=1)
            done = max((int(one.name) for one in (folder / "checkpoint").glob("*") if one.name.isdigit()), default=0)
            print(f"{name}: goes on after round {done} with {', '.join(sites.here())}", flush=True)  # in the log
            result = fedamp_jax.run(
                task, algorithm, train, test, rounds=self.rounds, seed=self.seed, progress=False, checkpoint=checkpoint
            )
            deliver(algorithm, result, train)
        found = {
            "sites": self.sites, "rounds": result.rounds, "loss": result.loss, "rejected": result.rejected.tolist(),
            "metrics": {metric: values.tolist() for metric, values in result.metrics.items()},
            "seconds": result.seconds, "first_seconds": result.first_seconds,
        }  # fmt: skip
        replace_file(folder / "result.json", json.dumps(found).encode())

    def _kinds(self, path: Path, sites: "Sites") -> list[Kind]:
        """Of all sites: as they say now, or, of those that are away, as they said when the run began."""
        path.parent.mkdir(parents=True, exist_ok=True)
        known = json.loads(path.read_text()) if path.exists() else {}
        now = sites.join()
        for site, kind in now.items():
            if site in known and known[site] != kind:
                raise RuntimeError(
                    f"the data of {site} were {known[site]} when the run began, and are {kind} now: go on with the "
                    "same, or start over in an empty folder"
                )
        missing = [site for site in self.sites if site not in known | now]
        if missing:
            raise RuntimeError(f"the first job of a run needs all sites, and {', '.join(missing)} did not join")
        replace_file(path, json.dumps(known | now).encode())
        return [Kind(*(known | now)[site]) for site in self.sites]


class Sites:
    """A transport over FLARE's calls.

    Attributes:
        present: `[M]` bool, which sites take part in this job.
    """

    def __init__(self, proxies: Mapping[str, Any], sites: Sequence[str], method: str, deadline: float):
        unknown = set(proxies) - set(sites)
        if unknown:
            raise RuntimeError(f"{', '.join(sorted(unknown))} are no sites of this federation: {', '.join(sites)} are")
        self._proxies, self._sites, self._method, self._deadline = proxies, list(sites), method, deadline
        self.present = np.array([site in proxies for site in sites])
        self._silent: set[str] = set()
        self._waiting: dict[str, concurrent.futures.Future] = {}
        self._pool = concurrent.futures.ThreadPoolExecutor(len(sites), thread_name_prefix="fedamp-sites")

    def __enter__(self) -> "Sites":
        return self

    def __exit__(self, *_: Any) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def join(self) -> dict[str, Any]:
        """What each site says of its data."""
        answers = self._ask(lambda site, proxy: proxy.join(self._method), self.here())
        return {site: json.loads(_checked(site, answer)["kind"]) for site, answer in answers.items()}

    def admit(self, places: Sequence[Place]) -> None:
        """Tell each site its place."""
        by_site = dict(zip(self._sites, places, strict=True))
        answers = self._ask(lambda site, p: p.admit(self._method, json.dumps(by_site[site])), self.here())
        for site, answer in answers.items():
            _checked(site, answer)

    def here(self) -> list[str]:
        """The names of the sites that take part."""
        return [site for site, here in zip(self._sites, self.present, strict=True) if here]

    def __call__(self, messages: Mapping[int, Message]) -> dict[int, Answer | Exception]:
        rows = {self._sites[i]: i for i in messages if self.present[i]}

        def ask(site: str, proxy: Any) -> Any:
            message = messages[rows[site]]._asdict()
            for name in ("rows", "whole"):
                message[name] = {str(v): a for v, a in message[name].items()}
            return proxy.answer(self._method, message)

        answers = self._ask(ask, list(rows))
        found: dict[int, Answer | Exception] = {
            i: Away("it is not in this job") for i in messages if not self.present[i]
        }
        for site, answer in answers.items():
            if isinstance(answer, RunAborted):  # the job is at its end; its sites are not to blame
                raise answer
            try:
                found[rows[site]] = Answer({int(v): a for v, a in _checked(site, answer)["rows"].items()})
            except Exception as error:
                found[rows[site]] = error
        return found

    def _ask(self, call: Callable[[str, Any], Any], sites: Sequence[str]) -> dict[str, Any]:
        """The answers of some sites, which are asked at the same time; an exception where none came in time."""

        def one(site: str) -> Any:
            try:
                if site in self._silent:  # the others do not wait for the whole deadline in every round
                    self._proxies[site](timeout=min(_PING, self._deadline)).ping()
                answer = call(site, self._proxies[site](timeout=self._deadline))
            except Exception as error:  # FLARE's, of many kinds
                self._silent.add(site)
                return error
            self._silent.discard(site)
            return answer

        # FLARE finds a job's calls by its context variables, which threads do not inherit.
        free = [site for site in sites if site not in self._waiting or self._waiting[site].done()]
        asked = {site: self._pool.submit(contextvars.copy_context().run, one, site) for site in free}
        self._waiting.update(asked)
        # What a site sends while it dies is waited for by FLARE for minutes, whatever the deadline of the call.
        done, _ = concurrent.futures.wait(asked.values(), timeout=self._deadline + _PING)
        self._silent |= {site for site, future in asked.items() if future not in done}
        late = TimeoutError(f"no answer in {self._deadline:g} s")
        return {site: asked[site].result() if site in asked and asked[site] in done else late for site in sites}


def _checked(site: str, answer: Any) -> dict[str, Any]:
    """A site's answer as it should be.

    Raises:
        Refused: the site refuses.
        Exception: whatever else has kept it from answering.
    """
    if isinstance(answer, Exception):
        raise answer
    if not isinstance(answer, dict):
        raise TypeError(f"{site} answers with a {type(answer).__name__}")
    if "refused" in answer:
        raise Refused(f"{site}: {answer['refused']}")
    if "error" in answer:
        raise RuntimeError(f"{site}: {answer['error']}")
    return answer


warnings.filterwarnings("always", category=RuntimeWarning, module="fedamp_jax")
