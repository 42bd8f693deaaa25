"""What every experiment does."""

from typing import Any, TypeVar

from fedamp_jax.data import Omniglot, Source, load
from fedamp_jax.data.blank import blank

Kind = TypeVar("Kind", bound=Source | Omniglot)


def source_of(options: Any, kind: type[Kind] = Source) -> Kind:
    """The data set. A dry run downloads nothing: without `--data-dir` it takes blank images of the published number."""
    unread = options.dry_run is not None and options.data_dir is None and options.dataset != "digits"
    found = blank(options.dataset) if unread else load(options.dataset, options.data_dir)
    assert isinstance(found, kind)  # `Omniglot` for omniglot, which has an experiment of its own
    return found
