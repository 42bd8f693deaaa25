"""What a federation's parties bring along: one Python file of their own, with a method and the site's data."""

import importlib.util
import os
import types
from pathlib import Path
from typing import Any

from fedamp_jax.files import local_path
from fedamp_jax.silos.silo import Silo
from fedamp_jax.types import Algorithm, Task

SETTINGS, FOLDER = "FEDAMP_JAX_SETTINGS", "FEDAMP_JAX_FOLDER"
"""Environment variables of a machine: its settings file, and the folder for what it keeps."""


class Settings:
    """A Python file with the two functions that a federation needs, which the machine's owner has put there.

    - `method(name) -> (task, algorithm)`: the model and the method of that name, the same on all machines.
    - `data(site) -> (train, test)`: the data of the site, `Data` of one client each; a server's file needs none.

    Args:
        path: the file.

    Raises:
        FileNotFoundError: if it is not there.
        ValueError: if it has no function `method`.
    """

    def __init__(self, path: str | os.PathLike):
        self.path = local_path(path, "the settings file").absolute()
        if not self.path.is_file():
            raise FileNotFoundError(f"there is no settings file {self.path}: give a Python file with method and data")
        spec = importlib.util.spec_from_file_location("fedamp_jax_site", self.path)
        assert spec is not None and spec.loader is not None
        self.module: types.ModuleType = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.module)
        self._function("method")

    def method(self, name: str) -> tuple[Task, Algorithm]:
        """The model and the method of that name."""
        return self._function("method")(name)

    def silo(self, site: str, name: str, folder: Path | None) -> Silo:
        """The site's client for a method; its part of the state is in `folder`."""
        train, test = self._function("data")(site)
        return Silo(*self.method(name), train, test, folder=folder)

    def _function(self, name: str) -> Any:
        found = getattr(self.module, name, None)
        if not callable(found):
            raise ValueError(f"{self.path} needs a function {name}(...): see fedamp_jax.silos.Settings")
        return found
