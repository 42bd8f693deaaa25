"""The command line of every experiment: its options, `--from results.json`, and how errors are shown."""

import contextlib
import dataclasses
import errno
import itertools
import shlex
import signal
import sys
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import jax
import tyro
from rich.console import Console

from fedamp_jax.driver.signals import Stopped
from fedamp_jax.files import local_path
from fedamp_jax.report import files
from fedamp_jax.report.provenance import versions, words
from fedamp_jax.report.schema import KINDS, Kinds, Results
from fedamp_jax.runner import help_text, provenance
from fedamp_jax.runner.experiment import Experiment
from fedamp_jax.runner.grid import Variant
from fedamp_jax.runner.messages import say
from fedamp_jax.runner.options import choices

_FROM = "Take the options of a results.json or .toml file; others override them."
_SEEDS = "Several seeds instead of --seed; mean and deviation are reported."
_RETIRED = {"sigma_sweep": False}
"""Settings of earlier versions, and the value with which a run does not depend on them."""


class Command(NamedTuple):
    """What a command line asks for.

    Attributes:
        variants: a run for each combination of the values of options that take several.
        seeds: several seeds instead of the one of the options; or none.
        changed: the options that do not have their default, by name.
    """

    variants: list[Variant]
    seeds: tuple[int, ...]
    changed: dict[str, Any]


@contextlib.contextmanager
def readable_errors(*, resumable: bool = False) -> Iterator[None]:
    """Turn errors that a user can correct into a message and exit code 2; others keep their traceback.

    A command that is stopped by a signal exits with 128 plus the signal's number, as is usual in shells. If several
    processes compute together, only the first prints what is wrong with the options.

    Args:
        resumable: whether the command takes --resume: then the command that resumes it is printed when it is stopped.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        command = shlex.join([*(word for word in words() if word != "--resume"), "--resume"])
        way_on = f" Resume with: {command}" if resumable else ""
        print(f"\n{str(stop) or 'stopped'}.{way_on}", file=sys.stderr)
        sys.exit(128 + (stop.signal if isinstance(stop, Stopped) else signal.SIGINT))
    except (ValueError, TypeError, OSError, MemoryError) as error:
        everywhere = isinstance(error, (ValueError, TypeError)) and jax.distributed.is_initialized()
        if not everywhere or jax.process_index() == 0:
            full = isinstance(error, OSError) and error.errno == errno.ENOSPC
            way_out = ": make room, and run the same command with --resume" if full else ""
            say(f"{error}{way_out}", Console(stderr=True), heading="[red]error:[/red] ")
        sys.exit(2)


def report_unraisable(what: Any) -> None:
    """A `sys.unraisablehook` that leaves out what TensorStore's threads say while a failed checkpoint is given up.

    By then the error itself has been raised; they find asyncio's loop closed, and would print so many times.
    """
    if not (what.exc_type is RuntimeError and str(what.exc_value) == "Event loop is closed"):
        sys.__unraisablehook__(what)


def parse(experiment: Experiment, arguments: Sequence[str] | None = None, kinds: Kinds = KINDS) -> Command:
    """What the command line asks for. Ends the process after `--help` and for words that no option takes.

    Args:
        experiment: the experiment.
        arguments: the words; None: those of this process.
        kinds: as of `schema.check_results`, for `--from`.

    Raises:
        ValueError: a value is missing, or `--from` names a file whose settings cannot be taken.
    """
    given_words = list(sys.argv[1:] if arguments is None else arguments)
    kind = class_of(experiment)
    if {"-h", "--help"} & set(given_words):
        print(help_text.text_of(experiment.name, experiment.text or "", kind))
        sys.exit(0)
    hints = hints_of(kind)
    read = {"args": in_their_case(given_words, hints), "config": (tyro.conf.OmitArgPrefixes,), "prog": experiment.name}
    command: Any = tyro.cli(kind, **read)
    if command.from_results is not None:
        given = settings_in(command.from_results, experiment.name, hints, kinds)
        command = tyro.cli(kind, default=replaced(kind(), given), **read)
    values, defaults = flat(command), flat(kind())
    for name, value in values.items():
        if value == () != defaults[name]:  # nothing would be run
            raise ValueError(f"{_flag(name)} needs at least one value")
    changed = {name: value for name, value in values.items() if value != defaults[name]}
    return Command(variants_of(experiment, values), command.seeds, changed)


def class_of(experiment: Experiment) -> Any:
    """A dataclass of the experiment's groups in which the options of its panels take several values."""
    fields: list[Any] = []
    for name, group in experiment.options.groups():
        kind, hints, values = type(group), get_type_hints(type(group)), dict(vars(group))
        several = {option: panel for option, panel in experiment.panels.items() if option in hints}
        if several:
            values |= {option: panel.values or (values[option],) for option, panel in several.items()}
            wide = [(one, tuple[hints[one], ...], dataclasses.field(default=values[one])) for one in several]
            kind = dataclasses.make_dataclass(kind.__name__, wide, bases=(kind,), frozen=True)
        fields.append((name, kind, dataclasses.field(default=kind(**values))))
    seeds = Annotated[tuple[int, ...], tyro.conf.arg(help=_SEEDS)]
    source = Annotated[str | None, tyro.conf.arg(name="from", metavar="FILE", help=_FROM)]
    fields.append(("seeds", seeds, dataclasses.field(default=())))
    fields.append(("from_results", source, dataclasses.field(default=None)))
    return dataclasses.make_dataclass("Options", fields, frozen=True)


def groups_of(kind: Any) -> dict[str, Any]:
    """The groups of a class made by `class_of`, with their defaults."""
    return {field.name: field.default for field in dataclasses.fields(kind) if dataclasses.is_dataclass(field.default)}


def hints_of(kind: Any) -> dict[str, Any]:
    """The type of every option by name, `seeds` included."""
    hints = {name: hint for group in groups_of(kind).values() for name, hint in get_type_hints(type(group)).items()}
    return {**hints, "seeds": tuple[int, ...]}


def flat(command: Any) -> dict[str, Any]:
    """The value of every option by name."""
    groups = [getattr(command, name) for name in groups_of(type(command))]
    return {**{name: value for group in groups for name, value in vars(group).items()}, "seeds": command.seeds}


def replaced(command: Any, values: Mapping[str, Any]) -> Any:
    """The same command but for these options."""
    changed = {}
    for name in groups_of(type(command)):
        group = getattr(command, name)
        changed[name] = dataclasses.replace(group, **{key: values[key] for key in vars(group) if key in values})
    return dataclasses.replace(command, **changed, seeds=values.get("seeds", command.seeds))


def variants_of(experiment: Experiment, values: Mapping[str, Any]) -> list[Variant]:
    """The options of a run for each combination of the values of options that take several.

    Raises:
        ValueError, TypeError: as `Experiment.checked`.
    """
    names = [name for name in experiment.panels if name in values]
    variants = []
    for combination in itertools.product(*(values[name] for name in names)):
        one = dict(zip(names, combination, strict=True))
        titles = [experiment.panels[name].title(one[name]) for name in names if len(values[name]) > 1]
        given = {name: value for name, value in {**values, **one}.items() if name != "seeds"}
        options = experiment.options.replace(**given)
        variants.append(Variant(", ".join(titles), experiment.checked(options)))
    return variants


def in_their_case(arguments: Sequence[str], hints: Mapping[str, Any]) -> list[str]:
    """The words of a command line with the values of options that have choices as these are written.

    `MNIST` is `mnist`, and `Fashion-MNIST` or `fashionmnist` is `fashion_mnist`.

    Args:
        arguments: the words.
        hints: the types of the options, by name.
    """

    def plain(word: str) -> str:
        return word.lower().replace("-", "").replace("_", "")

    by_flag = {_flag(name): choices(hint) for name, hint in hints.items()}
    written: list[str] = []
    known: dict[str, str] = {}
    for word in arguments:
        flag, equals, value = word.partition("=")
        if word.startswith("--"):
            known = {plain(choice): choice for choice in by_flag.get(flag.replace("_", "-"), ())}
            written.append(f"{flag}={known.get(plain(value), value)}" if equals else word)
        else:
            written.append(known.get(plain(word), word))
    return written


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def settings_in(path: str, experiment: str, hints: Mapping[str, Any], kinds: Kinds = KINDS) -> dict[str, Any]:
    """The options that a results.json or a .toml file gives; other versions than the run's are printed.

    Raises:
        ValueError: the run is of another experiment or of a version with other settings, or the file cannot be read.
    """
    file_path = local_path(path, "--from")
    if file_path.suffix.lower() == ".toml":
        with file_path.open("rb") as file:
            try:
                written = tomllib.load(file)
            except tomllib.TOMLDecodeError as error:
                raise ValueError(f"--from {path} is no TOML file: {error}") from None
        if isinstance(changes := written.get("set"), dict):
            pairs = {f"{method}.{key}": value for method, of in changes.items() if isinstance(of, dict)
                     for key, value in of.items()}  # fmt: skip
            pairs |= {key: value for key, value in changes.items() if not isinstance(value, dict)}
            written["set"] = [f"{key}={value}" for key, value in pairs.items()]
        return settings_from({name.replace("-", "_"): value for name, value in written.items()}, hints, path)
    earlier = files.load(file_path, kinds)
    if earlier["experiment"] != experiment:
        other = earlier["experiment"]
        raise ValueError(f"--from {path} is of {other}: run fedamp {other} --from {path}")
    print_other_versions(earlier)
    return settings_from({"methods": files.methods_in(earlier), **earlier["settings"]}, hints, path)


def settings_from(wanted: Mapping[str, Any], hints: Mapping[str, Any], path: str) -> dict[str, Any]:
    """Settings by name as options of these types.

    Raises:
        ValueError: there is no such option, or it does not take the value.
    """
    given = {}
    for name, value in wanted.items():
        if name in _RETIRED and value == _RETIRED[name]:
            continue
        if name not in hints:
            raise ValueError(f"--from {path} has the setting {name!r}, which this version does not know")
        if get_origin(hints[name]) is tuple and Ellipsis in get_args(hints[name]) and value is not None:
            values = value if isinstance(value, list) else [value]
            value = [v for i, v in enumerate(values) if v not in values[:i]]
        if value is None:
            continue
        if not accepts(hints[name], value):
            raise ValueError(
                f"--from {path} has the setting {name} = {value!r}, which {_flag(name)} does not take; see --help"
            )
        given[name] = tuple(value) if isinstance(value, list) else value
    return given


def accepts(hint: Any, value: Any) -> bool:
    """Whether an option of the type `hint` can have this value from JSON.

    >>> accepts(Literal["mlp", "cnn"], "mlp"), accepts(tuple[int, int] | None, [1, 2, 3]), accepts(float, 1)
    (True, False, True)
    """
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Literal:
        return value in inner
    if origin in (Union, types.UnionType):
        return any(accepts(one, value) for one in inner)
    if origin is tuple:
        if not isinstance(value, list):
            return False
        each = inner[:1] * len(value) if inner[-1] is Ellipsis else inner
        return len(each) == len(value) and all(map(accepts, each, value))
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else hint)


def print_other_versions(earlier: Results) -> None:
    """Print which packages had another version in the earlier run, as the last digits of its numbers may differ."""
    then, now = earlier.get("versions") or {}, versions()
    other = [f"{name} {then[name]} then, {now.get(name)} now" for name in then if then[name] != now.get(name)]
    if other:
        print(f"Other versions than in the earlier run: {'; '.join(other)}.", file=sys.stderr)


def folder_of(command: Command, experiment: str) -> Path:
    """Where the results go.

    Raises:
        ValueError: --out is blank, or no folder of this machine (see `files.local_path`).
    """
    options = command.variants[0].options
    if options.output.out is None:
        return provenance.default_folder(experiment, options.data.dataset, command.changed)
    if not options.output.out.strip():
        raise ValueError("--out needs the name of a folder; leave it out for one named after the settings")
    return local_path(options.output.out, "--out")
