"""The default interval of each estimand."""

import numpy as np
from jaxtyping import Float

from bench.statistics.crossed import crossed_interval
from bench.statistics.estimand import PROBLEMS, SEEDS, SEEDS_AND_PROBLEMS
from bench.statistics.interval import Interval, problems_interval, t_interval


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
