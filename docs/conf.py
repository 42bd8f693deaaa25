"""The documentation: `pip install -e '.[docs]' && sphinx-build -W docs docs/_build`."""

import functools
import re
from pathlib import Path

import latex2mathml.converter
from docutils import nodes
from sphinx.util import logging

import fedamp_jax
from fedamp_jax import checks
from fedamp_jax.algorithms import registry
from fedamp_jax.data import partition
from fedamp_jax.engine import server

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY = "https://github.com/fedamp-jax/fedamp_jax"

project = author = "fedamp_jax"
copyright = "the fedamp_jax developers, Apache License 2.0"
version = release = fedamp_jax.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = "fedamp_jax"
html_static_path = ["_static"]
html_css_files = ["math.css", "animation.css"]
html_theme_options = {"footer_icons": [{"name": "GitHub", "url": REPOSITORY, "html": "GitHub"}]}

html_math_renderer = "mathml"
myst_enable_extensions = ["dollarmath"]
myst_dmath_double_inline = True  # the notebooks have $$...$$ within paragraphs
myst_heading_anchors = 3
# The notebooks are shown with their stored outputs; tests/test_notebooks.py runs them and compares.
nb_execution_mode = "off"
nb_merge_streams = True

# Docstrings have Markdown's `code` in single backticks.
default_role = "literal"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_mock_imports = ["nvflare"]  # an extra that the documentation does without
napoleon_custom_sections = [("Attributes", "params_style")]
napoleon_use_rtype = False
maximum_signature_line_length = 100

# --- Equations --------------------------------------------------------------------------------------------------------


def render_equation(display, translator, node):
    """Writes MathML into the page: browsers draw it themselves, so that a page needs no network and no script."""
    source = node.astext().replace(r"\arg\min", r"\text{arg min}")  # the converter lacks \arg
    equation = latex2mathml.converter.convert(source, display="block" if display else "inline")
    equation = equation.replace("<mo>&#x02016;</mo>", '<mo stretchy="false">&#x02016;</mo>')  # not as tall as fractions
    if "\\" in equation:  # it passes on commands that it does not know
        logging.getLogger(__name__).warning("an equation has a command that is no MathML: %s", source, location=node)
    translator.body.append(f'<div class="math">{equation}</div>\n' if display else equation)
    raise nodes.SkipNode


# --- Links of the pages -----------------------------------------------------------------------------------------------

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:)([^)\s#]+)(#[^)\s]*)?\)")


def link_to_repository(app, docname, source):
    """Leads relative links to what is not a page, such as a folder or a result file, to GitHub."""
    here = (ROOT / "docs" / docname).parent

    def lead(match):
        image, text, target, anchor = match.groups()
        path = (here / target).resolve()
        if image or not path.exists():
            return match[0]
        inside = path.relative_to(ROOT)
        if path.suffix == ".ipynb":
            return f"{{doc}}`{text} </{inside.with_suffix('')}>`"
        if path.suffix == ".md" and inside.parts[0] == "docs":
            return match[0]
        return f"[{text}]({REPOSITORY}/blob/main/{inside}{anchor or ''})"

    source[0] = _LINK.sub(lead, source[0])


# --- No other hosts ---------------------------------------------------------------------------------------------------

_ICONS = re.compile(r'<link [^>]*href="https://[^"]*/font-awesome[^"]*"[^>]*>')
_LOADED = re.compile(r"""<(?:script|link|img|iframe|source|video)\b[^>]*\b(?:src|href)=["'](?:https?:)?//[^>]*>""")


def load_nothing(app, pagename, templatename, context, doctree):
    """Pages load nothing from other hosts. The icons of an animation's buttons come from _static/animation.css."""
    body = context["body"] = _ICONS.sub("", context.get("body", ""))
    for tag in _LOADED.findall(body):
        logging.getLogger(__name__).warning("%s loads something from another host: %s", pagename, tag)


# --- The API reference ------------------------------------------------------------------------------------------------

PUBLIC_MODULES = (
    fedamp_jax, fedamp_jax.analysis, fedamp_jax.attention, fedamp_jax.data, fedamp_jax.engine, fedamp_jax.models,
    fedamp_jax.placement, fedamp_jax.trees, fedamp_jax.writers, checks, partition, registry, server,
)  # fmt: skip


def public_names(module):
    """`__all__`, or without it the functions and classes that the module defines."""
    if hasattr(module, "__all__"):
        return [name for name in module.__all__ if name != "__version__"]
    mine = {name: getattr(value, "__module__", None) for name, value in vars(module).items()}
    return [name for name, origin in mine.items() if origin == module.__name__ and not name.startswith("_")]


def resolve(name):
    """The object called `name`, None for what only an instance has."""
    found = fedamp_jax
    for part in name.split(".")[1:]:
        found = getattr(found, part, None)
    return found


def check_coverage(app, env):
    """Warns of public names that the reference lacks; `sphinx-build -W` then fails. One place for each is enough."""
    names = set(env.domaindata["py"]["objects"])
    objects = {id(resolve(name)) for name in names}
    for module in PUBLIC_MODULES:
        for name in public_names(module):
            if f"{module.__name__}.{name}" not in names and id(getattr(module, name)) not in objects:
                message = "%s.%s is public, and not in the API reference (docs/api/)"
                logging.getLogger(__name__).warning(message, module.__name__, name)


def skip_member(app, what, name, obj, skip, options):
    """A NamedTuple's fields are described under Attributes; their docstrings say `Alias for field number 0`."""
    return True if type(obj).__name__ == "_tuplegetter" else None


def setup(app):
    inline, block = functools.partial(render_equation, False), functools.partial(render_equation, True)
    app.add_html_math_renderer("mathml", (inline, None), (block, None))
    app.connect("source-read", link_to_repository)
    app.connect("html-page-context", load_nothing)
    app.connect("env-check-consistency", check_coverage)
    app.connect("autodoc-skip-member", skip_member)
