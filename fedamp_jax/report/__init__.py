"""Results as something to look at: tables, figures, pages.

`of_runs` makes them from runs of a program; the experiments use the rest.
"""

from fedamp_jax.report.runs import Report, of_runs

__all__ = ["Report", "of_runs"]
