"""The summary of an evaluation: what stands beside an accuracy so that a reader can judge it."""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from bench.evaluation.checks import strict_accuracy
from bench.evaluation.outcomes import OutcomeMatrix
from bench.evaluation.stored import Estimates


@dataclass(frozen=True)
class Summary:
    """What stands beside an accuracy: how much was sampled, and what became of it. Rates are shares of all samples."""

    num_problems: int
    num_samples: int
    """Completions of all problems together."""
    min_samples_per_problem: int
    """Scorable samples of the problem that has fewest: above it, estimates are undefined for that problem."""
    num_unparsed: int
    num_unscorable: int
    parsed_rate: float
    truncated_rate: float
    timed_out_rate: float
    unscorable_rate: float
    accuracy_given_parsed: float
    """Correct share of the scorable samples in which an answer was found; NaN if there are none."""
    mean_tokens: float
    tie_rate: dict[int, float]
    """By K: mean over problems of the share of elections that the tie rule decides."""
    methods: dict[str, int]
    """Completions by how their answer was found, most frequent first."""
    flexible_accuracy: float
    """Mean over problems of the correct share, however the answer was found: Pass@1."""
    strict_accuracy: float
    """The same, counting only answers found by a strict method; NaN where none is named."""


def summarise(outcomes: OutcomeMatrix, estimated: Estimates, strict: Collection[str] = ()) -> Summary:
    """Counts and rates of an evaluation.

    Args: estimated, its own estimates, from which the tie rates are taken; strict, the methods that the strict
        accuracy counts, in the grader's words.
    """
    scorable = np.array([correct is not None for correct in outcomes.correct])
    correct = np.array([bool(correct) for correct in outcomes.correct])
    answered = scorable & outcomes.parsed
    return Summary(
        num_problems=len(estimated.problem_id),
        num_samples=len(scorable),
        min_samples_per_problem=int(estimated.n.min()),
        num_unparsed=int((~outcomes.parsed).sum()),
        num_unscorable=int((~scorable).sum()),
        parsed_rate=float(outcomes.parsed.mean()),
        truncated_rate=float(outcomes.truncated.mean()),
        timed_out_rate=float(outcomes.timed_out.mean()),
        unscorable_rate=float((~scorable).mean()),
        accuracy_given_parsed=float(correct[answered].mean()) if answered.any() else float("nan"),
        mean_tokens=float(outcomes.num_tokens.mean()),
        tie_rate={k: float(estimated.tied_at(k).mean()) for k in estimated.ks},
        methods=dict(Counter(outcomes.method).most_common()),
        flexible_accuracy=strict_accuracy(outcomes),
        strict_accuracy=strict_accuracy(outcomes, strict) if strict else float("nan"),
    )
