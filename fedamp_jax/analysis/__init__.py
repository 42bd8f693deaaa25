"""Analysis of accuracies, predictions and collaboration weights after training: summaries, scores, tests, groups.

Functions take NumPy arrays and return Python numbers, except `groups_from_xi` and those of each client. Axes: `R`
evaluated rounds, `M` clients. Accuracies may be fractions or percentages; results are in the same unit.
"""

from fedamp_jax.analysis.accuracy import accuracy_summary, bmta, mean_over_clients
from fedamp_jax.analysis.collaboration import (
    chance_in_group_weight,
    collaborators,
    group_recovery,
    groups_from_xi,
    in_group_weight,
    in_group_weights,
)
from fedamp_jax.analysis.predictions import auc_scores, f1_scores
from fedamp_jax.analysis.significance import holm, wilcoxon, wilcoxon_table

__all__ = [
    "accuracy_summary",
    "auc_scores",
    "bmta",
    "chance_in_group_weight",
    "collaborators",
    "f1_scores",
    "group_recovery",
    "groups_from_xi",
    "holm",
    "in_group_weight",
    "in_group_weights",
    "mean_over_clients",
    "wilcoxon",
    "wilcoxon_table",
]
