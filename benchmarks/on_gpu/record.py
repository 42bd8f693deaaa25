"""What was measured, one JSON line at a time, so that nothing is lost when a process or a machine is.

A part is a series of jobs. Each leaves a line when it begins and one when it ends; a process that is started again
after a crash goes on with the first job that never began.
"""

import contextlib
import gc
import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import jax

Job = tuple[str, Callable[[], dict[str, Any]]]
"""A name, and what measures: a dictionary of numbers and words."""


class Results:
    """The lines of a file.

    Args:
        path: where they are; more are added to what is there.
    """

    def __init__(self, path: Path):
        self.path = path

    def add(self, part: str, name: str, **found: Any) -> None:
        """Writes a line, on the disk when this returns."""
        with self.path.open("a") as file:
            file.write(json.dumps({"part": part, "name": name, "time": time.time(), **found}) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def lines(self) -> list[dict[str, Any]]:
        """All of them. The last one may be half written if the machine stopped."""
        found = []
        for line in self.path.read_text().splitlines() if self.path.exists() else ():
            with contextlib.suppress(json.JSONDecodeError):
                found.append(json.loads(line))
        return found

    def rows(self, part: str = "") -> list[dict[str, Any]]:
        """What jobs found, of the parts whose names start like this."""
        return [line for line in self.lines() if line["part"].startswith(part) and "seconds_taken" in line]

    def states(self, part: str) -> dict[str, str]:
        """`"begun"`, `"done"`, `"failed"` or `"skipped"`: how far each job of a part has come."""
        states = {}
        for line in self.lines():
            if line["part"] == part:
                states[line["name"]] = next((s for s in ("begun", "failed", "skipped") if s in line), "done")
        return states


class Settings(NamedTuple):
    """The settings of all parts.

    Attributes:
        results: where they write, and read what earlier parts found.
        until: `time.time()` at which a part has to be over.
        tiny: sizes of a rehearsal.
    """

    results: Results
    until: float
    tiny: bool

    @property
    def left(self) -> float:
        """Seconds."""
        return self.until - time.time()


def work(part: str, jobs: Iterable[Job], settings: Settings) -> None:
    """Runs the jobs of a part that have not begun, as long as there is time; a job's failure is a line, too."""
    results, longest = settings.results, 0.0
    for name, job in jobs:
        state = results.states(part).get(name)
        if state not in (None, "skipped"):
            continue
        # Most of a job is compiling, and the next one compiles for about as long as those before it.
        if settings.left < min(0.7 * longest, 60.0) or settings.left < 0:
            if state is None:
                results.add(part, name, skipped="no time left")
            continue
        results.add(part, name, begun=True)
        began = time.time()
        try:
            found = job()
            longest = max(longest, time.time() - began)
            results.add(part, name, **found, seconds_taken=time.time() - began)
        except Exception as error:  # whatever it is, the others are still worth measuring
            words = str(error).strip().splitlines()
            results.add(part, name, failed=f"{type(error).__name__}: {' '.join(words[:2])[:400]}")
        jax.clear_caches()
        gc.collect()
