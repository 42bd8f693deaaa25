"""Rounds with other settings of XLA's command buffers (CUDA graphs), by flags that a process has from its start."""

from collections.abc import Iterator

from on_gpu.cases import cases
from on_gpu.column import default
from on_gpu.record import Job, Settings
from on_gpu.rounds import best, measured


def jobs(settings: Settings) -> Iterator[Job]:
    """The default round of the model whose kernels are smallest and most, its fastest one, then the digits' one."""
    every = cases(settings.tiny)
    case, small = every["mnist-cnn"], every["digits-mlp"]
    usual, found = default(*case.traits), best(settings.results.rows("rounds mnist-cnn"))
    candidates = [] if settings.tiny else [usual] if found in (None, usual) else [usual, found]
    for candidate in candidates:
        yield f"mnist-cnn {candidate.name}", lambda c=candidate: measured(case, c, settings)
    candidate = default(*small.traits)
    yield f"digits-mlp {candidate.name}", lambda: measured(small, candidate, settings)
