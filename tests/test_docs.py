"""The Python in the documents runs as it stands."""

import re
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("name", ["README.md", "docs/your_own_data.md", "docs/scaling.md"])
def test_code_blocks_run(name, capsys):
    """All blocks of a page, one after the other in one namespace, as a reader would paste them."""
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / name).read_text(), re.DOTALL)
    assert blocks
    space = {"__name__": name}
    # A reader's jax is not in the strict mode of the tests.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for block in blocks:
            exec(compile(block, name, "exec"), space)


def test_every_method_is_in_the_table():
    """README's table has every factory, and the files it names are there."""
    from fedamp_jax import algorithms

    table = (ROOT / "README.md").read_text()
    for factory in algorithms.__all__:
        assert f"`{factory}`" in table, factory
    for path in re.findall(r"\((fedamp_jax/[\w/]+\.py|tests/[\w/]+\.py|docs/[\w/]+\.md)\)", table):
        assert (ROOT / path).exists(), path
