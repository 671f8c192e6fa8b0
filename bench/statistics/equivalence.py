"""Claims about a difference: better, worse, the same within a margin, or inconclusive; silence is never "no change"."""

import math
from dataclasses import dataclass
from typing import Literal

from scipy import special

from bench.statistics.carried import FEW
from bench.statistics.interval import Interval
from bench.statistics.power import observed_minimum_detectable

ALPHA = 0.05
"""Level of each of the two one-sided tests, so that their interval is the 90 % one."""

Verdict = Literal["improved", "decreased", "equivalent", "inconclusive"]


@dataclass(frozen=True)
class Equivalence:
    """Two one-sided t tests of a difference that is at least as large as the margin, in either direction."""

    margin: float
    low90: float
    high90: float
    """The 90 % interval: equivalence is shown where it lies inside +-margin."""
    p_value: float
    """The larger of the two one-sided p values."""
    equivalent: bool
    """A p value of at most 5 %, and enough problems that carry the variation: never where fewer than 8 do."""


@dataclass(frozen=True)
class Claim:
    """What may be said about a difference, in words that follow its subject ("Pass@64 ...")."""

    verdict: Verdict
    sentence: str
    minimum_detectable: float
    """The true difference that this design would have found with 80 % power; NaN without an interval."""


def equivalence(interval: Interval, margin: float = 0.02) -> Equivalence:
    """TOST: is the mean difference shown to be smaller than the margin? NaN and False without a standard error.

    Where fewer than 8 problems carry the variation nothing is shown, whatever p is: a nearly solved benchmark differs
    on a handful of problems, and a sample may hold none of those on which the two do.

    Args: interval of a difference, its bounds from Student's t; margin in its unit, fixed before the data are seen.
    Raises: ValueError unless the margin is positive.
    Source: Schuirmann 1987, doi:10.1007/BF01068419.
    """
    if not margin > 0:
        raise ValueError(f"margin must be positive, got {margin}")
    mean, error, degrees_of_freedom = interval.mean, interval.standard_error, interval.degrees_of_freedom
    if not (error > 0 and degrees_of_freedom > 0 and math.isfinite(mean)):
        return Equivalence(margin, math.nan, math.nan, math.nan, False)
    half_width = float(special.stdtrit(degrees_of_freedom, 1 - ALPHA)) * error
    p_value = float(special.stdtr(degrees_of_freedom, -(margin - abs(mean)) / error))
    equivalent = p_value <= ALPHA and interval.carried >= FEW
    return Equivalence(margin, mean - half_width, mean + half_width, p_value, equivalent)


def claim(interval: Interval, margin: float = 0.02) -> Claim:
    """The verdict on a difference (in shares, printed in points) and its sentence, which reads on from a subject.

    Significant means that the interval excludes 0; a difference that is significant and inside the margin says both.
    What is neither significant nor equivalent is inconclusive, and names the smallest effect that would have been seen.
    """
    shown = equivalence(interval, margin)
    detectable = observed_minimum_detectable(interval)
    points = f"{100 * interval.mean:+.1f} points, {100 * interval.level:g} % interval "
    points += f"[{100 * interval.low:+.1f}, {100 * interval.high:+.1f}]; {interval.estimand}"
    within = f"+-{100 * margin:g} points"
    if interval.low > 0 or interval.high < 0:
        verdict: Verdict = "improved" if interval.low > 0 else "decreased"
        both = f", and the change is shown to lie within {within}" if shown.equivalent else ""
        return Claim(verdict, f"{verdict}{both} ({points})", detectable)
    if shown.equivalent:
        return Claim("equivalent", f"is equivalent within {within} ({points})", detectable)
    if math.isnan(interval.low):
        why = interval.caution or "there is no interval to judge by"
        return Claim("inconclusive", f"is inconclusive: {why}", detectable)
    if shown.p_value <= ALPHA:
        few = f"{max(1, int(interval.carried))} problem{'s' * (interval.carried >= 2)}"
        why = f"the variation rests on about {few}, too few to show that it lies within {within}"
        return Claim("inconclusive", f"is inconclusive: {why} ({points})", detectable)
    smallest = f"the minimum detectable effect here is {100 * detectable:.1f} points (80 % power)"
    return Claim("inconclusive", f"is inconclusive: {smallest} ({points})", detectable)
