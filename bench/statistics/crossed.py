"""The interval of a mean when training seeds and problems are both samples of more, and its p value by inversion."""

import math
from dataclasses import replace
from functools import cache

import numpy as np
from jaxtyping import Float
from scipy import optimize, special

from bench.statistics.carried import few_carry, no_spread, num_carrying
from bench.statistics.estimand import SEEDS_AND_PROBLEMS, caution
from bench.statistics.interval import Interval, check_level, problems_interval, symmetric, t_interval, t_p_value


def crossed_interval(estimates: Float[np.ndarray, "seeds problems"], level: float = 0.95) -> Interval:
    """Mean over training seeds and problems when both are samples of more, every seed evaluated on every problem.

    The variance of the mean is between-seed + between-problem - interaction, from the mean squares of the two-way
    table. The half width is the mean of two: with Satterthwaite's degrees of freedom, which covers too little where a
    between-seed part came out small by luck, and the generalised one, which divides each mean square by a chi-square of
    its own and covers too much. From 3 seeds on their mean covers 93 to 97 % (docs/statistics.md), and it is Student's
    t where one source alone matters, as long as at least 8 problems carry the variation; below that a caution says so,
    and where no spread is left there are no bounds. The standard error and degrees of freedom are those of a t interval
    with this half width. One seed gives the problems' interval, and its label.

    Source: Searle, Casella and McCulloch, Variance Components (1992), for the mean squares; Weerahandi 1993,
    doi:10.1080/01621459.1993.10476355, for generalised intervals; their mean is our own, by simulation.
    """
    num_seeds, num_problems = estimates.shape
    if num_seeds == 1:
        return problems_interval(estimates[0], level)
    if num_problems == 1:
        return t_interval(estimates[:, 0], level)
    check_level(level)
    seeds, problems, interaction = squares = mean_squares(estimates)
    half_width = crossed_half_width(squares, (num_seeds - 1, num_problems - 1), level)
    root = math.sqrt(max(seeds + problems - interaction, 0.0))
    error, degrees_of_freedom = _as_t(root, half_width, min(num_seeds, num_problems) - 1, level)
    error /= math.sqrt(estimates.size)
    mean, carried = float(estimates.mean()), num_carrying(estimates.mean(axis=0))
    interval = symmetric(mean, error, degrees_of_freedom, num_seeds, level, SEEDS_AND_PROBLEMS)
    said = [few_carry(carried, interval=error > 0)]
    if error > 0:
        alike = f"all {num_seeds} seeds agree on every problem, so nothing is known of other seeds"
        said += [alike if seeds == interaction == 0 else None, caution(SEEDS_AND_PROBLEMS, num_seeds, num_problems)]
    return replace(interval, caution="; ".join(filter(None, said)) or None, carried=carried)


def mean_squares(estimates: Float[np.ndarray, "seeds problems"]) -> tuple[float, float, float]:
    """Of seeds, of problems, and of their interaction, in the two-way table; 0 where only rounding is left."""
    num_seeds, num_problems = estimates.shape
    by_seed, by_problem = estimates.mean(axis=1), estimates.mean(axis=0)
    residual = estimates - by_seed[:, None] - by_problem + estimates.mean()
    interaction = float((residual**2).sum()) / ((num_seeds - 1) * (num_problems - 1))
    squares = num_problems * float(by_seed.var(ddof=1)), num_seeds * float(by_problem.var(ddof=1)), interaction
    seeds, problems, interaction = (0.0 if no_spread(math.sqrt(square), estimates) else square for square in squares)
    return seeds, problems, interaction


def crossed_half_width(squares: tuple[float, float, float], degrees_of_freedom: tuple[int, int], level: float) -> float:
    """In units in which the mean squares of seeds, problems and interaction are the variances; 0 without spread."""
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


def crossed_p_value(differences: Float[np.ndarray, "seeds problems"]) -> float:
    """Two-sided p value of no difference: one minus the level at which the crossed interval just reaches 0.

    Its half width has no one t distribution at all levels, and at 3 seeds that of the 95 % interval would make small
    p values several times too small. Below 1e-9 it is not resolved further. Without any spread there is no test, as in
    `t_p_value`.
    """
    if min(differences.shape) == 1:
        return t_p_value(crossed_interval(differences))
    mean, squares = abs(float(differences.mean())), mean_squares(differences)
    freedom = (differences.shape[0] - 1, differences.shape[1] - 1)
    scaled = mean * math.sqrt(differences.size)

    def excess(log_p: float) -> float:
        return math.log(crossed_half_width(squares, freedom, -math.expm1(log_p)) / scaled)

    if not math.isfinite(scaled):
        return math.nan
    if no_spread(mean, differences):
        return 1.0
    if max(squares[:2]) == 0:
        return math.nan
    smallest, largest = math.log(1e-9), math.log1p(-1e-9)
    if excess(smallest) <= 0 or excess(largest) >= 0:
        return 1e-9 if excess(smallest) <= 0 else 1.0
    return math.exp(float(optimize.brentq(excess, smallest, largest, xtol=1e-6)))  # pyright: ignore[reportArgumentType]
