"""Confidence intervals of one mean over one source of variation: new problems, new training seeds, or trials."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from scipy import special

from bench.statistics.carried import few_carry, no_spread, num_carrying
from bench.statistics.estimand import PROBLEMS, SEEDS, TRIALS

Values = Sequence[float] | Float[np.ndarray, " values"]


@dataclass(frozen=True)
class Interval:
    """A mean and its confidence interval; the bounds are NaN where there is nothing to estimate them from.

    That is one value, and as well several that are all equal: a spread of 0 among so few does not make a mean certain.
    """

    mean: float
    low: float
    high: float
    half_width: float
    standard_error: float
    """0 where the values are equal but for rounding; then there are no bounds."""
    degrees_of_freedom: float
    n: int
    """Number of units that vary: seeds, problems (or clusters of them), or trials; seeds for a crossed interval."""
    level: float
    estimand: str
    """What the interval generalises to, for the caption."""
    caution: str | None = None
    """What a report must say beside it, where it is known to cover less than it promises, or why it has no bounds."""
    carried: float = math.inf
    """How many problems (or clusters of them) the variation rests on, 0 for none; infinite where none enter."""


def t_interval(values: Values, level: float = 0.95, estimand: str = SEEDS) -> Interval:
    """Mean of independent values, one a training seed, with Student's t: few seeds make wide intervals, as they should.

    Seeds that all have one value (two of them on 30 greedy problems do in about one case of ten) give no interval.

    Raises: ValueError when there are no values.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"values must be a vector with at least one entry, got shape {array.shape}")
    n = len(array)
    error = float(array.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    error = 0.0 if no_spread(error, array) else error
    interval = symmetric(float(array.mean()), error, n - 1, n, level, estimand)
    equal = f"all {n} values are equal, which does not make the mean certain: no interval"
    return replace(interval, caution=equal if error == 0 else None)


def problems_interval(
    estimates: Float[np.ndarray, " problems"], level: float = 0.95, clusters: Sequence[Hashable] | None = None
) -> Interval:
    """Mean of one checkpoint's per-problem estimates; it says nothing about another training seed.

    Args: clusters, one label a problem, where problems come in families (one template, say) and are not independent.
    Raises: ValueError when there are no problems.
    Source: Miller 2024, arXiv:2411.00640, but with Student's t, on (clusters - 1) degrees of freedom, for the normal.
    """
    error, num_clusters = clustered_error(estimates, clusters)
    interval = symmetric(float(estimates.mean()), error, num_clusters - 1, num_clusters, level, PROBLEMS)
    carried = num_carrying(_summed(estimates - estimates.mean(), clusters))
    return replace(interval, caution=few_carry(carried, interval=error > 0), carried=carried)


def accuracy_interval(estimates: Float[np.ndarray, " problems"], level: float = 0.95) -> Interval:
    """One checkpoint's accuracy: Wilson's where every problem has one verdict (all 0 or 1), else over the estimates.

    With one answer a problem the mean is a plain proportion, and a symmetric interval covers 78 % at 30 problems and a
    rate of .05. With several samples a problem the estimates are rates, whose spread Wilson's interval does not know.
    """
    if len(estimates) and bool(np.isin(estimates, (0.0, 1.0)).all()):
        interval = wilson_interval(int(estimates.sum()), len(estimates), level)
        return replace(interval, estimand=PROBLEMS)
    return problems_interval(estimates, level)


def wilson_interval(successes: int, trials: int, level: float = 0.95) -> Interval:
    """Success rate of independent trials (one greedy answer a problem, say); it holds where n is small or p extreme.

    Raises: ValueError for impossible counts.
    Source: Wilson 1927; chosen over the normal interval after Bowyer et al. 2025, arXiv:2503.01747.
    """
    if not 0 <= successes <= trials or trials < 1:
        raise ValueError(f"successes must lie in 0..trials and trials be at least 1, got {successes} of {trials}")
    check_level(level)
    rate = successes / trials
    z = float(special.ndtri((1 + level) / 2))
    shrink = 1 + z**2 / trials
    centre = (rate + z**2 / (2 * trials)) / shrink
    half_width = z / shrink * math.sqrt(rate * (1 - rate) / trials + z**2 / (4 * trials**2))
    # At 0 and at n the bound is the rate itself; rounding would put it a hair outside [0, 1].
    low = 0.0 if successes == 0 else centre - half_width
    high = 1.0 if successes == trials else centre + half_width
    error = math.sqrt(rate * (1 - rate) / trials)
    return Interval(rate, low, high, half_width, error, math.inf, trials, level, TRIALS)


def symmetric(mean: float, error: float, degrees_of_freedom: float, n: int, level: float, estimand: str) -> Interval:
    """The interval mean +- t * error; NaN bounds where the error is undefined or 0."""
    check_level(level)
    known = error > 0 and degrees_of_freedom > 0
    half_width = float(special.stdtrit(degrees_of_freedom, (1 + level) / 2)) * error if known else math.nan
    return Interval(
        mean, mean - half_width, mean + half_width, half_width, error, degrees_of_freedom, n, level, estimand
    )


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")


def t_p_value(interval: Interval) -> float:
    """Two-sided p value of no difference, from the interval's t distribution.

    With equal values there is no test: 1 where their mean is 0, for that is no evidence against 0 whatever the spread
    would be, and NaN where it is not.
    """
    if interval.standard_error == 0:
        return 1.0 if no_spread(abs(interval.mean), np.zeros(0)) else math.nan
    statistic = abs(interval.mean) / interval.standard_error
    return float(2 * special.stdtr(interval.degrees_of_freedom, -statistic)) if math.isfinite(statistic) else math.nan


def clustered_error(values: Float[np.ndarray, " problems"], clusters: Sequence[Hashable] | None) -> tuple[float, int]:
    """Standard error of the mean, and the number of clusters; without labels every problem is its own cluster."""
    if not len(values):
        raise ValueError("there are no problems to average over")
    deviations = _summed(values - values.mean(), clusters)
    count = len(deviations)
    if count < 2:
        return math.nan, count
    error = math.sqrt(count / (count - 1) * float((deviations**2).sum())) / len(values)
    return 0.0 if no_spread(error, values) else error, count


def _summed(
    deviations: Float[np.ndarray, " problems"], clusters: Sequence[Hashable] | None
) -> Float[np.ndarray, " clusters"]:
    """The sum of each cluster; without labels every problem is its own."""
    if clusters is None:
        return deviations
    if len(clusters) != len(deviations):
        raise ValueError(f"clusters must have one label per problem, got {len(clusters)} for {len(deviations)}")
    codes: dict[Hashable, int] = {}
    labels = [codes.setdefault(label, len(codes)) for label in clusters]
    return np.bincount(labels, weights=deviations)
