"""Summaries of runs and tasks: against brute force, and with runs resampled jointly."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from bench.statistics import (
    improvement_interval,
    iqm,
    iqm_interval,
    performance_profile,
    probability_of_improvement,
    profile_intervals,
    t_interval,
)


def scores(runs, tasks=4, seed=0):
    return np.random.default_rng(seed).random((runs, tasks))


@pytest.mark.parametrize("shape", [(3, 4), (5, 6), (2, 1), (7, 3)])
def test_the_interquartile_mean_drops_a_quarter_at_either_end(shape):
    table = scores(*shape)
    assert iqm(table) == pytest.approx(stats.trim_mean(table.ravel(), 0.25))
    table[0, 0] = math.nan
    assert math.isnan(iqm(table))


def test_improvement_counts_pairs_of_runs_within_tasks():
    first, second = scores(3).round(1), scores(4, seed=1).round(1)
    wins = [
        1.0 if a > b else 0.5 if a == b else 0.0
        for task in range(4)
        for a, b in product(first[:, task], second[:, task])
    ]
    assert probability_of_improvement(first, second) == pytest.approx(sum(wins) / len(wins))
    assert probability_of_improvement(first, first) == 0.5
    with pytest.raises(ValueError, match="the same tasks, got 4 and 3"):
        probability_of_improvement(first, second[:, :3])


def test_a_profile_is_the_share_above():
    table = np.array([[0.1, 0.5], [0.5, 0.9]])
    assert performance_profile(table, [0.0, 0.1, 0.5, 0.9]) == [1.0, 0.75, 0.25, 0.0]


def test_runs_are_resampled_whole():
    """Brute force over all 3**3 draws of runs, each carrying all of its tasks."""
    table = scores(3, 5)
    drawn = [iqm(table[list(draw)]) for draw in product(range(3), repeat=3)]
    interval = iqm_interval(table)
    assert interval.standard_error == pytest.approx(np.std(drawn) * math.sqrt(3 / 2))
    half_width = stats.t.ppf(0.975, 2) * interval.standard_error
    assert (interval.low, interval.high) == pytest.approx((interval.value - half_width, interval.value + half_width))
    assert (interval.runs, interval.tasks, interval.caution) == (3, 5, None)


def test_a_profile_is_a_mean_over_runs_so_its_interval_is_students_t():
    table = scores(4, 6)
    (interval,) = profile_intervals(table, [0.5])
    expected = t_interval((table > 0.5).mean(axis=1))
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high))


def test_improvement_has_welchs_error():
    first, second = scores(5, 6), scores(4, 6, seed=1)
    wins = (first[:, None] > second).mean(axis=2)
    interval = improvement_interval(first, second)
    one, other = wins.mean(axis=1).var(ddof=1) / 5, wins.mean(axis=0).var(ddof=1) / 4
    assert interval.standard_error == pytest.approx(math.sqrt(one + other))
    assert interval.degrees_of_freedom == pytest.approx((one + other) ** 2 / (one**2 / 4 + other**2 / 3))
    assert 0 <= interval.low < interval.value < interval.high <= 1


def test_many_runs_are_drawn_by_content():
    table = scores(9, 5)
    drawn = iqm_interval(table).standard_error
    assert iqm_interval(table[::-1]).standard_error == pytest.approx(drawn, rel=1e-12)
    generator = np.random.default_rng(0)
    simulated = np.std([iqm(table[generator.integers(0, 9, 9)]) for _ in range(3000)]) * math.sqrt(9 / 8)
    assert drawn == pytest.approx(simulated, rel=0.08)


@pytest.mark.parametrize("shape", [(2, 4), (3, 3), (5, 1)])
def test_too_few_values_to_trim_have_no_interval(shape):
    interval = iqm_interval(scores(*shape))
    assert math.isnan(interval.low)
    assert "needs 4 tasks and 3 seeds" in (interval.caution or "")
    assert interval.value == iqm(scores(*shape))


def test_certainty_is_not_concluded_from_runs_that_do_not_differ():
    better, worse = np.full((3, 4), 0.9), np.full((3, 4), 0.1)
    interval = improvement_interval(better, worse)
    assert (interval.value, math.isnan(interval.low)) == (1.0, True)
    assert "does not make the value certain" in (interval.caution or "")
    # 0.1 + 0.2 in some last bit is no spread.
    equal = iqm_interval(np.tile([0.1, 0.3, 0.7, 0.2, 0.6], (3, 1)) * [[1], [1 + 2e-16], [1 - 2e-16]])
    assert math.isnan(equal.low)
    assert equal.caution is not None
    one_run = improvement_interval(scores(1), scores(3))
    assert math.isnan(one_run.high)
    assert "checkpoint-level only" in (one_run.caution or "")
    broken = scores(3)
    broken[0, 0] = math.nan
    assert math.isnan(iqm_interval(broken).low)
    assert math.isnan(improvement_interval(broken, scores(3)).low)
    with pytest.raises(ValueError, match="table of runs and tasks"):
        iqm_interval(np.zeros((0, 4)))
