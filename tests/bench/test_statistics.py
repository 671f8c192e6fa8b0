"""Intervals and tests against known values, closed forms and the coverage they promise."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from bench import statistics
from bench.statistics import (
    PROBLEMS,
    SEEDS,
    SEEDS_AND_PROBLEMS,
    accuracy_interval,
    crossed_difference,
    crossed_interval,
    interval_for,
    mcnemar_test,
    paired_difference,
    problems_interval,
    sign_flip_test,
    t_interval,
    wilcoxon_test,
    wilson_interval,
)


def crossed_data(generator, shape, seed_sd, problem_sd=0.14, residual_sd=0.25):
    """Differences with mean 0: shape is (simulations, seeds, problems)."""
    simulations, seeds, problems = shape
    by_seed = generator.normal(0, seed_sd, (simulations, seeds, 1))
    by_problem = generator.normal(0, problem_sd, (simulations, 1, problems))
    return by_seed + by_problem + generator.normal(0, residual_sd, shape)


# Training seeds


def test_interval_over_five_seeds_uses_t():
    interval = t_interval([0.50, 0.52, 0.48, 0.55, 0.45])
    assert interval.mean == pytest.approx(0.5)
    assert interval.half_width == pytest.approx(0.0473, abs=5e-5)
    assert (interval.low, interval.high) == pytest.approx((0.5 - interval.half_width, 0.5 + interval.half_width))
    assert (interval.n, interval.degrees_of_freedom, interval.estimand) == (5, 4, SEEDS)


def test_interval_of_one_seed_is_undefined():
    interval = t_interval([0.7])
    assert (interval.mean, interval.n) == (0.7, 1)
    assert all(map(math.isnan, (interval.low, interval.high, interval.half_width, interval.standard_error)))


def test_an_undefined_value_makes_the_interval_undefined():
    assert all(math.isnan(value) for value in (t_interval([0.1, math.nan, 0.3]).mean, t_interval([0.1, math.nan]).low))


@pytest.mark.parametrize("make", [lambda: t_interval([]), lambda: problems_interval(np.zeros(0))])
def test_an_interval_of_nothing_is_refused(make):
    with pytest.raises(ValueError, match=r"at least one|no problems"):
        make()


@pytest.mark.parametrize("make", [lambda: t_interval([1, 2], level=95), lambda: wilson_interval(1, 2, level=95)])
def test_a_level_in_percent_is_refused(make):
    with pytest.raises(ValueError, match="level must lie between 0 and 1, got 95"):
        make()


# Problems


def test_clusters_of_one_are_no_clusters():
    values = np.random.default_rng(0).random(40)
    plain = problems_interval(values)
    assert plain.standard_error == pytest.approx(values.std(ddof=1) / math.sqrt(40))
    assert problems_interval(values, clusters=list(range(40))) == plain


def test_copies_of_problems_do_not_narrow_the_interval():
    values = np.random.default_rng(0).random(20)
    copied = problems_interval(np.repeat(values, 5), clusters=np.repeat(np.arange(20), 5).tolist())
    assert copied.standard_error == pytest.approx(problems_interval(values).standard_error)
    assert copied.n == 20
    with pytest.raises(ValueError, match="one label per problem, got 2 for 20"):
        problems_interval(values, clusters=["a", "b"])


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 30, 0.0, 0.11351), (29, 30, 0.83330, 0.99409), (5, 10, 0.23659, 0.76341)],
)
def test_wilson_interval(successes, trials, low, high):
    interval = wilson_interval(successes, trials)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-5)
    assert interval.mean == successes / trials


def test_wilson_interval_ends_at_certainty_and_refuses_impossible_counts():
    assert wilson_interval(12, 12).high == 1.0
    for successes, trials in ((3, 2), (-1, 2), (0, 0)):
        with pytest.raises(ValueError, match="successes must lie in"):
            wilson_interval(successes, trials)


# Differences


def test_golden_paired_statistics_of_the_public_file(shared_dir: Path):
    with (shared_dir / "data/gsm8k_example_model_solutions.jsonl").open() as lines:
        rows = [json.loads(line) for line in lines]
    small, large = (
        np.array([row[name]["is_correct"] for row in rows]) for name in ("175b_finetuning", "6b_verification")
    )
    ids = [row["question"] for row in rows]
    difference = paired_difference(ids, small.astype(float), ids, large.astype(float))
    assert 100 * difference.interval.mean == pytest.approx(-4.32, abs=5e-3)
    assert 100 * difference.interval.standard_error == pytest.approx(1.44, abs=5e-3)
    assert 100 * difference.unpaired_standard_error == pytest.approx(1.88, abs=5e-3)
    mcnemar = mcnemar_test(large, small)
    assert (mcnemar.statistic, mcnemar.n - mcnemar.statistic) == (209, 152)
    assert mcnemar.p_value == pytest.approx(0.00315, abs=5e-6)
    assert wilcoxon_test(small.astype(float) - large).p_value == pytest.approx(0.0027, abs=5e-5)
    # With one verdict a problem the sign flips are McNemar's coin: 3.15 expected of 1,000, from 10,000 drawn.
    assert sign_flip_test(small.astype(float) - large).p_value == pytest.approx(0.00315, abs=0.0017)


def test_problems_are_paired_by_id_and_not_by_position():
    generator = np.random.default_rng(0)
    values = generator.random(50)
    ids = [f"p{i}" for i in range(50)]
    order = generator.permutation(50)
    other = paired_difference(ids, values + 0.1, [ids[i] for i in order], values[order])
    # The same change on every problem but for rounding: no spread to judge it by.
    assert other.interval.mean == pytest.approx(0.1)
    assert (other.interval.standard_error, math.isnan(other.interval.low), math.isnan(other.p_value)) == (0, True, True)
    assert other.unpaired_standard_error > 0.05


def test_seeds_are_averaged_before_problems_are_compared():
    generator = np.random.default_rng(0)
    trained, start = generator.random((4, 50)), generator.random(50)
    ids = [f"p{i}" for i in range(50)]
    averaged = paired_difference(ids, trained.mean(axis=0), ids, start)
    several = paired_difference(ids, trained, ids, start)
    assert several.interval.half_width == pytest.approx(averaged.interval.half_width)
    assert several.interval.estimand == PROBLEMS
    assert several.p_value == pytest.approx(stats.ttest_rel(trained.mean(axis=0), start).pvalue)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (["a", "c"], "2 problems are in one of the two only, for example b, c"),
        (["a", "b", "b"], "a problem id occurs twice"),
    ],
)
def test_different_problems_are_not_compared(other, message):
    with pytest.raises(ValueError, match=message):
        paired_difference(["a", "b"], np.zeros(2), other, np.zeros(len(other)))


# Seeds and problems


def test_crossed_variance_is_seeds_plus_problems_minus_interaction():
    table = np.array([[1.0, 2.0, 6.0], [2.0, 4.0, 9.0]])
    # By hand: seed means 3 and 5; problem means 1.5, 3, 7.5; mean squares 6, 19.5 and 0.5.
    interval = crossed_interval(table, level=0.9)
    assert (interval.mean, interval.n, interval.estimand) == (4.0, 2, SEEDS_AND_PROBLEMS)
    assert interval.standard_error == pytest.approx(math.sqrt((6 + 19.5 - 0.5) / 6))
    assert 1 < interval.degrees_of_freedom < 3


@pytest.mark.parametrize(("seeds", "problems", "scale"), [(3, 40, 0.02), (3, 40, 0.2), (5, 20, 0.1), (2, 30, 0.1)])
def test_crossed_half_width_is_the_mean_of_satterthwaites_and_the_generalised(seeds, problems, scale):
    generator = np.random.default_rng(seeds)
    table = generator.normal(0, scale, (seeds, 1)) + generator.normal(0, 0.3, problems)
    table = table + generator.normal(0, 0.1, (seeds, problems))
    squares, freedom = mean_squares(table), (seeds - 1, problems - 1)
    variance = squares[0] + squares[1] - squares[2]
    fitted = variance**2 / sum(square**2 / df for square, df in zip(squares[:2], freedom, strict=True))
    satterthwaite = stats.t.ppf(0.975, max(fitted, seeds - 1)) * math.sqrt(variance / table.size)
    seed_part, problem_part = (
        square / generator.chisquare(df, 400_000) * df for square, df in zip(squares[:2], freedom, strict=True)
    )
    spread = np.sqrt(np.maximum(seed_part + problem_part - squares[2], 0) / table.size)
    generalised = np.quantile(np.abs(generator.standard_normal(400_000)) * spread, 0.95)
    interval = crossed_interval(table)
    assert interval.half_width == pytest.approx((satterthwaite + generalised) / 2, rel=0.02)
    quantile = stats.t.ppf(0.975, interval.degrees_of_freedom)
    assert interval.half_width == pytest.approx(quantile * interval.standard_error)


def mean_squares(table):
    by_seed, by_problem = table.mean(axis=1, keepdims=True), table.mean(axis=0, keepdims=True)
    rest = table - by_seed - by_problem + table.mean()
    seeds, problems = table.shape
    return (
        problems * by_seed.var(ddof=1),
        seeds * by_problem.var(ddof=1),
        (rest**2).sum() / ((seeds - 1) * (problems - 1)),
    )


def test_crossed_interval_is_students_t_where_one_source_is_all():
    by_seed = np.array([0.1, 0.4, 0.2, 0.7])
    only_seeds = crossed_interval(np.repeat(by_seed[:, None], 50, axis=1))
    assert only_seeds.half_width == pytest.approx(t_interval(by_seed).half_width, rel=2e-4)
    by_problem = np.random.default_rng(0).random(50)
    only_problems = crossed_interval(np.tile(by_problem, (4, 1)))
    assert only_problems.half_width == pytest.approx(problems_interval(by_problem).half_width, rel=2e-3)
    assert (only_seeds.carried, only_problems.carried) == (0, pytest.approx(27, abs=5))
    assert "no two problems differ" in (only_seeds.caution or "")
    assert "all 4 seeds agree" in (only_problems.caution or "")
    assert math.isnan(crossed_interval(np.full((3, 5), math.nan)).half_width)


@pytest.mark.parametrize("value", [0.0, 0.1, 0.5, 1.0])
def test_equal_values_give_no_interval_whatever_they_are(value):
    """0.1 thrice has a standard deviation of 1e-17; that is rounding, and no spread."""
    table = np.full((3, 30), value)
    swapped = table + np.where(np.indices(table.shape).sum(axis=0) % 2, 1e-16, 0)
    latin = value + 0.1 * ((np.arange(3)[:, None] + np.arange(30)) % 3)
    made = [t_interval(table[:, 0]), problems_interval(swapped[0]), *map(crossed_interval, (table, swapped, latin))]
    for interval in made:
        assert (interval.standard_error, math.isnan(interval.low), math.isnan(interval.high)) == (0, True, True)
        assert "does not make the mean certain: no interval" in (interval.caution or "")
    assert math.isnan(statistics.t_p_value(made[0])) == (value != 0)


def test_the_crossed_interval_counts_the_problems_that_carry_its_mean():
    table = np.ones((3, 50))
    table[:, :2] = [[0.5, 0.2], [0.4, 0.1], [0.6, 0.2]]
    interval = crossed_interval(table)
    assert 1.5 < interval.carried < 2.1
    assert "the variation rests on about" in (interval.caution or "")


def test_clusters_carry_the_mean_and_not_their_members():
    values = np.zeros(60)
    values[:20] = 1.0
    families = (np.arange(60) // 10).tolist()
    assert problems_interval(values).carried > 20
    assert problems_interval(values, clusters=families).carried < 8


def test_crossed_interval_falls_back_to_the_one_source_there_is():
    values = np.random.default_rng(0).random(30)
    assert crossed_interval(values[None]) == problems_interval(values)
    assert crossed_interval(values[:, None]) == t_interval(values)
    same_seeds = crossed_interval(np.stack([values] * 3))
    assert same_seeds.half_width == pytest.approx(problems_interval(values).half_width, rel=2e-3)


def test_crossed_difference_pairs_seeds_and_problems():
    generator = np.random.default_rng(0)
    first, second = generator.random((3, 20)), generator.random((3, 20))
    ids, order = [f"p{i}" for i in range(20)], generator.permutation(20)
    difference = crossed_difference(ids, first, [ids[i] for i in order], second[:, order])
    assert difference.interval == crossed_interval(first - second)
    with pytest.raises(ValueError, match="seeds are paired"):
        crossed_difference(ids, first, ids, second[:2])


@pytest.mark.parametrize(("seeds", "seed_sd"), [(3, 0.0), (3, 0.005), (5, 0.012)])
def test_crossed_interval_covers_what_it_promises(seeds, seed_sd):
    tables = crossed_data(np.random.default_rng(seeds), (1000, seeds, 100), seed_sd)
    intervals = [crossed_interval(table) for table in tables]
    coverage = np.mean([interval.low <= 0 <= interval.high for interval in intervals])
    assert 0.93 <= coverage <= 0.99


def test_intervals_of_one_source_miss_what_the_crossed_interval_covers():
    tables = crossed_data(np.random.default_rng(0), (600, 5, 100), seed_sd=0.03)

    def coverage(make):
        return np.mean([interval.low <= 0 <= interval.high for interval in map(make, tables)])

    assert coverage(crossed_interval) >= 0.93
    assert coverage(lambda table: problems_interval(table.mean(axis=0))) < 0.9
    assert coverage(lambda table: t_interval(table.mean(axis=1))) < 0.9


# Sign flips


def test_sign_flips_of_few_problems_are_enumerated():
    # Sums as extreme as 1 + 2 + 3 - 4 = 2 or more: all but +-0 of the 16 patterns.
    differences = np.array([0.1, 0.2, 0.3, -0.4, 0.0])
    test = sign_flip_test(differences)
    assert (test.p_value, test.n) == (14 / 16, 4)


def test_sign_flips_depend_on_content_only():
    differences = (np.arange(300) * 7919 % 18 - 8) / 64
    test = sign_flip_test(differences)
    assert sign_flip_test(np.sort(differences)).p_value == test.p_value
    assert sign_flip_test(-differences).p_value == test.p_value
    # Another machine's arithmetic differs in the last bits.
    assert sign_flip_test(differences * (1 + 2e-16)).p_value == test.p_value
    # numpy promises that the generator's words never change, so this number does not either.
    assert test.p_value == 472 / 10_001


def test_sign_flips_agree_with_the_normal_limit():
    differences = np.random.default_rng(3).normal(0.1, 1, 400)
    z = differences.sum() / math.sqrt((differences**2).sum())
    assert sign_flip_test(differences).p_value == pytest.approx(2 * stats.norm.sf(abs(z)), abs=0.01)


def test_no_difference_is_no_evidence():
    for test in (
        sign_flip_test(np.zeros(5)),
        wilcoxon_test(np.zeros(5)),
        mcnemar_test(np.ones(5, bool), np.ones(5, bool)),
    ):
        assert (test.p_value, test.n) == (1.0, 0)


def test_an_undefined_difference_has_no_p_value():
    assert math.isnan(sign_flip_test(np.array([0.1, np.nan])).p_value)
    assert math.isnan(statistics.wilcoxon_test(np.array([0.1, np.nan])).p_value)
    assert math.isnan(paired_difference(["a", "b"], np.array([0.1, np.nan]), ["a", "b"], np.zeros(2)).p_value)


# The default of each estimand


def test_each_estimand_has_its_own_interval():
    table = np.random.default_rng(0).random((3, 50))
    assert interval_for(table, PROBLEMS) == problems_interval(table.mean(axis=0))
    assert interval_for(table, SEEDS) == t_interval(table.mean(axis=1))
    assert interval_for(table, SEEDS_AND_PROBLEMS) == crossed_interval(table)
    assert len({interval_for(table, estimand).estimand for estimand in (PROBLEMS, SEEDS, SEEDS_AND_PROBLEMS)}) == 3


@pytest.mark.parametrize("estimand", [PROBLEMS, SEEDS, SEEDS_AND_PROBLEMS])
def test_one_seed_is_checkpoint_level_only(estimand):
    table = np.random.default_rng(0).random((1, 50))
    interval = interval_for(table, estimand)
    assert interval == problems_interval(table[0])
    assert "checkpoint-level only" in interval.estimand


@pytest.mark.parametrize(
    ("table", "estimand"), [(np.zeros((2, 3)), "new seeds"), (np.zeros(3), SEEDS), (np.zeros((0, 3)), SEEDS)]
)
def test_what_has_no_interval_is_refused(table, estimand):
    with pytest.raises(ValueError, match=r"estimand must be|table of seeds and problems"):
        interval_for(table, estimand)


def test_samples_and_problems_are_no_replicates_of_training():
    """3 seeds x 500 problems x 8 samples: 3 replicates for new seeds, 500 for new problems, never 12,000."""
    generator = np.random.default_rng(0)
    rates = generator.beta(1, 1, 500) * np.array([[0.9], [1.0], [0.8]])
    samples = generator.random((3, 500, 8)) < rates[..., None]
    estimates = samples.mean(axis=2)
    over_seeds, over_problems = interval_for(estimates, SEEDS), interval_for(estimates, PROBLEMS)
    assert (over_seeds.n, over_seeds.degrees_of_freedom, over_problems.n) == (3, 2, 500)
    assert over_seeds.half_width == pytest.approx(4.3027 * estimates.mean(axis=1).std(ddof=1) / math.sqrt(3), rel=1e-4)
    # As if every sample's problem were its cluster.
    clustered = problems_interval(
        samples.ravel().astype(float), clusters=np.tile(np.repeat(np.arange(500), 8), 3).tolist()
    )
    assert over_problems.standard_error == pytest.approx(clustered.standard_error)
    pooled = samples.std() / math.sqrt(samples.size)
    assert over_seeds.standard_error > 5 * pooled


def test_one_verdict_a_problem_gets_wilsons_interval():
    verdicts = np.array([1.0] * 29 + [0.0])
    interval = accuracy_interval(verdicts)
    assert (interval.low, interval.high) == pytest.approx((0.83330, 0.99409), abs=1e-5)
    assert interval.estimand == PROBLEMS
    rates = np.array([1.0, 0.5, 0.0, 0.25])
    assert accuracy_interval(rates) == problems_interval(rates)
    assert math.isnan(accuracy_interval(np.array([1.0, math.nan])).low)


def test_a_mean_that_few_problems_carry_says_so():
    solved = np.ones(500)
    solved[:4] = 0.0
    assert problems_interval(solved).caution == (
        "the variation rests on about 4 problems: this covers less than it promises"
    )
    solved[1:4] = 1.0
    assert "about 1 problem:" in (problems_interval(solved).caution or "")
    assert problems_interval(np.tile([0.0, 1.0], 20)).caution is None
    assert problems_interval(np.ones(500)).caution == (
        "no two problems differ, which does not make the mean certain: no interval"
    )
