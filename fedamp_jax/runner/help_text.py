"""What `--help` of an experiment prints: its options in groups, a line each where possible, and examples."""

import ast
import inspect
import re
import textwrap
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

from tyro import conf

GROUPS = {
    "data": "dataset data_dir setting split alpha balanced clients degrees labels rotations dimension examples "
    "train_share validation_fraction holdout_clients",
    "methods and rounds": "methods leads rounds quick participation drop_rate seed seeds evaluate_every measure "
    "attacks shares",
    "local training": "model norm width epochs epochs_range batch_size optimizer learning_rate sgd_learning_rate "
    "keep_optimizer tau client_rate server_rate server initial_heads",
    "attention": "sigma heur_sigma lam",
    "output": "out from resume log save_models checkpoint_every keep_checkpoints",
    "machine": "devices chunk offload dry_run precision dtype",
}
"""The groups, and the options of all experiments in them; others come last."""

_VALUES = {"methods": "NAME", "data_dir": "FOLDER", "out": "FOLDER", "from": "FILE", "dry_run": "MACHINE",
           "keep_checkpoints": "WHEN"}  # fmt: skip
_WIDTH, _COLUMN = 100, 26


def text_of(kind: Any, about: str, experiment: str, extra: dict[str, str]) -> str:
    """The text of `--help`.

    Args:
        kind: the dataclass of the options.
        about: what the experiment does: the first paragraph is shown, and indented lines as examples.
        experiment: its name.
        extra: further options and what they do.
    """
    hints, said = get_type_hints(kind, include_extras=True), {**_documented(kind), **extra}
    lines = {name: _line(name, hints.get(name, str), said.get(name, ""), getattr(kind, name, None)) for name in said
             if conf.Suppress not in getattr(hints.get(name), "__metadata__", ())}  # fmt: skip
    grouped = {title: names.split() for title, names in GROUPS.items()}
    grouped["other"] = [name for name in lines if not any(name in names for names in grouped.values())]
    paragraphs = about.strip().split("\n\n")
    examples = [line.strip() for part in paragraphs for line in part.splitlines() if line.startswith("    ")]
    script = f"python experiments/{experiment}.py"
    shown = [f"usage: fedamp {experiment} [options]", *textwrap.wrap(paragraphs[0], _WIDTH)]
    for title, names in grouped.items():
        if some := [lines[name] for name in names if name in lines]:
            shown += [f"{title}:", *some]
    commands = [re.sub(r"\s+#", "  #", line.replace(script, f"fedamp {experiment}")) for line in examples]
    return "\n".join([*shown, "examples:", *(f"  {line}" for line in commands)])


def _documented(kind: Any) -> dict[str, str]:
    """The docstring of every field of a dataclass, the ones that it inherits included."""
    found: dict[str, str] = {}
    for cls in reversed(inspect.getmro(kind)[:-1]):
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
        body: list[Any] = tree.body  # pyright: ignore[reportAttributeAccessIssue]
        for field, text in zip(body, [*body[1:], None]):
            if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                said = ast.literal_eval(text.value) if isinstance(text, ast.Expr) else found.get(field.target.id, "")
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
