"""Intervals hold the truth as often as they promise: the benchmark of `docs/statistics.md` in small."""

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from bench.statistics import SEEDS_AND_PROBLEMS, caution, crossed_difference, crossed_interval


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
    assert crossed_difference(ids, np.ones((3, 60)), ids, np.zeros((3, 60))).p_value == 0.0
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
    """Within three Monte Carlo errors of that range."""
    found = coverage.coverage(coverage.Design(seeds, problems, effect), 1500, seed=11)
    assert all(0.93 - 0.02 <= hits / 1500 <= 0.97 + 0.013 for hits in found.values()), found


@pytest.mark.slow
def test_false_decisions_are_as_rare_as_promised(coverage: ModuleType):
    design = coverage.Design(5, 500, "modest")
    assert coverage.false_equivalence(design, 1000) / 1000 <= 0.05 + 0.02
    any_lost, best_lost = coverage.false_rejections(design, 300)
    assert any_lost / 300 <= 0.05 + 0.038
    assert best_lost <= any_lost
