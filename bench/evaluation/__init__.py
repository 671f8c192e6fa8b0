"""The one evaluation module: training, evaluation and reports take their accuracies from here (numpy only)."""

from bench.evaluation.ballots import Missing, Ties, Votes
from bench.evaluation.checks import Duplicates, duplicates, guess_flag, guess_share, strict_accuracy
from bench.evaluation.estimators import (
    Elections,
    cons_at_k,
    elections,
    gold_free_maj_at_k,
    gold_free_majority,
    maj_at_k,
    majority,
)
from bench.evaluation.outcomes import Outcome, OutcomeMatrix, outcome_matrix, read_outcomes, votes, write_outcomes
from bench.evaluation.reliability import (
    avg_at_k,
    cov_at_k,
    cover_at_tau,
    g_pass_at_k,
    g_pass_curve,
    mg_pass_at_k,
    mg_pass_curve,
    pass_at_k,
    pass_curve,
    pass_hat_curve,
    pass_hat_k,
)
from bench.evaluation.stored import Estimates, Variant, estimates, graded, read_estimates, write_estimates
from bench.evaluation.summary import Summary, summarise

__all__ = [
    "Duplicates",
    "Elections",
    "Estimates",
    "Missing",
    "Outcome",
    "OutcomeMatrix",
    "Summary",
    "Ties",
    "Variant",
    "Votes",
    "avg_at_k",
    "cons_at_k",
    "cov_at_k",
    "cover_at_tau",
    "duplicates",
    "elections",
    "estimates",
    "g_pass_at_k",
    "g_pass_curve",
    "gold_free_maj_at_k",
    "gold_free_majority",
    "graded",
    "guess_flag",
    "guess_share",
    "maj_at_k",
    "majority",
    "mg_pass_at_k",
    "mg_pass_curve",
    "outcome_matrix",
    "pass_at_k",
    "pass_curve",
    "pass_hat_curve",
    "pass_hat_k",
    "read_estimates",
    "read_outcomes",
    "strict_accuracy",
    "summarise",
    "votes",
    "write_estimates",
    "write_outcomes",
]
