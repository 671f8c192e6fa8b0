"""Maj@K, averaged over all k-subsets of a problem's samples: the share of elections that the correct answer wins.

No random draw enters and no sample order matters, unless the exact average (see `exact.py`) would cost more than
MAX_TERMS or MAX_CELLS below: such an entry is estimated from random subsets and has a standard error.
"""

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from bench.evaluation.ballots import (
    TIE_RULES,
    Integer,
    Missing,
    Ties,
    Votes,
    check_k,
    count_votes,
    resolve_missing,
    stack_votes,
    take,
)
from bench.evaluation.exact import cost_of_exact, exact_majority
from bench.evaluation.montecarlo import sampled_majority

MAX_TERMS = 10_000_000
"""Complex numbers that one problem may cost for one k (half a second alone) before subsets are drawn instead."""
MAX_CELLS = 40_000_000
"""Cells, samples times k, of the exact method's table of probabilities (320 MB) before subsets are drawn instead."""


@dataclass(frozen=True)
class Elections:
    """Maj@K of every problem for every k under the three tie rules, in the order of TIE_RULES."""

    estimate: Float[np.ndarray, "3 problems ks"]
    """NaN where fewer than k samples can be used."""
    error: Float[np.ndarray, "3 problems ks"]
    """Standard error of the entries that were estimated from random subsets, NaN where the estimate is exact."""


def maj_at_k(
    answers: Sequence[Hashable | None],
    correct: Sequence[bool | np.bool | None],
    k: Integer,
    *,
    ties: Ties = "random",
    missing: Missing = "abstain",
) -> float:
    """Probability that the most voted answer among k samples of one problem, drawn without replacement, is correct.

    Args:
        answers: one hashable key per sample, None where there is no answer. Equal keys vote together.
        correct: one verdict per sample. All correct samples vote together whatever their keys; None is unscorable and
            left out.
        k: votes per election.
        ties: credit where s wrong answers share the first place: "random" 1/(s+1), "pessimistic" 0, "optimistic" 1.
        missing: a sample without an answer is drawn but has no vote ("abstain"), votes as one wrong answer ("vote"),
            or is left out of the samples ("drop"). An election without votes is lost.
    Returns: the exact average over all subsets, an estimate above MAX_TERMS; NaN where fewer than k of the samples can
        be used.
    Raises: ValueError when k exceeds the number of samples given.
    """
    votes = stack_votes([count_votes(answers, correct)])
    check_k(k, len(answers))
    return float(majority(votes, [int(k)], ties=ties, missing=missing)[0, 0])


cons_at_k = maj_at_k
"""Consensus, another name of Maj@K."""


def gold_free_maj_at_k(
    answers: Sequence[Hashable | None],
    correct: Sequence[bool | np.bool | None],
    k: Integer,
    *,
    missing: Missing = "abstain",
) -> float:
    """Maj@K where correct answers, too, vote by their key alone, as votes are counted where no gold is known.

    `maj_at_k` lets all correct samples vote together, which favours them where one answer has several keys. Here the
    gold enters only after the vote: the winning key earns the share of its samples that are correct, which is 0 or 1
    unless the grader contradicts itself on that key, and keys that share the first place earn the mean of their shares.

    Arguments and errors as for `maj_at_k`; ties are always broken at random. Returns: NaN also where a correct sample
    has no key, since its vote is then unknown.
    """
    check_k(k, len(answers))
    estimate, _ = gold_free_majority([(answers, correct)], [int(k)], missing=missing)
    return float(estimate[0, 0])


def majority(
    votes: Votes, ks: Sequence[int], *, ties: Ties = "random", missing: Missing = "abstain"
) -> Float[np.ndarray, "problems ks"]:
    """Maj@K of every problem for every k, as maj_at_k defines it; NaN where fewer than k samples can be used."""
    return elections(votes, ks, missing=missing).estimate[_rule(ties)]


def elections(votes: Votes, ks: Sequence[int], *, missing: Missing = "abstain") -> Elections:
    """Maj@K of every problem for every k under the three tie rules at once, and which of it is estimated."""
    votes = resolve_missing(votes, missing)
    samples = votes.num_samples
    estimate = np.full((len(TIE_RULES), len(samples), len(ks)), np.nan)
    error = np.full_like(estimate, np.nan)
    for num_samples in np.unique(samples).tolist():
        rows = np.flatnonzero(samples == num_samples)
        group = take(votes, rows)
        for column, k in enumerate(ks):
            if k > num_samples:
                continue
            costly = cost_of_exact(group, num_samples, k) > (MAX_TERMS if num_samples * k <= MAX_CELLS else 0)
            exact = np.flatnonzero(~costly)
            estimate[:, rows[exact], column] = exact_majority(take(group, exact), num_samples, k)
            for row in np.flatnonzero(costly).tolist():
                values, errors = sampled_majority(group, row, k)
                estimate[:, rows[row], column], error[:, rows[row], column] = values, errors
    return Elections(estimate, error)


def tie_rate(by_tie_rule: Float[np.ndarray, "3 problems ks"]) -> Float[np.ndarray, "problems ks"]:
    """Share of the elections in which the correct answer shares the first place: where the tie rule decides."""
    return by_tie_rule[TIE_RULES.index("optimistic")] - by_tie_rule[TIE_RULES.index("pessimistic")]


def gold_free_majority(
    problems: Sequence[tuple[Sequence[Hashable | None], Sequence[bool | np.bool | None]]],
    ks: Sequence[int],
    *,
    missing: Missing = "abstain",
) -> tuple[Float[np.ndarray, "problems ks"], Float[np.ndarray, "problems ks"]]:
    """Maj@K as `gold_free_maj_at_k` defines it, of many problems, and its standard errors.

    Args: problems, (answers, verdicts) of each, of any length.
    Returns: estimates, and errors as `Elections` has them.
    """
    plain = stack_votes([count_votes(answers, verdicts) for answers, verdicts in problems])
    too_few = resolve_missing(plain, missing).num_samples[:, None] < np.array(ks)
    candidates: list[tuple[int, int, Counter[int]]] = []
    owners: list[int] = []
    weights: list[float] = []
    keyless = np.zeros((len(problems), 1), dtype=np.bool)
    for row, (answers, verdicts) in enumerate(problems):
        found = _candidates(answers, verdicts)
        keyless[row] = found is None
        for votes, weight in found or []:
            candidates.append(votes)
            owners.append(row)
            weights.append(weight)
    estimate, variance, sampled = np.zeros((3, len(problems), len(ks)))
    if candidates:
        # Each key with a correct sample is, in turn, the one whose victories are counted.
        held = elections(stack_votes(candidates), ks, missing=missing)
        rule, owner, weight = _rule("random"), np.array(owners), np.array(weights)[:, None]
        np.add.at(estimate, owner, held.estimate[rule] * weight)
        np.add.at(variance, owner, np.nan_to_num(held.error[rule] * weight) ** 2)
        np.add.at(sampled, owner, ~np.isnan(held.error[rule]))
    undefined = too_few | keyless
    error = np.where((sampled > 0) & ~undefined, np.sqrt(variance), np.nan)
    return np.where(undefined, np.nan, estimate), error


def _candidates(
    answers: Sequence[Hashable | None], verdicts: Sequence[bool | np.bool | None]
) -> list[tuple[tuple[int, int, Counter[int]], float]] | None:
    """Each key with a correct sample: the votes as if it were the correct class, and its share of correct samples.

    None where a correct sample has no key.
    """
    keyed = [(answer, bool(verdict)) for answer, verdict in zip(answers, verdicts, strict=True) if verdict is not None]
    size, correct = Counter(answer for answer, _ in keyed), Counter(answer for answer, verdict in keyed if verdict)
    if None in correct:
        return None
    num_missing = size.pop(None, 0)
    sizes = Counter(size.values())
    return [
        ((size[answer], num_missing, sizes - Counter([size[answer]])), number / size[answer])
        for answer, number in correct.items()
    ]


def _rule(ties: Ties) -> int:
    if ties not in TIE_RULES:
        raise ValueError(f"ties must be one of {', '.join(TIE_RULES)}, got {ties!r}")
    return TIE_RULES.index(ties)
