"""Checks beside an accuracy: duplicates, guesses, and strict against flexible scores."""

import math

import pytest

from bench.evaluation import (
    Outcome,
    duplicates,
    estimates,
    guess_flag,
    guess_share,
    outcome_matrix,
    pass_at_k,
    strict_accuracy,
    summarise,
)


def test_duplicates_are_counted_within_a_problem_byte_for_byte():
    samples = [("a", "x"), ("a", "x"), ("b", "x"), ("a", "x "), ("b", "y"), ("a", "x"), ("c", "z")]
    found = duplicates(samples)
    assert found.share == {"a": 2 / 4, "b": 0.0, "c": 0.0}
    assert found.overall == pytest.approx(2 / 7)
    assert not found.identical


@pytest.mark.parametrize(
    ("samples", "identical"),
    [
        ([("a", "x"), ("a", "x"), ("b", "y"), ("b", "y")], True),
        ([("a", "x"), ("a", "x"), ("b", "y")], True),
        ([("a", "x"), ("a", "x"), ("b", "y"), ("b", "z")], False),
        ([("a", "x"), ("b", "x")], False),  # one sample a problem: nothing is drawn twice
    ],
)
def test_identical_means_that_no_problem_has_two_different_samples(samples, identical):
    assert duplicates(samples).identical is identical


def test_duplicates_of_nothing_are_refused():
    with pytest.raises(ValueError, match="got none"):
        duplicates([])


def test_guess_share_is_the_part_that_blind_guesses_reach():
    assert guess_share(0.8, 0.25, 2) == pytest.approx((1 - 0.75**2) / 0.8)
    assert guess_share(0.5, 1 / 1000, 64) == pytest.approx(0.0620 / 0.5, abs=1e-3)
    assert guess_share(0.02, 1 / 100, 64) > 1  # worse than guesses
    assert guess_share(0.5, 1e-17, 4) == pytest.approx(8e-17)
    assert (guess_share(0.5, 0.0, 8), guess_share(1.0, 1.0, 8)) == (0.0, 1.0)
    assert math.isnan(guess_share(0.0, 0.1, 8))
    assert math.isnan(guess_share(math.nan, 0.1, 8))


@pytest.mark.parametrize(
    ("guess_rate", "k", "flagged"),
    [(0.25, 1, True), (1 / 1000, 64, True), (1 / 1000, 50, False), (0.0, 1024, False), (0.05, 1, False)],
)
def test_pass_at_k_is_flagged_where_guesses_are_to_be_expected(guess_rate, k, flagged):
    assert guess_flag(guess_rate, k) is flagged


def test_impossible_guesses_are_refused():
    for call in (guess_flag, lambda rate, k: guess_share(0.5, rate, k)):
        with pytest.raises(ValueError, match="guess_rate must be a probability"):
            call(1.5, 2)
        with pytest.raises(ValueError, match="k must be at least 1"):
            call(0.5, 0)


def graded(*rows):
    """Outcomes from (problem, verdict, method)."""
    return outcome_matrix(
        Outcome(name, i, verdict, "1" if verdict else "2", method != "none", False, False, 5, method)
        for i, (name, verdict, method) in enumerate(rows)
    )


EXAMPLE = graded(
    ("a", True, "marker"), ("a", True, "last_number"), ("a", False, "none"), ("a", False, "marker"),
    ("b", True, "box"), ("b", None, "marker"),
)  # fmt: skip


def test_strict_accuracy_counts_only_answers_found_by_a_strict_method():
    assert strict_accuracy(EXAMPLE, ("marker",)) == pytest.approx((1 / 4 + 0) / 2)
    assert strict_accuracy(EXAMPLE, ("marker", "box")) == pytest.approx((1 / 4 + 1) / 2)
    assert strict_accuracy(EXAMPLE) == pytest.approx((2 / 4 + 1) / 2)
    assert math.isnan(strict_accuracy(graded(("a", True, "box"), ("b", None, "box"))))


def test_the_summary_has_methods_and_both_accuracies():
    summary = summarise(EXAMPLE, estimates(EXAMPLE, [1]), strict=("marker",))
    assert summary.methods == {"marker": 3, "last_number": 1, "none": 1, "box": 1}
    assert summary.strict_accuracy == pytest.approx(1 / 8)
    assert summary.flexible_accuracy == pytest.approx(estimates(EXAMPLE, [1]).pass_at(1).mean())
    assert math.isnan(summarise(EXAMPLE, estimates(EXAMPLE, [1])).strict_accuracy)


def test_identical_samples_make_pass_at_k_equal_pass_at_1():
    assert duplicates([(name, name) for name in "ab" for _ in range(8)]).identical
    assert [pass_at_k([8, 8], [8, 0], k).mean() for k in (1, 2, 8)] == [0.5] * 3
