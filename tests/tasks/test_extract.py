r"""Where the answer is found: "####", box, phrase, last number, and what may not be taken for one."""

import pytest

from tasks.parts.extract import Answer, balanced_boxes, ends_with_marker, final_text, gsm8k_answer
from tasks.parts.numbers import is_number


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("so 9.\n#### 18", Answer("18", "marker")),
        ("so 9.\n####18", Answer("18", "marker")),
        ("so 9.\n####\n18", Answer("18", "marker")),
        ("so 9.\n#### - 18", Answer("-18", "marker")),
        ("so 9.\n#### The final answer is 18.", Answer("18", "marker")),
        ("so 9.\n#### Answer: 18", Answer("18", "marker")),
        ("#### 5\n#### 18", Answer("18", "marker")),
        ("#### 5 #### 18", Answer("18", "marker")),
        ("#### 18\n####", Answer("18", "marker")),
        ("#### 18 ####", Answer("18", "marker")),
        (r"#### 18, or \boxed{5}", Answer("text:18, or \\boxed{5}", "marker")),
        (r"It is 9. \boxed{18}", Answer("18", "box")),
        (r"\fbox{18} and then 9", Answer("18", "box")),
        (r"\boxed{18} \boxed{}", Answer("18", "box")),
        (r"\boxed{5} no, \boxed{18}", Answer("18", "box")),
        (r"\boxed{\frac{3}{4}}", Answer("3/4", "box")),
        (r"\boxed{\boxed{18}}", Answer("18", "box")),
        (r"\boxed{a \} 18}", Answer("18", "box")),
        (r"The answer is 18. I checked it 2 times.", Answer("18", "phrase")),
        ("The final answer to this question is therefore $18.50!", Answer("37/2", "phrase")),
        ("Answer: 18\nThat took 3 steps", Answer("18", "phrase")),
        ("**Final Answer:**\n**18**\n(2 steps)", Answer("18", "phrase")),
        ("The answer is unknown. 18", Answer("18", "last_number")),
        ("Answer: He sold 48 in April, 24 in May, which makes 72.", Answer("72", "last_number")),
        ("Answer: 1. Add 40 and 32. 2. So it is 72.", Answer("72", "last_number")),
        ("He has 3 and buys 15, so 18 apples.\n", Answer("18", "last_number")),
        ("<<9+9=18>>18 pens", Answer("18", "last_number")),
        ("18 <<9+10=19>>", Answer("18", "last_number")),
        (r"It is \frac{3}{4}", Answer("3/4", "last_number")),
        ("no number", Answer(None, "none")),
        ("#### ,", Answer(None, "none")),
        ("", Answer(None, "none")),
    ],
)
def test_the_most_explicit_statement_wins_and_the_last_of_its_kind(completion: str, answer: Answer):
    assert gsm8k_answer(completion) == answer


@pytest.mark.parametrize("heading", ["#### Step 1", "#### Step 1: add", "#### 1. Add", "#### 1) Add", "#### 1: Add"])
def test_a_markdown_heading_is_no_answer(heading: str):
    assert gsm8k_answer(f"{heading}\n9 + 9 = 18") == Answer("18", "last_number")


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("<think>5</think>\n18", "\n18"),
        ("thought whose opening is in the template: 5</think>18", "18"),
        ("<think>5", ""),
        ("<think>5</think><think>18", ""),
        ("18<|im_end|>\n5", "18"),
        ("18</s>5", "18"),
        ("18\nQuestion: 5", "18\n"),
        ("18\n\n**Question 2:** 5", "18\n\n"),
        ("18\nQ: 5", "18\n"),
        ("18\nProblem 12: 5", "18\n"),
        ("Let me see.\nQuestion: 18", "Let me see.\nQuestion: 18"),
        ("\nQuestion: 18", "\nQuestion: 18"),
        ("18. No Question: 5", "18. No Question: 5"),
    ],
)
def test_only_the_final_text_of_this_question_counts(completion: str, text: str):
    assert final_text(completion) == text


@pytest.mark.parametrize(
    ("completion", "answer"),
    [
        ("It is\n#### 18", Answer(None, "none")),
        ("It is\n#### 18\n", Answer("18", "marker")),
        ("#### 18\n\nNext, consider 5", Answer("18", "marker")),
        ("The answer is 18.\nLet me check: 9 +", Answer("18", "phrase")),
        ("\\boxed{18}\nas I", Answer("18", "box")),
        ("First 9,\nthen 18,\nthen", Answer(None, "none")),
    ],
)
def test_of_a_cut_completion_only_whole_lines_and_explicit_answers_count(completion: str, answer: Answer):
    """ "#### 18" at the cut may have been on its way to 180; a number on the way is not an answer."""
    assert gsm8k_answer(completion, truncated=True) == answer


def test_boxes_must_close():
    assert list(balanced_boxes(r"\boxed{1} \boxed{ } \fbox{2 {3}} \boxed{4")) == ["2 {3}", "1"]


def test_the_last_line_must_be_the_marker():
    assert ends_with_marker("work\n#### 18\n\n")
    assert ends_with_marker("#### 18 dollars")
    assert not ends_with_marker("#### 18\nDone.")
    assert not ends_with_marker("so it is #### 18")
    assert not ends_with_marker("####")
    assert not ends_with_marker("#### 5 or 6")


def test_a_number_is_never_read_from_its_middle():
    """The last number is read through a window of 300 characters, which must not cut it in two."""
    assert gsm8k_answer("12345" + "." * 4 + "x" * 292).key == "12345"
    for padding in range(285, 305):
        assert gsm8k_answer("12345" + " " * padding).key == "12345"
        assert gsm8k_answer("777" + "x " * padding + "12345").key == "12345"
        assert not is_number(gsm8k_answer("1" * padding).key)
    assert gsm8k_answer("above 5\n" + "y" * 400 + " 18").key == "18"
