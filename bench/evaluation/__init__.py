"""The one evaluation module: training, evaluation and reports take their accuracies from here (numpy only)."""

from bench.evaluation.estimators import Missing, Ties, Votes, maj_at_k, majority, pass_at_k, pass_curve
from bench.evaluation.outcomes import (
    Estimates,
    Outcome,
    OutcomeMatrix,
    Summary,
    estimates,
    outcome_matrix,
    read_estimates,
    read_outcomes,
    summarise,
    votes,
    write_estimates,
    write_outcomes,
)

__all__ = [
    "Estimates",
    "Missing",
    "Outcome",
    "OutcomeMatrix",
    "Summary",
    "Ties",
    "Votes",
    "estimates",
    "maj_at_k",
    "majority",
    "outcome_matrix",
    "pass_at_k",
    "pass_curve",
    "read_estimates",
    "read_outcomes",
    "summarise",
    "votes",
    "write_estimates",
    "write_outcomes",
]
