"""That `tests/mutations.py` keeps up with the package: running all of it takes hours, so nobody would notice."""

import shlex
import subprocess
import sys

import pytest
from _pytest.mark.expression import Expression

from tests.mutations import MUTATIONS, ROOT


def test_every_mutation_can_be_made():
    """Failed with four mutations whose code had been rewritten."""
    found = {m.name: (ROOT / m.file).read_text().count(m.old) for m in MUTATIONS}
    assert len(found) == len(MUTATIONS) and set(found.values()) == {1}, [n for n, count in found.items() if count != 1]
    words = {word for m in MUTATIONS for word in m.tests.split() if word.endswith(".py")}
    assert not [word for word in words if not (ROOT / word).exists()]


@pytest.mark.slow
def test_every_mutation_has_tests():
    """Failed with tests that were renamed, which left mutations that nothing examined."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n", "0", "-m", "slow or not slow", "tests"]
    done = subprocess.run([*command, "-o", "addopts="], cwd=ROOT, capture_output=True, text=True, check=True)
    every = [line.partition("::")[::2] for line in done.stdout.splitlines() if "::" in line]
    unexamined = []
    for mutation in MUTATIONS:
        paths, _, words = mutation.tests.partition(" -k ")
        names = [name.lower() for path, name in every if path in paths.split()]
        if words:
            wanted = Expression.compile(*shlex.split(words))
            names = [name for name in names if wanted.evaluate(lambda word, of=name, **_: word.lower() in of)]
        if not names and not paths.startswith("--doctest-modules"):
            unexamined.append(mutation.name)
    assert len(every) > len(MUTATIONS) and not unexamined
