"""Confidence intervals of one mean, each for its own estimand: new problems, new training seeds, or both."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from jaxtyping import Float
from scipy import special

from bench.statistics.estimand import PROBLEMS, SEEDS, SEEDS_AND_PROBLEMS, TRIALS, caution

_FEW = 8
"""Below so many problems that carry the variation, 95 % intervals were seen to cover less than 90 %."""

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
    caution: str | None = None
    """What a report must say beside it, where it is known to cover less than it promises."""


def t_interval(values: Values, level: float = 0.95, estimand: str = SEEDS) -> Interval:
    """Mean of independent values, one a training seed, with Student's t: few seeds make wide intervals, as they should.

    Raises: ValueError when there are no values.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or not array.size:
        raise ValueError(f"values must be a vector with at least one entry, got shape {array.shape}")
    n = len(array)
    error = float(array.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    return symmetric(float(array.mean()), error, n - 1, n, level, estimand)


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
    return replace(interval, caution=few_carry(estimates))


def crossed_interval(estimates: Float[np.ndarray, "seeds problems"], level: float = 0.95) -> Interval:
    """Mean over training seeds and problems when both are samples of more, every seed evaluated on every problem.

    The variance of the mean is between-seed + between-problem - interaction, from the mean squares of the two-way
    table. The half width is the mean of two: with Satterthwaite's degrees of freedom, which covers too little where a
    between-seed part came out small by luck, and the generalised one, which divides each mean square by a chi-square of
    its own and covers too much. From 3 seeds on their mean covers 93 to 97 % (docs/statistics.md), and it is Student's
    t where one source alone matters. The standard error and degrees of freedom are those of a t interval with this
    half width. One seed gives the problems' interval, and its label.

    Source: Searle, Casella and McCulloch, Variance Components (1992), for the mean squares; Weerahandi 1993,
    doi:10.1080/01621459.1993.10476355, for generalised intervals; their mean is our own, by simulation.
    """
    num_seeds, num_problems = estimates.shape
    if num_seeds == 1:
        return problems_interval(estimates[0], level)
    if num_problems == 1:
        return t_interval(estimates[:, 0], level)
    check_level(level)
    mean = float(estimates.mean())
    seeds, problems, interaction = squares = mean_squares(estimates)
    half_width = crossed_half_width(squares, (num_seeds - 1, num_problems - 1), level)
    root = math.sqrt(max(seeds + problems - interaction, 0.0))
    error, degrees_of_freedom = _as_t(root, half_width, min(num_seeds, num_problems) - 1, level)
    interval = symmetric(
        mean, error / math.sqrt(estimates.size), degrees_of_freedom, num_seeds, level, SEEDS_AND_PROBLEMS
    )
    return replace(interval, caution=caution(SEEDS_AND_PROBLEMS, num_seeds, num_problems))


def mean_squares(estimates: Float[np.ndarray, "seeds problems"]) -> tuple[float, float, float]:
    """Of seeds, of problems, and of their interaction, in the two-way table."""
    num_seeds, num_problems = estimates.shape
    by_seed, by_problem = estimates.mean(axis=1), estimates.mean(axis=0)
    residual = estimates - by_seed[:, None] - by_problem + estimates.mean()
    interaction = float((residual**2).sum()) / ((num_seeds - 1) * (num_problems - 1))
    return num_problems * float(by_seed.var(ddof=1)), num_seeds * float(by_problem.var(ddof=1)), interaction


def crossed_half_width(squares: tuple[float, float, float], degrees_of_freedom: tuple[int, int], level: float) -> float:
    """In units in which the mean squares of seeds, problems and interaction are the variances."""
    seeds, problems, interaction = squares
    largest = max(seeds, problems)
    if not all(map(math.isfinite, squares)) or largest == 0:
        return math.nan if largest else 0.0
    variance = max(seeds + problems - interaction, 1e-12 * largest)
    spread = seeds**2 / degrees_of_freedom[0] + problems**2 / degrees_of_freedom[1]
    fitted = max(variance**2 / spread, min(degrees_of_freedom))
    satterthwaite = float(special.stdtrit(fitted, (1 + level) / 2)) * math.sqrt(variance)
    scaled = (seeds / largest, problems / largest, interaction / largest)
    return (satterthwaite + _generalised_quantile(scaled, degrees_of_freedom, level) * math.sqrt(largest)) / 2


@cache
def _scaled_chi_square(degrees_of_freedom: int, nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Chi-square over its degrees of freedom at Gauss-Legendre nodes of its distribution function, with weights."""
    node, weight = np.polynomial.legendre.leggauss(nodes)
    return special.chdtri(degrees_of_freedom, (1 - node) / 2) / degrees_of_freedom, weight / 2


def _generalised_quantile(
    squares: tuple[float, float, float], degrees_of_freedom: tuple[int, int], level: float
) -> float:
    """The c with P(|Z| <= c / sqrt(seeds / X + problems / Y - interaction)) = level, X and Y scaled chi-squares.

    By quadrature over X and Y (the interaction's own degrees of freedom are many: it is taken as known) and Newton's
    steps, which approach the root of a concave function from below.
    """
    seeds, problems, interaction = squares
    (x, x_weight), (y, y_weight) = (
        _scaled_chi_square(df, 48 if df == min(degrees_of_freedom) else 12) for df in degrees_of_freedom
    )
    variance = np.maximum(seeds / x[:, None] + problems / y - interaction, 1e-12).ravel()
    precision, weight = 1 / np.sqrt(variance), np.outer(x_weight, y_weight).ravel()
    quantile = float(special.ndtri((1 + level) / 2))
    for _ in range(50):
        scaled = quantile * precision
        missing = level - float(weight @ (2 * special.ndtr(scaled) - 1))
        slope = float(weight @ (precision * np.exp(-(scaled**2) / 2))) * math.sqrt(2 / math.pi)
        quantile, last = max(quantile + missing / slope, quantile / 4), quantile
        if abs(quantile - last) <= 1e-10 * last:
            break
    return quantile


def _as_t(error: float, half_width: float, smallest: int, level: float) -> tuple[float, float]:
    """Standard error and degrees of freedom of the t interval with this half width: the error stays where it can."""
    upper = (1 + level) / 2
    normal, widest = float(special.ndtri(upper)), float(special.stdtrit(smallest, upper))
    if math.isnan(half_width) or half_width <= normal * error:
        return half_width / normal, math.inf
    if half_width >= widest * error:
        return half_width / widest, float(smallest)
    return error, float(special.stdtridf(upper, half_width / error))


def interval_for(estimates: Float[np.ndarray, "seeds problems"], estimand: str, level: float = 0.95) -> Interval:
    """The default interval of each estimand, from the per-problem estimates of every seed's checkpoint.

    One seed says nothing about others: whatever was asked for, the result is the problems' interval, and its label
    says that it is checkpoint-level only.

    Args: estimand, one of PROBLEMS, SEEDS and SEEDS_AND_PROBLEMS.
    Raises: ValueError for another estimand, or an empty table.
    """
    if estimand not in (PROBLEMS, SEEDS, SEEDS_AND_PROBLEMS):
        raise ValueError(f"estimand must be PROBLEMS, SEEDS or SEEDS_AND_PROBLEMS, got {estimand!r}")
    if estimates.ndim != 2 or not estimates.size:
        raise ValueError(f"estimates must be a table of seeds and problems, got shape {estimates.shape}")
    if estimand == PROBLEMS or len(estimates) == 1:
        return problems_interval(estimates.mean(axis=0), level)
    return t_interval(estimates.mean(axis=1), level) if estimand == SEEDS else crossed_interval(estimates, level)


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
    """The interval mean +- t * error; NaN bounds where the error is undefined."""
    check_level(level)
    half_width = (
        float(special.stdtrit(degrees_of_freedom, (1 + level) / 2)) * error if degrees_of_freedom > 0 else math.nan
    )
    return Interval(
        mean, mean - half_width, mean + half_width, half_width, error, degrees_of_freedom, n, level, estimand
    )


def few_carry(estimates: Float[np.ndarray, "problems *ks"]) -> str | None:
    """What to say where a mean rests on so few problems (a nearly solved Pass@64, say) that no t interval can be right.

    As many problems as (sum of squared deviations)**2 / sum of their fourth powers: n for a fair coin, n / 3 for a
    normal distribution, and the number of exceptions where all the others are equal. For several columns, the fewest.
    """
    squares = (estimates - estimates.mean(axis=0)) ** 2
    fourth = np.asarray((squares**2).sum(axis=0))
    carried = np.asarray(squares.sum(axis=0)) ** 2 / np.where(fourth > 0, fourth, np.inf)
    fewest = float(np.where(fourth > 0, carried, np.inf).min())
    if not fewest < _FEW:
        return None
    return f"the variation rests on about {max(1, round(fewest))} problems: this covers less than it promises"


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level must lie between 0 and 1, got {level}")


def clustered_error(values: Float[np.ndarray, " problems"], clusters: Sequence[Hashable] | None) -> tuple[float, int]:
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
