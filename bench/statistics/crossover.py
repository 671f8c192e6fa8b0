"""Where two Pass@K curves cross: the K beyond which the order of two models is the other way round."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int

from bench.statistics.estimand import PROBLEMS, SEEDS_AND_PROBLEMS
from bench.statistics.interval import check_level
from bench.statistics.resampling import canonical, draw_counts, generator, in_units, quantile_above

NUM_DRAWS = 10_000

Curves = Float[np.ndarray, "seeds problems ks"] | Float[np.ndarray, "problems ks"]


@dataclass(frozen=True)
class Crossover:
    """K* of the observed curves and its bootstrap distribution; NaN where they do not cross within the range of K."""

    k_star: float
    """The last K at which the mean difference changes its sign, on a straight line over log2 K between the K's."""
    low: float
    high: float
    """Quantiles of K* over the resamples that cross as the observed curves do or not at all, so read them beside
    `share_other_direction`; 0 and infinity where K* lies below or above the range of K. NaN where no two resamples
    differ: equal problems do not make K* certain."""
    share_without_crossing: float
    """Of the resamples: those whose mean difference keeps its sign over the whole range."""
    share_other_direction: float
    """Of the resamples: those whose last crossing is the other way round."""
    first_leads_before: bool | None
    """Whether the first is ahead just below K*; None without a crossing."""
    distribution: Float[np.ndarray, " draws"]
    """K* of the resamples that cross, in either direction, sorted."""
    num_crossings: int
    """Sign changes of the observed mean difference."""
    level: float
    estimand: str


@dataclass(frozen=True)
class _Last:
    """The last sign change of each of several curves."""

    log2_k: Float[np.ndarray, " curves"]
    """NaN for none."""
    sign_before: Int[np.ndarray, " curves"]
    last_sign: Int[np.ndarray, " curves"]
    count: Int[np.ndarray, " curves"]


def crossover(
    ks: Sequence[int], first: Curves, second: Curves, *, level: float = 0.95, num_draws: int = NUM_DRAWS
) -> Crossover:
    """Where the order of two models turns round for good, with a bootstrap over problems, and over seeds if several.

    Each resample draws problems, and apart from them training seeds, and adds both deviations to the observed curve,
    each widened by sqrt(n / (n - 1)) for its small sample. Three seeds give only ten distinct draws: read the interval
    as rough. Seeded by content: the same for any order of problems or seeds.

    Args: ks, rising; per-problem estimates of both (of each seed's checkpoint), one column a K, problems and seeds in
        one order.
    Raises: ValueError for shapes that do not match, or K that do not rise from 1 or more.
    """
    check_level(level)
    tables = [np.asarray(curves, dtype=np.float64) for curves in (first, second)]
    if tables[0].shape != tables[1].shape or tables[0].ndim not in (2, 3) or tables[0].shape[-1] != len(ks):
        raise ValueError(f"curves must both be (seeds,) problems, {len(ks)}, got {tables[0].shape}, {tables[1].shape}")
    if not len(ks) or min(ks) < 1 or any(a >= b for a, b in pairwise(ks)):
        raise ValueError(f"ks must rise from 1 or more, got {list(ks)}")
    difference = tables[0] - tables[1]
    difference = difference[None] if difference.ndim == 2 else difference
    estimand = SEEDS_AND_PROBLEMS if len(difference) > 1 else PROBLEMS
    if not difference.size or not np.isfinite(difference).all():
        nan = math.nan
        return Crossover(nan, nan, nan, nan, nan, None, np.zeros(0), 0, level, estimand)
    units = canonical(in_units(difference)[0])
    log2_ks = np.log2(np.asarray(ks, dtype=np.float64))
    observed = _last_crossing(units.sum(axis=(0, 1))[None].astype(np.float64), log2_ks)
    drawn = _resampled_curves(units, num_draws)
    resampled, varies = _last_crossing(drawn, log2_ks), bool((drawn != drawn[0]).any())
    before = int(observed.sign_before[0])
    crossed = np.isfinite(resampled.log2_k)
    low, high = _quantiles(resampled, before, level) if varies else (math.nan, math.nan)
    return Crossover(
        k_star=float(2 ** observed.log2_k[0]),
        low=low,
        high=high,
        share_without_crossing=float((~crossed).mean()),
        share_other_direction=float((crossed & (resampled.sign_before != before)).mean()) if before else math.nan,
        first_leads_before=before > 0 if before else None,
        distribution=np.sort(2 ** resampled.log2_k[crossed]),
        num_crossings=int(observed.count[0]),
        level=level,
        estimand=estimand,
    )


def _resampled_curves(units: Int[np.ndarray, "seeds problems ks"], num_draws: int) -> Float[np.ndarray, "draws ks"]:
    """Sums of the difference over a table drawn anew; whole numbers until the last step, so exact in any order."""
    words = generator(units)
    total = units.sum(axis=(0, 1)).astype(np.float64)
    curves = np.tile(total, (num_draws, 1))
    for sums in (units.sum(axis=0), units.sum(axis=1)):
        count = len(sums)
        if count > 1:
            drawn = [block.astype(np.float64) @ sums for block in draw_counts(words, num_draws, count)]
            curves += math.sqrt(count / (count - 1)) * (np.concatenate(drawn) - total)
    return curves


def _last_crossing(curves: Float[np.ndarray, "curves ks"], log2_ks: Float[np.ndarray, " ks"]) -> _Last:
    """Columns from left to right; where the difference is exactly 0 in between, the first 0 is the crossing."""
    rows = np.arange(len(curves))
    at, before, count = np.full(len(curves), np.nan), np.zeros(len(curves), int), np.zeros(len(curves), int)
    sign, index = np.zeros(len(curves), int), np.zeros(len(curves), int)
    for column in range(curves.shape[1]):
        current = np.sign(curves[:, column]).astype(int)
        turned = sign * current < 0
        following = np.minimum(index + 1, curves.shape[1] - 1)
        left, right = np.abs(curves[rows, index]), np.abs(curves[rows, following])
        step = (log2_ks[following] - log2_ks[index]) * left / np.where(turned, left + right, 1.0)
        at = np.where(turned, log2_ks[index] + step, at)
        before, count = np.where(turned, sign, before), count + turned
        sign, index = np.where(current != 0, current, sign), np.where(current != 0, column, index)
    return _Last(at, before, sign, count)


def _quantiles(resampled: _Last, before: int, level: float) -> tuple[float, float]:
    """Of K* among the resamples in the observed direction; one that never crosses has it beyond an end of the range."""
    if not before:
        return math.nan, math.nan
    crossed = np.isfinite(resampled.log2_k)
    beyond = np.where(resampled.last_sign == before, np.inf, 0.0)
    values = np.where(crossed, 2**resampled.log2_k, beyond)[~crossed | (resampled.sign_before == before)]
    if not len(values):
        return math.nan, math.nan
    tail = (1 - level) / 2
    low = -quantile_above(-values, 1 - tail)
    return low, quantile_above(values, 1 - tail)
