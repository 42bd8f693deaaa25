"""The documents are right: their Python runs as it stands, and the tables list the methods that there are."""

import inspect
import re
from pathlib import Path

import jax
import pytest

import fedamp_jax
from fedamp_jax.algorithms.registry import METHODS

ROOT = Path(__file__).parent.parent
URL = "https://github.com/fedamp-jax/fedamp_jax/blob/main"
RAW = "https://raw.githubusercontent.com/fedamp-jax/fedamp_jax/main"
DOCS = [str(p.relative_to(ROOT)) for p in sorted((ROOT / "docs").rglob("*.md"))]
EVIDENCE = [str(p.relative_to(ROOT)) for folder in ("benchmarks", "experiments") for p in (ROOT / folder).rglob("*.md")]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
PAGES = [name for name in ("README.md", *DOCS) if BLOCK.search((ROOT / name).read_text())]


@pytest.mark.parametrize("name", [n if n == "README.md" else pytest.param(n, marks=pytest.mark.slow) for n in PAGES])
def test_code_blocks_run(name, tmp_path, monkeypatch):
    """All blocks of a page, one after the other in one namespace, as a reader would paste them."""
    space = {"__name__": name}
    blocks = BLOCK.findall((ROOT / name).read_text())
    monkeypatch.chdir(tmp_path)  # what they write
    # A reader's jax is not in the strict mode of the tests.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        for block in blocks:
            exec(compile(block, name, "exec"), space)


def test_the_pages_with_code_are_among_them():
    """Failed when the pattern of a block matched none."""
    names = ("index", "scaling", "start", "write_a_method", "your_own_data", "your_own_model")
    assert {"README.md", *(f"docs/{name}.md" for name in names)} <= set(PAGES)


# --- The tables of methods --------------------------------------------------------------------------------------------


def table_of_methods():
    """The table of docs/methods.md, from the registry. A file of several methods has one oracle."""

    def link(path):
        assert (ROOT / path).is_file(), path
        return f"[{Path(path).name}](../{path})"

    lines = ["| method | factory | source | file | oracle |", "|---|---|---|---|---|"]
    for method in METHODS.values():
        path = Path(inspect.getfile(method.factory)).relative_to(ROOT)
        lines.append(f"| [{method.name}](#{method.name.lower()}) | `{method.factory.__name__}` | {method.source} | "
                     f"{link(str(path))} | {link(f'tests/oracles/{path.name}')} |")  # fmt: skip
    return "\n".join(lines)


def test_every_method_is_in_the_table():
    """Failed with a method in the registry alone. To mend it, paste the table that the message shows."""
    found = re.search(r"<!-- methods -->\n(.*?)\n<!-- /methods -->", (ROOT / "docs/methods.md").read_text(), re.DOTALL)
    assert found, "docs/methods.md has no <!-- methods --> ... <!-- /methods -->"
    assert found[1] == table_of_methods(), f"docs/methods.md must have between its markers:\n{table_of_methods()}"


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_every_method_has_a_section(method):
    """With its factory, and every hyper-parameter with its default. Failed for `eta=0.005` in pFedMe's section."""
    text = (ROOT / "docs/methods.md").read_text()
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL))
    assert method.name in sections, f"docs/methods.md has no section ## {method.name}"
    given = [p for p in inspect.signature(method.factory).parameters.values() if p.kind is p.KEYWORD_ONLY]
    for name in (f"`{method.factory.__name__}`", *map(described, given)):
        assert name in sections[method.name], f"the section ## {method.name} of docs/methods.md lacks {name}"
    for row in ("Personal", "Hyper-parameters", "Cost", "Use it", "Source"):
        assert f"\n| {row} | " in sections[method.name], f"the section ## {method.name} lacks the row {row}"


def described(parameter):
    """A hyper-parameter as docs/methods.md names it. Of a function, such as a schedule, only the name."""
    default = parameter.default
    if default is parameter.empty:
        return f"`{parameter.name}` (required"
    value = f'"{default}"' if isinstance(default, str) else repr(default)
    return f"`{parameter.name}`" if callable(default) else f"`{parameter.name}={value}`"


def test_every_paper_is_in_the_references():
    """Failed without pFedGraph's line: docs/methods.md has a reference for each source that the registry names."""
    references = (ROOT / "docs/methods.md").read_text().split("## References")[1]
    for method in METHODS.values():
        if named := re.match(r"(.+? et al\.) (\d{4})", method.source):
            assert f"**{named[1]} {named[2]}" in references, method.source


def test_every_method_is_public():
    """`fedamp_jax.<factory>`, with the registry's name once each. Failed without the line in `__init__.py`."""
    for method in METHODS.values():
        name = method.factory.__name__
        assert name in fedamp_jax.__all__ and getattr(fedamp_jax, name) is method.factory, name
    assert [method.name for method in METHODS.values()] == list(METHODS)


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", *DOCS, *EVIDENCE])
def test_links_lead_somewhere(name):
    """Files of the repository that a page links to exist. Failed for a page that was renamed."""
    text = (ROOT / name).read_text()
    targets = re.findall(r"\]\(([^)#\s]+)(?:#[^)\s]*)?\)|^\[[^\]]+\]: (\S+[./]\S+)", text, re.MULTILINE)
    for target in (a or b for a, b in targets):
        ours = re.match(rf"(?:{URL}|{RAW})/([^#]+)", target)
        if ours:
            assert (ROOT / ours[1]).exists(), target
        elif "://" not in target and not target.startswith("mailto:"):
            assert (ROOT / name).parent.joinpath(target).exists(), target


def test_every_figure_is_shown():
    """Failed for a figure whose page had been rewritten."""
    text = "".join((ROOT / name).read_text() for name in ("README.md", *DOCS))
    hidden = [path.name for path in sorted((ROOT / "docs/figures").glob("*.svg")) if f"figures/{path.name}" not in text]
    assert not hidden, f"delete docs/figures/{hidden}: no page shows them"


def test_every_figure_is_drawn_by_the_script():
    """Failed with a figure that was drawn by hand, which no change of a name in the package reaches."""
    script = (ROOT / "docs/figures/make_figures.py").read_text()
    drawn = {f"{name}.svg" for name in re.findall(r'save\((?:figure, )?"(\w+)"\)', script)}
    assert {path.name for path in (ROOT / "docs/figures").iterdir() if path.suffix != ".py"} == drawn
