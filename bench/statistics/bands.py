"""Bands around a whole curve: with the promised probability the true curve lies inside at every K at once."""

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Float
from scipy import special

from bench.statistics.carried import ROUNDING, few_carry, num_carrying
from bench.statistics.estimand import PROBLEMS, SEEDS
from bench.statistics.interval import check_level
from bench.statistics.resampling import generator, in_units, quantile_above, signs

NUM_DRAWS = 10_000


@dataclass(frozen=True)
class Band:
    """A mean curve and its simultaneous band; NaN where one row, or rows that are equal there, leave nothing."""

    mean: Float[np.ndarray, " ks"]
    low: Float[np.ndarray, " ks"]
    high: Float[np.ndarray, " ks"]
    critical: float
    """Standard errors on each side, in place of the pointwise quantile."""
    n: int
    """Rows: training seeds or problems."""
    level: float
    estimand: str
    method: str
    caution: str | None = None
    """What a report must say beside it, where it is known to cover less than it promises, or has no width to give."""


def seeds_band(curves: Float[np.ndarray, "seeds ks"], level: float = 0.95) -> Band:
    """Over training seeds, one curve a seed: Sidak's inequality for Student's t over the K that vary.

    A handful of seeds says little about how the K move together, and this asks nothing of it. It is known to hold for
    normal values with known variances; with Student's t it covered 94 to 98 % at 3, 5 and 10 seeds with neighbours
    correlated by .5 and .95, which is all that was tried. A maximum simulated from the correlation seen covers 93 to
    96 % and is hardly narrower (docs/statistics.md). Where all seeds agree on a K there is no band at that K.

    Raises: ValueError when there are no curves.
    Source: Sidak 1967.
    """
    mean, error = _mean_and_error(curves, level)
    varying = max(1, int((error > 0).sum()))
    upper = (1 + level ** (1 / varying)) / 2
    critical = float(special.stdtrit(len(curves) - 1, upper)) if len(curves) > 1 else float("nan")
    band = _band(mean, error, critical, len(curves), level, SEEDS, "Sidak over K, Student's t over seeds")
    equal = f"at some K all {len(curves)} seeds are equal, which does not make the mean certain: no band there"
    return replace(band, caution=equal if (error == 0).any() else None)


def problems_band(curves: Float[np.ndarray, "problems ks"], level: float = 0.95) -> Band:
    """Over problems, one curve a problem: the largest |t| over K under random signs of the problems' deviations.

    A multiplier bootstrap whose every draw is studentised anew; all K share one sign a problem, so their correlation
    is that of the data. The signs are seeded by content: the same on every machine and in any order of problems.

    Raises: ValueError when there are no problems.
    Source: Chernozhukov, Chetverikov and Kato 2013, doi:10.1214/13-AOS1161.
    """
    mean, error = _mean_and_error(curves, level)
    count = len(curves)
    if not np.isfinite(curves).all() or count < 2:
        return _band(mean, error, float("nan"), count, level, PROBLEMS, "max-|t|, sign multipliers over problems")
    units, _ = in_units(curves - mean)
    units = units[np.lexsort(units.T[::-1])]
    exact = units.astype(np.float64)
    squares = (exact**2).sum(axis=0)
    largest = []
    for block in signs(generator(units), NUM_DRAWS, count):
        # Whole numbers below 2**53: a matrix product adds them without rounding, in whatever order.
        sums = (2.0 * block - 1) @ exact
        spread = squares - sums**2 / count
        t = np.abs(sums) * np.sqrt((count - 1) / count) / np.sqrt(np.where(spread > 0, spread, np.inf))
        largest.append(t.max(axis=1))
    critical = quantile_above(np.concatenate(largest), level)
    band = _band(mean, error, critical, count, level, PROBLEMS, "max-|t|, sign multipliers over problems")
    return replace(band, caution=few_carry(num_carrying(curves), interval=not (error == 0).any()))


def _mean_and_error(
    curves: Float[np.ndarray, "rows ks"], level: float
) -> tuple[Float[np.ndarray, " ks"], Float[np.ndarray, " ks"]]:
    check_level(level)
    if curves.ndim != 2 or not curves.size:
        raise ValueError(f"curves must be a table with at least one row, got shape {curves.shape}")
    rows = len(curves)
    error = curves.std(axis=0, ddof=1) / np.sqrt(rows) if rows > 1 else np.full(curves.shape[1], np.nan)
    equal = error <= ROUNDING * np.maximum(1.0, np.abs(curves).max(axis=0))
    return curves.mean(axis=0), np.where(equal, 0.0, error)


def _band(mean, error, critical: float, n: int, level: float, estimand: str, method: str) -> Band:
    half_width = np.where(error > 0, critical * error, np.nan)
    return Band(mean, mean - half_width, mean + half_width, critical, n, level, estimand, method)
