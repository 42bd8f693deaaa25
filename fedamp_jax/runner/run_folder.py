"""The folder of a run: which run it belongs to, and the files that are written into it."""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.experimental import multihost_utils

from fedamp_jax.report import files, method_table, report
from fedamp_jax.report.schema import KINDS, Kinds, Results, RunResults
from fedamp_jax.runner.messages import console, say
from fedamp_jax.runner.options import Options
from fedamp_jax.runner.provenance import settings_of

fcntl: Any = None
with contextlib.suppress(ImportError):  # Windows has none
    import fcntl


def results_in(folder: Path, mine: Mapping[str, Any], kinds: Kinds = KINDS) -> Any:
    """The results of this run that the folder holds, perhaps of fewer rounds; None if it holds none.

    Args:
        folder: need not exist.
        mine: the experiment's name and settings.
        kinds: as of `schema.check_results`.

    Raises:
        ValueError: the folder is a file, or holds the results of another run, or of more rounds.
    """
    file = next((path for path in (folder, *folder.parents) if path.is_file()), None)
    if file is not None:
        raise ValueError(f"--out {file} is a file; give a folder")
    path = folder / "results.json"
    if not path.exists():
        return None
    found = files.load(path, kinds)
    theirs = {"experiment": found["experiment"], **found["settings"]}
    theirs |= {"rounds": mine.get("rounds")} if fewer_rounds(found, mine) else {}
    other = [f"{k}: {theirs.get(k)!r} there, {mine.get(k)!r} now" for k in mine if theirs.get(k) != mine.get(k)]
    if other:
        raise ValueError(f"--out {folder} holds another run ({'; '.join(other)}); give another folder, or remove it")
    return found


def fewer_rounds(found: Results, mine: Mapping[str, Any]) -> bool:
    """Whether a run with the settings `mine` is to go on from where these results end."""
    there, now = found["rounds"], mine.get("rounds")
    return isinstance(there, int) and isinstance(now, int) and there < now


def claim(
    folder: Path,
    mine: Mapping[str, Any],
    resume: bool,
    inside: Sequence[str] = ("checkpoints",),
    kinds: Kinds = KINDS,
) -> Any:
    """Make sure that this run may write into the folder.

    Args:
        folder: need not exist yet.
        mine: the experiment's name and settings.
        resume: whether to continue what the folder holds. Without it, nothing there is ever overwritten.
        inside: names that a run leaves in the folder before it has results.
        kinds: as of `schema.check_results`.

    Returns:
        The results that the folder holds; None if it holds none. Those of fewer rounds are renamed, such as to
        `results-20-rounds.json`, and do not count.

    Raises:
        OSError: the folder cannot be written.
        ValueError: the folder holds another run, other files, or, without `resume`, this run; or another process is
            writing to it.
    """
    found = results_in(folder, mine, kinds)
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    if not os.access(there, os.W_OK):
        raise OSError(f"--out {folder}: there is no permission to write to {there}; give another folder")
    if jax.process_index() == 0:
        lock(folder)
    begun = found is not None or any((folder / name).exists() for name in inside)
    if begun and not resume:
        raise ValueError(
            f"--out {folder} already holds results or checkpoints: continue with --resume, which keeps them, "
            "or remove the folder"
        )
    if not begun and folder.exists() and any(folder.iterdir()):
        raise ValueError(f"--out {folder} holds other files; give an empty or new folder")
    wait_for_all(f"checked {folder}")  # before the first of several processes writes there
    if found is not None and fewer_rounds(found, mine):
        set_aside(folder, found["rounds"])
        return None
    return found


_locked: dict[str, int] = {}


def lock(folder: Path) -> None:
    """Keep other processes of this machine from writing to the folder for as long as this one lives.

    The file that is locked lies among the temporary files, so that nothing is left in the folder.

    Raises:
        ValueError: another process has locked it.
    """
    if fcntl is None:
        return
    name = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()[:16]
    if name in _locked:
        return
    # A number in place of a file object, which Python would close: it is held until the process ends.
    file = os.open(Path(tempfile.gettempdir()) / f"fedamp_jax-{os.getuid()}-{name}.lock", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(file)
        text = f"another process is writing to --out {folder}: wait until it has ended, or give another folder"
        raise ValueError(text) from None
    _locked[name] = file


def open_folder(
    folder: Path, options: Options, experiment: str, kinds: Kinds = KINDS
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Claim the folder for one run. Raises as `claim`.

    Returns:
        `(entries, head)`: of the methods that the folder holds already, and what else its results say; both empty if it
        holds none.
    """
    mine = {"experiment": experiment, **settings_of(options)}
    found = claim(folder, mine, options.output.resume, kinds=kinds) or {"methods": {}}
    return found.pop("methods"), found


def remove(folder: Path) -> None:
    """Remove a folder if it exists; the first of several processes does it, once all have called this."""
    wait_for_all(f"before removing {folder}")
    if jax.process_index() == 0:
        shutil.rmtree(folder, ignore_errors=True)
    wait_for_all(f"after removing {folder}")


def rounds_done(checkpoints: Path) -> int:
    """Rounds of the newest checkpoint in a folder, which need not exist; 0 if there is none."""
    found = checkpoints.iterdir() if checkpoints.is_dir() else ()
    return max((int(path.name) for path in found if path.name.isdigit()), default=0)


def set_aside(folder: Path, rounds: int) -> None:
    """Rename the results and models of fewer rounds, so that those of more rounds can take their place."""
    if jax.process_index() > 0:
        return
    (folder / "results.json").replace(folder / f"results-{rounds}-rounds.json")
    if (folder / "models").is_dir():
        (folder / "models").replace(folder / f"models-{rounds}-rounds")
    say(f"The results of {rounds} rounds stay in {folder / f'results-{rounds}-rounds.json'}.")


def newest_only(checkpoints: Path) -> None:
    """Remove all checkpoints of a folder but the newest; the first of several processes does it, as in `remove`."""
    wait_for_all(f"before thinning out {checkpoints}")
    if jax.process_index() == 0:
        newest = str(rounds_done(checkpoints))
        for path in checkpoints.iterdir():
            if path.name.isdigit() and path.name != newest:
                shutil.rmtree(path)


def wait_for_all(place: str) -> None:
    """Wait until all of several processes have called this with the same `place`."""
    if jax.process_count() > 1:
        multihost_utils.sync_global_devices(place)


def write_files(results: RunResults, folder: Path) -> None:
    """Write `results.json`, `history.csv`, the figures and `report.html`, and print the table."""
    if jax.process_index() > 0:  # the first of several processes writes
        return
    files.write_json(results, folder / "results.json")
    files.write_history(results, folder / "history.csv")
    report.write(results, folder)
    console.print(method_table.table(results))
