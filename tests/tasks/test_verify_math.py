r"""Styles "math" and "mc": where answers are found, the verdict's other fields, real completions, and hostile text."""

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tasks.parts.answers import read
from tasks.parts.equality import canonical_key, same
from tasks.parts.problem import Grade
from tasks.parts.stated import boxed_answer, math_answer
from tasks.parts.verify import Asked, equal, grade, grade_all

SharedRows = Callable[[str], list[dict[str, Any]]]


def math_grade(completion: str, gold: str = "5", **options: Any) -> Grade:
    return grade(completion, gold=gold, style="math", **options)


@pytest.mark.parametrize("style", ["math", "mc"])
def test_the_collected_cases(shared_rows: SharedRows, style: str):
    cases = [case for case in shared_rows("cases/verifier.jsonl") if case["task_style"] == style]
    assert cases
    wrong = []
    for case in cases:
        verdict = grade(case["completion"], gold=case["gold"], style=style)
        if (verdict.correct, verdict.parsed) != (case["expected"], not case.get("unparseable", False)):
            wrong.append((case["id"], case["why"], verdict))
    assert not wrong


@pytest.mark.parametrize(
    ("completion", "stated"),
    [
        (r"\boxed 5", "5"),
        (r"so $\boxed 57$.", "57"),
        (r"\boxed\frac{1}{2}", r"\frac{1}{2}"),
        (r"\boxed{\text{5}} is it", r"\text{5}"),
        (r"\fbox{5} $\to$ 6", "5"),
        (r"\boxed{5}\boxed{}", "5"),
        (r"\boxed{5}. Use \boxed{ }", "5"),
        (r"\boxed{3} or rather \boxed{4", "3"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\begin{pmatrix} 1 \\ 2 \end{pmatrix}}", r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}"),
        (r"$\boxed{1}$ and $\boxed{-2}$", "1, -2"),
        (r"\[\boxed{1}\text{ and }\boxed{-2}\]", "1, -2"),
        (r"\boxed{1}, \boxed{-2}, and \boxed{3}.", "1, -2, 3"),
        (r"\(\boxed{1}\) or \(\boxed{-2}\)", "1, -2"),
        (r"\boxed{840}, \boxed{840}", "840"),
        ("\\boxed{840}.\n\n**Final Answer**\n\\boxed{840}", "840"),
        (r"\boxed{1} \boxed{2}", "2"),
        (r"\boxed{1} is wrong, so \boxed{-2}", "-2"),
        (r"\boxed{1} and then, \boxed{-2}", "-2"),
        ("\\boxed{4}<|im_end|>\\boxed{5}", "4"),
        ("\\boxed{x}\n\nProblem 2: say \\boxed{y}", "x"),
        ("Question 1: no, 3 of 4.\n\nQuestion 2: yes.\n\nIn all \\boxed{1}", "1"),
        (r"\boxed{3}</think>\boxed{4}", "4"),
        (r"\boxed{1}" + "x" * 5000, "1"),
        (r"\boxed{" + "1+" * 1000 + "1}", "1+" * 1000 + "1"),
    ],
)
def test_boxes(completion: str, stated: str):
    assert math_answer(completion) == (stated, "box")


@pytest.mark.parametrize(
    ("completion", "stated", "method"),
    [
        ("The answer is 2/3", "2/3", "phrase"),
        ("The answer is $\\frac{2}{3}$, as 4/6 is.", r"\frac{2}{3}", "phrase"),
        ("Final Answer: The final answer is $5$. I hope it is correct.", "5", "phrase"),
        ("**Answer:** $x=5$", "x=5", "phrase"),
        ("So the final answer is\n\n\\[3.5\\]", "3.5", "phrase"),
        ("the answer is therefore 5 apples because 3+2=5.", "5", "phrase"),
        ("The answer is 4 10/3", "4 10/3", "phrase"),
        ("The answer is 5 or 6.", "5 or 6", "phrase"),
        ("The answer is Evelyn.", "Evelyn", "phrase"),
        ("hmm 3</think>The answer is (1, 2).", "(1, 2)", "phrase"),
        ("Thus, of 100, it is **73**.", "73", "last_number"),
        ("We get $y = x + 1 = 73$.", "73", "last_number"),
        (r"so the sum is \(\sqrt{2}\)", r"\sqrt{2}", "last_number"),
        (r"\frac{1}{2}", r"\frac{1}{2}", "last_number"),
        ("It holds.\n(1, 2)", "(1, 2)", "last_number"),
        (r"so we get -\frac{1}{2}.", r"-\frac{1}{2}", "last_number"),
        ("x = 5", "5", "last_number"),
        ("5\n\nRemember: put it in \\boxed{}.", "5", "last_number"),
    ],
)
def test_without_a_box(completion: str, stated: str, method: str):
    assert math_answer(completion) == (stated, method)


@pytest.mark.parametrize(
    "completion",
    [
        r"The answer is 5, that is \boxed{5",
        r"The answer is \boxed{}.",
        r"<think>\boxed{5}",
        r"<think>\boxed{5}</think>",
        r"\boxed{ . }",
        "no idea",
        "",
    ],
)
def test_no_answer(completion: str):
    verdict = math_grade(completion)
    assert (verdict.correct, verdict.parsed, verdict.answer_key, verdict.method) == (False, False, None, "none")


def test_of_a_cut_completion_only_statements_count():
    assert math_grade(r"so \boxed{5}, since", truncated=True).correct is True
    assert math_grade("The answer is 5.\nCheck: 9 +", truncated=True).correct is True
    for text in ("It is 5", "The answer is 5", "$x = 5$\nThen 5"):
        assert math_grade(text, truncated=True).parsed is False


@pytest.mark.parametrize(
    ("gold", "completion", "key"),
    [
        ("B", "The answer is (B) 12.", "B"),
        ("B", "The answer is B because A is wrong.", "B"),
        ("B", "**Answer: (B)**", "B"),
        ("B", "the answer should be B", "B"),
        ("A", "The correct answer is A, since it is.", "A"),
        ("A", "A is correct.", "A"),
        ("B", "Option B is correct.", "B"),
        ("B", "Therefore, (B) is the right choice.", "B"),
        ("B", r"\boxed{\text{(B)}}", "B"),
        ("B", r"\boxed{\textbf{(B)}\ 12}", "B"),
        ("B", r"\boxed{b}", "B"),
        ("(B)", "<think>A</think>B.", "B"),
        (r"\text{(B)}", "First A) looks right.\n\nB) 12", "B"),
        ("D", "So we get 12, which is (D).", "D"),
        ("B", "\\boxed{B}\n\nQuestion: x\nAnswer: C", "B"),
    ],
)
def test_a_chosen_letter(gold: str, completion: str, key: str):
    verdict = grade(completion, gold=gold, style="mc")
    assert (verdict.correct, verdict.answer_key) == (True, key)


@pytest.mark.parametrize(
    "completion",
    [
        *(r"\boxed{C}. A triangle has three sides.", "A triangle has three sides.", "I think a triangle.", ""),
        *("A or B", "The answer is A or B", r"\boxed{A, B}", "The answer is a triangle.", "<think>A", r"\boxed{A"),
        *(r"\boxed{12}", r"\text{E}", "Not A. The answer is B", "**C**", "C) a triangle"),
    ],
)
def test_a_is_not_chosen(completion: str):
    assert grade(completion, gold="A", style="mc").correct is False


def test_an_unreadable_gold_makes_the_completion_unscorable():
    assert [math_grade(r"\boxed{5}", gold).correct for gold in ("", "  ", "$$", ".")] == [None] * 4
    assert [grade("B", gold=gold, style="mc").correct for gold in ("", "12", "BC")] == [None] * 3
    assert equal(gold="", answer="5") is None
    assert math_grade("nothing", "").correct is None


def test_what_is_not_understood_here_is_judged_by_a_worker():
    """The first three are no plain arithmetic; the system of equations is refused by everyone and equals itself."""
    pairs = [("6", r"\sum_{k=1}^{3} k"), (r"\sum_{k=1}^{3} k", "7"), ("3", r"\max(2,3)"), (r"x \equiv 1 \pmod 4",) * 2]
    assert [same(*map(read, pair)) for pair in pairs] == [None, None, None, True]
    grades = grade_all([Asked(rf"\boxed{{{answer}}}", gold) for gold, answer in pairs], style="math", limit_seconds=20)
    assert [verdict.correct for verdict in grades] == [True, False, True, True]
    assert [verdict.answer_key for verdict in grades][:2] == ["6", "7"]
    assert not any(verdict.timed_out for verdict in grades)


def test_a_timeout_is_wrong_and_a_class_of_its_own():
    """A sum of a hundred million roots, each to sixty digits, takes longer than any machine has here."""
    endless = r"\sum_{k=1}^{10^8}\sqrt{k+\frac{1}{9}}"
    hanging = math_grade(rf"\boxed{{{endless}}}", "6", limit_seconds=0.2)
    assert (hanging.correct, hanging.timed_out, hanging.parsed) == (False, True, True)
    assert hanging.answer_key is not None
    assert hanging.answer_key.startswith(r"timeout:\sum_{k=1}^{10^8}")
    itself = math_grade(rf"\boxed{{{endless}}}", endless, limit_seconds=0.2)
    assert (itself.correct, itself.timed_out) == (True, False)


@pytest.mark.parametrize(
    "tower", ["9^{9^{9^{9}}}", "5^(5^(5^(5^5)))", "(10^{9})!", r"2^{-9^{9^9}}", "e^{e^{e^{e^{e}}}}"]
)
def test_what_nobody_can_compute_counts_as_out_of_time_at_once(tower: str):
    start = time.perf_counter()
    verdict = math_grade(rf"\boxed{{{tower}}}")
    assert (verdict.correct, verdict.timed_out) == (False, True)
    assert str(verdict.answer_key).startswith("timeout:")
    assert math_grade(rf"\boxed{{{tower}}}", tower).correct is True
    assert time.perf_counter() - start < 2


def test_grades_come_in_order_and_from_any_thread():
    items = [Asked(rf"\boxed{{{n}}}", str(n - n % 2)) for n in range(200)]
    expected = [n % 2 == 0 for n in range(200)]
    assert [verdict.correct for verdict in grade_all(items, style="math")] == expected
    with ThreadPoolExecutor(8) as pool:
        for grades in pool.map(lambda _: grade_all(items, style="math"), range(16)):
            assert [verdict.correct for verdict in grades] == expected
    assert threading.active_count() < 20


def corrupted(gold: str) -> str:
    """Another answer of the same form: its first digit is the next one, else something is added."""
    place = next((index for index, character in enumerate(gold) if character in "0123456789"), None)
    if place is None:
        return f"not {gold}" if "\\text" in gold else f"{gold}+1"
    return gold[:place] + str((int(gold[place]) + 1) % 10 or 1) + gold[place + 1 :]


def failing(rows: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """Rows whose gold is not equal to itself, not found in its own solution, or equal to a corrupted one."""
    golds = [boxed_answer(row["solution"])[0] or "" for row in rows]
    own = grade_all([Asked(rf"\boxed{{{gold}}}", gold) for gold in golds], style="math", limit_seconds=20)
    solved = [Asked(row["solution"], gold) for row, gold in zip(rows, golds, strict=True)]
    found = grade_all(solved, style="math", limit_seconds=20)
    false = grade_all([Asked(rf"\boxed{{{corrupted(gold)}}}", gold) for gold in golds], style="math", limit_seconds=20)
    triples = zip(rows, golds, own, found, false, strict=True)
    return [
        (row["idx"], gold) for row, gold, *three in triples if [one.correct for one in three] != [True, True, False]
    ]


def test_every_gold_of_math_is_equal_to_itself_and_found_in_its_solution(shared_rows: SharedRows):
    assert failing(shared_rows("data/math_test_5000.jsonl")[::25]) == []


@pytest.mark.slow
def test_all_golds_of_math(shared_rows: SharedRows):
    assert failing(shared_rows("data/math_test_5000.jsonl")) == []


@pytest.mark.slow
def test_different_golds_are_not_equal(shared_rows: SharedRows):
    """Of 20,000 pairs those that match have one key, but for a vector that is written as a point."""
    golds = [boxed_answer(row["solution"])[0] or "" for row in shared_rows("data/math_test_5000.jsonl")]
    rng = random.Random(0)
    pairs = [(gold, other) for gold, other in (rng.sample(golds, 2) for _ in range(20_000)) if gold != other]
    grades = grade_all([Asked(rf"\boxed{{{other}}}", gold) for gold, other in pairs], style="math", limit_seconds=20)
    matches = {pair for pair, verdict in zip(pairs, grades, strict=True) if verdict.correct}
    assert 0 < len(matches) < 20
    odd = {pair for pair in matches if canonical_key(read(pair[0])) != canonical_key(read(pair[1]))}
    assert odd == {("\\begin{pmatrix} 1 \\\\ 3 \\end{pmatrix}", "(1,3)")}


def test_agreement_with_the_published_scores_of_800_completions(shared_rows: SharedRows):
    """Qwen2.5-Math's own scores; the one that differs writes 10000 where the gold is 10{,}000."""
    rows = shared_rows("data/qwen_rm_maj_example_math_cot_100.jsonl")
    items = [Asked(code, row["gt"]) for row in rows for code in row["code"]]
    scores = [
        (row["idx"], row["gt"], prediction, score)
        for row in rows
        for prediction, score in zip(row["pred"], row["score"], strict=True)
    ]
    grades = grade_all(items, style="math", limit_seconds=20)
    differences = [label for label, verdict in zip(scores, grades, strict=True) if verdict.correct is not label[3]]
    assert differences == [(72, "10{,}000", "10000", False)]
    assert Counter(verdict.method for verdict in grades) == {"box": 800}


PIECES = [
    *(
        "9^{",
        "9^",
        "^",
        "}",
        "{",
        "(",
        ")",
        "[",
        "|",
        "!",
        "\\frac",
        "\\frac{1}{2}",
        "\\sqrt",
        "\\pm",
        "=",
        "x=",
        "<",
        ",",
    ),
    *(
        "\\{",
        "\\}",
        "\\cup",
        "\\text{a}",
        "\\text{",
        "\\begin{pmatrix}",
        "\\end{pmatrix}",
        "\\\\",
        "&",
        "\\boxed{",
        "$",
    ),
    *("\\left(", "\\in", "\\leq", "\\dots", "%", ":", "_", "'", "\0", "\u200b", "\u202e", "\u0301", "\ud800", "½", "٣"),
    *(
        "1",
        "23",
        ".5",
        "1,234",
        "x",
        "abc ",
        "e^",
        "i",
        "\\pi",
        "\\sin",
        "\\log_",
        "\\deg",
        "-",
        "+",
        "*",
        "/",
        " ",
        "\n",
        " cm",
    ),
    *(
        "\\int",
        "\\sum_{k=1}^{3}",
        "\\lim",
        "\\binom{9}{4}",
        "**",
        "the answer is ",
        "(A) ",
        "\\lfloor",
        "0.\\overline{3}",
    ),
]


def hostile(rng: random.Random) -> str:
    """A short mixture in a box, or one piece repeated."""
    if rng.random() < 0.3:
        return (rng.choice(PIECES) + rng.choice(PIECES)) * rng.choice([5, 50, 700])
    text = "".join(rng.choices(PIECES, k=rng.randint(1, 30)))
    return rf"\boxed{{{text}}}" if rng.random() < 0.8 else text


@pytest.mark.parametrize("style", ["math", "mc"])
def test_no_short_text_stalls_or_breaks_the_part_that_runs_here(style: str):
    rng = random.Random(style)
    texts = [hostile(rng) for _ in range(300)]
    start = time.perf_counter()
    for text in texts:
        if style == "mc":
            assert grade(text, gold="B", style="mc").correct in (True, False)
        else:
            stated = math_answer(text).text
            same(read("5"), read(stated or ""))
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize("piece", PIECES)
def test_no_long_text_stalls_the_search_for_an_answer(piece: str):
    text = (piece * 100_000)[:100_000]
    start = time.perf_counter()
    math_answer(text)
    assert math_answer("\\boxed{5}" + text.replace("\\boxed{", "") + "\n\n\\boxed{18}").text == "18"
    assert time.perf_counter() - start < 5


@pytest.mark.slow
def test_ten_thousand_hostile_answers():
    rng = random.Random(2)
    items = [Asked(hostile(rng), rng.choice(["5", r"\frac{1}{2}", "(1,2)", "x^2"])) for _ in range(10_000)]
    grades = grade_all(items, style="math")
    assert len(grades) == 10_000
    assert all(verdict.correct in (True, False) for verdict in grades)
    assert sum(bool(verdict.correct) for verdict in grades) < 100
