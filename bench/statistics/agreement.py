"""How well one number estimates another that is itself known with noise: bias, error, correlation, over problems.

Everything is a function of sums over observations, so a resample of problems adds up their sums. With estimates b and
measured truths m = V + e, where e is noise of known variance v that has nothing to do with b:

    bias            mean(b - m)
    error           sqrt(mean((b - m)^2) - mean(v)), the root mean square of b - V
    reference       sqrt(mean(m^2) - mean(v)), the error of estimating 0; sqrt(var(m) - mean(v)), that of the mean
    correlation     cov(b, m) / sqrt(var(b) (var(m) - mean(v))), Spearman's correction for attenuation
    explained       1 - (error^2 - bias^2) / (var(m) - mean(v)), the share of the truth's variance
    error at the best factor    the error of c b, with the c for which it is smallest

The squares are unbiased; a root whose square comes out below 0 is 0. Spearman's correlation is of the ranks as
measured, which noise pulls towards 0; a resample keeps the ranks of the whole.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.stats import rankdata

from bench.statistics.interval import check_level
from bench.statistics.resampling import draw_counts, generator, in_units

NUM_DRAWS = 1000
MEASURES = (
    "bias",
    "error",
    "error_with_noise",
    "error_of_zero",
    "error_of_mean",
    "error_at_best_factor",
    "correlation",
    "correlation_with_noise",
    "rank_correlation",
    "explained",
)
Values = Float[np.ndarray, " observations"]


@dataclass(frozen=True)
class Measured:
    """One measure with its interval over problems; NaN where there is nothing to estimate it from."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Agreement:
    """How well `estimate` estimates the truth, by the names in `MEASURES`."""

    measures: Mapping[str, Measured]
    observations: int
    problems: int
    """Clusters that were resampled together."""

    def __getitem__(self, name: str) -> Measured:
        return self.measures[name]


def agreement(
    estimate: Values,
    truth: Values,
    noise: Values,
    problems: Sequence[Hashable],
    level: float = 0.95,
    weight: Values | None = None,
) -> Agreement:
    """Bias, error and correlation of an estimate, with percentile intervals of a bootstrap over problems.

    Args:
        noise: the variance of each truth.
        problems: one label an observation; what shares one is drawn together.
        weight: how much an observation counts, for several that stand for one; all count 1 by default.

    Raises: ValueError where there are no observations.
    """
    check_level(level)
    if not len(estimate):
        raise ValueError("there is no observation")
    weight = np.ones(len(estimate)) if weight is None else weight
    codes: dict[Hashable, int] = {}
    labels = np.array([codes.setdefault(problem, len(codes)) for problem in problems])
    sums = _sums(estimate, truth, noise, weight)
    per_problem = np.stack([np.bincount(labels, weights=column) for column in sums.T], axis=1)
    whole = _measures(per_problem.sum(axis=0)[None])
    draws: dict[str, np.ndarray] = {name: np.full(1, np.nan) for name in MEASURES}
    if len(codes) > 1:
        # In an order of their own, so that the draws do not depend on that of the rows.
        per_problem = per_problem[np.lexsort(per_problem.T[::-1])]
        counts = np.concatenate(list(draw_counts(generator(in_units(per_problem)[0]), NUM_DRAWS, len(codes))))
        draws = _measures(counts @ per_problem)
    tails = ((1 - level) / 2, (1 + level) / 2)
    measures: dict[str, Measured] = {}
    for name in MEASURES:
        known = draws[name][np.isfinite(draws[name])]
        # Where many resamples have no value, what is left of them is no picture of the spread.
        low, high = np.quantile(known, tails) if 2 * len(known) > NUM_DRAWS else (np.nan, np.nan)
        measures[name] = Measured(float(whole[name][0]), float(low), float(high))
    return Agreement(measures, round(float(weight.sum())), len(codes))


def _sums(estimate: Values, truth: Values, noise: Values, weight: Values) -> Float[np.ndarray, "observations sums"]:
    b, m = estimate, truth
    ranks = [rankdata(values) / len(b) - 0.5 for values in (b, m)]
    r, s = ranks
    columns = [np.ones(len(b)), b, m, b * b, b * m, m * m, noise, r, s, r * r, r * s, s * s]
    return np.stack(columns, axis=1) * weight[:, None]


def _measures(sums: Float[np.ndarray, "draws sums"]) -> dict[str, Float[np.ndarray, " draws"]]:
    """Every measure of each row of sums."""
    b, m, bb, bm, mm, v, r, s, rr, rs, ss = (sums[:, 1:] / sums[:, :1]).T
    square = bb - 2 * bm + mm - v
    spread_b, spread_m, spread_v = bb - b * b, mm - m * m, mm - m * m - v
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "bias": b - m,
            "error": _root(square),
            "error_with_noise": _root(square + v),
            "error_of_zero": _root(mm - v),
            "error_of_mean": _root(spread_v),
            "error_at_best_factor": _root(mm - v - np.where(bb > 0, bm**2 / bb, 0.0)),
            "correlation": _correlation(bm - b * m, spread_b, spread_v),
            "correlation_with_noise": _correlation(bm - b * m, spread_b, spread_m),
            "rank_correlation": _correlation(rs - r * s, rr - r * r, ss - s * s),
            "explained": np.where(spread_v > _TINY, 1 - (square - (b - m) ** 2) / spread_v, np.nan),
        }


_TINY = 1e-12
"""A variance below this is rounding."""


def _root(square: Float[np.ndarray, " draws"]) -> Float[np.ndarray, " draws"]:
    return np.sqrt(np.maximum(square, 0.0))


def _correlation(
    covariance: Float[np.ndarray, " draws"], first: Float[np.ndarray, " draws"], second: Float[np.ndarray, " draws"]
) -> Float[np.ndarray, " draws"]:
    """NaN where either does not vary; a corrected one may come out beyond 1, and is held there."""
    varies = (first > _TINY) & (second > _TINY)
    return np.where(varies, np.clip(covariance / np.sqrt(np.where(varies, first * second, 1.0)), -1.0, 1.0), np.nan)
