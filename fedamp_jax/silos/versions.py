"""A silo's part of a method's state, in its folder."""

from pathlib import Path
from typing import Any

import numpy as np

from fedamp_jax.placement.messages import Refused


class Versions:
    """The client's rows of the state after the last three calls.

    The server may have the last one or the one before it, if the answer was lost. A server that was killed while it
    wrote its checkpoint goes on from the one before that.
    """

    def __init__(self, folder: Path | None, identity: str):
        self._folder, self._identity = folder, identity
        self._kept: dict[int, list[Any]] = {}
        for path in sorted(folder.glob("round-*.npz")) if folder else ():
            with np.load(path, allow_pickle=False) as stored:
                if str(stored["identity"]) != identity:
                    raise Refused(
                        f"{path} is of another run, method or place in the federation: give the silo an empty folder"
                    )
                self._kept[int(path.stem.split("-")[1])] = [stored[f"leaf{i}"] for i in range(len(stored.files) - 1)]

    def read(self, base: int, initial: Any) -> list[Any]:
        """The rows after call `base`."""
        if base == 0 and 0 not in self._kept:
            self._kept[0] = initial()
        if base not in self._kept:
            raise Refused(
                f"the server has its state after round {base}, but it keeps those after {sorted(self._kept)}: go on "
                "from the server's newest checkpoint, or start over with an empty folder"
            )
        return self._kept[base]

    def write(self, base: int, made: int, rows: list[Any]) -> None:
        """Keep the rows that call `made` makes, those that it started from, `base`, and those before."""
        before = max((number for number in self._kept if number < base), default=base)
        self._kept = {before: self._kept[before], base: self._kept[base], made: rows}
        if self._folder is None:
            return
        leaves = {f"leaf{i}": np.asarray(a) for i, a in enumerate(rows)}
        unfinished = self._folder / "unfinished.npz"
        np.savez(unfinished, allow_pickle=False, identity=np.array(self._identity), **leaves)
        unfinished.replace(self._folder / f"round-{made:06d}.npz")
        for path in self._folder.glob("round-*.npz"):
            if int(path.stem.split("-")[1]) not in self._kept:
                path.unlink()
