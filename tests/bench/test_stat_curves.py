"""Bands, crossings and the draws behind them: against brute force, and the same in any order of seeds and problems."""

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from bench.statistics import PROBLEMS, SEEDS, SEEDS_AND_PROBLEMS, crossover, problems_band, seeds_band
from bench.statistics.resampling import canonical, draw_counts, generator, in_units, quantile_above, signs

KS = (1, 2, 4, 8)


# Draws


def test_draws_are_the_words_of_the_content():
    words = generator(np.array([3, -1, 2]))
    # numpy promises the words, so these numbers hold on every machine.
    assert next(iter(draw_counts(words, 1, 6))).tolist() == [[1, 0, 3, 0, 1, 1]]
    assert generator(np.array([3, -1, 2])).random_raw() == generator(np.array([3, -1, 2])).random_raw()
    assert generator(np.array([3, -1, 2])).random_raw() != generator(np.array([3, -1, 1])).random_raw()


def test_draws_are_fair():
    counts = np.concatenate(list(draw_counts(generator(np.arange(3)), 5000, 7)))
    assert counts.shape == (5000, 7)
    assert (counts.sum(axis=1) == 7).all()
    assert counts.mean(axis=0) == pytest.approx(1.0, abs=5 * math.sqrt(6 / 7 / 5000))
    assert counts.var() == pytest.approx(6 / 7, rel=0.03)
    flips = np.concatenate(list(signs(generator(np.arange(3)), 5000, 7)))
    assert flips.mean(axis=0) == pytest.approx(0.5, abs=5 * 0.5 / math.sqrt(5000))


def test_the_canonical_order_forgets_the_given_one():
    table = np.random.default_rng(0).random((3, 20, 4))
    units = canonical(in_units(table)[0])
    for _ in range(3):
        generator_ = np.random.default_rng()
        shuffled = table[generator_.permutation(3)][:, generator_.permutation(20)] * (1 + 2e-16)
        assert (canonical(in_units(shuffled)[0]) == units).all()
    assert sorted(units.sum(axis=(1, 2))) == sorted(in_units(table)[0].sum(axis=(1, 2)))


def test_the_quantile_is_an_order_statistic():
    assert [quantile_above(np.arange(1, 100.0), level) for level in (0.05, 0.5, 0.95)] == [5, 50, 95]


# Bands


def test_a_band_over_seeds_is_sidaks():
    curves = np.random.default_rng(0).random((4, 3))
    band = seeds_band(curves, level=0.9)
    assert band.critical == pytest.approx(stats.t.ppf((1 + 0.9 ** (1 / 3)) / 2, 3))
    error = curves.std(axis=0, ddof=1) / 2
    assert band.low == pytest.approx(curves.mean(axis=0) - band.critical * error)
    assert (band.n, band.estimand) == (4, SEEDS)
    # A K at which nothing varies needs no share of the error.
    flat = np.column_stack([curves, np.ones(4)])
    assert seeds_band(flat, level=0.9).critical == band.critical
    # It has no band either: equal values of a few seeds are no certainty.
    assert np.isnan(seeds_band(flat).high).tolist() == [False, False, False, True]
    assert "all 4 seeds are equal" in (seeds_band(flat).caution or "")
    assert band.caution is None


def test_a_band_of_one_k_is_an_interval():
    values = np.random.default_rng(0).normal(0, 1, (200, 1))
    assert seeds_band(values).critical == pytest.approx(stats.t.ppf(0.975, 199))
    assert problems_band(values).critical == pytest.approx(stats.t.ppf(0.975, 199), abs=0.06)


def test_a_band_over_few_problems_is_the_enumerated_one():
    curves = np.random.default_rng(1).normal(0, 1, (10, 3))
    deviations = curves - curves.mean(axis=0)
    patterns = np.array(list(product((-1, 1), repeat=10)))
    largest = np.abs(stats.ttest_1samp(patterns[:, :, None] * deviations, 0, axis=1).statistic).max(axis=1)
    assert problems_band(curves).critical == pytest.approx(np.quantile(largest, 0.95), abs=0.1)


def test_a_band_over_problems_uses_how_the_ks_move_together():
    values = np.random.default_rng(0).normal(0, 1, (300, 5))
    together = np.repeat(values[:, :1], 5, axis=1)
    apart, same = problems_band(values).critical, problems_band(together).critical
    assert same == pytest.approx(stats.t.ppf(0.975, 299), abs=0.06)
    assert apart == pytest.approx(stats.norm.ppf((1 + 0.95**0.2) / 2), abs=0.08)
    assert problems_band(values).estimand == PROBLEMS


def test_a_band_over_problems_does_not_depend_on_their_order():
    curves = np.random.default_rng(0).random((50, 4))
    assert problems_band(curves[::-1]).critical == problems_band(curves).critical


def test_a_band_that_few_problems_carry_says_so():
    curves = np.random.default_rng(0).random((200, 2))
    curves[:, 1] = np.arange(200) < 5
    assert "about 5 problems" in (problems_band(curves).caution or "")
    assert problems_band(curves[:, :1]).caution is None
    curves[:, 1] = 0.1
    assert np.isnan(problems_band(curves).low).tolist() == [False, True]
    assert "no two problems differ" in (problems_band(curves).caution or "")


def test_bands_without_data():
    for make in (seeds_band, problems_band):
        assert np.isnan(make(np.ones((1, 3))).low).all()
        with pytest.raises(ValueError, match="at least one row"):
            make(np.ones((0, 3)))
    assert np.isnan(problems_band(np.array([[1.0], [math.nan]])).high).all()


# Crossings


def curves(difference, problems=40, noise=0.0, seeds=None):
    shape = (problems, len(KS)) if seeds is None else (seeds, problems, len(KS))
    scatter = np.random.default_rng(0).normal(0, noise, shape)
    return np.asarray(difference) + scatter - scatter.mean(axis=tuple(range(scatter.ndim - 1)))


@pytest.mark.parametrize(
    ("difference", "k_star", "leads", "crossings"),
    [
        ([0.3, 0.1, -0.1, -0.2], 2**1.5, True, 1),
        ([-0.3, -0.1, 0.3, 0.4], 2**1.25, False, 1),
        ([0.1, 0.0, -0.1, -0.2], 2, True, 1),
        ([0.1, 0.0, 0.0, -0.2], 2, True, 1),
        ([0.1, -0.1, 0.1, 0.2], 2**1.5, False, 2),
        ([0.1, 0.2, 0.1, 0.0], math.nan, None, 0),
        ([0.0, 0.0, 0.0, 0.0], math.nan, None, 0),
        ([0.0, -0.1, -0.1, -0.2], math.nan, None, 0),
    ],
)
def test_the_last_sign_change_on_a_line_over_log2_k(difference, k_star, leads, crossings):
    found = crossover(KS, curves(difference), curves([0.0] * 4), num_draws=50)
    assert found.k_star == pytest.approx(k_star, nan_ok=True)
    assert (found.first_leads_before, found.num_crossings) == (leads, crossings)
    # Every problem is the same: so is every resample.
    assert found.share_without_crossing == float(math.isnan(k_star))
    # That leaves no spread to judge K* by, which does not make it certain.
    assert (math.isnan(found.low), math.isnan(found.high)) == (True, True)


def test_resamples_scatter_as_the_mean_does():
    """With one slope everywhere K* is a line in the mean: its quantiles are those of the mean's error."""
    generator_ = np.random.default_rng(0)
    offset = generator_.normal(0, 0.2, (100, 1))
    difference = 0.3 - 0.2 * np.log2(KS) + offset
    found = crossover(KS, difference, np.zeros_like(difference))
    error = offset.std(ddof=1) / 10 / 0.2
    assert np.log2(found.k_star) == pytest.approx(1.5 + offset.mean() / 0.2, abs=1e-6)
    spread = np.log2([found.low, found.high]) - np.log2(found.k_star)
    assert spread == pytest.approx([-1.96 * error, 1.96 * error], rel=0.06)
    assert found.estimand == PROBLEMS


def test_seeds_widen_the_crossing():
    generator_ = np.random.default_rng(0)
    line = 0.3 - 0.2 * np.log2(KS)
    offset = generator_.normal(0, 0.1, (5, 1, 1)) + generator_.normal(0, 0.2, (1, 100, 1))
    difference = line + offset
    found = crossover(KS, difference, np.zeros_like(difference))
    seeds, problems = offset.mean(axis=(1, 2)), offset.mean(axis=(0, 2))
    error = math.hypot(seeds.std(ddof=1) / math.sqrt(5), problems.std(ddof=1) / 10) / 0.2
    assert np.log2(found.distribution).std() == pytest.approx(error, rel=0.05)
    assert found.estimand == SEEDS_AND_PROBLEMS


def test_resamples_that_never_cross_are_reported_and_lie_beyond_the_range():
    found = crossover(KS, curves([0.3, 0.2, 0.1, -0.01], noise=0.3), curves([0.0] * 4))
    assert 0.2 < found.share_without_crossing < 0.8
    assert found.high == math.inf
    assert len(found.distribution) == pytest.approx(10_000 * (1 - found.share_without_crossing))
    mirrored = crossover(KS, curves([-0.01, 0.1, 0.2, 0.3], noise=0.3), curves([0.0] * 4))
    assert (mirrored.low, mirrored.first_leads_before) == (0.0, False)


def test_a_crossing_depends_on_content_only():
    first, second = curves([0.1, 0.05, -0.02, -0.1], noise=0.3, seeds=3), curves([0.0] * 4, seeds=3)
    found = crossover(KS, first, second)
    order = np.random.default_rng(1).permutation(40)
    moved = crossover(KS, first[[2, 0, 1]][:, order] * (1 + 2e-16), second[:, order])
    assert (moved.low, moved.high, moved.share_without_crossing) == (
        found.low,
        found.high,
        found.share_without_crossing,
    )
    swapped = crossover(KS, second, first)
    assert swapped.k_star == found.k_star
    assert swapped.first_leads_before is not found.first_leads_before


def test_undefined_and_impossible_crossings():
    broken = curves([0.1, 0.05, -0.02, math.nan])
    found = crossover(KS, broken, curves([0.0] * 4))
    assert (math.isnan(found.k_star), math.isnan(found.share_without_crossing), len(found.distribution)) == (
        True,
        True,
        0,
    )
    for ks, shape in (((1, 2, 2, 4), (5, 4)), ((0, 1, 2, 3), (5, 4)), (KS, (5, 3)), ((), (5, 0))):
        with pytest.raises(ValueError, match=r"ks must rise|curves must both be"):
            crossover(ks, np.zeros(shape), np.zeros(shape))
