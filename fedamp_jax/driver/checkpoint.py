"""Checkpoints of a run: state and history together, atomic and asynchronous (orbax), the last few kept.

A checkpoint is a folder named by its round. It is written beside its place and renamed when whole, so a process that
is killed while saving leaves at most a temporary folder, which the next one removes.
"""

import atexit
import contextlib
import copy
import dataclasses
import errno
import functools
import hashlib
import json
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedamp_jax.checks import check_integer
from fedamp_jax.files import local_path
from fedamp_jax.layout import positions, without_examples
from fedamp_jax.trees import path_name
from fedamp_jax.types import Data

FORMAT = 4
"""Number of the layout below. Raised whenever it changes, or what a state means changes without changing its shapes."""
_HISTORY = ("rounds", "loss", "observed", "snapshot_rounds", "seconds", "first_seconds", "starts", "before")
_ARRAYS = ("rejected", "xi", "snapshot_xi", "snapshot_distances")
_UNFINISHED = ".orbax-checkpoint-tmp"
"""How orbax ends the name of a folder that it has not finished."""
_REMEDIES = {
    "make room": (errno.ENOSPC, errno.EDQUOT, errno.EFBIG),
    "make the folder writable": (errno.EACCES, errno.EPERM, errno.EROFS),
    "give a shorter path": (errno.ENAMETOOLONG,),
}
_OTHER = "put that right"
_METADATA = 2**17
"""Bytes reserved for the parts of a checkpoint that are not arrays."""


class Checkpoint(NamedTuple):
    """Where and how often `run` saves its state and history.

    Attributes:
        directory: a folder of this machine, made if it does not exist; `~` is expanded. `run` continues from the newest
            checkpoint that it finds there.
        every: rounds between checkpoints.
        fingerprint: settings of the algorithm that a checkpoint must have been made with, JSON-like: another's is
            refused. Give it wherever settings may change: a function does not reveal its sigma or learning rate.
    """

    directory: str | Path
    every: int = 10
    fingerprint: dict[str, Any] | None = None


class Checkpoints:
    """The checkpoints of one run, in one folder.

    Args:
        directory: made if it does not exist.
        fingerprint: JSON-like settings that identify the run. A checkpoint with another fingerprint is refused.
        rows: rows of the state's clients; on several devices there may be more than clients.
        keep: how many checkpoints stay, the newest.

    Raises:
        TypeError: if `fingerprint` holds what JSON cannot represent.
        ValueError: if `directory` is a file, or none of this machine's (see `files.local_path`).
        OSError: if it cannot be made.
    """

    def __init__(self, directory: str | Path, fingerprint: dict[str, Any] | None, rows: int, keep: int = 3):
        import orbax.checkpoint as ocp  # a second of import that only those pay who save

        check_integer("keep", keep, low=1)
        logging.getLogger("absl").addFilter(_not_raised_again)
        try:
            self._fingerprint = json.loads(json.dumps(fingerprint or {}))
        except (TypeError, ValueError) as error:
            raise TypeError(f"fingerprint must hold what JSON can hold: {error}") from None
        self._ocp, self._rows = ocp, rows
        self._directory = local_path(directory, "the checkpoint directory").absolute()
        with self._writable():
            if not self._directory.is_file():
                self._directory.mkdir(parents=True, exist_ok=True)
        if self._directory.is_file():
            raise ValueError(f"the checkpoint directory {str(directory)!r} is a file: give a folder")
        _remove_unfinished(self._directory)
        options = ocp.CheckpointManagerOptions(max_to_keep=keep)
        self._manager = ocp.CheckpointManager(_for_orbax(self._directory), options=options)

    def check_writable(self) -> None:
        """Raise OSError, as `save`, unless something can be written to the folder: asked before rounds are trained."""
        with self._writable():
            _check_room(self._directory, 0)

    def save(self, done: int, result: Any) -> None:
        """Write the `Run` after `done` rounds. Returns when all is copied; the disk is written meanwhile.

        Raises:
            OSError: if this checkpoint, or the last one in the background, cannot be written.
        """
        # The run continues to add to its history while orbax's thread reads it.
        result = dataclasses.replace(
            result, **{n: copy.deepcopy(getattr(result, n)) for n in (*_HISTORY, "metrics", *_ARRAYS)}
        )
        arrays = _arrays(result)
        # By number, so that a state may hold what orbax has no path for; `_shapes` gives the names.
        leaves = {f"state{i}": _plain(a) for i, a in enumerate(jax.tree.leaves(result.state))} | arrays
        leaves = {name: a for name, a in leaves.items() if a is not None and a.size}  # orbax takes no empty arrays
        history = {name: getattr(result, name) for name in _HISTORY}
        history["arrays"] = {name: None if a is None else [str(a.dtype), *a.shape] for name, a in arrays.items()}
        history |= {"state": _shapes(result.state), "rows": self._rows, "metrics": list(result.metrics)}
        to = self._ocp.args
        identity = {**self._fingerprint, "format": FORMAT, "state": type(result.state).__name__}
        parts = {"history": to.JsonSave(history), "fingerprint": to.JsonSave(identity)}
        with self._writable():
            _check_room(self._directory, sum(a.nbytes for a in leaves.values()))
            self._manager.save(done, args=to.Composite(arrays=to.StandardSave(leaves), **parts))

    def restore(self, result: Any) -> int:
        """Fill the `Run` from the newest checkpoint.

        Args:
            result: a `Run` with a fresh state, which gives shapes, dtypes and placement: the devices, and how many
                they are, may be others than those that saved.

        Returns:
            How many rounds were done; 0 if there is no checkpoint.

        Raises:
            ValueError: if the checkpoint is of other settings, other data, another form of state or another format, and
                says what differs; or if it is damaged. A damaged one is not passed over for the one before it: that
                would repeat rounds in silence, on a disk that loses data.
        """
        done = self._manager.latest_step()
        if done is None:
            return 0
        to = self._ocp.args
        with self._readable(done):
            parts: Any = self._manager.restore(
                done, args=to.Composite(history=to.JsonRestore(), fingerprint=to.JsonRestore())
            )
        history, kinds = parts.history, jax.tree.leaves(result.state)
        fresh = [_plain(a) for a in kinds]
        shapes = self._refuse_other(parts.fingerprint, history, result)
        described = {name: d for name, d in history["arrays"].items() if d is not None}
        like = {name: np.zeros(shape, dtype) for name, (dtype, *shape) in described.items()}
        like |= {f"state{i}": _like(a, shape) for i, (a, shape) in enumerate(zip(fresh, shapes))}
        wanted = to.StandardRestore({name: a for name, a in like.items() if np.prod(a.shape)})
        with self._readable(done):
            found: Any = self._manager.restore(done, args=to.Composite(arrays=wanted))
        read = {**like, **found.arrays}
        m = len(result.rejected)
        placed = [_as(kind, _placed(read[f"state{i}"], a, m)) for i, (kind, a) in enumerate(zip(kinds, fresh))]
        result.state = jax.tree.unflatten(jax.tree.structure(result.state), placed)
        for name in _HISTORY:
            setattr(result, name, history[name])
        result.metrics = {name: read[f"metric{i}"] for i, name in enumerate(history["metrics"])}
        for name in _ARRAYS:
            setattr(result, name, read.get(name))
        return done

    def close(self) -> None:
        """Wait until everything is on disk; raises as `save`."""
        with self._writable():
            try:
                self._manager.wait_until_finished()
            finally:
                self._manager.close()

    @contextlib.contextmanager
    def _readable(self, done: int) -> Iterator[None]:
        """Turn the errors of other libraries on a truncated or missing file into one that names the checkpoint."""
        try:
            yield
        except Exception as error:  # json's, TensorStore's and orbax's own, which have nothing in common
            raise ValueError(
                f"checkpoint {self._directory / str(done)} is damaged ({_brief(error)}). Remove this "
                f"folder to continue from the checkpoint before it, or {self._directory} to start over."
            ) from error

    @contextlib.contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            raise OSError(
                f"a checkpoint cannot be written to {self._directory} ({_brief(error)}). The last ones are whole: "
                f"{_remedy(error)} and go on from there."
            ) from error

    def _refuse_other(self, found: dict[str, Any], history: dict[str, Any], result: Any) -> list[list[int]]:
        """Raise unless the checkpoint is this run's; else the shapes of the leaves as they were saved."""
        if found.get("format") != FORMAT:
            raise ValueError(
                f"checkpoint in {self._directory} has format {found.get('format')}, this version of fedamp_jax reads "
                f"{FORMAT}. Finish the run with the version that started it, or use another folder."
            )
        wanted = {**self._fingerprint, "format": FORMAT, "state": type(result.state).__name__}
        there, now = history["state"], _shapes(result.state)
        # On another number of devices there may be another number of padding rows behind the clients' own.
        rows = [history["rows"], self._rows]
        for path in there.keys() & now.keys():
            (dtype, *shape), (_, *other) = there[path], now[path]
            if [shape[:1], other[:1]] == [rows[:1], rows[1:]] and shape[1:] == other[1:]:
                now[path] = [dtype, *shape]
        pairs = [(found, wanted, ""), (there, now, "state")]
        differing = [
            f"{prefix}{name}: {a.get(name)!r} there, {b.get(name)!r} now"
            for a, b, prefix in pairs
            for name in sorted({*a, *b})
            if a.get(name) != b.get(name)
        ]
        if differing:
            raise ValueError(
                f"checkpoint in {self._directory} belongs to another run: {'; '.join(differing)}. "
                "Use the same settings, or another folder."
            )
        return [shape for _, *shape in there.values()]


@contextlib.contextmanager
def opened(checkpoint: Checkpoint | None, fingerprint: dict[str, Any], rows: int) -> Iterator[Checkpoints | None]:
    """The `Checkpoints` of a run, closed afterwards, whatever happens; None without a `checkpoint`.

    Args:
        checkpoint: where; its fingerprint is added to `fingerprint`.
        fingerprint: what else identifies the run.
        rows: as in `Checkpoints`.
    """
    if checkpoint is None:
        yield None
        return
    checkpoints = Checkpoints(checkpoint.directory, {**fingerprint, **(checkpoint.fingerprint or {})}, rows)
    try:
        yield checkpoints
    finally:
        checkpoints.close()


def _arrays(result: Any) -> dict[str, Any]:
    """The arrays of a `Run` beside its state; metrics by number, as their names may be anything."""
    metrics = {f"metric{i}": a for i, a in enumerate(result.metrics.values())}
    return {**metrics, **{name: getattr(result, name) for name in _ARRAYS}}


def describe(data: Data, m: int) -> str:
    """What identifies the first `m` clients of `Data`: sizes for the reader, and a digest of every number."""
    digest = hashlib.blake2b(digest_size=8)
    own, (x, y) = without_examples(data)
    here = getattr(data.size, "is_fully_addressable", True)  # of what lies on other hosts, only the shape counts
    rows = dict.fromkeys("xy", positions(data) if data.placement.holds_examples else slice(0)) if here else {}
    numbers = own._replace(start=None, views=(), x=x, y=y)  # where the examples lie is the placement's business
    if not data.placement.holds_examples:
        numbers = numbers._replace(online=None)  # silos come and go
    for path, a in jax.tree_util.tree_leaves_with_path(numbers):
        name = path_name(path)
        digest.update(f"{name} {a.dtype} {a.shape[1:]}".encode())
        if here:
            some = np.asarray(a)[rows.get(name.split("/")[0], slice(m))]
            digest.update(np.ascontiguousarray(some))  # pyright: ignore[reportArgumentType]
    total = int(np.asarray(data.size).sum()) if here else 0
    return f"{m} clients, {total} examples, digest {digest.hexdigest()}"


def _for_orbax(directory: Path) -> Path:
    """The folder by a name that orbax and TensorStore take as it is: they read brackets as a pattern, and no backslash.

    Raises:
        ValueError: it has no such name.
    """
    if _is_plain(directory):
        return directory
    link = None
    with contextlib.suppress(OSError):  # Windows asks for a privilege
        link = _link_to(directory)
    # Processes that compute together have to call the folder by one name.
    if link is None or not _is_plain(link) or jax.process_count() > 1:
        raise ValueError(
            f"checkpoints cannot be written to {str(directory)!r} here: give a folder whose path has none of * ? [ ] "
            "\\ and is valid Unicode"
        )
    return link


def _is_plain(path: Path) -> bool:
    text = path.as_posix()
    return not set(text) & set("*?[]\\") and text.isprintable()


@functools.cache
def _link_to(directory: Path) -> Path:
    """A symbolic link to a folder, among the temporary files. It stays as long as orbax's threads may write."""
    holder = tempfile.mkdtemp(prefix="fedamp_jax-")
    atexit.register(shutil.rmtree, holder, ignore_errors=True)
    link = Path(holder, "checkpoints")
    link.symlink_to(directory, target_is_directory=True)
    return link


def _remove_unfinished(directory: Path) -> None:
    """Remove what was not saved to its end, by a process that was killed or on a disk that was full.

    After an error in this process, orbax's threads go on writing for some milliseconds, and its own removal would fail.
    """
    for seconds in (0.0, 0.1, 1.0):
        for folder in directory.glob(f"*{_UNFINISHED}"):
            time.sleep(seconds)
            shutil.rmtree(folder, ignore_errors=True)


def _check_room(directory: Path, size: int) -> None:
    """Raise OSError unless there is room for `size` bytes and their folders.

    Without a folder to write to, orbax's threads wait five minutes for it before the process can end.
    """
    tempfile.TemporaryDirectory(suffix=_UNFINISHED, dir=directory).cleanup()
    disk, needed = shutil.disk_usage(directory), size + _METADATA
    if disk.total and disk.free < needed:  # some network file systems report zeros
        raise OSError(f"{os.strerror(errno.ENOSPC)}: it takes {needed:,} bytes, and {disk.free:,} are free")


def _not_raised_again(record: logging.LogRecord) -> bool:
    """False for the tracebacks that orbax's threads log of an error which `save` or `close` then raises."""
    return not (record.exc_info and "orbax" in Path(record.pathname).parts)


def _remedy(error: Exception) -> str:
    """What to do about a write that failed; TensorStore's errors say the system's words, and have no number."""
    said = str(error)
    return next((way for way, numbers in _REMEDIES.items() if any(os.strerror(n) in said for n in numbers)), _OTHER)


def _brief(error: Exception) -> str:
    """The kind of an error and the essence of its message: TensorStore's run over pages, and end with the cause."""
    text = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {text if len(text) < 400 else f'{text[:200]} ... {text[-200:]}'}"


def _is_key(a: Any) -> bool:
    return jnp.issubdtype(a.dtype, jax.dtypes.prng_key)


def _plain(a: jax.Array) -> jax.Array:
    """The numbers of a leaf: those within, if it holds keys of a generator, which no file can."""
    return jax.random.key_data(a) if _is_key(a) else a


def _as(kind: jax.Array, a: jax.Array) -> jax.Array:
    """The way back: keys where `kind` holds keys."""
    return jax.random.wrap_key_data(a, impl=jax.random.key_impl(kind)) if _is_key(kind) else a


def _like(a: jax.Array, shape: list[int]) -> Any:
    """What to restore a leaf as: placed as the fresh one, or on the host if it is of another shape or not placed yet.

    An array restored to a device is committed there, and could not meet data that lie on several.
    """
    if a.committed and list(a.shape) == shape:
        return jax.ShapeDtypeStruct(a.shape, a.dtype, sharding=a.sharding)
    return np.empty(shape, a.dtype)


def _placed(read: Any, fresh: jax.Array, m: int) -> jax.Array:
    """A leaf as it was read, placed and as long as the fresh one: rows from `m` on are padding."""
    if read.shape != fresh.shape:
        full = np.zeros(fresh.shape, fresh.dtype)
        full[:m] = read[:m]
        read = full
    return jax.device_put(read, fresh.sharding) if fresh.committed else jnp.asarray(read)


def _shapes(state: Any) -> dict[str, list[Any]]:
    """`path -> [dtype, *shape]` of every array of a state, in order."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path): [str(a.dtype), *a.shape] for path, a in ((p, _plain(a)) for p, a in leaves)}
