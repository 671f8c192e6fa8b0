"""How small a difference an evaluation can find: before it is run, and from the standard error that it showed."""

import math

from scipy import optimize, special

from bench.statistics.interval import Interval


def minimum_detectable_effect(
    num_problems: int,
    *,
    samples: tuple[int, int] = (1, 1),
    between_variance: float = 1 / 9,
    sample_variances: tuple[float, float] = (1 / 6, 1 / 6),
    level: float = 0.95,
    power: float = 0.8,
) -> float:
    """The true difference of two checkpoints' mean scores that a paired evaluation finds with the given power.

    Args: samples a problem of the first and of the second; between_variance, of the difference of their true rates
        over problems (1/9 for unrelated models, about .02 for close relatives); sample_variances, the mean over
        problems of one sample's variance. It holds no training-seed variance: that comes on top.
    Raises: ValueError for counts below 1, negative variances or a level or power outside (0, 1).
    Source: Miller 2024, arXiv:2411.00640, section 5, solved for the effect.
    """
    return (_quantiles(level, power)) * math.sqrt(_variance(samples, between_variance, sample_variances, num_problems))


def problems_needed(
    effect: float,
    *,
    samples: tuple[int, int] = (1, 1),
    between_variance: float = 1 / 9,
    sample_variances: tuple[float, float] = (1 / 6, 1 / 6),
    level: float = 0.95,
    power: float = 0.8,
) -> int:
    """How many problems find a true difference `effect`: minimum_detectable_effect solved for the problems.

    Raises: ValueError as there, and for an effect that is not positive.
    """
    if not effect > 0:
        raise ValueError(f"effect must be positive, got {effect}")
    variance = _variance(samples, between_variance, sample_variances, 1)
    return math.ceil(_quantiles(level, power) ** 2 * variance / effect**2)


def observed_minimum_detectable(interval: Interval, power: float = 0.8) -> float:
    """The true difference from 0 that a t test with this interval's standard error and level finds with this power.

    From the noncentral t distribution: with 2 degrees of freedom the sum of two quantiles would be off by a tenth.
    NaN without an interval, also where nothing varies. It describes the design, not the outcome: the observed mean does
    not enter.
    """
    error, degrees_of_freedom = interval.standard_error, interval.degrees_of_freedom
    if not (error > 0 and degrees_of_freedom > 0):
        return math.nan
    if math.isinf(degrees_of_freedom):
        return _quantiles(interval.level, power) * error
    critical = float(special.stdtrit(degrees_of_freedom, (1 + interval.level) / 2))

    def shortfall(effect: float) -> float:
        return float(special.nctdtr(degrees_of_freedom, effect, critical)) - (1 - power)

    # The rejection in the other tail is left out: at this power it is below 1e-5.
    return error * float(optimize.brentq(shortfall, 0.0, 4 * critical + 4, xtol=1e-9))  # pyright: ignore[reportArgumentType]


def _quantiles(level: float, power: float) -> float:
    if not (0 < level < 1 and 0 < power < 1):
        raise ValueError(f"level and power must lie between 0 and 1, got {level} and {power}")
    return float(special.ndtri((1 + level) / 2) + special.ndtri(power))


def _variance(samples: tuple[int, int], between: float, within: tuple[float, float], num_problems: int) -> float:
    """Of the mean difference over the problems."""
    if min(*samples, num_problems) < 1:
        raise ValueError(f"problems and samples must be at least 1, got {num_problems} and {samples}")
    if min(between, *within) < 0:
        raise ValueError(f"variances must not be negative, got {between} and {within}")
    return (between + sum(v / k for v, k in zip(within, samples, strict=True))) / num_problems
