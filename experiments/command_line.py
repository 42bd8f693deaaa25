"""The command line of every experiment: its common options, `--from results.json`, and errors for people."""

import contextlib
import dataclasses
import json
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import jax
import outputs
import tyro
from rich.console import Console
from rich.markup import escape
from tyro import conf

import fedamp_jax
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
    """
    try:
        yield
    except KeyboardInterrupt as asked:
        words = [word for word in sys.argv if word != "--resume"]
        how = shlex.join(["python", *words, "--resume"])
        print(f"\n{str(asked) or 'stopped'}. Go on with: {how}", file=sys.stderr)
        sys.exit(128 + (asked.signal if isinstance(asked, Stopped) else signal.SIGINT))
    except (ValueError, TypeError, OSError, MemoryError) as error:
        text = f"[red]error:[/red] {escape(str(error))}"
        Console(stderr=True).print(text, highlight=False, soft_wrap=True)
        sys.exit(2)


def check(options: Options) -> None:
    """Refuse what no experiment can run with."""
    checks.whole("rounds", options.rounds, low=1)
    checks.whole("evaluate_every", options.evaluate_every, low=1)
    checks.whole("checkpoint_every", options.checkpoint_every, low=1)
    checks.whole("seed", options.seed, low=0)
    fedamp_jax.sample_online(jax.random.key(0), 1, options.participation, options.drop_rate)


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
    then, now = earlier.get("versions") or {}, outputs.versions()
    other = [f"{name} {then[name]} then, {now.get(name)} now" for name in then if then[name] != now.get(name)]
    if other:
        print(f"Not the versions of the earlier run: {'; '.join(other)}.", file=sys.stderr)
