"""The command line of every experiment, with `--from results.json`: the settings of an earlier run, to run it again."""

import dataclasses
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import runner
import tyro
from tyro import conf

T = TypeVar("T")
Unused = Annotated[T, conf.Suppress, conf.Fixed]
"""An inherited option that has no meaning in an experiment: refused there, and left out of its help."""

_HELP = "Take the settings of an earlier run from its results.json; what else is given here goes before them."


def parse(kind: type, text: str, experiment: str) -> Any:
    """The options that the command line gives.

    Args:
        kind: their dataclass; every field has a default.
        text: what `--help` says first.
        experiment: whose results `--from` may read.

    Returns:
        A `kind`.
    """
    source = Annotated[str | None, tyro.conf.arg(name="from", metavar="RESULTS.JSON", help=_HELP)]
    field = ("from_results", source, dataclasses.field(default=None))
    asking = dataclasses.make_dataclass(kind.__name__, [field], bases=(kind,))
    command = tyro.cli(asking, description=text)
    if command.from_results is not None:
        with runner.errors_for_people():
            earlier = json.loads(Path(command.from_results).read_text())
            given = settings_from(earlier, kind, experiment, command.from_results)
            tell_versions(earlier)
        command = tyro.cli(asking, description=text, default=asking(**given))
    return kind(**{f.name: getattr(command, f.name) for f in dataclasses.fields(kind)})


def settings_from(earlier: Mapping[str, Any], kind: type, experiment: str, path: str) -> dict[str, Any]:
    """The fields of `kind` that make the run `earlier` again.

    Raises:
        ValueError: if it is of another experiment, or of a version with other settings.
    """
    if not {"experiment", "settings"} <= set(earlier):
        raise ValueError(f"--from {path} is no results.json of an experiment")
    if earlier["experiment"] != experiment:
        other = earlier["experiment"]
        raise ValueError(f"--from {path} is of {other}: run python experiments/{other}.py --from {path}")
    part = earlier if earlier.get("methods") else next(iter(earlier["parts"].values()))
    wanted = {"methods": list(part["methods"]), **earlier["settings"]}
    fields = {f.name: f for f in dataclasses.fields(kind)}
    given = {}
    for name, value in wanted.items():
        # Several parts differ in one setting, `degree`, that the command line has as a list, `degrees`.
        name = f"{name}s" if f"{name}s" in fields and value is not None and name != "seed" else name
        if name not in fields:
            raise ValueError(f"--from {path} has the setting {name!r}, which this version does not know")
        if isinstance(fields[name].default, tuple):
            value = tuple(dict.fromkeys(value)) if isinstance(value, list) else (value,)
        if value is not None:
            given[name] = tuple(value) if isinstance(value, list) else value
    return given


def tell_versions(earlier: Mapping[str, Any]) -> None:
    """Say which versions and which device are other than they were: then numbers may differ in the last digits."""
    then, now = earlier.get("versions") or {}, runner.versions()
    other = [f"{name} {then[name]} then, {now.get(name)} now" for name in then if then[name] != now.get(name)]
    if other:
        print(f"Not the versions of the earlier run: {'; '.join(other)}.", file=sys.stderr)
