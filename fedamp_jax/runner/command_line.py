"""The command line of every experiment: common options, `--from results.json`, and how errors are shown."""

import contextlib
import dataclasses
import errno
import shlex
import signal
import sys
import tomllib
import types
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import jax
import tyro
from rich.console import Console
from rich.markup import escape

from fedamp_jax.driver.signals import Stopped
from fedamp_jax.report import files
from fedamp_jax.report.schema import Results
from fedamp_jax.runner import help_text, machine, provenance, run_folder

T = TypeVar("T")

_FROM = "Take the options of a results.json or .toml file; others override them."


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
        command = shlex.join([*(word for word in provenance.words() if word != "--resume"), "--resume"])
        print(f"\n{str(stop) or 'stopped'}.{f' Resume with: {command}' * resumable}", file=sys.stderr)
        sys.exit(128 + (stop.signal if isinstance(stop, Stopped) else signal.SIGINT))
    except (ValueError, TypeError, OSError, MemoryError) as error:
        everywhere = isinstance(error, (ValueError, TypeError)) and jax.distributed.is_initialized()
        if not everywhere or jax.process_index() == 0:
            full = isinstance(error, OSError) and error.errno == errno.ENOSPC
            way_out = ": make room, and run the same command with --resume" * full
            text = f"[red]error:[/red] {escape(str(error))}{way_out}"
            Console(stderr=True).print(text, highlight=False, soft_wrap=True)
        sys.exit(2)


def report_unraisable(what: Any) -> None:
    """A `sys.unraisablehook` that leaves out what TensorStore's threads say while a failed checkpoint is given up.

    By then the error itself has been raised; they find asyncio's loop closed, and would print so many times.
    """
    if not (what.exc_type is RuntimeError and str(what.exc_value) == "Event loop is closed"):
        sys.__unraisablehook__(what)


@contextlib.contextmanager
def experiment(kind: type[T], text: str | None, name: str, *, several_devices: bool = True) -> Iterator[tuple[T, Path]]:
    """What every experiment begins with: read the command line, split the CPU, choose the folder for the results.

    Args:
        kind: the dataclass of its options; every field has a default.
        text: the beginning of `--help`.
        name: of the experiment; `--from` reads its results only.
        several_devices: whether it can spread the clients over several devices.

    Yields:
        `(options, folder)`. Inside, errors are shown as `readable_errors` does.
    """
    options: Any = parse(kind, text, name)
    sys.unraisablehook = report_unraisable
    with readable_errors(resumable=True):
        if options.out is not None and not options.out.strip():
            raise ValueError("--out needs the name of a folder; leave it out for one named after the settings")
        if several_devices:
            machine.use_devices(options)
        yield options, Path(options.out) if options.out else run_folder.default_folder(name, options)


def parse(kind: type[T], text: str | None, experiment: str) -> T:
    """The options from the command line.

    Args:
        kind: their dataclass; every field has a default.
        text: the beginning of `--help`.
        experiment: `--from` reads the results of this experiment only.
    """
    show_help(kind, text, experiment, {"from": _FROM})
    source = Annotated[str | None, tyro.conf.arg(name="from", metavar="FILE", help=_FROM)]
    field = ("from_results", source, dataclasses.field(default=None))
    with_from: Any = dataclasses.make_dataclass(kind.__name__, [field], bases=(kind,), frozen=True)
    given_words = in_their_case(sys.argv[1:], kind)
    command: Any = tyro.cli(with_from, description=text, args=given_words)
    if command.from_results is not None:
        with readable_errors():
            given = settings_in(command.from_results, kind, experiment)
        command = tyro.cli(with_from, description=text, args=given_words, default=with_from(**given))
    with readable_errors():
        refuse_empty(command)
    return kind(**{f.name: getattr(command, f.name) for f in dataclasses.fields(command) if f.name != "from_results"})


def show_help(kind: Any, text: str | None, experiment: str, extra: dict[str, str] | None = None) -> None:
    """Print the help and exit if the command line asks for it; arguments as of `help_text.text_of`."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(help_text.text_of(kind, text or "", experiment, extra or {}))
        sys.exit(0)


def in_their_case(arguments: Sequence[str], kind: Any) -> list[str]:
    """The words of a command line with the values of options that have choices as these are written.

    `MNIST` is `mnist`, and `Fashion-MNIST` or `fashionmnist` is `fashion_mnist`.

    Args:
        arguments: the words.
        kind: the dataclass of the options.
    """
    plain = lambda word: word.lower().replace("-", "").replace("_", "")  # noqa: E731
    choices = {_flag(name): _choices(hint) for name, hint in get_type_hints(kind).items()}
    written: list[str] = []
    known: dict[str, str] = {}
    for word in arguments:
        flag, equals, value = word.partition("=")
        if word.startswith("--"):
            known = {plain(choice): choice for choice in choices.get(flag.replace("_", "-"), ())}
            written.append(f"{flag}={known.get(plain(value), value)}" if equals else word)
        else:
            written.append(known.get(plain(word), word))
    return written


def _choices(hint: Any) -> tuple[str, ...]:
    """The words that an option of this type can be."""
    if get_origin(hint) is Literal:
        return get_args(hint)
    return tuple(choice for inner in get_args(hint) for choice in _choices(inner))


def refuse_empty(options: Any) -> None:
    """Refuse an empty list, unless that is the default: nothing would be run."""
    for field in dataclasses.fields(options):
        if isinstance(field.default, tuple) and field.default and not getattr(options, field.name):
            raise ValueError(f"{_flag(field.name)} needs at least one value")


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def settings_in(path: str, kind: Any, experiment: str) -> dict[str, Any]:
    """The fields of `kind` that a results.json or a .toml file gives; other versions than the run's are printed.

    Raises:
        ValueError: the run is of another experiment or of a version with other settings, or the file cannot be read.
    """
    if Path(path).suffix.lower() == ".toml":
        with Path(path).open("rb") as file:
            try:
                written = tomllib.load(file)
            except tomllib.TOMLDecodeError as error:
                raise ValueError(f"--from {path} is no TOML file: {error}") from None
        return settings_from({name.replace("-", "_"): value for name, value in written.items()}, kind, path)
    earlier = files.load(Path(path))
    if earlier["experiment"] != experiment:
        other = earlier["experiment"]
        raise ValueError(f"--from {path} is of {other}: run fedamp {other} --from {path}")
    print_other_versions(earlier)
    return settings_from({"methods": files.methods_in(earlier), **earlier["settings"]}, kind, path)


def settings_from(wanted: Mapping[str, Any], kind: Any, path: str) -> dict[str, Any]:
    """Settings by name as fields of `kind`.

    Raises:
        ValueError: there is no such option, or it does not take the value.
    """
    fields, hints = {f.name: f for f in dataclasses.fields(kind)}, get_type_hints(kind)
    given = {}
    for name, value in wanted.items():
        # A setting of single runs, such as `degree`, may be a list with an s, `degrees`, on the command line.
        name = f"{name}s" if f"{name}s" in fields and value is not None and name != "seed" else name
        if name not in fields:
            raise ValueError(f"--from {path} has the setting {name!r}, which this version does not know")
        if isinstance(fields[name].default, tuple) and value is not None:
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
    then, now = earlier.get("versions") or {}, provenance.versions()
    other = [f"{name} {then[name]} then, {now.get(name)} now" for name in then if then[name] != now.get(name)]
    if other:
        print(f"Other versions than in the earlier run: {'; '.join(other)}.", file=sys.stderr)
