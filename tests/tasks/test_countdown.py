"""Countdown: every problem can be solved, splits share no numbers, the grader reads expressions and nothing else."""

import math
import re
import time
from fractions import Fraction
from typing import Literal

import pytest
from pydantic import ValidationError

from tasks.countdown import Countdown
from tasks.parts.arithmetic import parse
from tasks.parts.problem import Problem, Split
from tasks.parts.selftest import self_test

PROBLEM = Problem(id="countdown/test/0", prompt="", gold="55+(36-19)")


def value_of(expression: str) -> Fraction:
    parsed = parse(expression)
    assert parsed is not None
    return parsed.value


def test_a_problem_in_full():
    assert Countdown().generate("train", 0) == Problem(
        id="countdown/train/0",
        prompt="Use each of the numbers 15, 43, 36 once, with + - * / and parentheses, to make 64. "
        "End with one line that holds only the expression.",
        gold="43+(36-15)",
        solution="36-15=21\n43+21=64\n43+(36-15)=64",
        question="15 43 36 = 64",
        columns={"numbers": [15, 43, 36], "target": 64},
    )


@pytest.mark.parametrize("use", ["all", "at_most"])
@pytest.mark.parametrize(("num_numbers", "max_number"), [(3, 10), (3, 99), (4, 99), (5, 999), (6, 20)])
def test_every_problem_can_be_solved(num_numbers: int, max_number: int, use: Literal["all", "at_most"]):
    task = Countdown(num_numbers=num_numbers, max_number=max_number, use=use)
    problems = [task.generate("validation", index) for index in range(20)]
    assert self_test(task, problems) == []
    for problem in problems:
        numbers, target = problem.columns["numbers"], problem.columns["target"]
        assert value_of(problem.gold) == target
        assert sorted(map(int, re.findall("[0-9]+", problem.gold))) == sorted(numbers)
        assert len(numbers) == num_numbers
        assert all(1 <= number <= max_number for number in [*numbers, target])
        assert problem.solution is not None
        *steps, last = problem.solution.split("\n")
        assert last == f"{problem.gold}={target}"
        assert [value_of(step.partition("=")[0]) for step in steps] == [int(step.partition("=")[2]) for step in steps]
        assert set(problem.prompt + problem.solution + (problem.question or "")) <= set(task.alphabet)


def test_no_numbers_are_in_two_splits_and_every_multiset_is_asked_once():
    task = Countdown(num_numbers=3, max_number=10)
    sizes: dict[Split, int] = {"train": 176, "validation": 22, "test": 22}
    asked = [
        tuple(sorted(task.generate(split, index).columns["numbers"]))
        for split, size in sizes.items()
        for index in range(size)
    ]
    assert len(set(asked)) == len(asked) == math.comb(12, 3)


def test_train_comes_round_again_and_test_ends():
    task = Countdown(num_numbers=3, max_number=10)
    assert task.num_problems("train") is None
    assert task.generate("train", 3).prompt == task.generate("train", 3 + 176).prompt
    message = "countdown with num_numbers=3, max_number=10 has 22 test problems, so there is no problem 22"
    with pytest.raises(ValueError, match=message):
        task.generate("test", 22)


@pytest.mark.parametrize(
    ("completion", "correct", "key"),
    [
        ("55+(36-19)", True, "72 of 19 36 55"),
        ("36-19=17\n55+17=72\n55+(36-19)=72", True, "72 of 19 36 55"),
        ("72 = 55 + 36 - 19", True, "72 of 19 36 55"),
        ("<think>19+36</think>Let me see.\n<answer>(55 + 36) - 19</answer> Done.", True, "72 of 19 36 55"),
        ("<answer>1</answer> no, <answer>55-19+36</answer>", True, "72 of 19 36 55"),
        ("So \\boxed{55 - 19 + 36 = 72} it is.", True, "72 of 19 36 55"),
        ("**55 \u2212 19 + 36**", True, "72 of 19 36 55"),
        ("The answer is $55-19+36$.", True, "72 of 19 36 55"),
        ("Answer: 36 - (19 - 55)", True, "72 of 19 36 55"),
        ("-19+36+55", True, "72 of 19 36 55"),
        ("72", False, "72 of 72"),
        ("36+36", False, "72 of 36 36"),
        ("55+36-19+0", False, "72 of 0 19 36 55"),
        ("55+36", False, "91 of 36 55"),
        ("19*36/55", False, "684/55 of 19 36 55"),
        ("19\u00d736\u00f755", False, "684/55 of 19 36 55"),
        ("19 \\times 36 \\div 55", False, "684/55 of 19 36 55"),
        ("\\frac{19*36}{55}", False, "684/55 of 19 36 55"),
        ("55+36-19=73", False, None),
        ("55+36-19=72=72", False, None),
        ("55+36-19 is right", False, None),
        ("55/(36-36)", False, None),
        ("55(36-19)", False, None),
        ("55 36 19", False, None),
        ("55**2", False, None),
        ("55//19", False, None),
        ("__import__('os')", False, None),
        ("5_5+36-19", False, None),
        ("5.5e1+36-19", False, None),
        ("\u0665\u0665+36-19", False, None),
        ("(55+36-19", False, None),
        ("<think>55+36-19", False, None),
        ("", False, None),
    ],
)
def test_the_answer_is_an_expression(completion: str, correct: bool, key: str | None):
    grade = Countdown().grade(PROBLEM, completion)
    assert (grade.correct, grade.answer_key, grade.parsed) == (correct, key, key is not None)


@pytest.mark.parametrize(
    ("completion", "all_numbers", "at_most"),
    [("55+36-19", True, True), ("2*36", False, False), ("36+36", False, False)],
)
def test_the_rule_of_use_is_kept(completion: str, all_numbers: bool, at_most: bool):
    assert Countdown().grade(PROBLEM, completion).correct is all_numbers
    assert Countdown(use="at_most").grade(PROBLEM, completion).correct is at_most


def test_some_numbers_may_be_left_over_only_where_the_rule_says_so():
    problem = Problem(id="x", prompt="", gold="72/(9-8)")
    assert Countdown(use="at_most").grade(problem, "8*9").correct
    assert not Countdown().grade(problem, "8*9").correct


def test_a_cut_completion_has_an_answer_only_in_closed_tags():
    assert not Countdown().grade(PROBLEM, "55+36-19", truncated=True).parsed
    assert Countdown().grade(PROBLEM, "<answer>55+36-19</answer> and", truncated=True).correct


@pytest.mark.parametrize(
    "completion",
    [
        "(" * 1_000_000,
        "9" * 1_000_000,
        "1+" * 500_000,
        "-" * 299 + "1",
        "<answer>" * 200_000,
        "\\boxed{" * 200_000,
        "<answer>" * 100_000 + "</answer>" * 100_000,
        "=" * 1_000_000,
        "1\n" * 500_000,
        "\u2212" * 1_000_000,
        "*" * 1_000_000 + "a",
    ],
    ids=lambda text: text[:9],
)
def test_nothing_stalls_the_grader(completion: str):
    start = time.perf_counter()
    assert not Countdown().grade(PROBLEM, completion).correct
    assert time.perf_counter() - start < 2


def test_a_gold_that_is_no_expression_gives_no_verdict():
    assert Countdown().grade(Problem(id="x", prompt="", gold="72?"), "55+36-19").correct is None


@pytest.mark.parametrize(("completion", "score"), [("55+36-19", 1.0), ("19+36+55", 1.0), ("55+36", 0.5), ("none", 0.0)])
def test_the_form_is_scored_whatever_the_value_is(completion: str, score: float):
    assert Countdown().format_score(PROBLEM, completion) == score


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"num_numbers": 2}, "num_numbers\n  Input should be greater than or equal to 3"),
        ({"num_numbers": 7}, "num_numbers\n  Input should be less than or equal to 6"),
        ({"max_number": 9}, "max_number\n  Input should be greater than or equal to 10"),
        ({"use": "some"}, "use\n  Input should be 'all' or 'at_most'"),
    ],
)
def test_bad_knobs_are_refused(knobs: dict[str, object], message: str):
    with pytest.raises(ValidationError, match=re.escape(message)):
        Countdown.model_validate(knobs)
