"""Rounds with other settings of XLA's command buffers (CUDA graphs), by flags that a process has from its start."""

from collections.abc import Iterator

from on_gpu.cases import cases
from on_gpu.column import default
from on_gpu.record import Job, Settings
from on_gpu.rounds import best, measured


def jobs(settings: Settings) -> Iterator[Job]:
    """The default round of the model whose kernels are smallest and most, its fastest one, then the digits' one."""
    every = cases(settings.tiny)
    case = every["mnist-cnn"]
    usual = default(case.convolves, case.pools, case.clients)
    found = best(settings.results.rows("rounds mnist-cnn"))
    for candidate in (usual,) if found in (None, usual) or settings.tiny else (usual, found):
        yield f"mnist-cnn {candidate.name}", lambda c=candidate: measured(case, c, settings)
    if settings.tiny:
        return
    small = every["digits-mlp"]
    candidate = default(small.convolves, small.pools, small.clients)
    yield f"digits-mlp {candidate.name}", lambda: measured(small, candidate, settings)
