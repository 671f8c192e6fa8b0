"""Pairs of arms on the same seeds and problems: their differences, and which of them survive Holm's correction."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from jaxtyping import Float

from bench.statistics import (
    PROBLEMS,
    SEEDS,
    SEEDS_AND_PROBLEMS,
    Interval,
    align,
    crossed_p_value,
    holm,
    interval_for,
    t_p_value,
)
from reports.parts.arms import Arm
from reports.parts.scores import Measure, evaluated, values

_Tests = Mapping[str, tuple[Interval, float]]
"""By estimand the interval of a difference and its p value."""
ALPHA = 0.05
ALGORITHMS = (SEEDS, SEEDS_AND_PROBLEMS)
"""What a claim on algorithms can be about; one seed shows two checkpoints only."""


@dataclass(frozen=True)
class Comparison:
    """First minus second, for one measure."""

    first: str
    second: str
    measure: Measure
    k: int
    intervals: Mapping[str, Interval]
    """By estimand; empty where the two share no seed, or were evaluated on different problems."""
    adjusted: Mapping[str, float]
    """Holm-adjusted p values, by estimand."""

    @property
    def apart(self) -> bool:
        """Whether the algorithms differ for both estimands, at a family-wise error rate of `ALPHA`.

        Both, because each answers a question of its own: would new seeds show it on these problems, and on new ones?
        """
        return all(self.adjusted.get(estimand, 1.0) <= ALPHA for estimand in ALGORITHMS)


def score_tables(arms: Sequence[Arm], measure: Measure, k: int) -> dict[str, Float[np.ndarray, "seeds problems"]]:
    """The score of every seed and problem of each evaluated arm; rows and columns are the same for all arms.

    A row is NaN where an arm lacks the seed, has no estimate for this K or met other problems than most.
    """
    found = {arm.label: {run.seed: test for run, test in evaluated(arm)} for arm in arms if evaluated(arm)}
    sets = Counter(frozenset(test.problem_id) for tests in found.values() for test in tests.values())
    shared = sets.most_common(1)[0][0] if sets else frozenset[str]()
    tests = [test for tests in found.values() for test in tests.values()]
    ids = next((test.problem_id for test in tests if set(test.problem_id) == shared), ())
    seeds = sorted({seed for tests in found.values() for seed in tests}, key=lambda seed: (seed is None, seed or 0))
    tables = {label: np.full((len(seeds), len(ids)), np.nan) for label in found}
    for label, of_seed in found.items():
        for seed, test in of_seed.items():
            if set(test.problem_id) == shared:
                tables[label][seeds.index(seed)] = values(test, measure, k)[align(ids, test.problem_id)]
    return tables


def compare(arms: Sequence[Arm], measures: Sequence[tuple[Measure, int]]) -> list[Comparison]:
    """Every pair of arms at every measure: one family for Holm, of this size whatever could be measured."""
    found: dict[tuple[str, str, Measure, int], _Tests] = {}
    for measure, k in measures:
        tables = score_tables(arms, measure, k)
        for first, second in combinations(tables, 2):
            found[first, second, measure, k] = _tests(tables[first], tables[second])
    adjusted = {
        estimand: holm({key: of[estimand][1] if estimand in of else math.nan for key, of in found.items()})
        for estimand in (*ALGORITHMS, PROBLEMS)
    }
    return [
        Comparison(
            *key,
            {estimand: interval for estimand, (interval, _) in of.items()},
            {estimand: adjusted[estimand][key] for estimand in of},
        )
        for key, of in found.items()
    ]


def _tests(first: Float[np.ndarray, "seeds problems"], second: Float[np.ndarray, "seeds problems"]) -> _Tests:
    """For each estimand that the common seeds allow; the crossed p value is inverted from the interval at its level."""
    common = np.isfinite(first).all(axis=1) & np.isfinite(second).all(axis=1)
    difference = (first - second)[common]
    if not difference.size:
        return {}
    estimands = ALGORITHMS if len(difference) > 1 else (PROBLEMS,)
    intervals = {estimand: interval_for(difference, estimand) for estimand in estimands}
    return {
        estimand: (one, crossed_p_value(difference) if estimand == SEEDS_AND_PROBLEMS else t_p_value(one))
        for estimand, one in intervals.items()
    }
