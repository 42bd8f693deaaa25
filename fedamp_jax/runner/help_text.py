"""What `--help` of an experiment prints: its options in their groups, a line each where possible, and examples."""

import ast
import dataclasses
import functools
import inspect
import re
import textwrap
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

_VALUES = {"methods": "NAME", "set": "METHOD.NAME=X", "data_dir": "FOLDER", "out": "FOLDER", "from": "FILE",
           "dry_run": "MACHINE"}  # fmt: skip
_WIDTH, _COLUMN = 100, 26


def text_of(name: str, about: str, kind: Any) -> str:
    """The text of `--help`.

    Args:
        name: of the experiment.
        about: what it does: the first paragraph is shown, and indented lines as examples.
        kind: a dataclass of groups, as `command_line.class_of` makes it.
    """
    paragraphs = about.strip().split("\n\n")
    examples = [line.strip() for part in paragraphs for line in part.splitlines() if line.startswith("    ")]
    script = next((line.split()[1] for line in examples if line.startswith("python ")), "")
    of_package = script == f"experiments/{name}.py"
    program = f"fedamp {name}" if of_package else f"python {script}"
    shown = [f"usage: {program} [options]", *textwrap.wrap(paragraphs[0], _WIDTH)]
    for field in dataclasses.fields(kind):
        if dataclasses.is_dataclass(field.default):
            group = field.default
            said, hints = documented(type(group)), get_type_hints(type(group))
            lines = [_line(one.name, hints[one.name], said[one.name], getattr(group, one.name))
                     for one in dataclasses.fields(group) if not one.metadata.get("hidden")]  # fmt: skip
            shown += [f"{(inspect.getdoc(_written(type(group))) or '').rstrip('.').lower()}:", *lines]
        else:
            shown += ["several runs, or an earlier one:"] if field.name == "seeds" else []
            hint, help_of = get_args(field.type)
            shown.append(_line("from" if field.name == "from_results" else field.name, hint, help_of.help, ()))
    commands = [re.sub(r"\s+#", "  #", line.replace(f"python {script}", program)) for line in examples]
    return "\n".join([*shown, "examples:", *(f"  {line}" for line in commands)])


def _written(kind: Any) -> Any:
    """The class in a file, whose docstring and fields a class made from it has."""
    return next(cls for cls in inspect.getmro(kind) if getattr(inspect.getmodule(cls), cls.__name__, None) is cls)


@functools.cache
def documented(kind: Any) -> dict[str, str]:
    """The docstring of every field of a dataclass."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(_written(kind)))).body
    body: list[Any] = tree.body  # pyright: ignore[reportAttributeAccessIssue]
    found = {}
    for field, text in zip(body, [*body[1:], None]):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            said = ast.literal_eval(text.value) if isinstance(text, ast.Expr) else ""
            found[field.target.id] = " ".join(said.split())
    return found


def _line(name: str, hint: Any, said: str, default: Any) -> str:
    """One option. `None`, `False` and an empty list need no mention."""
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else str(default)
    known = default in (None, False, ()) or "Default" in said
    left = f"--{name.replace('_', '-')} {_value(name, hint)}".rstrip()
    text = said.removesuffix(".") if known else f"{said.removesuffix('.')} [{shown}]"
    return "\n".join(textwrap.wrap(f"  {left:<{_COLUMN}}  {text}", _WIDTH, subsequent_indent=" " * (_COLUMN + 4)))


def _value(name: str, hint: Any) -> str:
    """What follows an option."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _value(name, inner[0])
    if origin is Literal:
        choices = "|".join(inner)
        return choices if len(name) + len(choices) < _COLUMN - 2 else name.upper().removesuffix("S")
    if origin is tuple:
        return f"{_value(name, inner[0])} ..." if inner[-1] is Ellipsis else "LOW HIGH"
    if inner:  # a union
        return "|".join(_value(name, one) for one in inner if one is not type(None))
    return {bool: "", int: "N", float: "X"}.get(hint, _VALUES.get(name, "TEXT"))
