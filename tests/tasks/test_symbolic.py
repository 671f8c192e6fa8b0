r"""The slow path: what only computer algebra can decide, what its parser would misread, and one key for both paths."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tasks.parts.answers import read
from tasks.parts.equality import same
from tasks.parts.problem import Grade
from tasks.parts.stated import boxed_answer
from tasks.parts.symbolic import computed
from tasks.parts.trees import Tree
from tasks.parts.verify import Asked, equal, grade, grade_all

EQUAL = [
    ("1/2", r"\int_0^1 x dx"),
    (r"x\in[-2,7]", r"[-2,\sum_{k=3}^{4} k]"),
    (r"\text{lcm}(4,6), 5", r"5 \text{ and } 12"),
    ("x<2", "-x>-2"),
    ("(-2,2)", "x^2<4"),
    (r"|x|\ge 3", r"(-\infty,-3]\cup[3,\infty)"),
    ("x+y<3", "-2x-2y>-6"),
    (r"\frac{n(n+1)}{2}", r"S=\sum_{k=1}^{n} k"),
    (r"2\int_0^1 x dx=1", "1"),
    ("y^2=x^2", r"y^2=2\int x dx"),
    (r"\begin{vmatrix}1&2\\3&4\end{vmatrix}", "-2"),
    (r"2\begin{pmatrix}1\\3\end{pmatrix}", "(2,6)"),
    (r"\lim_{x\to 0}\frac{\sin x}{x}", "1"),
    (r"\lim_{x\to\infty} x", r"\infty"),
    (r"\sin^{-1}(1/2)", r"\frac{\pi}{6}"),
    (r"\sum_{i=1}^{3} i^2", "14"),
    (r"\sqrt{2}\int_0^1\sqrt{2} dx", "2"),
]
DIFFERENT = [
    ("x<2", "-x<-2"),
    ("x<2", "-y>-2"),
    ("x+y<3", r"x+y\le 3"),
    ("x+y<3", "-x-y<-3"),
    (r"\frac{1}{0}", r"\frac{2}{0}"),
    ("2", r"2\int_0^1 x dx=2"),
    ("5", r"\sum_{k=1}^{3} k, 5"),
    ("1", r"\int_0^1 10^{10^{-99}} dx"),
    ("a", r"A\prod_{k=1}^{1} k"),
    (r"P(a)+\prod_{k=1}^{1} k", r"P(b)+\prod_{k=1}^{1} k"),
]
MISREAD = [
    ("5", "2 3"),
    ("1", r"5\frac{2}{3}\prod_{k=1}^{1} k-\frac73"),
    ("11", r"\phantom{5}6"),
    ("2", r"\sqrt12"),
    ("2517", "2516_9+1"),
    ("1/32", ".5 .5 .5 .5 .5"),
    ("0", "0.0.0"),
    ("1360", r"\binom{9}{4}1234"),
    ("3", r"x=\sum_{k=1}^{1} (\frac12)6"),
    (r"\pi", r"-=<+=\pi"),
    ("x", r"x'\prod_{k=1}^{1} k"),
    ("5", r'\sum_{k=5}^{5} k"'),
    (r"\delta", r"\Delta\prod_{k=1}^{1} k"),
]
"""Answers that the parser takes for the gold, by what it drops or adds."""
KEYS = [
    ("x^2+x", r"\int (2x+1) dx", "x(x+1)"),
    ("2x", r"\max(2x,2x)", r"\frac{6x}{\gcd(6,9)}"),
    ("1/2", r"\int_0^1 x dx", "0.5"),
    (r"\frac{\sqrt2}{2}", r"\int_0^1 \frac{\sqrt2}{2} dx", r"\sin(\sin^{-1}\frac{\sqrt{2}}{2})"),
    ("3-4i", r"3-\sum_{k=4}^{4} ki"),
    (r"\theta_1+x_{12}", r"\theta_1+x_{12}\prod_{k=1}^{1} k"),
    ("(2, oo)", "2x>4", "x>2"),
    ("xy=6", r"xy=\prod_{k=1}^{3} k"),
    (r"-\sqrt{x-2}+2", r"2-\int_3^4\sqrt{x-2} dy"),
    (r"\frac{1}{2004!}", r"\int_0^1\frac{1}{2004!}dx"),
]


def graded(gold: str, answer: str) -> Grade:
    """One at a time, by one worker: each more takes half a second to start."""
    found = grade(rf"\boxed{{{answer}}}", gold=gold, style="math", limit_seconds=30)
    assert not found.timed_out
    return found


def test_what_needs_computer_algebra_gets_its_verdict() -> None:
    assert [pair for pair in EQUAL + DIFFERENT if same(*map(read, pair)) is not None] == DIFFERENT[6:7]
    assert [pair for pair in EQUAL if not graded(*pair).correct] == []
    assert [pair for pair in DIFFERENT if graded(*pair).correct] == []


def test_what_the_parser_would_misread_is_not_understood() -> None:
    grades = [graded(*pair) for pair in MISREAD]
    assert [pair for pair, found in zip(MISREAD, grades, strict=True) if found.correct] == []
    assert [found.answer_key for found in grades if not str(found.answer_key).startswith("text:")] == []
    assert all(equal(gold=answer, answer=answer) for _, answer in MISREAD)


def test_an_answer_has_the_same_key_from_both_paths() -> None:
    keys = [{graded("0", answer).answer_key or "text:" for answer in answers} for answers in KEYS]
    assert [found for found in keys if len(found) != 1 or min(found).startswith("text:")] == []
    assert len(set.union(*keys)) == len(KEYS)


@pytest.mark.slow
def test_hanging_answers_cost_no_other_its_verdict() -> None:
    """100 that need a worker, and 20 between them that hang: all are judged, and their time is bounded."""
    hanging, limit = 20, 1.0
    good = [Asked(rf"\boxed{{\sum_{{k=1}}^{{{n}}} k}}", str(n * (n + 1) // 2)) for n in range(hanging, hanging + 100)]
    bad = [Asked(rf"\boxed{{\sum_{{k=1}}^{{10^8}}\sqrt{{k+{n}}}}}", "5") for n in range(hanging)]
    mixed = good[:]
    for index, one in enumerate(bad):
        mixed.insert(index * 5, one)
    others = set(psutil.Process().children(recursive=True))
    start = time.monotonic()
    found = grade_all(mixed, style="math", limit_seconds=limit)
    assert time.monotonic() - start < 30 + hanging * (limit + 4)
    late = [item in bad for item in mixed]
    assert [one.timed_out for one in found] == late
    assert [one.correct for one in found] == [not one for one in late]
    assert grade(r"\boxed{\sum_{k=1}^{3} k}", gold="6", style="math", limit_seconds=30).correct
    own = set(psutil.Process().children(recursive=True)) - others
    assert not any(child.status() == psutil.STATUS_ZOMBIE for child in own)


def test_a_worker_that_dies_while_it_grades_makes_that_answer_wrong_and_no_other() -> None:
    """It is killed here, as the kernel does where memory runs out."""
    hanging = r"\boxed{\sum_{k=1}^{10^8}\sqrt{k-\frac{1}{7}}}"
    assert grade(r"\boxed{\sum_{k=1}^{4} k}", gold="10", style="math", limit_seconds=30).correct
    before = {child: sum(child.cpu_times()[:2]) for child in psutil.Process().children()}
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(grade, hanging, gold="10", style="math", limit_seconds=60)
        busy: list[psutil.Process] = []
        while not busy:
            time.sleep(0.02)
            assert not waiting.done()
            busy = [child for child in before if sum(child.cpu_times()[:2]) > before[child] + 0.1]
        busy[0].kill()
        found = waiting.result(timeout=30)
    assert (found.correct, found.timed_out, found.parsed) == (False, True, True)
    assert found.answer_key == r"timeout:\sum_{k=1}^{10^8}\sqrt{k-\frac{1}{7}}"
    assert grade(r"\boxed{\sum_{k=1}^{5} k}", gold="15", style="math", limit_seconds=30).correct
    assert threading.active_count() < 20


@pytest.mark.slow
def test_both_engines_agree_on_the_golds_of_math(shared_dir: Path) -> None:
    """Our reader and the parser with sympy, on each gold that is a single value; f(x) is a product for one of them."""
    lines = (shared_dir / "data/math_test_5000.jsonl").read_text(encoding="utf-8").splitlines()
    golds = sorted({boxed_answer(json.loads(line)["solution"])[0] or "" for line in lines})
    pairs = [
        (gold, read(gold), computed(Tree("raw", gold.replace("\\!", "").strip("$ ").rstrip(".")))) for gold in golds
    ]
    both = [(gold, *trees) for gold, *trees in pairs if trees[0].kind == "value" == trees[1].kind]
    assert len(both) > 500
    assert [gold for gold, ours, theirs in both if ours.text != theirs.text] == ["3 - 2f(x)"]
