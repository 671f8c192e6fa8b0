"""Acceptance cases of the estimators, by their number."""

import math
import time

import numpy as np
import pytest
from jaxtyping import TypeCheckError

from bench.evaluation import (
    Outcome,
    duplicates,
    estimates,
    maj_at_k,
    outcome_matrix,
    pass_at_k,
    pass_hat_k,
    summarise,
)


def sampled(name: str, *samples: tuple[str | None, bool | None]) -> list[Outcome]:
    """Outcomes of one problem from (key, verdict)."""
    return [
        Outcome(name, i, verdict, key, key is not None, False, False, 9, "box" if key else "none")
        for i, (key, verdict) in enumerate(samples)
    ]


def test_evl_01_drawn_without_replacement():
    assert pass_at_k(4, 1, 4) == 1.0


def test_evl_02_three_of_sixteen():
    assert [pass_at_k(16, 3, k) for k in (1, 4, 16)] == pytest.approx([0.1875, 0.6071428571428571, 1.0], abs=1e-9)


def test_evl_04_without_a_correct_sample_it_is_zero_exactly():
    for n in (1, 4, 64):
        assert [pass_at_k(n, 0, k) for k in (1, n)] == [0.0, 0.0]
        assert maj_at_k(["A"] * n, [False] * n, n) == 0.0


def test_evl_05_large_counts_neither_overflow_nor_dawdle():
    pass_at_k(8, 1, 4)
    start = time.perf_counter()
    value = pass_at_k(1024, 1, 512)
    assert time.perf_counter() - start < 0.01
    assert value == pytest.approx(0.5, abs=1e-9)


def test_evl_06_problems_are_no_samples():
    solved = [1] * 50 + [0] * 114
    assert pass_at_k([1] * 164, solved, 1).mean() == pytest.approx(0.304878, abs=1e-6)
    for function in (pass_at_k, pass_hat_k):
        with pytest.raises(ValueError, match="k=10 exceeds the 1 samples"):
            function([1] * 164, solved, 10)
    matrix = outcome_matrix(row for i, c in enumerate(solved) for row in sampled(f"p{i}", ("1", c == 1)))
    with pytest.raises(ValueError, match="k=10 exceeds the 1 samples"):
        estimates(matrix, [1, 10])


def test_evl_07_greedy_samples_are_recognised_as_identical():
    texts = [(f"p{i}", f"answer {i}") for i in range(5) for _ in range(8)]
    assert duplicates(texts).identical
    assert not duplicates([*texts, ("p0", "another answer")]).identical
    assert set(duplicates(texts).share.values()) == {7 / 8}


def test_evl_09_the_tie_rule_and_the_tie_rate_are_declared():
    table = estimates(outcome_matrix(sampled("p", ("A", True), ("A", True), ("B", False), ("B", False))), [4])
    assert table.ties == "random"
    assert table.maj_at(4)[0] == pytest.approx(0.5, abs=1e-12)
    assert table.maj_at(4, "pessimistic")[0] == pytest.approx(0.0, abs=1e-12)
    assert table.maj_at(4, "optimistic")[0] == pytest.approx(1.0, abs=1e-12)
    assert table.tied_at(4)[0] == pytest.approx(1.0, abs=1e-12)


def test_evl_11_unparsed_answers_do_not_vote():
    rows = sampled("p", ("B", True), ("B", True), ("A", False), (None, False), (None, False), (None, False))
    table = estimates(outcome_matrix(rows), [6])
    assert table.maj_at(6)[0] == pytest.approx(1.0, abs=1e-12)
    assert table.maj_at(6, "vote")[0] == pytest.approx(0.0, abs=1e-12)
    assert summarise(outcome_matrix(rows), table).num_unparsed == 3


def test_evl_12_equivalent_answers_are_one_cluster():
    answers = ["1/2", "0.5", r"\frac{1}{2}", "3", "3"]
    assert maj_at_k(answers, [True, True, True, False, False], 5) == pytest.approx(1.0, abs=1e-12)


def test_evl_13_the_subset_average_is_exact_and_the_same_on_each_call():
    answers, correct = list("AABC"), [True, True, False, False]
    values = {maj_at_k(answers, correct, 3) for _ in range(5)}
    assert len(values) == 1
    assert values.pop() == pytest.approx(2 / 3, abs=1e-12)
    assert maj_at_k(answers, correct, 3, ties="pessimistic") == pytest.approx(0.5, abs=1e-12)


def test_evl_14_a_problem_without_an_answer_scores_zero_and_stays():
    rows = sampled("blank", *[(None, False)] * 4) + sampled("fine", *[("1", True)] * 4)
    table = estimates(outcome_matrix(rows), [1, 4])
    for variant in (None, "pessimistic", "optimistic", "vote", "gold_free"):
        np.testing.assert_allclose(table.maj_at(4, variant), [0.0, 1.0], atol=1e-12)
    np.testing.assert_array_equal(table.pass_at(4), [0.0, 1.0])
    assert math.isnan(table.maj_at(4, "drop")[0])
    assert summarise(outcome_matrix(rows), table).num_unparsed == 4


def test_evl_16_identities_of_random_verdicts():
    rng = np.random.default_rng(16)
    rows: list[Outcome] = []
    for problem in range(60):
        right = rng.random(12) < rng.beta(0.6, 0.8)
        keys = [None if rng.random() < 0.1 else str(rng.integers(5)) for _ in range(12)]
        rows += sampled(f"p{problem}", *(("gold" if c else key, bool(c)) for c, key in zip(right, keys, strict=True)))
    table = estimates(outcome_matrix(rows), range(1, 13))
    accuracy = table.c / table.n
    np.testing.assert_allclose(table.pass_at(1), accuracy, atol=1e-12)
    for name in (None, "pessimistic", "optimistic", "vote", "gold_free"):
        np.testing.assert_allclose(table.maj_at(1, name), accuracy, atol=1e-12)
    for k in table.ks:
        low, fair, high = (table.maj_at(k, rule) for rule in ("pessimistic", "random", "optimistic"))
        assert (low <= fair + 1e-12).all()
        assert (fair <= high + 1e-12).all()
        assert (high <= table.pass_at(k) + 1e-12).all()
        assert (table.pass_hat_at(k) <= table.mg_pass_at(k) + 1e-12).all()
        assert (table.mg_pass_at(k) <= table.pass_at(k) + 1e-12).all()
        if k > 1:
            assert (table.pass_at(k) >= table.pass_at(k - 1)).all()
            assert (table.pass_hat_at(k) <= table.pass_hat_at(k - 1)).all()


def test_evl_23_one_problem_is_enough_and_nothing_is_resampled():
    assert pass_at_k(8, 2, 8) == 1.0
    assert pass_at_k(8, 0, 8) == 0.0


@pytest.mark.parametrize("k", [2.5, 2.0, float("nan"), "2"])
def test_a_k_that_is_no_whole_number_is_refused(k: object) -> None:
    """2.5 must not be cut to 2."""
    with pytest.raises((TypeError, TypeCheckError)):
        pass_at_k(4, 1, k)  # pyright: ignore[reportArgumentType, reportCallIssue]
    with pytest.raises((TypeError, TypeCheckError)):
        maj_at_k(list("AABB"), [True, True, False, False], k)  # pyright: ignore[reportArgumentType]


def test_an_election_that_cannot_be_won_is_exactly_0() -> None:
    assert maj_at_k(list("AABB"), [True, True, False, False], 4, ties="pessimistic") == 0.0
    votes = [*["B"] * 2, "A", None, None, None]
    assert maj_at_k(votes, [True, True, False, False, False, False], 6, missing="vote") == 0.0
