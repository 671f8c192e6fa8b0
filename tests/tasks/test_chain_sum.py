"""Chain sum: right sums, disjoint splits, and a grader that tells wrong, unparsed and truncated apart."""

import re

import pytest
from pydantic import ValidationError

from tasks.chain_sum import ChainSum
from tasks.parts.problem import Problem

PROBLEM = Problem(id="chain_sum/test/0", prompt="12+34+56=", gold="102", solution="46+56=102")


def test_a_problem_in_full():
    assert ChainSum().generate("train", 0) == Problem(
        id="chain_sum/train/0", prompt="39+22+22=", gold="83", solution="61+22=83"
    )


@pytest.mark.parametrize(("num_terms", "num_digits"), [(2, 1), (3, 2), (5, 3), (4, 12)])
def test_the_worked_solution_is_right_at_every_step(num_terms: int, num_digits: int):
    task = ChainSum(num_terms=num_terms, num_digits=num_digits)
    for index in range(8):
        problem = task.generate("validation", index)
        terms = problem.prompt.removesuffix("=").split("+")
        assert [len(term) for term in terms] == [num_digits] * num_terms
        assert not any(term.startswith("0") for term in terms)
        assert problem.solution is not None
        steps = problem.solution.split("=")
        assert [step.count("+") for step in steps] == list(range(num_terms - 2, -1, -1))
        assert {sum(map(int, step.split("+"))) for step in [*steps, "+".join(terms)]} == {int(problem.gold)}
        assert set(problem.prompt + problem.solution) <= set(task.alphabet)


def test_no_item_is_in_two_splits_and_none_is_asked_twice():
    task = ChainSum(num_terms=2, num_digits=1)
    splits = {
        split: [task.generate(split, index).prompt for index in range(task.num_problems(split) or 64)]
        for split in ("train", "validation", "test")
    }
    assert {split: len(prompts) for split, prompts in splits.items()} == {"train": 64, "validation": 8, "test": 9}
    everything = [prompt for prompts in splits.values() for prompt in prompts]
    assert len(set(everything)) == len(everything) == 81


def test_train_comes_round_again_and_test_ends():
    task = ChainSum(num_terms=2, num_digits=1)
    assert task.num_problems("train") is None
    first, again = task.generate("train", 3), task.generate("train", 3 + 64)
    assert (first.prompt, first.gold) == (again.prompt, again.gold)
    assert first.id != again.id
    message = "chain_sum with num_terms=2, num_digits=1 has 9 test problems, so there is no problem 9"
    with pytest.raises(ValueError, match=re.escape(message)):
        task.generate("test", 9)


def test_a_train_index_may_be_a_hash():
    assert ChainSum().generate("train", 2**63 - 1).id == f"chain_sum/train/{2**63 - 1}"


@pytest.mark.parametrize(
    ("completion", "correct", "key"),
    [
        ("46+56=102", True, "102"),
        ("102", True, "102"),
        ("0102", True, "102"),
        ("46+56=103", False, "103"),
        ("46+56=0", False, "0"),
        ("46+56=000", False, "0"),
        ("46+56", False, None),
        ("46+56=", False, None),
        ("", False, None),
        ("46+56=102=", False, None),
        ("46+56=-102", False, None),
        ("46+56=1\u06602", False, None),
        ("46+56=\u00b2", False, None),
        ("46+56=\x00102", False, None),
    ],
)
def test_the_answer_stands_after_the_last_equals_sign(completion: str, correct: bool, key: str | None):
    grade = ChainSum().grade(PROBLEM, completion)
    assert (grade.correct, grade.answer_key, grade.parsed) == (correct, key, key is not None)
    assert not grade.truncated


def test_a_cut_completion_has_no_answer_even_if_it_looks_right():
    """What is missing may be the answer's last digit: "=102" may have been on its way to 1021."""
    grade = ChainSum().grade(PROBLEM, "46+56=102", truncated=True)
    assert (grade.correct, grade.answer_key, grade.parsed, grade.truncated) == (False, None, False, True)


def test_a_megabyte_of_digits_is_graded():
    grade = ChainSum().grade(PROBLEM, "9" * 1_000_000)
    assert grade.correct is False
    assert grade.parsed
    assert ChainSum().grade(PROBLEM, "0" * 1_000_000 + "102").correct


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ("46+56=102", 1.0),
        ("99+99=7", 1.0),
        ("102", 0.5),
        ("46+56=46+56=102", 0.5),
        ("4+6+56=102", 0.5),
        ("46++56=102", 0.5),
        ("+=102", 0.5),
        ("46+56=", 0.0),
        ("46+56", 0.0),
        ("", 0.0),
    ],
)
def test_the_form_is_scored_whatever_the_answer_is(completion: str, score: float):
    assert ChainSum().format_score(PROBLEM, completion) == score


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"num_terms": 1}, "num_terms\n  Input should be greater than or equal to 2"),
        ({"num_digits": 13}, "num_digits\n  Input should be less than or equal to 12"),
        ({"num_terms": 3.0}, "num_terms\n  Input should be a valid integer"),
        ({"num_terms": True}, "num_terms\n  Input should be a valid integer"),
        ({"terms": 3}, "terms\n  Extra inputs are not permitted"),
        ({"name": "countdown"}, "name\n  Input should be 'chain_sum'"),
    ],
)
def test_bad_knobs_are_refused(knobs: dict[str, object], message: str):
    with pytest.raises(ValidationError, match=re.escape(message)):
        ChainSum.model_validate(knobs)
