"""Files that are replaced as a whole: a reader finds the old content or the new one, never a part of it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import jax


def replace_file(path: str | os.PathLike[str], content: bytes | Callable[[BinaryIO], Any]) -> Path:
    """Write a file atomically, and make its folder if needed.

    Args:
        path: of the file. If writing fails, an older file stays as it was.
        content: what it will hold, or a function that writes this to an open file.

    Returns:
        The path.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     replace_file(Path(folder, "a", "b.txt"), b"text").read_bytes()
    b'text'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    # The same name each time, so that what a killed process left is overwritten by the next one; but not the same in
    # processes that compute together, which may write at the same time.
    together = jax.distributed.is_initialized() and jax.process_index() > 0
    unfinished = path.with_name(f".unfinished-{path.name}" + (f"-{jax.process_index()}" if together else ""))
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
