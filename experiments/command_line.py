"""The command line of every experiment: its common options, `--from results.json`, and errors for people."""

import contextlib
import dataclasses
import shlex
import signal
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import jax
import outputs
import records
import tyro
from rich.console import Console
from rich.markup import escape
from tyro import conf

from fedamp_jax import checks
from fedamp_jax.interrupt import Stopped

T = TypeVar("T")
Unused = Annotated[T, conf.Suppress, conf.Fixed]
"""An inherited option that has no meaning in an experiment: refused there, and left out of its help."""

_HELP = "Take the settings of an earlier run from its results.json; what else is given here goes before them."


@dataclasses.dataclass
class Options:
    """What can be chosen in every experiment that trains; each has more of its own."""

    dataset: str = "digits"
    """digits is bundled; the others are read from --data-dir, or downloaded."""
    methods: tuple[str, ...] = ("all",)
    """Names as in the tables, or all."""
    rounds: int | None = None
    """Communication rounds. Default: the paper's; fewer on digits."""
    participation: float = 1.0
    """Share of the clients invited each round."""
    drop_rate: float = 0.0
    """Share of the invited clients that drop out each round."""
    seed: int = 0
    """Of the partition, the initial models, shuffles and who takes part."""
    data_dir: str | None = None
    """Folder with <dataset>.npz (see docs/your_own_data.md). Default: download."""
    out: str | None = None
    """Folder for the results. Default: results/ and a name made of the settings."""
    chunk: int | None = None
    """Clients trained side by side. Default: chosen for the machine."""
    evaluate_every: int = 1
    """Evaluate after every that many rounds."""
    checkpoint_every: int = 10
    """Rounds between checkpoints."""
    devices: int | None = None
    """Spread the clients over so many devices; a CPU is cut into them. Default: all, of a CPU one for each core."""
    offload: bool = False
    """Keep the clients in the host's memory and send --chunk of them at a time to the device, if it cannot hold all."""
    resume: bool = False
    """Go on with an interrupted run of the same settings."""
    quick: bool = False
    """A faithful miniature: at most 3 rounds of few local steps."""
    precision: Literal["default", "high", "highest"] = "default"
    """Precision of matrix products in training, where the device offers less than float32."""


@contextlib.contextmanager
def errors_for_people() -> Iterator[None]:
    """Turns what a user can mend into a message and exit code 2; everything else keeps its traceback.

    A run that was asked to stop says how to go on, and ends with 128 and the signal's number, as shells expect.
    What is wrong with the options is so in all of several processes: the first says it.
    """
    try:
        yield
    except KeyboardInterrupt as asked:
        words = [word for word in sys.argv if word != "--resume"]
        how = shlex.join(["python", *words, "--resume"])
        print(f"\n{str(asked) or 'stopped'}. Go on with: {how}", file=sys.stderr)
        sys.exit(128 + (asked.signal if isinstance(asked, Stopped) else signal.SIGINT))
    except (ValueError, TypeError, OSError, MemoryError) as error:
        of_all = isinstance(error, (ValueError, TypeError)) and jax.distributed.is_initialized()
        if not of_all or jax.process_index() == 0:
            text = f"[red]error:[/red] {escape(str(error))}"
            Console(stderr=True).print(text, highlight=False, soft_wrap=True)
        sys.exit(2)


def check(options: Options) -> None:
    """Refuse what no experiment can run with."""
    checks.whole("rounds", options.rounds, low=1)
    checks.whole("evaluate_every", options.evaluate_every, low=1)
    checks.whole("checkpoint_every", options.checkpoint_every, low=1)
    checks.whole("seed", options.seed, low=0)
    checks.shares(options.participation, options.drop_rate)


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
        with errors_for_people():
            earlier = records.load(Path(command.from_results))
            given = settings_from(earlier, kind, experiment, command.from_results)
            tell_versions(earlier)
        command = tyro.cli(asking, description=text, default=asking(**given))
    with errors_for_people():
        refuse_empty(command)
    return kind(**{f.name: getattr(command, f.name) for f in dataclasses.fields(kind)})


def refuse_empty(options: Any) -> None:
    """Refuse a list of nothing where an empty list is not the default: nothing would be run."""
    for field in dataclasses.fields(options):
        if isinstance(field.default, tuple) and field.default and not getattr(options, field.name):
            raise ValueError(f"{_flag(field.name)} needs at least one value")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def settings_from(earlier: Mapping[str, Any], kind: type, experiment: str, path: str) -> dict[str, Any]:
    """The fields of `kind` that make the run `earlier` again.

    Raises:
        ValueError: if it is of another experiment, or of a version with other settings.
    """
    if earlier["experiment"] != experiment:
        other = earlier["experiment"]
        raise ValueError(f"--from {path} is of {other}: run python experiments/{other}.py --from {path}")
    part = next(iter(earlier.get("parts", {"": earlier}).values()))
    wanted = {"methods": list(part["methods"]), **earlier["settings"]}
    fields, hints = {f.name: f for f in dataclasses.fields(kind)}, get_type_hints(kind)
    given = {}
    for name, value in wanted.items():
        # Several parts differ in one setting, `degree`, that the command line has as a list, `degrees`.
        name = f"{name}s" if f"{name}s" in fields and value is not None and name != "seed" else name
        if name not in fields:
            raise ValueError(f"--from {path} has the setting {name!r}, which this version does not know")
        if isinstance(fields[name].default, tuple) and value is not None:
            values = value if isinstance(value, list) else [value]
            value = [v for i, v in enumerate(values) if v not in values[:i]]
        if value is None:
            continue
        if not takes(hints[name], value):
            raise ValueError(
                f"--from {path} has the setting {name} = {value!r}, which {_flag(name)} does not take; see --help"
            )
        given[name] = tuple(value) if isinstance(value, list) else value
    return given


def takes(hint: Any, value: Any) -> bool:
    """Whether a value from JSON is one that an option of the type `hint` can have.

    >>> takes(Literal["mlp", "cnn"], "mlp"), takes(tuple[int, int] | None, [1, 2, 3]), takes(float, 1)
    (True, False, True)
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in inner
    if origin in (Union, types.UnionType):
        return any(takes(one, value) for one in inner)
    if origin is tuple:
        if not isinstance(value, list):
            return False
        each = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(each) == len(value) and all(map(takes, each, value))
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def tell_versions(earlier: Mapping[str, Any]) -> None:
    """Say which versions and which device are other than they were: then numbers may differ in the last digits."""
    then, now = earlier.get("versions") or {}, outputs.versions()
    other = [f"{name} {then[name]} then, {now.get(name)} now" for name in then if then[name] != now.get(name)]
    if other:
        print(f"Not the versions of the earlier run: {'; '.join(other)}.", file=sys.stderr)
