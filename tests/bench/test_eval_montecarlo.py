"""Maj@K from random subsets agrees with the exact value, knows its error, and is taken only where exact costs much."""

from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from bench.evaluation import Outcome, elections, estimates, outcome_matrix, pass_curve, read_estimates, write_estimates
from bench.evaluation.ballots import Votes, stack_votes, take
from bench.evaluation.estimators import MAX_CELLS, MAX_TERMS
from bench.evaluation.exact import cost_of_exact, exact_majority
from bench.evaluation.montecarlo import NUM_SUBSETS, sampled_majority

# (correct, missing, {votes: wrong answers with that many}), k: ties at every height, heaps of single answers, blanks.
PROBLEMS = [
    ((8, 0, Counter({8: 1})), 7),
    ((8, 3, Counter({8: 2, 7: 1, 1: 12})), 10),
    ((2, 5, Counter({1: 20})), 5),
    ((1, 0, Counter({1: 30})), 9),
    ((30, 20, Counter({25: 2, 3: 10, 1: 40})), 60),
    ((5, 90, Counter({4: 1, 1: 1})), 40),
]
# Too many samples for the exact method: 100,000 with 30,000 votes each.
LARGE = (30_000, 10_000, Counter({29_900: 1, 20_000: 1, 1: 10_100}))


def alone(votes: tuple[int, int, Counter[int]]) -> Votes:
    return stack_votes([votes])


@pytest.mark.parametrize(("problem", "k"), PROBLEMS)
def test_it_agrees_with_the_exact_value_within_its_error(problem, k):
    votes = alone(problem)
    exact = exact_majority(votes, int(votes.num_samples[0]), k)[:, 0]
    values, errors = sampled_majority(votes, 0, k)
    assert (np.abs(values - exact) <= 4.5 * errors + 1e-12).all()
    assert values[1] <= values[0] <= values[2]
    spread = np.sqrt(exact[1:] * (1 - exact[1:]) / NUM_SUBSETS)
    np.testing.assert_allclose(errors[1:], spread, rtol=0.15, atol=2e-3)


def test_its_errors_are_as_large_as_the_deviations_they_describe():
    rng = np.random.default_rng(1)
    deviations = []
    for _ in range(60):
        wrong = rng.multinomial(60, rng.dirichlet(np.full(12, 0.5)))
        votes = alone((int(rng.integers(10, 30)), 4, Counter(wrong[wrong > 0].tolist())))
        exact = exact_majority(votes, int(votes.num_samples[0]), 16)[0, 0]
        values, errors = sampled_majority(votes, 0, 16)
        if errors[0] > 1e-3:
            deviations.append((values[0] - exact) / errors[0])
    assert len(deviations) > 30
    assert 0.75 < np.std(deviations) < 1.3
    assert abs(np.mean(deviations)) < 4 / np.sqrt(len(deviations))


def test_enough_subsets_are_drawn():
    assert NUM_SUBSETS >= 2_000


def test_the_same_counts_give_the_same_bits_at_any_place():
    first = sampled_majority(alone(PROBLEMS[1][0]), 0, 10)
    together = stack_votes([problem for problem, _ in PROBLEMS])
    second = sampled_majority(together, 1, 10)
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(first, sampled_majority(alone(PROBLEMS[1][0]), 0, 10))
    assert not np.array_equal(first[0], sampled_majority(alone((8, 3, Counter({8: 2, 7: 1, 1: 13}))), 0, 10)[0])


def test_only_what_costs_too_much_is_estimated():
    votes = stack_votes([LARGE, (100_000, 0, Counter()), (0, 50, Counter({99_950: 1})), (8, 2, Counter({8: 1}))])
    held = elections(votes, [1, 30_000, 4])
    sampled = ~np.isnan(held.error).all(axis=0)
    # One vote, no rival and no correct sample need no election; 30,000 votes of 18 samples are undefined.
    np.testing.assert_array_equal(sampled, [[False, True, False], [False] * 3, [False] * 3, [False] * 3])
    np.testing.assert_allclose(held.estimate[0, :, 0], pass_curve(votes, [1])[:, 0], atol=1e-12)
    assert np.isnan(held.estimate[:, 3, 1]).all()
    assert (held.estimate[:, 1, 1].tolist(), held.estimate[:, 2, 1].tolist()) == ([1.0] * 3, [0.0] * 3)
    assert 0.3 < held.estimate[0, 0, 1] < 0.9
    assert 0.005 < held.error[0, 0, 1] < 0.5 / np.sqrt(NUM_SUBSETS) * 1.01


def test_everyday_evaluations_are_exact():
    rng = np.random.default_rng(0)
    for n, k in ((256, 64), (1024, 256), (1024, 512)):
        wrong = rng.multinomial(n - n // 4, rng.dirichlet(np.full(400, 0.3)))
        votes = alone((n // 4, 0, Counter(wrong[wrong > 0].tolist())))
        assert cost_of_exact(votes, n, k)[0] <= MAX_TERMS
        assert n * k <= MAX_CELLS


def test_the_cost_grows_with_votes_rivals_and_samples():
    rivals = stack_votes([(20, 980, Counter()), (20, 960, Counter({20: 1})), (20, 780, Counter({10: 2, 20: 9}))])
    none, one, many = cost_of_exact(rivals, 1000, 100)
    assert none == 0
    assert 0 < one < many
    assert cost_of_exact(take(rivals, np.array([2])), 1000, 200)[0] > many


def large_matrix():
    """One problem of 100,000 samples, where subsets are drawn, beside one of 5."""
    correct, missing, wrong = 30_000, 10_000, 60_000
    keys = ["1"] * correct + [None] * missing + [f"w{i % 40}" for i in range(wrong)]
    rows = [
        Outcome("large", i, i < correct, key, key is not None, False, False, 1, "box") for i, key in enumerate(keys)
    ]
    rows += [Outcome("small", i, i < 3, "1" if i < 3 else "2", True, False, False, 1, "box") for i in range(5)]
    return outcome_matrix(rows)


@pytest.mark.slow
def test_estimates_store_which_entries_are_estimated_and_how_well(tmp_path: Path):
    table = estimates(large_matrix(), [1, 4, 20_000])
    path = tmp_path / "x.estimates.parquet"
    write_estimates(path, table)
    names = [name for name in pq.read_schema(path).names if "error" in name]
    assert names == [
        "maj_error@20000",
        *(f"maj_{v}_error@20000" for v in ("pessimistic", "optimistic", "vote", "drop", "gold_free")),
    ]
    back = read_estimates(path)
    assert back.errors.keys() == table.errors.keys()
    np.testing.assert_array_equal(back.maj_error_at(20_000), table.maj_error_at(20_000))
    assert np.isnan(back.maj_error_at(20_000)).tolist() == [False, True]
    assert np.isnan(back.maj_error_at(4)).all()
