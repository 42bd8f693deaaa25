"""That `tests/mutations.py` keeps up with the package: running all of it takes hours, so nobody would notice."""

from tests.mutations import MUTATIONS, ROOT


def test_every_mutation_can_be_made():
    """Failed with four mutations whose code had been rewritten."""
    found = {m.name: (ROOT / m.file).read_text().count(m.old) for m in MUTATIONS}
    assert len(found) == len(MUTATIONS) and set(found.values()) == {1}, [n for n, count in found.items() if count != 1]
    words = {word for m in MUTATIONS for word in m.tests.split() if word.endswith(".py")}
    assert not [word for word in words if not (ROOT / word).exists()]
