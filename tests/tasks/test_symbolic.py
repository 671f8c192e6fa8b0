r"""The slow path: what a computer algebra system takes for equal by mistake is caught, and what is equal is found."""

import json
import random
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import pytest

from tasks.parts.extract import balanced_boxes
from tasks.parts.symbolic import canonical, compare, judge
from tasks.parts.workers import run_all

DIFFERENT = (
    ("4", r"4\sqrt(2)"),
    ("2", "2 2/3"),
    ("14/3", "4 10/3"),
    (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}"),
    (r"\frac{1}{2004!}", r"\frac{1}{2003!}"),
    (r"\frac{1}{2004!}", "0"),
    (r"1-1/\mathrm{e}", r"1+1/\mathrm{e}"),
    ("1,2,...,10", "1,2,...,9"),
    (r"1,2,\ldots,10", r"1,2,\ldots,9"),
    ("2516_9", "2516_8"),
    ("2516_8", "2517"),
    (r"\pm 2021", "2021"),
    ("12:00", "1:00"),
    ("33.3", r"\frac{100}{3}"),
    ("9", r"9\%"),
    ("(0,1)", "[0,1]"),
    ("(1,2)", r"\{1,2\}"),
    ("(1,2)", "(2,1)"),
    ("1,1,2", "1,2"),
    ("0<x<12.5", r"0\le x<12.5"),
    ("3x-y+13=0", "3x+4y+14=0"),
    ("y=2x+1", "y=2x+2"),
    ("x<2", "-x<-2"),
    ("x<2", "x>2"),
    ("n=2,3,4", "n=1,2,3"),
    (r"(-\infty,2)\cup(2,\infty)", r"(-\infty,2]\cup(2,\infty)"),
    (r"\text{odd}", "even"),
    (r"\text{ABC}", "CAB"),
    ("(11,7),(7,11)", "(7,11),(7,11)"),
    ("x=5", "y=5"),
    ("3+4i", "3-4i"),
    ("0.333333", r"\frac13"),
    ("a+b", "c+b"),
    ("2 3", "5"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\3\end{pmatrix}"),
    ("(x+1)^2", "x^2+2x+2"),
    ("|x|", "x"),
    (r"\sin^2 x+\cos^2 x", "1"),
    ("2c", "2"),
    ("a+2c", "a+2"),
    ("120000", "120001"),
    ("1331,1728", "1728"),
    ("x=1,y=2", "x=2, y=1"),
    ("3 or 4", "7"),
    (r"\frac{1}{0}", r"\frac{2}{0}"),
    ("9^{9^{9^9}}", "5"),
    ("2^{2003}", "2^{2002}"),
    (r"\infty", r"-\infty"),
    ("A", "B"),
    ("2A", "2a"),
    ("x^3-1=0", "x-1=0"),
    ("f(x)", "f(y)"),
    ("1-10^{-70}", "1"),
    ("x^2", "x^2+10^{-30}"),
    ("3", "3=3"),
    (r"2\pi", "6.283185307"),
    (r"2\pi", r"\tau"),
    (r"y=\pm x", "y=x"),
)
"""Gold and answer."""
EQUAL = (
    (r"4\sqrt{2}", r"4\sqrt(2)"),
    ("8/3", "2 2/3"),
    ("2.5", r"2\frac{1}{2}"),
    (r"\frac{1}{2^{99}}", "2^{-99}"),
    (r"\frac{2004}{2004!}", r"\frac{1}{2003!}"),
    (r"1-1/\mathrm{e}", "1-1/e"),
    ("2516_8", "2516"),
    ("2516_8", "2516_{8}"),
    (r"\pm 2021", r"\{-2021,2021\}"),
    (r"\pm 2021", "2021,-2021"),
    (r"9\%", "0.09"),
    ("9%", "0.09"),
    (r"m \ge \sqrt 2", r"[\sqrt2,\infty)"),
    (r"m \geq \sqrt{2}", r"[\sqrt{2},+\infty)"),
    (r"[\sqrt{2},\infty)", r"m \ge \sqrt{2}"),
    ("(1,2)", "1,2"),
    (r"\{1,2\}", r"\{2,1\}"),
    (r"\{1,1,2\}", r"\{1,2\}"),
    ("(0,12.5)", "0<x<12.5"),
    ("0<x<12.5", "12.5>x>0"),
    ("34x+45y-20z+100=0", "-34x-45y+20z-100=0"),
    ("y=2x+1", "2x-y+1=0"),
    ("y=2x+1", "2x+1"),
    ("x<2", "-x>-2"),
    ("n=2,3,4", "2,3,4"),
    ("n=2,3", "n=2 or n=3"),
    (r"(-\infty,2)\cup(2,\infty)", r"x\ne 2"),
    (r"(-\infty,2)\cup(2,\infty)", r"(2,\infty)\cup(-\infty,2)"),
    (r"\text{odd}", "odd"),
    (r"\text{odd}", "odd."),
    ("(11,7)or(7,11)", r"(7,11),\ (11,7)"),
    ("5", "x=5"),
    (r"3\times 10^{8}", "300000000"),
    ("3+4i", "4i+3"),
    ("(3+4i)^2", "-7+24i"),
    (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}"),
    ("2+3", "5"),
    ("10 000", "10000"),
    ("10,000", "10000"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}1\\2\end{pmatrix}"),
    (r"\begin{pmatrix}1/2\\2\end{pmatrix}", r"\begin{pmatrix}0.5\\2\end{pmatrix}"),
    ("(x+1)^2", "x^2+2x+1"),
    (r"\sqrt{x^2}", "|x|"),
    (r"2\sin x\cos x", r"\sin 2x"),
    (r"5\text{ cm}", "5"),
    ("1e5", "100000"),
    (r"\frac{x}{y}", "x/y"),
    ("x=1,y=2", "x=1, y=2"),
    ("(1,2)", "x=1,y=2"),
    (r"3,\text{ or }4", "3,4"),
    ("2^{10}", "1024"),
    (r"\log_2 8", "3"),
    (r"\binom{5}{2}", "10"),
    (r"\int_0^1 x dx", r"\frac12"),
    (r"\sum_{i=1}^{n} i", r"\sum_{i=1}^{n} i"),
    ("[-2,7]", r"x\in[-2,7]"),
    (r"x \in [-2,7]", r"-2\le x\le 7"),
    (r"\infty", r"\infty"),
    (r"\mathbb{R}", r"(-\infty,\infty)"),
    (r"\emptyset", r"\emptyset"),
    ("A", "A"),
    (r"\{5\}", "5"),
    (r"\sqrt[3]{2}", "2^{1/3}"),
    (r"90^\circ", "90"),
    ("xy=3", "y=3/x"),
    ("f(x)=x^2", "x^2"),
    (r"e^{i\pi}", "-1"),
    ("0.1+0.2", "0.3"),
    (r"\sqrt{2}\sqrt{3}-\sqrt{6}", "0"),
    (r"\frac{3}{4}\text{ hours}", "3/4"),
    (r"(0,1)\cup\{5\}", r"(0,1)\cup\{5\}"),
    ("[1,2)", r"1\le x<2"),
    ("x>2 or x<1", r"(-\infty,1)\cup(2,\infty)"),
    ("{1, 2}", r"\{1,2\}"),
    ("7^{-1}", r"\frac17"),
    (r"-\frac{1}{2}", r"\frac{-1}{2}"),
    ("n(n+1)/2", r"\frac{n^2+n}{2}"),
)
"""Gold and answer."""


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_different(gold: str, answer: str) -> None:
    assert not compare(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), EQUAL[:20])
def test_equal(gold: str, answer: str) -> None:
    assert compare(gold, answer)


@pytest.mark.slow
@pytest.mark.parametrize(("gold", "answer"), EQUAL[20:])
def test_equal_in_many_more_forms(gold: str, answer: str) -> None:
    assert compare(gold, answer)


@pytest.mark.parametrize(
    ("answers", "key"),
    [
        (("0.5", r"\frac12", r"50\%", "2^{-1}", "x=0.5"), "1/2"),
        ((r"\frac{\sqrt{2}}{2}", r"1/\sqrt{2}", r"\sin(\pi/4)"), "0.707106781186547524400844362105"),
        (("1,2", "2, 1", r"1 \text{ and } 2"), "{1, 2}"),
        ((r"\{2,1,1\}", r"\{1,2\}"), "{1, 2}"),
        (("(1,2)", r"\left( 1, \frac{4}{2} \right)"), "(1, 2)"),
        ((r"\text{Odd}.", r"\text{ odd}"), "text:odd"),
        (
            (r"m \ge \sqrt{2}", r"[\sqrt2, \infty)", r"m\in[\sqrt{2},+\infty)"),
            "[1.41421356237309504880168872421, infinity)",
        ),
        ((r"x \ne 2", r"(2,\infty)\cup(-\infty,2)"), "union<(-infinity, 2), (2, infinity)>"),
        (("3-4i", "-4i + 3", "(2-i)^2"), "3-4i"),
        (("1,2,...,10", "12:00", "3+", "2 3", "", "\ud800", "\x00", "9" * 2000, "(" * 40 + "1" + ")" * 40), None),
    ],
)
def test_equal_answers_have_one_key(answers: tuple[str, ...], key: str | None) -> None:
    assert {canonical(answer) for answer in answers} == {key}


def test_expressions_with_variables_have_a_key_each() -> None:
    keys = [canonical(text) for text in ("(x+1)^2", "x^2+2x+1", "x^2+2x", "y^2+2y+1", r"|x|", r"\sqrt{x^2}", "x")]
    assert keys[0] == keys[1]
    assert keys[4] == keys[5]
    assert len(set(keys)) == 5
    planes = [canonical(text) for text in ("3x-y+z=5", "5-3x+y-z=0", "6x-2y+2z=10", "3x-y+z=6")]
    assert len(set(planes[:3])) == 1
    assert planes[3] not in (planes[0], None)


def test_a_key_of_a_number_is_its_value_however_it_is_written() -> None:
    rng = random.Random(0)
    for _ in range(30):
        value = Fraction(rng.randrange(-999, 999), rng.randrange(1, 999))
        assert canonical(rf"\frac{{{value.numerator}}}{{{value.denominator}}}") == str(value)


@pytest.mark.parametrize(
    "answer", [r"9^{9^{9^9}}", "((9!)!)!", r"\frac{1}{10^{10^{10}}}", "e^{e^{e^{e^e}}}", "2^{-10^{9}}", "(10^{99})!"]
)
def test_what_is_too_large_to_compute_is_refused_at_once(answer: str) -> None:
    """Not by the worker's limit: each would fill the memory or take for ever."""
    assert judge("5", answer) == (False, None)
    assert compare(answer, answer)


@pytest.mark.slow
def test_golds_of_math_are_their_own_and_no_other(shared_dir: Path) -> None:
    lines = (shared_dir / "data/math_test_5000.jsonl").read_text(encoding="utf-8").splitlines()[::7]
    boxes = [next(iter(balanced_boxes(json.loads(line)["solution"])), None) for line in lines]
    golds = sorted({box for box in boxes if box})
    random.Random(0).shuffle(golds)
    judged = [
        run_all("tasks.parts.symbolic:judge", pairs, limit_seconds=30, memory_bytes=2 << 30)
        for pairs in (list(zip(golds, golds, strict=True)), list(pairwise(golds)))
    ]
    assert all(outcome.error is None for outcomes in judged for outcome in outcomes)
    assert [gold for gold, outcome in zip(golds, judged[0], strict=True) if not outcome.value[0]] == []
    keys = [outcome.value[1] for outcome in judged[0]]
    same = [(golds[index], golds[index + 1]) for index, outcome in enumerate(judged[1]) if outcome.value[0]]
    assert all(keys[golds.index(gold)] == keys[golds.index(other)] for gold, other in same)
    assert len(same) < len(golds) / 50
    assert sum(key is None for key in keys) < len(golds) / 50
