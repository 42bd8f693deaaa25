"""Paths of this machine, and files that are replaced as a whole: a reader finds the old content or the new one."""

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import jax

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://|(abfss?|az|dbfs|file|gc?s|hdfs|hf|https?|s3a?|wandb):/")
"""An address; `Path("gs://bucket")` has lost one of its slashes."""
_LONGEST = 200  # bytes of a file's name with something in front of it: file systems end at 255


def local_path(path: str | os.PathLike[str], name: str = "the path") -> Path:
    """The path of a file or a folder of this machine, whatever characters it has, with `~` expanded.

    Args:
        path: need not exist.
        name: what it is called in messages.

    Raises:
        TypeError: it is no path.
        ValueError: it is an address such as `gs://bucket/run`, which `Path` would take for a folder `gs:`; or it is
            empty, or holds a null character.

    >>> local_path("results/lr=0.1,layers=[64]").name
    'lr=0.1,layers=[64]'
    >>> local_path("gs://bucket/run", "--out")
    Traceback (most recent call last):
        ...
    ValueError: --out 'gs://bucket/run' is an address, and only this machine's files can be read and written: give a \
local path, and copy it from or to there, or mount what is there as a folder
    """
    if not isinstance(path, (str, os.PathLike)) or not isinstance(text := os.fspath(path), str):
        raise TypeError(f"{name} must be the path of a file or a folder, got {path!r}")
    if _URL.match(text):
        raise ValueError(
            f"{name} {text!r} is an address, and only this machine's files can be read and written: give a local path, "
            "and copy it from or to there, or mount what is there as a folder"
        )
    if not text or "\0" in text:
        raise ValueError(f"{name} {text!r} is {'no path' if text else 'empty'}: give that of a file or a folder")
    return Path(os.path.expanduser(text))


def local_file(path: str | os.PathLike[str], name: str = "the path") -> Path:
    """As `local_path`, for a file that is to be written.

    Raises:
        TypeError, ValueError: as `local_path`; or it is a folder.

    >>> local_file("/", "the path of the CSV file")
    Traceback (most recent call last):
        ...
    ValueError: the path of the CSV file '/' is a folder: give the name of a file in it
    """
    found = local_path(path, name)
    if found.is_dir():
        raise ValueError(f"{name} {os.fspath(path)!r} is a folder: give the name of a file in it")
    return found


def replace_file(path: str | os.PathLike[str], content: bytes | Callable[[BinaryIO], Any]) -> Path:
    """Write a file atomically, and make its folder if needed.

    Args:
        path: of the file. If writing fails, an older file stays as it was.
        content: what it will hold, or a function that writes this to an open file.

    Returns:
        The path.

    Raises:
        ValueError: see `local_file`.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     replace_file(Path(folder, "a", "b.txt"), b"text").read_bytes()
    b'text'
    """
    path = local_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The same name each time, so that what a killed process left is overwritten by the next one; but not the same in
    # processes that compute together, which may write at the same time.
    together = jax.distributed.is_initialized() and jax.process_index() > 0
    encoded = os.fsencode(path.name)
    short = path.name if len(encoded) <= _LONGEST else hashlib.sha256(encoded).hexdigest()
    unfinished = path.with_name(f".unfinished-{short}" + (f"-{jax.process_index()}" if together else ""))
    try:
        with unfinished.open("wb") as file:
            if isinstance(content, bytes):
                file.write(content)
            else:
                content(file)
        os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)
    return path
