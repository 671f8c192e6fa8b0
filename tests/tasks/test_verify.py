"""The verifier: known cases with their verdicts, agreement with public labels, and no text that stalls it."""

import time
from collections.abc import Callable
from typing import Any

import pytest

from tasks.parts.verify import grade

SharedRows = Callable[[str], list[dict[str, Any]]]


@pytest.mark.parametrize(
    ("gold", "completion", "correct"),
    [
        ("70000", "$200,000 - $130,000 = $70,000.\n#### 70,000", True),
        ("29", "The total cost of the order is $29.00.", True),
        ("18", "So the answer is #### 18.", True),
        ("8", "#### 8 apples", True),
        ("25", "#### 25%", True),
        ("-5", "#### \u22125", True),
        ("0.75", "#### 3/4", True),
        ("1,080", "#### 1080", True),
        ("5", "#### 5 and 6", False),
        ("6", "#### 5 and 6", False),
        ("120000", "#### 120001", False),
        ("50", "#### 0.5", False),
        ("50", "#### 5000", False),
        ("5", "#### -5", False),
    ],
)
def test_verdicts(gold: str, completion: str, correct: bool):
    assert grade(completion, gold=gold, style="gsm8k").correct is correct


def test_the_collected_cases(shared_rows: SharedRows):
    cases = [case for case in shared_rows("cases/verifier.jsonl") if case["task_style"] == "gsm8k"]
    assert cases
    wrong = []
    for case in cases:
        verdict = grade(case["completion"], gold=case["gold"], style="gsm8k")
        expected = (case["expected"], not case.get("unparseable", False))
        if (verdict.correct, verdict.parsed) != expected:
            wrong.append((case["id"], case["why"], verdict))
    assert not wrong


def test_agreement_with_the_public_labels_of_four_systems(shared_rows: SharedRows):
    """5276 completions of grade-school-math's example solutions, which end in "A: 540" and carry `is_correct`."""
    systems = ("6b_finetuning", "6b_verification", "175b_finetuning", "175b_verification")
    right = dict.fromkeys(systems, 0)
    disagreements = []
    for row in shared_rows("data/gsm8k_example_model_solutions.jsonl"):
        gold = row["ground_truth"].rpartition("A: ")[2]
        for system in systems:
            label, solution = row[system]["is_correct"], row[system]["solution"]
            verdict = grade(solution, gold=gold, style="gsm8k").correct
            right[system] += verdict is True
            if verdict is not label:
                disagreements.append((system, gold, solution))
    assert not disagreements
    assert [round(count / 1319, 5) for count in right.values()] == [0.21683, 0.39045, 0.34723, 0.56255]


def test_wrong_unparsed_and_truncated_are_three_things():
    wrong = grade("#### 17", gold="18", style="gsm8k")
    unparsed = grade("I am not sure.", gold="18", style="gsm8k")
    truncated = grade("First, 9 + 9 =", gold="18", style="gsm8k", truncated=True)
    assert [(g.correct, g.parsed, g.truncated) for g in (wrong, unparsed, truncated)] == [
        (False, True, False),
        (False, False, False),
        (False, False, True),
    ]
    assert (wrong.answer_key, unparsed.answer_key, truncated.answer_key) == ("17", None, None)


@pytest.mark.parametrize("gold", ["", "unknown", "5 or 6", "9" * 1000])
def test_an_unreadable_gold_makes_the_completion_unscorable(gold: str):
    verdict = grade("#### 18", gold=gold, style="gsm8k")
    assert verdict.correct is None
    assert verdict.answer_key == "18"


def test_equal_answers_share_a_key_for_voting():
    texts = ["#### 1,000", "The answer is $1000.00.", r"\boxed{1{,}000}", "so 1000", "#### 2000/2"]
    assert {grade(text, gold="7", style="gsm8k").answer_key for text in texts} == {"1000"}
    assert {grade(text, gold="7", style="gsm8k").method for text in texts} == {"marker", "phrase", "box", "last_number"}


def test_a_wrong_text_cannot_pose_as_a_number():
    assert grade("#### 5 or 6", gold="7", style="gsm8k").answer_key == "text:5 or 6"


@pytest.mark.parametrize("style", ["gsm8k", "math", "mc"])
def test_keys_are_printable_ascii_whatever_the_answer_holds(style: str):
    """They are shown in terminals and written in tables."""
    for odd in ("\x1b[2J", "\x00", "\x7f", "\x85", "\ud800", "\u202e", "\u00e9"):
        for text in (f"5 or {odd}6", f"\\text{{{odd}}}", rf"\begin{{{odd}", odd):
            key = grade(rf"\boxed{{{text}}}", gold="A" if style == "mc" else "5", style=style).answer_key or ""
            assert key.isascii(), key
            assert key.isprintable(), key


def test_an_unknown_style_is_refused_and_gold_has_to_be_named():
    with pytest.raises(ValueError, match=r"style 'latex' is unknown: must be one of gsm8k"):
        grade("#### 5", gold="5", style="latex")
    with pytest.raises(TypeError):
        grade("5", "5", "gsm8k")  # pyright: ignore[reportCallIssue]


HOSTILE = {
    "digits": "7",
    "groups": "1,000,",
    "dots": ".",
    "hashes": "#",
    "markers": "#### 5 and ",
    "headings": "#### Step ",
    "open boxes": "\\boxed{",
    "spaced box": "\\boxed ",
    "braces": "{",
    "phrases": "answer is ",
    "half phrases": "answer ",
    "colons": "answer: a ",
    "annotations": "<<1",
    "questions": "1\nQ ",
    "spaces": " ",
    "lines": "\n",
    "combining marks": "\u0301\u0323",
    "ligatures": "\ufdfa",
    "halves": "½",
    "NUL": "\0",
    "lone surrogates": "\ud800",
    "minus signs": "-5",
    "fractions": "1/2/",
    "latex": "\\frac{1}{2}\\text{",
    "emoji": "😀5",
    "thin spaces": "1\u2009",
    "equations": "5=",
}


@pytest.mark.parametrize("pattern", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_text_stalls_the_grader(pattern: str):
    """Anything quadratic would take minutes on 200,000 characters; the slowest of these takes 0.1 s."""
    size = 200_000
    text = (pattern * size)[:size]
    start = time.perf_counter()
    for completion in (text, "1\nQ" + text, "#### 18" + text + "\n#### 18"):
        verdict = grade(completion, gold="18", style="gsm8k")
    assert verdict.correct is True
    assert time.perf_counter() - start < 5
