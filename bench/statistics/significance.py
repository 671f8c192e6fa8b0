"""Tests of no difference between two models on the same problems."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats

from bench.statistics.estimand import PROBLEMS
from bench.statistics.resampling import UNITS, generator, signs


@dataclass(frozen=True)
class SignificanceTest:
    """A two-sided test of no difference."""

    method: str
    statistic: float
    p_value: float
    n: int
    """Pairs that carry information: those that differ."""
    estimand: str


def sign_flip_test(differences: Float[np.ndarray, " problems"], num_flips: int = 10_000) -> SignificanceTest:
    """Paired permutation test: under no difference each problem's difference is as likely to have the other sign.

    All sign patterns where they are fewer than num_flips, else num_flips of them drawn by a generator seeded with the
    differences themselves; p = (1 + as extreme) / (1 + drawn). It is the same on every machine and in any order of the
    problems: sums are taken over integers, in units of 1e-9 of the largest difference.

    Source: Phipson and Smyth 2010, for the one added to both counts.
    """
    largest = float(np.abs(differences).max(initial=0.0))
    if not math.isfinite(largest):
        return SignificanceTest("sign-flip permutation", math.nan, math.nan, len(differences), PROBLEMS)
    # 1e-9 of the largest absorbs the last bits in which two machines' estimates may differ, also in the seed.
    units = np.rint(differences / (largest or 1.0) * UNITS).astype(np.int64)
    size = np.sort(np.abs(units[units != 0]))
    observed = abs(int(units.sum()))
    exact = 2.0 ** len(size) <= num_flips
    drawn = 2 ** len(size) if exact else num_flips
    # Rounding moves a sum by at most half a unit a problem: sums closer than that are ties.
    extreme = sum(int((np.abs(sums) >= observed - len(size)).sum()) for sums in _flipped_sums(size, drawn, exact))
    p_value = extreme / drawn if exact else (1 + extreme) / (1 + drawn)
    return SignificanceTest("sign-flip permutation", float(differences.mean()), p_value, len(size), PROBLEMS)


def wilcoxon_test(differences: Float[np.ndarray, " problems"]) -> SignificanceTest:
    """Wilcoxon's signed ranks over the problems that differ: a check beside the mean difference.

    With few problems and no ties the distribution is exact, otherwise the normal approximation.
    """
    # Equal rates must have equal ranks, whatever the last bits of their difference.
    differing = np.round(differences, 12)
    differing = differing[differing != 0]
    if not len(differing):
        return SignificanceTest("Wilcoxon signed ranks", 0.0, 1.0, 0, PROBLEMS)
    result: Any = stats.wilcoxon(differing)
    return SignificanceTest(
        "Wilcoxon signed ranks", float(result.statistic), float(result.pvalue), len(differing), PROBLEMS
    )


def mcnemar_test(
    correct: Bool[np.ndarray, " problems"], other_correct: Bool[np.ndarray, " problems"]
) -> SignificanceTest:
    """Exact test for one verdict a problem; the statistic counts those that only the first solves, of n that differ.

    For rates over several samples use paired_difference: rounding them to verdicts would throw the samples away.
    """
    only_first = int((correct & ~other_correct).sum())
    differing = int((correct ^ other_correct).sum())
    p_value = float(stats.binomtest(only_first, differing).pvalue) if differing else 1.0
    return SignificanceTest("McNemar, exact", float(only_first), p_value, differing, PROBLEMS)


def _flipped_sums(size: Int[np.ndarray, " problems"], count: int, exact: bool) -> Iterator[Int[np.ndarray, " flips"]]:
    """Sums of the sizes under `count` sign patterns, in blocks: all of them if exact, else drawn by content."""
    if exact:
        patterns = (np.arange(count)[:, None] >> np.arange(len(size))) & 1
        yield 2 * (patterns @ size) - size.sum()
        return
    for patterns in signs(generator(size), count, len(size)):
        yield 2 * (patterns.astype(np.int64) @ size) - size.sum()
