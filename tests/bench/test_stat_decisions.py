"""Claims, families of tests, and power: against closed forms, brute force and published tables."""

import math
from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from bench.statistics import (
    PROBLEMS,
    SEEDS,
    SEEDS_AND_PROBLEMS,
    Interval,
    claim,
    crossed_interval,
    equivalence,
    holm,
    minimum_detectable_effect,
    observed_minimum_detectable,
    problems_interval,
    problems_needed,
    t_interval,
    tied_with_best,
    wilson_interval,
)


def interval(mean, error, df=30.0, level=0.95):
    half_width = stats.t.ppf((1 + level) / 2, df) * error
    return Interval(mean, mean - half_width, mean + half_width, half_width, error, df, 31, level, PROBLEMS)


# Equivalence


def test_equivalence_is_two_one_sided_t_tests():
    values = np.random.default_rng(0).normal(0.005, 0.03, 40)
    found = equivalence(problems_interval(values), margin=0.02)
    above = stats.ttest_1samp(values, -0.02, alternative="greater").pvalue
    below = stats.ttest_1samp(values, 0.02, alternative="less").pvalue
    assert found.p_value == pytest.approx(max(above, below))
    assert (found.low90, found.high90) == pytest.approx(stats.ttest_1samp(values, 0).confidence_interval(0.9))
    assert found.equivalent


@pytest.mark.parametrize("mean", [-0.018, -0.004, 0.0, 0.011, 0.0199, 0.03])
def test_equivalent_means_that_the_90_percent_interval_lies_inside(mean):
    found = equivalence(interval(mean, 0.006))
    assert found.equivalent == (found.low90 >= -0.02 and found.high90 <= 0.02)


def test_equivalence_without_spread_or_without_an_interval():
    """No spread is no proof: 0 of 30 problems that changed leave room for 1 in 10 that would."""
    equal = (problems_interval(np.zeros(30)), crossed_interval(np.zeros((3, 30))), t_interval([0.1, 0.1, 0.1]))
    for undefined in (t_interval([0.01]), t_interval([0.01, math.nan]), interval(0.01, 0.0), *equal):
        found = equivalence(undefined)
        assert (found.equivalent, math.isnan(found.p_value), math.isnan(found.low90)) == (False, True, True)
    with pytest.raises(ValueError, match="margin must be positive, got 0"):
        equivalence(interval(0.0, 0.1), margin=0)


@pytest.mark.parametrize(
    ("mean", "error", "verdict", "words"),
    [
        (0.05, 0.01, "improved", "improved (+5.0 points"),
        (-0.05, 0.01, "decreased", "decreased (-5.0 points"),
        (0.001, 0.005, "equivalent", "is equivalent within +-2 points"),
        (0.01, 0.02, "inconclusive", "the minimum detectable effect here is 5.8 points (80 % power)"),
        (0.008, 0.002, "improved", "improved, and the change is shown to lie within +-2 points"),
    ],
)
def test_claims(mean, error, verdict, words):
    found = claim(interval(mean, error))
    assert found.verdict == verdict
    assert words in found.sentence
    assert PROBLEMS in found.sentence
    assert "not improved" not in found.sentence


def test_a_claim_without_an_interval_claims_nothing():
    found = claim(t_interval([0.3]))
    assert (found.verdict, math.isnan(found.minimum_detectable)) == ("inconclusive", True)
    assert "nan" not in found.sentence


def changed(count, problems=200):
    """Differences of which `count` are half a problem, up and down in turn, and the others 0."""
    values = np.zeros(problems)
    values[:count] = 0.5 * (-1.0) ** np.arange(count)
    return values


@pytest.mark.parametrize("count", [0, 1, 2, 7, 8, 12])
def test_no_equivalence_where_few_problems_carry_the_mean(count):
    for found in (problems_interval(changed(count)), crossed_interval(np.tile(changed(count), (3, 1)))):
        assert found.carried == pytest.approx(count, abs=0.5)
        assert equivalence(found, 0.05).equivalent == (count >= 8)
        said = claim(found, 0.05)
        assert said.verdict == ("equivalent" if count >= 8 else "inconclusive")
        assert (found.caution is None) == (count >= 8 and found.estimand == PROBLEMS)
        assert count >= 8 or f"{count or 'no two'} problem" in said.sentence


def test_a_significant_change_that_few_problems_carry_is_not_called_small():
    few = problems_interval(np.where(np.arange(200) < 6, 0.1, 0.0))
    assert (few.low > 0, equivalence(few).p_value < 1e-6) == (True, True)
    assert claim(few).verdict == "improved"
    assert "lie within" not in claim(few).sentence


def test_lost_problems_that_a_sample_lacks_are_never_called_equivalent():
    """2 % of all problems are lost: a sample of 30 lacks them in 55 % of cases, and t alone would see no change."""
    called = {}
    for problems in (30, 500, 900, 5000):
        losses = [problems_interval(np.where(np.arange(problems) < n, -1.0, 0.0)) for n in range(problems // 50 + 1)]
        chance = stats.binom.pmf(np.arange(len(losses)), problems, 0.02)
        called[problems] = float(chance @ [equivalence(one).equivalent for one in losses])
    assert called[30] == called[500] == 0.0
    # Not 5 %: the fewer are lost, the smaller the spread looks. docs/statistics.md says so.
    assert called[900] == pytest.approx(0.087, abs=0.001)
    assert called[5000] == pytest.approx(0.056, abs=0.001)


# Families


def closed_testing(p_values):
    """Holm by its definition: the largest Bonferroni p value over all sets of hypotheses that hold this one."""
    count = len(p_values)
    found = []
    for index in range(count):
        sets = [s for s in range(1, 2**count) if s >> index & 1]
        members = [[p_values[j] for j in range(count) if s >> j & 1] for s in sets]
        found.append(max(min(1.0, len(m) * min(m)) for m in members))
    return found


def test_holm_is_closed_testing_with_bonferroni():
    p_values = [0.01, 0.04, 0.03, 0.005, 0.2]
    assert holm(p_values) == pytest.approx([0.04, 0.09, 0.09, 0.025, 0.2])
    assert holm(p_values) == pytest.approx(closed_testing(p_values))
    for order in permutations(range(4)):
        shuffled = [[0.001, 0.012, 0.012, 0.9][i] for i in order]
        assert holm(shuffled) == pytest.approx(closed_testing(shuffled))


def test_a_missing_test_counts_in_the_family():
    adjusted = holm({"a": 0.01, "b": math.nan, "c": 0.02})
    assert (adjusted["a"], adjusted["c"]) == pytest.approx((0.03, 0.04))
    assert math.isnan(adjusted["b"])
    assert holm([]) == []
    with pytest.raises(ValueError, match=r"p values must lie in 0..1, got 1.5"):
        holm([0.5, 1.5])


def test_five_algorithms_and_the_set_tied_with_the_best():
    generator = np.random.default_rng(0)
    problem, noise = generator.random(400), generator.normal(0, 0.1, (5, 4, 400))
    noise -= noise.mean(axis=2, keepdims=True)
    offsets = {"a": 0.0, "b": 0.3, "c": 0.299, "d": 0.1, "e": 0.297}
    seed = generator.normal(0, 0.01, (5, 4, 1))
    scores = {name: problem + offset + seed[i] + noise[i] for i, (name, offset) in enumerate(offsets.items())}
    found = tied_with_best(scores)
    assert set(found.tied) == {"b", "c", "e"}
    assert found.tied[0] == found.best
    assert found.adjusted.keys() == offsets.keys() - {found.best}
    assert max(found.adjusted["a"], found.adjusted["d"]) < 0.05
    assert "Holm over all pairs" in found.rule
    assert found.differences["a"].estimand == SEEDS_AND_PROBLEMS


def test_arms_are_compared_over_the_seeds_that_both_have():
    generator = np.random.default_rng(0)
    first, second = generator.random((3, 30)), generator.random((3, 30)) - 2
    second[1] = math.nan
    found = tied_with_best({"first": first, "second": second})
    assert (found.best, found.differences["second"].n) == ("first", 2)
    second[[0, 2]] = math.nan
    found = tied_with_best({"second": second, "first": first})
    assert found.tied == ("first", "second")
    assert math.isnan(found.adjusted["second"])


def test_one_arm_is_tied_with_itself_and_shapes_must_match():
    assert tied_with_best({"only": np.zeros((2, 3))}).tied == ("only",)
    for scores in ({}, {"a": np.zeros((2, 3)), "b": np.zeros((3, 3))}):
        with pytest.raises(ValueError, match="tables of one shape"):
            tied_with_best(scores)


# Power


@pytest.mark.parametrize(
    ("problems", "unrelated", "related"),
    [
        (30, (34, 20, 17), (24, 11, 8)),
        (500, (8.4, 4.9, 4.3), (5.9, 2.7, 1.9)),
        (1319, (5.1, 3.0, 2.6), (3.6, 1.6, 1.2)),
        (5000, (2.6, 1.5, 1.4), None),
    ],
)
def test_minimum_detectable_effects_of_known_benchmarks(problems, unrelated, related):
    for expected, between, within in ((unrelated, 1 / 9, 1 / 6), (related, 0.02, 0.1)):
        for samples, points in zip((1, 8, 64), expected or (), strict=False):
            effect = minimum_detectable_effect(
                problems, samples=(samples, samples), between_variance=between, sample_variances=(within, within)
            )
            assert 100 * effect == pytest.approx(points, abs=0.5 if problems == 30 else 0.06)


def test_problems_needed_is_the_inverse():
    effect = minimum_detectable_effect(700, samples=(8, 4))
    assert problems_needed(effect * (1 + 1e-9), samples=(8, 4)) == 700
    assert problems_needed(effect * (1 - 1e-6), samples=(8, 4)) == 701


@pytest.mark.parametrize("degrees_of_freedom", [2, 4, 29, 499])
def test_observed_minimum_detectable_effect_has_the_power_it_names(degrees_of_freedom):
    effect = observed_minimum_detectable(interval(0.3, 0.01, degrees_of_freedom)) / 0.01
    critical = stats.t.ppf(0.975, degrees_of_freedom)
    generator = np.random.default_rng(degrees_of_freedom)
    scale = np.sqrt(generator.chisquare(degrees_of_freedom, 200_000) / degrees_of_freedom)
    power = (np.abs(generator.normal(effect, 1, 200_000) / scale) > critical).mean()
    assert power == pytest.approx(0.8, abs=0.004)


def test_observed_minimum_detectable_effect_at_its_ends():
    assert math.isnan(observed_minimum_detectable(t_interval([0.5])))
    assert math.isnan(observed_minimum_detectable(t_interval([0.5, 0.5])))
    normal = wilson_interval(20, 100)
    assert observed_minimum_detectable(normal) == pytest.approx((1.959964 + 0.841621) * 0.04, rel=1e-6)
    many = interval(0.0, 0.04, 1e6)
    assert observed_minimum_detectable(many) == pytest.approx(observed_minimum_detectable(normal), rel=1e-4)
    assert t_interval([0.1, 0.2]).estimand == SEEDS


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: minimum_detectable_effect(0), "at least 1"),
        (lambda: minimum_detectable_effect(10, samples=(0, 1)), "at least 1"),
        (lambda: minimum_detectable_effect(10, between_variance=-1), "not be negative"),
        (lambda: minimum_detectable_effect(10, power=80), "between 0 and 1"),
        (lambda: problems_needed(0.0), "effect must be positive"),
    ],
)
def test_impossible_designs_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
