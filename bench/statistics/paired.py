"""Paired differences: how much better one is than another on the same problems, with the same training seeds."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from bench.statistics.crossed import crossed_interval, crossed_p_value
from bench.statistics.interval import Interval, clustered_error, problems_interval, t_p_value


@dataclass(frozen=True)
class PairedDifference:
    """First minus second, problem by problem."""

    interval: Interval
    p_value: float
    """Two-sided, of no difference: one minus the level at which the interval just reaches 0. Without any spread 1 if
    the difference is 0, and else NaN."""
    unpaired_standard_error: float
    """What the standard error would be if the two had been measured on different problems."""


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
    errors = [clustered_error(values, clusters)[0] for values in (first, second)]
    return PairedDifference(interval, t_p_value(interval), math.hypot(*errors))


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
    p_value = crossed_p_value(estimates - second)
    errors = [crossed_interval(values, level).standard_error for values in (estimates, second)]
    return PairedDifference(interval, p_value, math.hypot(*errors))


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
