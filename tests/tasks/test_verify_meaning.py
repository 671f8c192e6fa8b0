"""What stands around a number and changes it: a second answer, a word that multiplies, an operation, another unit.

The pairs have the gold first; completions stand before their gold. Each row was once judged the other way.
"""

import time

import pytest

from tasks.parts.answers import read
from tasks.parts.equality import same
from tasks.parts.verify import Asked, equal, grade, grade_all

SAME = [
    ("3000000", "3 million"),
    ("3000", r"3\text{ thousand}"),
    ("300", "3 hundred"),
    ("36", "3 dozen"),
    ("5000000000", "5 billion"),
    ("1500000", "1.5 million dollars"),
    ("2500000", r"2\frac12\text{ million}"),
    (r"3:30 \text{ PM}", r"3:30 \text{ p.m.}"),
    (r"12:00 \text{ p.m.}", "noon"),
    (r"12 \text{ noon}", r"12:00 \text{ PM}"),
    ("5", r"\color{red}{5}"),
    ("5", r"\textcolor{red}{5}"),
    ("5", r"\underline{5}"),
    ("5", "5\\\\"),
    ("5", r"\ 5\ "),
    (r"7\bmod 5", "2"),
    ("x=1,y=2", r"\begin{cases}x=1\\y=2\end{cases}"),
    ("x=1,y=2", r"\left\{\begin{array}{l}x=1\\y=2\end{array}\right."),
    ("]1,2[", "(1,2)"),
    ("(1,2]", "]1,2]"),
    ("[1,2)", "[1,2["),
    (r"\begin{pmatrix}1&2\\3&4\end{pmatrix}", "[[1,2],[3,4]]"),
    (r"\{x\in\mathbb R: x>2\}", r"(2,\infty)"),
    (r"\underline{\frac12}", "1/2"),
    ("5", r"{\color{blue}5}"),
    ("2x", r"\frac{dy}{dx}=2x"),
    ("2x", "dy/dx = 2x"),
    (r"\$10", "10 dollars"),
    (r"5 \text{ mph}", r"5 \text{ miles per hour}"),
    (r"5\text{ gallons of water}", "5"),
    ("5", r"5\text{ more apples}"),
    (r"5^\circ\text{F}", "5"),
    (r"5^\circ\text{F}", r"5^\circ"),
    (r"x<1 \text{ or }x>2", r"(-\infty,1)\cup(2,\infty)"),
    ("(2,5)", r"x>2 \text{ and } x<5"),
    ("11/2", "5 and a half"),
    ("-2", r"\sqrt[3]{-8}"),
    ("x^{1/3}", r"\sqrt[3]{x}"),
    ("5", r"5\text{ apples}"),
    ("5", r"5\text{ units}^2"),
    ("5", r"5\text{ square units}"),
    ("5x", r"5\text{x}"),
    (r"\mathbb R", r"x<5 \text{ or } x>2"),
    ("5000000000", "5 bn"),
    (r"5\pm 3", "5 plus or minus 3"),
    ("-5", r"\text{minus }5"),
]
DIFFERENT = [
    ("3", "3 million"),
    ("3", r"3\text{ thousand}"),
    ("3", "3 hundred"),
    ("5", "5 dozen"),
    ("3", "3 billion"),
    ("5", r"5\text{ or more}"),
    ("5", r"5\text{ (or 6)}"),
    ("5", r"5\text{ is wrong}"),
    ("5", r"5\text{ halves}"),
    ("5", r"5\text{ squared}"),
    ("5", r"5\text{ factorial}"),
    ("5", r"5\text{ pi}"),
    ("5", r"5\text{x}"),
    ("5", r"5\mathrm{x}"),
    ("5", r"5\text{ of the 6}"),
    ("5", "5 halves"),
    ("5", "5 squared"),
    ("5", "5 or more"),
    ("5", r"5\text{ to }6"),
    ("5", r"5\text{ plus }3"),
    ("5", r"5\text{ not}"),
    ("5", r"5\text{ at least}"),
    ("5", r"5\text{ thirds}"),
    ("5", r"5\text{ hundred}"),
    (r"3:30 \text{ PM}", r"3:30 \text{ AM}"),
    (r"5 \text{ p.m.}", r"5 \text{ a.m.}"),
    (r"12 \text{ noon}", r"12\text{ midnight}"),
    ("noon", "midnight"),
    (r"5 \text{ in the morning}", r"5\text{ in the evening}"),
    ("5", "x=6=5"),
    ("5", "5, 5"),
    (r"\$10", "10 cents"),
    (r"\$10", r"10\text{ euros}"),
    (r"5^\circ\text{F}", r"5^\circ\text{C}"),
    (r"5 \text{ miles per hour}", r"5 \text{ miles}"),
    (r"x<1\text{ or }x>2", r"x<1\text{ and }x>2"),
    (r"\infty", r"\infty+1"),
    ("5", "xy=5"),
    (r"\infty", r"2\infty"),
    (r"\frac{y}{x}", r"\frac{dy}{dx}"),
    (r"5 \text{ kg}", r"5\text{ g}"),
    (r"5\text{ liters}", r"5\text{ gallons}"),
    (r"\$5", "\u20ac5"),
    ("(2,5)", r"x>2 \text{ or } x<5"),
    (r"1+\sqrt{3}i", r"\sqrt[3]{-8}"),
    ("5", r"5\text{ or }6"),
    ("5", "5 or 5 or 6"),
    ("5", r"x=5\text{ or }y=6"),
    ("5", "5 percent"),
    ("5", r"5\text{sqrt}"),
    ("5", r"5\text{ lakh}"),
    ("5", r"5\text{ R2}"),
    ("5", r"5\text{ below zero}"),
    (r"5\text{ miles per hour}", r"5\text{ miles per day}"),
]
STATED = [
    ("The answer is $5$ or $6$.", "5", False),
    ("The answer is $5$ and $6$.", "5", False),
    ("The answer is $5$, $6$.", "5", False),
    ("The answer is either $5$ or $6$.", "5", False),
    (r"The answer is \(5\) or \(6\).", "5", False),
    ("**Answer:** $5$ or $6$", "5", False),
    ("The answer is $5$ to $6$.", "5", False),
    ("The answer is $5$ (or $6$).", "5", False),
    ("The answer is $5$; alternatively $6$.", "5", False),
    ("The answer is $5$ times $3$.", "5", False),
    ("The answer is $5$ plus $3$.", "5", False),
    ("The answer is $5$ million.", "5", False),
    ("The answer is $5$%.", "5", False),
    ("The answer is 5 or 6.", "5", False),
    ("The answer is 5 million dollars.", "5", False),
    ("The answer is 5 apples or 6 apples.", "5", False),
    ("So it is $5$ or $6$.", "5", False),
    ("Answer: 5 million", "5", False),
    ("The answer is $5$ or $6$.", "5, 6", True),
    ("The answer is $5$, $6$.", "5, 6", True),
    ("The answer is either $5$ or $6$.", "5, 6", True),
    (r"The answer is \(5\) or \(6\).", "5, 6", True),
    ("**Answer:** $5$ or $6$", "5, 6", True),
    ("The answer is $5$ (or $6$).", "5, 6", True),
    ("The answers are `$5$ and $6$`.", "5, 6", True),
    ("The solutions are **5** and **6**.", "5, 6", True),
    ("So it is $5$ or $6$.", "5, 6", True),
    ("The answer is $5$, since $2+3=5$.", "5", True),
    ("The answer is $5$!", "5", True),
    ("The answer is $5$ because 3+2=5.", "5", True),
    ("The answer is $5$ apples.", "5", True),
    ("The answer is $5$%.", r"5\%", True),
    ("The answer is $5$ million.", "5000000", True),
    ("The answer is $x$ = $5$.", "5", True),
    ("The answer is $3$:$1$.", "3:1", True),
    ("\u7b54\u6848\uff1a5", "5", True),
    ("\u7b54\u6848\u662f5\u3002", "5", True),
    ("\u6240\u4ee5\u7b54\u6848\u4e3a $5$\u3002", "5", True),
    ("The answer is $5$ - nice.", "5", True),
    ("The answer is $5$.", "5", True),
    ("The answer is 5 million dollars.", "5000000", True),
    ("The answer is $5$ & $6$", "5", False),
    ("The answer is $5$ $6$", "5", False),
    ("The answer is $5$x", "5", False),
    (r"The answer is $5$ $\pi$", "5", False),
    ("The answer is $5$ out of $6$", "5", False),
    ("The answer is $5$\u2013$6$", "5", False),
    ("The answer is minus $5$", "5", False),
    ("The answer is at least $5$", "5", False),
    ("The answer is $5$ not $6$.", "5", False),
    ("The answer is $5$ percent", "5", False),
    ("The answer is 5 or $6$.", "6", False),
    ("The answer is 5 or $6$.", "6, 5", True),
    ("The answer is $5$\n\n3 apples are left over.", "5", True),
]
GSM8K = [
    ("#### 3 million", "3", False),
    ("#### 5k", "5", False),
    ("#### 5k", "5000", True),
    ("#### 1 million", "1000000", True),
    ("#### 3 hundred", "300", True),
    ("#### 3 dozen", "36", True),
    ("#### 2.5 million dollars", "2500000", True),
    ("#### 5^2", "5", False),
    ("#### 5^2", "25", True),
    ("#### 5!", "5", False),
    ("#### 5x", "5", False),
    ("#### 5 and a half", "5", False),
    ("#### 5 and a half", "5.5", True),
    ("#### 1_234", "1", False),
    ("#### 1_234", "1234", True),
    ("#### minus 3", "3", False),
    ("#### minus 3", "-3", True),
    ("#### negative 3", "-3", True),
    ("The answer is minus 3.", "-3", True),
    ("The answer is minus 3.", "3", False),
    ("#### 10^5", "10", False),
    ("#### 10^5", "100000", True),
    ("#### 70 000", "70000", True),
    ("#### 1'234", "1234", True),
    ("#### 5 = 2+3", "5", True),
    ("#### 5 or more", "5", False),
    ("#### 5+", "5", False),
    ("#### 5 squared", "5", False),
    ("#### 5 apples", "5", True),
    ("#### $5/hour", "5", True),
    ("#### 5m", "5", True),
    ("#### 5 a day", "5", True),
    ("#### **5**", "5", True),
    ("#### 5 (five)", "5", True),
    (r"#### 5\pi", "5", False),
    (r"\boxed{\sqrt{5}}", "5", False),
    ("#### \u221a5", "5", False),
    ("#### 5 thirds", "5", False),
    ("#### 5 quarters", "5", True),
    ("#### 5 of the 6", "5", False),
    ("#### 18 dollars in 7 days", "18", True),
    ("The answer is 5 million.", "5", False),
    ("I got 5 million.", "5", False),
    ("So 5 and a half.", "5.5", True),
    ("#### 5 + 3", "5", False),
    (r"#### 5^\circ", "5", True),
    ("#### 5\xb0", "5", True),
    ("#### 5 is wrong", "5", False),
    ("#### 5.", "5", True),
    ("#### 5 - done", "5", True),
    ("#### 5+5", "5", False),
    ("#### 12 times", "12", True),
    ("#### $5 each", "5", True),
    ("#### 5 pm", "5", True),
    ("#### 5:30", "5", False),
    ("#### 5 cubic meters", "5", True),
    ("#### 5 m^2", "5", True),
    ("#### 1/2", "0.5", True),
    ("#### 5n", "5", False),
    ("#### 5 pi", "5", False),
    ("#### 5 minus 3", "5", False),
    ("#### 5 feet 6 inches", "5", False),
    ("#### 5 hours 30 minutes", "5", False),
    ("#### 5 maybe 6", "5", False),
    ("#### 5 over 6", "5", False),
    ("#### 5bn", "5", False),
    ("#### 5\u03c0", "5", False),
    ("#### 5 remainder 2", "5", False),
    ("#### not 5", "5", False),
    ("#### 2**10", "1024", True),
    ("#### (-2)^2", "-2", False),
    ("#### 3 hundred 20", "300", False),
    ("#### 8 = 2^3", "8", True),
    ("#### 5 times as many", "5", True),
    ("#### 5 = 2+4", "5", False),
]
LETTERS = [
    ("I think it is C", "C", True),
    ("I think A is wrong, so B.", "B", True),
    ("Not A. B", "B", True),
    ('{"answer": "B"}', "B", True),
    ("Therefore B", "B", True),
    ("hence, (D).", "D", True),
    ("I think A is wrong, so B.", "A", False),
    ("It's D.", "D", True),
    ("So a triangle", "A", False),
    ("Therefore I choose nothing", "I", False),
    ("So B or C.", "B", False),
    ("A is wrong", "A", False),
    ("It is a cat.", "A", False),
    ("So A is wrong.", "A", False),
    ("Not B", "B", False),
    ("It isn't B.", "B", False),
    ("So not B.", "B", False),
]
COMPUTED = [
    ("1", r"\int_0^1 2x\,dx", True),
    ("2x", r"\frac{d}{dx} x^2", True),
    ("1", r"\lim_{x\to 0}\frac{\sin x}{x}", True),
    ("6", r"\sum_{k=1}^3 k", True),
    ("6", r"\prod_{k=1}^3 k", True),
    ("1/2", r"\int_0^1 x dx", True),
    ("3x^2", r"\frac{\mathrm{d}}{\mathrm{d}x} x^3", True),
    ("x", r"\frac{d}{dx} x^2", False),
]


def test_pairs_that_are_the_same_are_known_to_be_without_a_worker():
    assert [
        pair for pair in SAME if same(*map(read, pair)) is not True or not equal(gold=pair[0], answer=pair[1])
    ] == []


def test_pairs_that_are_not_the_same_are_known_to_be_without_a_worker():
    assert [pair for pair in DIFFERENT if same(*map(read, pair)) is not False] == []


def test_all_of_a_stated_answer_counts():
    wrong = [row for row in STATED if grade(row[0], gold=row[1], style="math").correct is not row[2]]
    assert wrong == []


def test_what_follows_a_number_counts_in_gsm8k():
    assert [row for row in GSM8K if grade(row[0], gold=row[1], style="gsm8k").correct is not row[2]] == []


def test_a_conclusion_of_one_letter_is_a_choice():
    assert [row for row in LETTERS if grade(row[0], gold=row[1], style="mc").correct is not row[2]] == []


def test_derivatives_integrals_and_odd_roots_are_computed_by_a_worker():
    items = [Asked(rf"\boxed{{{answer}}}", gold) for gold, answer, _ in COMPUTED]
    grades = grade_all(items, style="math", limit_seconds=20)
    assert [verdict.correct for verdict in grades] == [correct for _, _, correct in COMPUTED]


@pytest.mark.parametrize("workers", [0, -1])
def test_the_number_of_workers_must_be_positive(workers: int):
    with pytest.raises(ValueError, match=f"workers is {workers}: must be at least 1"):
        grade_all([], style="math", workers=workers)


@pytest.mark.slow
def test_twenty_hanging_answers_take_five_limits():
    """A spare is started while a call hangs, so that no one waits for an interpreter after it is killed."""
    items = [Asked(rf"\boxed{{\prod_{{k=1}}^{{10000{n:02d}0}} k}}", "5") for n in range(20)]
    start = time.monotonic()
    grades = grade_all(items, style="math", workers=4)
    assert all(verdict.timed_out for verdict in grades)
    assert time.monotonic() - start < 25
