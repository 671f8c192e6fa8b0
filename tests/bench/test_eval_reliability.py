"""pass^k, G-Pass@k, mG-Pass@k, avg@k and Cover@tau equal their definitions, counted over every subset."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from bench.evaluation import (
    avg_at_k,
    cons_at_k,
    cov_at_k,
    cover_at_tau,
    g_pass_at_k,
    g_pass_curve,
    maj_at_k,
    mg_pass_at_k,
    mg_pass_curve,
    pass_at_k,
    pass_curve,
    pass_hat_curve,
    pass_hat_k,
)
from bench.evaluation.ballots import stack_votes

AT_K = (pass_at_k, pass_hat_k, avg_at_k, mg_pass_at_k, lambda n, c, k: g_pass_at_k(n, c, k, 0.5))
TAUS = [i / 10 for i in range(11)]


def numbers_correct(n, c, k):
    """Correct samples in each k-subset of n samples of which c are correct."""
    return [sum(drawn) for drawn in itertools.combinations([1] * c + [0] * (n - c), k)]


def share(outcomes):
    return Fraction(sum(outcomes), len(outcomes))


def tail(n, c, k, m):
    """P(X >= m) in whole numbers."""
    ways = sum(math.comb(c, x) * math.comb(n - c, k - x) for x in range(m, k + 1))
    return float(Fraction(ways, math.comb(n, k)))


@pytest.mark.parametrize("n", range(1, 9))
def test_each_equals_its_definition_over_all_subsets(n):
    for k in range(1, n + 1):
        every_c = range(n + 1)
        found = [numbers_correct(n, c, k) for c in every_c]

        def check(values, definition, found=found):
            np.testing.assert_allclose(values, [float(definition(x)) for x in found], rtol=0, atol=1e-14)

        counts = ([n] * (n + 1), list(every_c), k)
        check(pass_at_k(*counts), lambda found: share([x >= 1 for x in found]))
        check(pass_hat_k(*counts), lambda found, k=k: share([x == k for x in found]))
        check(avg_at_k(*counts), lambda found, k=k: share(found) / k)
        check(mg_pass_at_k(*counts), lambda found, k=k: share([max(2 * x - k, 0) for x in found]) / k)
        for tenths in range(11):
            needed = max(math.ceil(Fraction(tenths, 10) * k), 1)
            check(g_pass_at_k(*counts, tenths / 10), lambda found, m=needed: share([x >= m for x in found]))


@pytest.mark.parametrize("k", [2, 4, 16, 48])
def test_mg_pass_is_the_published_sum_for_even_k(k):
    for c in (0, 1, 20, 24, 31, 47, 48):
        published = 2 / k * sum(tail(48, c, k, i) for i in range(math.ceil(k / 2) + 1, k + 1))
        assert mg_pass_at_k(48, c, k) == pytest.approx(published, abs=1e-13)


@pytest.mark.parametrize("k", [1, 3, 5, 15, 16])
def test_mg_pass_is_twice_the_integral_and_one_without_a_mistake_for_odd_k_too(k):
    # G-Pass@k is constant between multiples of 1/k, so these midpoints give the integral exactly.
    taus = (np.arange(k) + 0.5) / (2 * k) + 0.5
    counts = ([20] * 4, [0, 7, 12, 20], k)
    integral = np.mean([g_pass_at_k(*counts, float(tau)) for tau in taus], axis=0)
    np.testing.assert_allclose(mg_pass_at_k(*counts), integral, rtol=0, atol=1e-13)
    assert mg_pass_at_k(*counts)[[0, 3]] == pytest.approx([0.0, 1.0], abs=1e-14)


def test_thresholds_at_the_ends_are_pass_and_pass_hat():
    n, c = [8] * 9, list(range(9))
    for k in range(1, 9):
        np.testing.assert_allclose(g_pass_at_k(n, c, k, 0.0), pass_at_k(n, c, k), rtol=0, atol=1e-14)
        np.testing.assert_allclose(g_pass_at_k(n, c, k, 1.0), pass_hat_k(n, c, k), rtol=0, atol=1e-14)


@pytest.mark.parametrize("tau", [0.3, 0.1 + 0.2, np.linspace(0, 1, 11)[3], 3 / 10])
def test_a_threshold_that_is_met_exactly_is_met_however_it_is_rounded(tau):
    assert cover_at_tau(10, 3, tau) == 1.0
    assert cover_at_tau(10, 2, tau) == 0.0
    assert g_pass_at_k(10, 3, 10, tau) == 1.0
    assert g_pass_at_k(10, 2, 10, tau) == 0.0


def test_every_threshold_at_every_boundary():
    for n in (3, 7, 10, 49, 64, 100):
        counts = ([n] * (n + 1), list(range(n + 1)))
        for needed in range(1, n + 1):
            expected = np.arange(n + 1) >= needed
            np.testing.assert_array_equal(cover_at_tau(*counts, needed / n), expected)
            np.testing.assert_array_equal(g_pass_at_k(*counts, n, needed / n), expected)


def test_cover_of_many_problems_is_the_survival_curve_of_their_accuracies():
    c = np.array([0, 3, 5, 10])
    curve = [cover_at_tau([10] * 4, c, tau).mean() for tau in TAUS]
    assert curve == [1.0, 0.75, 0.75, 0.75, 0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.25]


@pytest.mark.parametrize(("n", "c", "k"), [(1024, 512, 512), (1024, 3, 900), (1024, 1000, 64), (300, 17, 255)])
def test_large_counts_lose_no_digits(n, c, k):
    for tau in (0.01, 0.25, 0.5, 0.51, 0.9):
        exact = tail(n, c, k, max(math.ceil(Fraction(tau) * k), 1))
        assert g_pass_at_k(n, c, k, tau) == pytest.approx(exact, rel=1e-11, abs=1e-300)
    assert pass_hat_k(n, c, k) == pytest.approx(tail(n, c, k, k), rel=1e-11, abs=1e-300)


@pytest.mark.parametrize("function", AT_K)
def test_arrays_have_the_values_of_their_entries_and_nan_where_samples_are_too_few(function):
    n, c = np.array([8, 3, 8, 6, 0]), np.array([5, 3, 0, 6, 0])
    values = function(n, c, 4)
    expected = [np.nan if size < 4 else function(int(size), int(right), 4) for size, right in zip(n, c, strict=True)]
    np.testing.assert_array_equal(values, expected)
    assert np.isnan(values).tolist() == [False, True, False, False, True]
    assert function(n.reshape(5, 1), c.reshape(5, 1), 4).shape == (5, 1)


def test_curves_of_votes_have_the_same_values():
    votes = stack_votes([(3, 1, Counter({2: 1, 1: 2})), (1, 0, Counter()), (0, 6, Counter())])
    n, c = [8, 1, 6], [3, 1, 0]
    for curve, function in ((pass_curve, pass_at_k), (pass_hat_curve, pass_hat_k), (mg_pass_curve, mg_pass_at_k)):
        values = curve(votes, [1, 5, 9])
        np.testing.assert_allclose(values[:, :2], np.stack([function(n, c, 1), function(n, c, 5)], axis=1), atol=1e-15)
        assert np.isnan(values[:, 2]).all()
    np.testing.assert_allclose(g_pass_curve(votes, [5], 0.4)[:, 0], g_pass_at_k(n, c, 5, 0.4), atol=1e-15)


@pytest.mark.parametrize("function", AT_K)
@pytest.mark.parametrize(
    ("n", "c", "k", "message"),
    [
        (4, 1, 5, "k=5 exceeds the 4 samples"),
        ([4, 2], [1, 1], 5, "k=5 exceeds the 4 samples"),
        (4, 5, 2, "num_correct must not exceed num_samples"),
        (4, 1, 0, "k must be at least 1"),
        (4, -1, 1, "must not be negative"),
        (0, 0, 1, "k=1 exceeds the 0 samples"),
    ],
)
def test_what_is_undefined_is_refused(function, n, c, k, message):
    with pytest.raises(ValueError, match=message):
        function(n, c, k)


@pytest.mark.parametrize("tau", [-0.1, 1.1, math.nan])
def test_a_threshold_that_is_no_share_is_refused(tau):
    for call in (lambda: g_pass_at_k(4, 1, 2, tau), lambda: cover_at_tau(4, 1, tau)):
        with pytest.raises(ValueError, match="tau must be a share"):
            call()


def test_cover_without_samples_is_undefined():
    np.testing.assert_array_equal(cover_at_tau([4, 0], [4, 0], 0.5), [1.0, np.nan])
    with pytest.raises(ValueError, match="exceeds the 0 samples"):
        cover_at_tau(0, 0, 0.5)


def test_other_names_are_the_same_functions():
    assert cons_at_k is maj_at_k
    assert cov_at_k is pass_at_k
