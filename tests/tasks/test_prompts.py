"""Prompt styles: the task's own prompt, the bare question, and worked examples before it."""

import pytest

from tasks.parts.problem import Problem
from tasks.parts.prompts import Style, render

PROBLEM = Problem(id="t/test/0", prompt="1+1? Use a box.", gold="2", question="1+1?")
SHOT = Problem(id="t/train/0", prompt="2+2? Use a box.", gold="4", question="2+2?", solution="It is 4.\n\\boxed{4}\n")
BARE = Problem(id="t/train/1", prompt="3+3=", gold="6", solution="6")


@pytest.mark.parametrize(
    ("problem", "style", "shots", "expected"),
    [
        (PROBLEM, "task", [], "1+1? Use a box."),
        (PROBLEM, "question", [], "1+1?"),
        (BARE, "question", [], "3+3="),
        (PROBLEM, "few_shot", [SHOT], "Question: 2+2?\nAnswer: It is 4.\n\\boxed{4}\n\nQuestion: 1+1?\nAnswer:"),
        (
            PROBLEM,
            "few_shot",
            [BARE, SHOT],
            "Question: 3+3=\nAnswer: 6\n\nQuestion: 2+2?\nAnswer: It is 4.\n\\boxed{4}\n\nQuestion: 1+1?\nAnswer:",
        ),
        (SHOT, "few_shot", [BARE, SHOT], "Question: 3+3=\nAnswer: 6\n\nQuestion: 2+2?\nAnswer:"),
    ],
)
def test_a_prompt_in_full(problem: Problem, style: Style, shots: list[Problem], expected: str):
    assert render(problem, style, shots) == expected


@pytest.mark.parametrize(
    ("style", "shots", "message"),
    [
        ("task", [SHOT], "prompt style task takes no worked examples, 1 were given"),
        ("few_shot", [], "prompt style few_shot needs worked examples, none was given for t/test/0"),
        ("few_shot", [PROBLEM], "prompt style few_shot needs worked examples, none was given for t/test/0"),
        ("few_shot", [SHOT, Problem(id="t/train/2", prompt="?", gold="1")], "t/train/2 cannot be an example"),
    ],
)
def test_a_prompt_that_cannot_be_made_says_why(style: Style, shots: list[Problem], message: str):
    with pytest.raises(ValueError, match=message):
        render(PROBLEM, style, shots)
