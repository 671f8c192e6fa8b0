"""Maj@K by answer key alone equals its definition, enumerated, and parts from Maj@K only where keys and verdicts do."""

import itertools
import math
import random
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from bench.evaluation import gold_free_maj_at_k, gold_free_majority, maj_at_k
from bench.evaluation.ballots import MISSING_RULES


def enumerated(answers, correct, k, missing):
    """The winning key earns the share of its samples that are correct: every election held and counted."""
    samples = [answer for answer, verdict in zip(answers, correct, strict=True) if verdict is not None]
    right = Counter(answer for answer, verdict in zip(answers, correct, strict=True) if verdict)
    size = Counter(samples)
    if missing == "drop":
        samples = [answer for answer in samples if answer is not None]
    if len(samples) < k or None in right:
        return math.nan
    total, number = Fraction(0), 0
    for drawn in itertools.combinations(samples, k):
        number += 1
        votes = Counter(vote for vote in drawn if vote is not None or missing == "vote")
        leaders = [answer for answer, count in votes.items() if count == max(votes.values())]
        total += sum(Fraction(right[leader], size[leader]) for leader in leaders) / max(len(leaders), 1)
    return float(total / number)


def problem(generator: random.Random):
    """Answers whose verdicts follow their keys mostly, with missing, unscorable and contradicted ones."""
    n = generator.randint(1, 9)
    answers = [generator.choice([None, *"AABBCD"]) for _ in range(n)]
    correct = [
        None if generator.random() < 0.1 else answer is not None and (answer == "A") != (generator.random() < 0.2)
        for answer in answers
    ]
    return answers, correct, generator.randint(1, n)


@pytest.mark.parametrize("missing", MISSING_RULES)
def test_it_equals_enumeration(missing):
    generator = random.Random(f"{missing} gold-free")
    for _ in range(150):
        answers, correct, k = problem(generator)
        value = gold_free_maj_at_k(answers, correct, k, missing=missing)
        assert value == pytest.approx(enumerated(answers, correct, k, missing), abs=1e-12, nan_ok=True)


@pytest.mark.parametrize("missing", MISSING_RULES)
def test_many_problems_have_the_values_of_each(missing):
    generator = random.Random(missing)
    problems = [problem(generator) for _ in range(40)]
    estimate, error = gold_free_majority([(a, c) for a, c, _ in problems], [1, 3], missing=missing)
    for row, (answers, correct, _) in enumerate(problems):
        expected = [enumerated(answers, correct, k, missing) for k in (1, 3)]
        np.testing.assert_allclose(estimate[row], expected, rtol=0, atol=1e-12)
    assert np.isnan(error).all()


def test_where_the_correct_answers_share_one_key_it_is_maj_at_k():
    generator = random.Random(3)
    for _ in range(30):
        answers = [generator.choice([None, *"AABC"]) for _ in range(12)]
        correct = [answer == "A" for answer in answers]
        assert gold_free_maj_at_k(answers, correct, 5) == pytest.approx(maj_at_k(answers, correct, 5), abs=1e-12)


def test_correct_answers_under_two_keys_split_their_votes():
    answers, correct = ["1/2", "0.5", "3", "3"], [True, True, False, False]
    assert maj_at_k(answers, correct, 4) == pytest.approx(0.5, abs=1e-12)
    assert gold_free_maj_at_k(answers, correct, 4) == pytest.approx(0.0, abs=1e-12)


def test_a_key_with_both_verdicts_earns_the_share_of_its_correct_samples():
    assert gold_free_maj_at_k(["A"] * 4, [True, True, True, False], 2) == pytest.approx(0.75, abs=1e-12)


def test_a_correct_sample_without_a_key_leaves_it_undefined():
    assert math.isnan(gold_free_maj_at_k(["A", None, "B"], [True, True, False], 2))
    assert gold_free_maj_at_k(["A", None, "B"], [False, False, False], 2) == 0.0


def test_more_votes_than_samples_are_refused():
    with pytest.raises(ValueError, match="k=2 exceeds the 1 samples"):
        gold_free_maj_at_k(["A"], [True], 2)
