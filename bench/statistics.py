"""Intervals and tests for accuracies, each saying what it generalises to: problems, training seeds, or both.

An interval answers one question, its estimand, and covers less than it promises for another. Between these three the
answer differs by more than any choice of formula, so every result carries its estimand for the caption:

    PROBLEMS              these checkpoints, on new problems like these      problems_interval, paired_difference
    SEEDS                 new training seeds, on these problems              t_interval over one value a seed
    SEEDS_AND_PROBLEMS    new training seeds, on new problems                crossed_interval, crossed_difference

Undefined is NaN: one seed has no interval, and a NaN among the values (Pass@K where a problem has too few samples)
makes the result NaN. The one test that draws random numbers seeds its generator with the content of its data.
"""

import hashlib
import math
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy import stats

PROBLEMS = "these checkpoints, new problems (checkpoint-level only)"
SEEDS = "these problems, new training seeds"
SEEDS_AND_PROBLEMS = "new training seeds, new problems"
TRIALS = "independent trials with one success rate"

# Sign patterns held at once.
_FLIP_BLOCK = 500

Values = Sequence[float] | Float[np.ndarray, " values"]


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval; the bounds are NaN where there is nothing to estimate them from."""

    mean: float
    low: float
    high: float
    half_width: float
    standard_error: float
    degrees_of_freedom: float
    n: int
    """Number of units that vary: seeds, problems (or clusters of them), or trials; seeds for a crossed interval."""
    level: float
    estimand: str
    """What the interval generalises to, for the caption."""


@dataclass(frozen=True)
class PairedDifference:
    """First minus second, problem by problem."""

    interval: Interval
    p_value: float
    """Two-sided, of a t test with the interval's standard error."""
    unpaired_standard_error: float
    """What the standard error would be if the two had been measured on different problems."""


@dataclass(frozen=True)
class SignificanceTest:
    """A two-sided test of no difference."""

    method: str
    statistic: float
    p_value: float
    n: int
    """Pairs that carry information: those that differ."""
    estimand: str


def t_interval(values: Values, level: float = 0.95, estimand: str = SEEDS) -> Interval:
    """Mean of independent values, one a training seed, with Student's t: few seeds make wide intervals, as they should.

    Raises: ValueError when there are no values.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"values must be a vector with at least one entry, got shape {array.shape}")
    n = len(array)
    error = float(array.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return _symmetric(float(array.mean()), error, n - 1, n, level, estimand)


def problems_interval(
    estimates: Float[np.ndarray, " problems"], level: float = 0.95, clusters: Sequence[Hashable] | None = None
) -> Interval:
    """Mean of one checkpoint's per-problem estimates; it says nothing about another training seed.

    Args: clusters, one label a problem, where problems come in families (one template, say) and are not independent.
    Raises: ValueError when there are no problems.
    Source: Miller 2024, arXiv:2411.00640, but with Student's t, on (clusters - 1) degrees of freedom, for the normal.
    """
    error, num_clusters = _clustered_error(estimates, clusters)
    return _symmetric(float(estimates.mean()), error, num_clusters - 1, num_clusters, level, PROBLEMS)


def crossed_interval(estimates: Float[np.ndarray, "seeds problems"], level: float = 0.95) -> Interval:
    """Mean over training seeds and problems when both are samples of more, every seed evaluated on every problem.

    The variance of the mean is between-seed + between-problem - interaction, from the mean squares of the two-way
    table; its degrees of freedom are Satterthwaite's. The estimate is kept from falling below either source alone,
    which costs nothing where both matter and repairs coverage where one is absent. With 2 or 3 seeds and a seed effect
    that outweighs the problems it still covers about 90 % where 95 % is promised. One seed gives the problems'
    interval, and its label.

    Source: Searle, Casella and McCulloch, Variance Components (1992), for the mean squares of the two-way table.
    """
    num_seeds, num_problems = estimates.shape
    if num_seeds == 1:
        return problems_interval(estimates[0], level)
    if num_problems == 1:
        return t_interval(estimates[:, 0], level)
    mean = float(estimates.mean())
    by_seed, by_problem = estimates.mean(axis=1), estimates.mean(axis=0)
    residual = estimates - by_seed[:, None] - by_problem + mean
    seeds = num_problems * float(by_seed.var(ddof=1))
    problems = num_seeds * float(by_problem.var(ddof=1))
    interaction = float((residual**2).sum()) / ((num_seeds - 1) * (num_problems - 1))
    variance = max(seeds + problems - interaction, seeds, problems)
    spread = seeds**2 / (num_seeds - 1) + problems**2 / (num_problems - 1)
    smallest = min(num_seeds, num_problems) - 1
    degrees_of_freedom = max(variance**2 / spread, smallest) if spread > 0 else smallest
    error = math.sqrt(variance / (num_seeds * num_problems))
    return _symmetric(mean, error, degrees_of_freedom, num_seeds, level, SEEDS_AND_PROBLEMS)


def paired_difference(
    problem_ids: Sequence[str],
    estimates: Float[np.ndarray, "*seeds problems"],
    other_problem_ids: Sequence[str],
    other_estimates: Float[np.ndarray, "*other_seeds other_problems"],
    *,
    level: float = 0.95,
    clusters: Sequence[Hashable] | None = None,
) -> PairedDifference:
    """How much better the first is on the same problems; several seeds of either are averaged before they are compared.

    Args: per-problem estimates, each with its problem ids in any order; clusters as in problems_interval, in the order
        of the first.
    Raises: ValueError unless both hold the same problems.
    Source: Miller 2024, arXiv:2411.00640, on paired differences.
    """
    first = np.atleast_2d(estimates).mean(axis=0)
    second = np.atleast_2d(other_estimates)[:, align(problem_ids, other_problem_ids)].mean(axis=0)
    interval = problems_interval(first - second, level, clusters)
    errors = [_clustered_error(values, clusters)[0] for values in (first, second)]
    return PairedDifference(interval, _t_p_value(interval), math.hypot(*errors))


def crossed_difference(
    problem_ids: Sequence[str],
    estimates: Float[np.ndarray, "seeds problems"],
    other_problem_ids: Sequence[str],
    other_estimates: Float[np.ndarray, "other_seeds other_problems"],
    *,
    level: float = 0.95,
) -> PairedDifference:
    """How much better the first algorithm is, on new training seeds and new problems.

    Args: one row a seed; row i of both is a pair (runs with one seed see the same prompts in the same order).
    Raises: ValueError unless both hold the same problems and equally many seeds.
    """
    if len(estimates) != len(other_estimates):
        raise ValueError(
            f"seeds are paired, so both need equally many, got {len(estimates)} and {len(other_estimates)}"
        )
    second = other_estimates[:, align(problem_ids, other_problem_ids)]
    interval = crossed_interval(estimates - second, level)
    errors = [crossed_interval(values, level).standard_error for values in (estimates, second)]
    return PairedDifference(interval, _t_p_value(interval), math.hypot(*errors))


def align(problem_ids: Sequence[str], other_problem_ids: Sequence[str]) -> Int[np.ndarray, " problems"]:
    """Where each of the problems stands in the other list.

    Raises: ValueError unless both list the same problems, each once.
    """
    position = {problem_id: index for index, problem_id in enumerate(other_problem_ids)}
    unshared = sorted(position.keys() ^ set(problem_ids))
    if unshared:
        raise ValueError(f"{len(unshared)} problems are in one of the two only, for example {', '.join(unshared[:3])}")
    if len(position) != len(other_problem_ids) or len(position) != len(problem_ids):
        raise ValueError("a problem id occurs twice")
    return np.array([position[problem_id] for problem_id in problem_ids], dtype=np.int64)


def wilson_interval(successes: int, trials: int, level: float = 0.95) -> Interval:
    """Success rate of independent trials (one greedy answer a problem, say); it holds where n is small or p extreme.

    Raises: ValueError for impossible counts.
    Source: Wilson 1927; chosen over the normal interval after Bowyer et al. 2025, arXiv:2503.01747.
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"successes must lie in 0..trials and trials be at least 1, got {successes} of {trials}")
    _check_level(level)
    rate = successes / trials
    z = float(stats.norm.ppf((1 + level) / 2))
    shrink = 1 + z**2 / trials
    centre = (rate + z**2 / (2 * trials)) / shrink
    half_width = z / shrink * math.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2))
    # At 0 and at n the bound is the rate itself; rounding would put it a hair outside [0, 1].
    low = 0.0 if successes == 0 else centre - half_width
    high = 1.0 if successes == trials else centre + half_width
    error = math.sqrt(rate * (1 - rate) / trials)
    return Interval(rate, low, high, half_width, error, math.inf, trials, level, TRIALS)


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
    units = np.rint(differences / (largest or 1.0) * 1e9).astype(np.int64)
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


def _symmetric(mean: float, error: float, degrees_of_freedom: float, n: int, level: float, estimand: str) -> Interval:
    """The interval mean +- t * error; NaN bounds where the error is undefined."""
    _check_level(level)
    half_width = float(stats.t.ppf((1 + level) / 2, degrees_of_freedom)) * error if degrees_of_freedom > 0 else math.nan
    return Interval(
        mean, mean - half_width, mean + half_width, half_width, error, degrees_of_freedom, n, level, estimand
    )


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")


def _t_p_value(interval: Interval) -> float:
    if interval.standard_error == 0:
        return 1.0 if interval.mean == 0 else 0.0
    statistic = abs(interval.mean) / interval.standard_error
    return float(2 * stats.t.sf(statistic, interval.degrees_of_freedom)) if math.isfinite(statistic) else math.nan


def _clustered_error(values: Float[np.ndarray, " problems"], clusters: Sequence[Hashable] | None) -> tuple[float, int]:
    """Standard error of the mean, and the number of clusters; without labels every problem is its own cluster."""
    if not len(values):
        raise ValueError("there are no problems to average over")
    deviations = values - values.mean()
    if clusters is not None:
        if len(clusters) != len(values):
            raise ValueError(f"clusters must have one label per problem, got {len(clusters)} for {len(values)}")
        codes: dict[Hashable, int] = {}
        labels = [codes.setdefault(label, len(codes)) for label in clusters]
        deviations = np.bincount(labels, weights=deviations)
    count = len(deviations)
    if count < 2:
        return math.nan, count
    return math.sqrt(count / (count - 1) * float((deviations**2).sum())) / len(values), count


def _flipped_sums(size: Int[np.ndarray, " problems"], count: int, exact: bool) -> Iterator[Int[np.ndarray, " flips"]]:
    """Sums of the sizes under `count` sign patterns, in blocks: all of them if exact, else drawn by content."""
    if exact:
        patterns = (np.arange(count)[:, None] >> np.arange(len(size))) & 1
        yield 2 * (patterns @ size) - size.sum()
        return
    seed = int.from_bytes(hashlib.sha256(size.astype("<i8").tobytes()).digest(), "little")
    # Raw words: numpy keeps those the same in every version, unlike what Generator makes of them.
    words = np.random.PCG64(seed)
    for start in range(0, count, _FLIP_BLOCK):
        shape = (min(_FLIP_BLOCK, count - start), len(size))
        raw = words.random_raw(-(-shape[0] * shape[1] // 64)).astype("<u8")
        patterns = np.unpackbits(raw.view(np.uint8), count=shape[0] * shape[1]).reshape(shape)
        yield 2 * (patterns.astype(np.int64) @ size) - size.sum()
