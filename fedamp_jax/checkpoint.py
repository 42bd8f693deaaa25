"""Checkpoints of a run: state and books together, atomic and asynchronous (orbax), the last three kept."""

from pathlib import Path
from typing import Any

import jax
import numpy as np

_KEPT = 3
_BOOKS = ("rounds", "loss", "observed", "seconds", "first_seconds")


class Checkpoints:
    """The checkpoints of one run, in one folder.

    Args:
        directory: made if it is not there.
        fingerprint: JSON-like settings that identify the run. A checkpoint with another fingerprint is refused.
    """

    def __init__(self, directory: str | Path, fingerprint: dict[str, Any] | None):
        import orbax.checkpoint as ocp  # a second of import that only those pay who save

        self._ocp = ocp
        self._directory = Path(directory).absolute()
        self._fingerprint = fingerprint or {}
        self._manager = ocp.CheckpointManager(self._directory, options=ocp.CheckpointManagerOptions(max_to_keep=_KEPT))

    def save(self, done: int, result: Any) -> None:
        """Write the `Run` after `done` rounds. Returns when the arrays are copied; the disk is written meanwhile."""
        arrays = {"state": result.state}
        if result.xi is not None:
            arrays["xi"] = result.xi
        # Books are JSON, which keeps every float32 exactly; orbax takes no arrays of size 0.
        books = {name: getattr(result, name) for name in _BOOKS} | {"has_xi": result.xi is not None}
        books |= {"accuracy": result.accuracy.tolist(), "rejected": result.rejected.tolist()}
        self._manager.save(
            done,
            args=self._ocp.args.Composite(
                arrays=self._ocp.args.StandardSave(arrays),
                books=self._ocp.args.JsonSave(books),
                fingerprint=self._ocp.args.JsonSave({**self._fingerprint, "state": _shapes(result.state)}),
            ),
        )

    def restore(self, result: Any) -> int:
        """Fill the `Run` from the newest checkpoint.

        Args:
            result: a `Run` with a fresh state, which gives shapes, dtypes and placement.

        Returns:
            How many rounds were done; 0 if there is no checkpoint.

        Raises:
            ValueError: if the checkpoint is of other settings or of another form of state; says what differs.
        """
        done = self._manager.latest_step()
        if done is None:
            return 0
        parts = self._manager.restore(
            done,
            args=self._ocp.args.Composite(books=self._ocp.args.JsonRestore(), fingerprint=self._ocp.args.JsonRestore()),
        )
        self._refuse_other(parts.fingerprint, {**self._fingerprint, "state": _shapes(result.state)})
        books, m = parts.books, len(result.rejected)
        books["accuracy"] = np.array(books["accuracy"], np.float32).reshape(-1, m)
        books["rejected"] = np.array(books["rejected"], int)
        like = {"state": result.state}
        if books.pop("has_xi"):
            like["xi"] = np.zeros((m, m), np.float32)
        arrays = self._manager.restore(
            done, args=self._ocp.args.Composite(arrays=self._ocp.args.StandardRestore(like))
        ).arrays
        for name, value in {**books, **arrays}.items():
            setattr(result, name, value)
        return done

    def close(self) -> None:
        """Wait until everything is on disk."""
        self._manager.wait_until_finished()
        self._manager.close()

    def _refuse_other(self, found: dict[str, Any], wanted: dict[str, Any]) -> None:
        differing = [
            f"{name}: {found.get(name)!r} there, {wanted.get(name)!r} now"
            for name in sorted({*found, *wanted})
            if found.get(name) != wanted.get(name)
        ]
        if differing:
            raise ValueError(
                f"checkpoint in {self._directory} belongs to another run: {'; '.join(differing)}. "
                "Take the same settings, or another folder."
            )


def _shapes(state: Any) -> dict[str, str]:
    """`path -> shape and dtype` of every array of a state."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {jax.tree_util.keystr(path): f"{a.dtype}{list(a.shape)}" for path, a in leaves}
