"""Personal models in a file that outlives the process: arrays and JSON in one npz, nothing that is executed."""

import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from fedamp_jax._version import __version__
from fedamp_jax.checks import check_type
from fedamp_jax.driver.evaluation import own_logits
from fedamp_jax.engine.task_checks import check_task
from fedamp_jax.files import local_path, replace_file
from fedamp_jax.trees import path_name
from fedamp_jax.types import Task, Variables

FORMAT = 1
_HEADER = "fedamp_jax"


class Saved(NamedTuple):
    """What `load_models` reads.

    Attributes:
        models: `Variables [M, ...]`.
        names: the clients' names, if they were given.
        class_names: the classes' names, if they were given.
        about: what else was saved with them, and the version of fedamp_jax that did.
        task: the model, as `load_models` got it.
        classes: `[M]` int32, each client's number of classes, if they were given.
    """

    models: Variables
    names: list[Any] | None
    class_names: list[Any] | None
    about: dict[str, Any]
    task: Task
    classes: np.ndarray | None = None

    def of(self, client: Any) -> Variables:
        """The model of ONE client, by its name, or by its number if no names were saved.

        `task.predict` of it also gives logits of classes that the client does not have: see `predict`.

        Raises:
            KeyError: if there is no such client.
        """
        return jax.tree.map(lambda a: a[self._row(client)], self.models)

    def predict(self, client: Any, x: Any) -> jax.Array:
        """What ONE client's model gives, by the rule of `fedamp_jax.predict`.

        Args:
            client: as in `of`.
            x: `[B, ...]` examples.

        Returns:
            `[B, ...]` float32: logits, which are -inf for classes that the client does not have; those of all classes
            if no `classes` were saved.

        Raises:
            KeyError: if there is no such client.
        """
        outputs = self.task.predict(self.of(client), x)
        return outputs if self.classes is None else own_logits(outputs, int(self.classes[self._row(client)]))

    def _row(self, client: Any) -> int:
        m = jax.tree.leaves(self.models)[0].shape[0]
        known = list(range(m)) if self.names is None else self.names
        if client not in known:
            raise KeyError(
                f"no client {client!r}: there are {', '.join(map(repr, known[:10]))}{', ...' if m > 10 else ''}"
            )
        return known.index(client)


def save_models(
    path: str | os.PathLike[str],
    task: Task,
    models: Variables,
    *,
    names: Sequence[Any] | None = None,
    class_names: Sequence[Any] | None = None,
    classes: ArrayLike | None = None,
    about: Mapping[str, Any] | None = None,
) -> None:
    """Write all clients' models to one file, which replaces an older one when it is whole.

    Args:
        path: the file, such as `models.npz`; its folder is made if needed.
        task: the model.
        models: `[M, ...]`, such as `algorithm.personalize(key, state, train)` gives.
        names: the M clients' names, all different: strings or numbers.
        class_names: the classes' names in order: strings or numbers.
        classes: each client's number of classes, `[M]` such as `train.classes`, or one number for all; 0 where targets
            are no labels. Without it, predictions of what is loaded also have logits of classes that a client lacks.
        about: what else to keep, JSON-like: the method, its settings, an accuracy. It is read as JSON has it: tuples as
            lists, numbers that are keys as strings.

    Raises:
        TypeError: if `models` are no `Variables`, a name is neither a string nor a number, or something is not
            JSON-like.
        ValueError: if the models are not the task's, or there are not M different names or M numbers of classes; see
            `files.local_path`, too.

    >>> import pathlib, tempfile, jax, fedamp_jax
    >>> task = fedamp_jax.models.mlp(classes=10, shape=(8, 8))
    >>> models = jax.vmap(task.init)(jax.random.split(jax.random.key(0), 2))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = pathlib.Path(folder, "models.npz")
    ...     save_models(file, task, models, names=["Oslo", "Bern"], classes=[10, 4], about={"method": "FedAMP"})
    ...     saved = load_models(file, task)
    >>> logits = saved.predict("Bern", jax.numpy.zeros((3, 8, 8)))
    >>> logits.shape, logits[0, 4:].max().item()  # Bern has four classes
    ((3, 10), -inf)
    """
    path = local_path(path, "the models' path")
    check_type("models", models, Variables, "algorithm.personalize(key, state, data) gives them")
    arrays = jax.tree.map(np.asarray, models)
    _refuse_other(_kinds(arrays, 1), _kinds(check_task(task), 0), "models")
    rows = {a.shape[0] for a in jax.tree.leaves(arrays)}
    if len(rows) != 1:
        raise ValueError(f"models must hold one model for each client, leaves [M, ...], got M = {sorted(rows)}")
    names, class_names = _names("names", names), _names("class_names", class_names)
    if names is not None and (len(names), len(set(names))) != (*rows, *rows):
        raise ValueError(f"names must be {rows.pop()} different ones, one for each model, got {names}")
    if classes is not None:
        own = np.asarray(classes)
        if own.dtype.kind not in "iu" or own.shape not in ((), (*rows,)) or own.min(initial=0) < 0:
            raise ValueError(
                f"classes must be the number of classes of each of {rows.pop()} clients, integers from 0 on such as "
                f"train.classes, or one for all, got {classes!r}"
            )
        classes = np.broadcast_to(own, (*rows,)).tolist()
    header = {
        "format": FORMAT,
        "leaves": _kinds(arrays, 1),
        "names": names,
        "class_names": class_names,
        "classes": classes,
        "base": None if task.base is None else task.base.fingerprint(),
        "about": {"version": __version__, **(about or {})},
    }
    try:
        text = json.dumps(header).encode()
    except (TypeError, ValueError) as error:
        raise TypeError(f"names, class_names and about must hold what JSON can hold: {error}") from None
    leaves = {f"leaf{i}": a for i, a in enumerate(jax.tree.leaves(arrays))}
    arrays = {_HEADER: np.frombuffer(text, np.uint8), **leaves}
    replace_file(path, lambda file: np.savez(file, allow_pickle=False, **arrays))


def load_models(path: str | os.PathLike[str], task: Task) -> Saved:
    """Read what `save_models` wrote, in any process: the task is built again, as it was.

    Args:
        path: the file.
        task: the model; its parameters must be of the same names and shapes.

    Raises:
        FileNotFoundError: if there is no file.
        ValueError: if the path is none of this machine (see `files.local_path`), if `save_models` did not write it, if
            it is damaged or of a later format, or if the models are of another task or are adapters of another base;
            the message names the parameter that differs.
    """
    path = local_path(path, "the models' path")
    with path.open("rb") as file:
        try:
            with np.load(file, allow_pickle=False) as found:
                header = json.loads(bytes(found[_HEADER]))
                arrays = [found[f"leaf{i}"] for i in range(len(header["leaves"]))]
        except (zipfile.BadZipFile, KeyError, ValueError, EOFError, TypeError, AttributeError) as error:
            raise ValueError(f"{path} was not written by fedamp_jax.save_models, or it is damaged: {error}") from None
    if header["format"] > FORMAT:
        raise ValueError(f"{path} has format {header['format']}: a later version of fedamp_jax reads it")
    shapes = check_task(task)
    _refuse_other(header["leaves"], _kinds(shapes, 0), str(path))
    base = header.get("base")  # files of earlier versions do not have it
    if base is not None and (task.base is None or task.base.fingerprint() != base):
        raise ValueError(
            f"{path} holds adapters of another base than the task's: give fedamp_jax.models.adapted the base and the "
            "scale that they were trained with"
        )
    # npz knows no bfloat16 and gives its bits, as void.
    leaves = [jnp.asarray(a.view(b.dtype)) for a, b in zip(arrays, jax.tree.leaves(shapes), strict=True)]
    models = jax.tree.unflatten(jax.tree.structure(shapes), leaves)
    classes = header.get("classes")  # files of earlier versions do not have it
    classes = None if classes is None else np.asarray(classes, np.int32)
    return Saved(models, header["names"], header["class_names"], header["about"], task, classes)


def _names(what: str, given: Sequence[Any] | None) -> list[Any] | None:
    """Names as JSON gives them back.

    Raises:
        TypeError: JSON would give another one back, such as a list for a tuple, and it would never be found.
    """
    if given is None:
        return None
    names = [name.item() if isinstance(name, np.generic) else name for name in given]
    for name in names:
        if not isinstance(name, (str, int, float)) or name != name:  # NaN is no name: it is not equal to itself
            raise TypeError(f"{what} must be strings or numbers, got {name!r}: give its text, such as {str(name)!r}")
    return names


def _kinds(tree: Any, first: int) -> dict[str, list[Any]]:
    """`path -> [dtype, *shape]`, the shape from axis `first` on."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {path_name(path): [str(a.dtype), *a.shape[first:]] for path, a in leaves}


def _refuse_other(found: dict[str, list[Any]], wanted: dict[str, list[Any]], what: str) -> None:
    for name in [*found, *wanted]:
        a, b = found.get(name), wanted.get(name)
        if a != b:
            said = [f"{kind[0]} {kind[1:]}" if kind else "missing" for kind in (a, b)]
            raise ValueError(
                f"{what} and the task differ in {name}: {said[0]} there, {said[1]} in the task. Build the task with "
                "the arguments that the models were trained with"
            )
