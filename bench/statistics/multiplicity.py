"""Several comparisons at once: Holm's p values, and the set of arms that cannot be told from the best."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeVar, overload

import numpy as np
from jaxtyping import Float

from bench.statistics.crossed import crossed_interval, crossed_p_value
from bench.statistics.interval import Interval

Key = TypeVar("Key")
HOLM = "Holm over all pairs of arms, for the best is chosen by the same data; paired by training seed and problem"


@dataclass(frozen=True)
class TiedSet:
    """The arm with the highest mean and those that the data cannot tell from it."""

    best: str
    tied: tuple[str, ...]
    """The best first, then the arms that are not significantly below it, by falling mean."""
    adjusted: Mapping[str, float]
    """Adjusted p value of every other arm against the best; NaN where the two share no seed, or nothing to test."""
    differences: Mapping[str, Interval]
    """Best minus the other."""
    rule: str
    """The multiple-comparison rule, for the caption."""


@overload
def holm(p_values: Mapping[Key, float]) -> dict[Key, float]: ...
@overload
def holm(p_values: Sequence[float]) -> list[float]: ...
def holm(p_values: Mapping[Key, float] | Sequence[float]) -> dict[Key, float] | list[float]:
    """Adjusted p values of a family: those at or below a level are rejected with that family-wise error rate.

    They keep the order of the p values and never exceed 1. NaN (a test that could not be made) stays NaN but counts in
    the family, as if its p value were 1: the family was named before the data, and results that are missing must not
    make the others significant.

    Raises: ValueError for a p value outside [0, 1].
    Source: Holm 1979.
    """
    if isinstance(p_values, Mapping):
        return dict(zip(p_values, holm(list(p_values.values())), strict=True))
    if any(p < 0 or p > 1 for p in p_values):
        raise ValueError(f"p values must lie in 0..1, got {next(p for p in p_values if p < 0 or p > 1)}")
    order = sorted(range(len(p_values)), key=lambda i: (math.isnan(p_values[i]), p_values[i]))
    adjusted, largest = [math.nan] * len(p_values), 0.0
    for rank, index in enumerate(order):
        if not math.isnan(p_values[index]):
            largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
            adjusted[index] = largest
    return adjusted


def tied_with_best(scores: Mapping[str, Float[np.ndarray, "seeds problems"]], level: float = 0.95) -> TiedSet:
    """The arm with the highest mean score, and every arm that is not significantly below it.

    The family holds all pairs: comparisons with the best alone, chosen by the same data, called one of five equal arms
    worse in about 9 % of simulations where 5 % was promised (docs/statistics.md).

    Args: per-problem estimates of each arm, row i of all from the same training seed and column j from the same
        problem; a row with NaN is a seed that this arm lacks, and a pair is compared over the seeds that both have.
        One common seed compares checkpoints, not algorithms: see the differences' estimands.
    Raises: ValueError for no arms or for tables of different shapes.
    """
    shapes = {np.shape(table) for table in scores.values()}
    if len(shapes) != 1:
        raise ValueError(f"arms need tables of one shape (seeds, problems), got {sorted(shapes)}")
    means = {name: _mean(table) for name, table in scores.items()}
    order = sorted(scores, key=lambda name: (math.isnan(means[name]), -means[name]))
    pairs = {(one, other): _difference(scores[one], scores[other]) for one, other in combinations(order, 2)}
    adjusted = holm({pair: crossed_p_value(difference) for pair, difference in pairs.items()})
    best, others = order[0], order[1:]
    against = {name: adjusted[best, name] for name in others}
    tied = [name for name in others if not against[name] <= 1 - level]
    intervals = {name: crossed_interval(pairs[best, name], level) for name in others}
    return TiedSet(best, (best, *tied), against, intervals, HOLM)


def _mean(table: Float[np.ndarray, "seeds problems"]) -> float:
    present = table[np.isfinite(table).all(axis=1)]
    return float(present.mean()) if len(present) else math.nan


def _difference(
    one: Float[np.ndarray, "seeds problems"], other: Float[np.ndarray, "seeds problems"]
) -> Float[np.ndarray, "common problems"]:
    """First minus second over the seeds that both have; one row of NaN where there is none."""
    common = np.isfinite(one).all(axis=1) & np.isfinite(other).all(axis=1)
    return one[common] - other[common] if common.any() else np.full((1, one.shape[1]), math.nan)
