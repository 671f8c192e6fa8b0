"""Intervals hold the truth as often as they promise: the benchmark of `docs/statistics.md` in small."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from bench.statistics import SEEDS_AND_PROBLEMS, caution, crossed_difference, crossed_interval, t_interval, t_p_value


@pytest.fixture(scope="module")
def coverage(root: Path) -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("coverage_benchmark", root / "benchmarks/coverage.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # Dataclasses look their module up by name.
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_each_estimand_holds_in_a_small_simulation(coverage: ModuleType):
    found = coverage.coverage(coverage.Design(3, 100, "modest"), 200, seed=7)
    # 190 expected with a standard error of 3.
    assert all(180 <= hits <= 200 for hits in found.values()), found


def test_the_simulated_truth_is_the_mean_of_what_is_simulated(coverage: ModuleType):
    drawn = list(coverage.tables(coverage.Design(5, 400, "large"), (0.5, -1.0), 40, 1))
    for arm in (0, 1):
        for estimand in (coverage.PROBLEMS, coverage.SEEDS, coverage.SEEDS_AND_PROBLEMS):
            errors = [table[arm].mean() - truth[estimand][arm] for table, truth in drawn]
            assert abs(np.mean(errors)) < 5 * np.std(errors) / np.sqrt(40)


def test_a_wrong_estimand_misses(coverage: ModuleType):
    found = coverage.alternatives(coverage.Design(5, 30, "modest"), 150, seed=7)
    over_seeds, ours = found["t over seeds"], found["ours"]
    assert over_seeds[0] < ours[0]
    assert over_seeds[1] < ours[1]


def test_the_p_value_is_where_the_interval_reaches_zero():
    generator = np.random.default_rng(0)
    first = generator.normal(0, 0.02, (3, 1)) + generator.normal(0.02, 0.3, (3, 60))
    ids = [str(i) for i in range(60)]
    p_value = crossed_difference(ids, first, ids, np.zeros((3, 60))).p_value
    interval = crossed_interval(first, level=1 - p_value)
    assert min(abs(interval.low), abs(interval.high)) < 1e-5
    assert crossed_difference(ids, np.zeros((3, 60)), ids, np.zeros((3, 60))).p_value == 1.0
    assert np.isnan(crossed_difference(ids, np.full((3, 60), 0.1), ids, np.zeros((3, 60))).p_value)
    assert np.isnan(crossed_difference(ids, np.full((3, 60), np.nan), ids, np.zeros((3, 60))).p_value)
    far = crossed_difference(ids, first + 1e6, ids, np.zeros((3, 60)))
    assert 0 < far.p_value <= 1e-6


def test_two_seeds_are_cautioned():
    assert "2 seeds" in (caution(SEEDS_AND_PROBLEMS, 2, 500) or "")
    assert crossed_interval(np.random.default_rng(0).random((2, 50))).caution == caution(SEEDS_AND_PROBLEMS, 2, 50)
    assert caution(SEEDS_AND_PROBLEMS, 3, 500) is None


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("problems", [30, 500])
@pytest.mark.parametrize("effect", ["modest", "large"])
def test_each_estimand_covers_93_to_97_percent(coverage: ModuleType, seeds: int, problems: int, effect: str):
    """Within two Monte Carlo errors of that range, half a point at 4,000 simulations."""
    count = 4000
    found = coverage.coverage(coverage.Design(seeds, problems, effect), count, seed=11)
    low, high = (0.93 - 2 * np.sqrt(0.93 * 0.07 / count), 0.97 + 2 * np.sqrt(0.97 * 0.03 / count))
    assert all(low <= hits / count <= high for hits in found.values()), found


def test_a_nearly_saturated_measure_is_cautioned_and_never_called_equivalent(coverage: ModuleType):
    """30 problems, Pass@16: intervals cover far too little, and every one of them says so."""
    for seeds in (1, 3):
        found = coverage.saturated(seeds, 30, coverage.BELOW, 150)
        assert found["one"] < 100
        assert found["one cautioned"] == found["cautioned"] == 150
        assert found["t tests alone"] > 15
        assert found["equivalent"] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("problems", "cautioned"), [(30, 1.0), (500, 0.0), (1319, 0.0)])
def test_false_equivalence_of_a_saturated_measure_is_rare(coverage: ModuleType, problems: int, cautioned: float):
    """Two points below .999: none among few problems, and about 5 % where enough of them carry the change."""
    found = coverage.saturated(3, problems, coverage.BELOW, 1000)
    assert found["equivalent"] / 1000 <= (0.0 if problems == 30 else 0.06 + 2 * 0.0075)
    assert found["one cautioned"] >= 950
    assert found["cautioned"] / 1000 == pytest.approx(cautioned, abs=0.06)
    assert problems == 30 or found["difference"] >= 930


def test_seeds_that_agree_give_no_interval_and_no_p_value():
    """Of 2 seeds x 30 greedy problems about one in ten agree; none of them may pass for a certain difference."""
    generator, equal = np.random.default_rng(0), 0
    for _ in range(300):
        rate = generator.beta(2, 2, 30)
        table = (generator.random((2, 2, 30)) < rate).mean(axis=2)
        interval = t_interval(table[0] - table[1])
        if interval.standard_error == 0:
            equal += 1
            assert np.isnan(interval.low)
            assert "all 2 values are equal" in (interval.caution or "")
            assert t_p_value(interval) == 1.0 if interval.mean == 0 else np.isnan(t_p_value(interval))
        else:
            assert t_p_value(interval) > 1e-6
    assert 15 < equal < 60


@pytest.mark.slow
def test_false_decisions_are_as_rare_as_promised(coverage: ModuleType):
    design = coverage.Design(5, 500, "modest")
    assert coverage.false_equivalence(design, 1000) / 1000 <= 0.05 + 0.02
    any_lost, best_lost = coverage.false_rejections(design, 300)
    assert any_lost / 300 <= 0.05 + 0.038
    assert best_lost <= any_lost
