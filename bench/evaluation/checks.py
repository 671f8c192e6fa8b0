"""What can make an accuracy say less than it seems: equal samples, blind guesses, lenient ways to find an answer."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from bench.evaluation.outcomes import OutcomeMatrix

MAX_EXPECTED_GUESSES = 0.05
"""Expected lucky hits among k blind guesses above which Pass@k is flagged: 50 guesses at one in a thousand."""


@dataclass(frozen=True)
class Duplicates:
    """How often a model said the same thing twice: samples that add nothing, from greedy decoding or a reused seed."""

    share: dict[str, float]
    """By problem: share of its samples that are byte for byte equal to an earlier one of the same problem."""
    overall: float
    """The same over all samples together."""
    identical: bool
    """All samples of every problem are equal, and some problem has several: pass@k equals pass@1."""


def duplicates(samples: Iterable[tuple[str, str]]) -> Duplicates:
    """Duplicates among completions, given as pairs of problem id and text, in any order.

    Raises: ValueError when there are none.
    """
    number: dict[str, int] = {}
    distinct: dict[str, set[str]] = {}
    for problem_id, text in samples:
        number[problem_id] = number.get(problem_id, 0) + 1
        distinct.setdefault(problem_id, set()).add(text)
    if not number:
        raise ValueError("duplicates are counted among samples, got none")
    repeated = {name: total - len(distinct[name]) for name, total in number.items()}
    return Duplicates(
        share={name: repeated[name] / total for name, total in number.items()},
        overall=sum(repeated.values()) / sum(number.values()),
        identical=max(number.values()) > 1 and all(len(texts) == 1 for texts in distinct.values()),
    )


def guess_share(pass_at_k: float, guess_rate: float, k: int) -> float:
    """Share of Pass@k that k blind guesses reach by themselves: (1 - (1 - g)^k) / Pass@k.

    Args: pass_at_k, a mean over problems; guess_rate g, the chance that one blind guess is right; k, the samples.
    Returns: above 1 where the model does worse than guesses; NaN where Pass@k is 0 or NaN.
    Raises: ValueError for a guess_rate that is no probability or k below 1.
    """
    _check_guess(guess_rate, k)
    by_luck = 1.0 if guess_rate == 1 else -math.expm1(k * math.log1p(-guess_rate))
    return by_luck / pass_at_k if pass_at_k > 0 else math.nan


def guess_flag(guess_rate: float, k: int) -> bool:
    """Whether Pass@k must be read with care because k guesses expect more than MAX_EXPECTED_GUESSES hits."""
    _check_guess(guess_rate, k)
    # 25 * 0.002 is above 0.05 only by rounding on some paths; a limit that is met exactly is kept.
    return k * guess_rate > MAX_EXPECTED_GUESSES + 1e-12


def strict_accuracy(outcomes: OutcomeMatrix, strict: Collection[str] | None = None) -> float:
    """Mean over problems of the share of scorable samples that are correct, counting only answers found by `strict`.

    Args: strict, names of methods in the grader's words; None counts every method, which is the flexible accuracy.
    Returns: NaN where a problem has no scorable sample, as Pass@1 is.
    """
    names, problem = np.unique(np.array(outcomes.problem_id), return_inverse=True)
    scorable = np.array([verdict is not None for verdict in outcomes.correct])
    counted = [strict is None or method in strict for method in outcomes.method]
    right = np.array([bool(verdict) for verdict in outcomes.correct]) & np.array(counted)
    total = np.bincount(problem[scorable], minlength=len(names))
    correct = np.bincount(problem[right], minlength=len(names))
    return float(np.where(total > 0, correct / np.maximum(total, 1), np.nan).mean())


def _check_guess(guess_rate: float, k: int) -> None:
    if not 0.0 <= guess_rate <= 1.0:
        raise ValueError(f"guess_rate must be a probability, got {guess_rate}")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
