r"""Pairs of answers that are the same and pairs that are not, by docs/verifier_policy.md; the gold stands first."""

import cmath

import pytest

from tasks.parts.answers import read
from tasks.parts.equality import canonical_key, same
from tasks.parts.expressions import TooLarge, Unreadable, parse
from tasks.parts.values import key, value
from tasks.parts.verify import equal

SAME = [
    (r"\sqrt{2}", r"x = \sqrt{2} \approx 1.414"),
    ("2.5", r"\frac{5}{2} \text{ or } 2.5"),
    ("(2,5]", r"x > 2 \text{ and } x \leq 5"),
    ("(2,5)", "x < 5 and x > 2"),
    (r"(2,\infty)", r"\{x \mid x > 2\}"),
    (r"(-\infty,2)\cup(2,\infty)", r"\mathbb{R} \setminus \{2\}"),
    ("+-2021", "-2021, 2021"),
    ("$4$", "4.0"),
    ("-2.5", "-2\u00bd"),
    ("7/2", "\u0663\u066b\u0665"),
    ("70000", "70\u00a0000"),
    ("1/2", "\uff11\uff0f\uff12"),
    (r"\text{(B)}", "(B) 12"),
    ("m + n", "n + m"),
    ("12", "m + n = 12"),
    (r"\text{A,D}", "D, A"),
    ("1,2", "2,1"),
    (r"\{1,2\}", "1,2"),
    ("1,2", r"\{2,1\}"),
    ("(1,2)", "1,2"),
    ("1,2", "(1,2)"),
    ("[2,5)", r"2 \le x < 5"),
    (r"2 \le x < 5", "[2,5)"),
    ("x>2", r"(2,\infty)"),
    (r"(2,\infty)", "x>2"),
    ("x>2", "2<x"),
    (r"x \in [-2,7]", "[-2,7]"),
    ("[-2,7]", r"x\in[-2,7]"),
    (r"x \in [-2,7]", r"-2 \leq x \leq 7"),
    (r"-2 \leq x \leq 7", r"7 \geq x \geq -2"),
    (r"(-\infty,2)\cup(2,\infty)", r"x \neq 2"),
    (r"(-\infty,2)\cup(2,\infty)", r"(2,\infty)\cup(-\infty,2)"),
    (r"(-\infty,1)\cup(3,\infty)", r"x<1 \text{ or } x>3"),
    (r"(-\infty,1)\cup(3,\infty)", "x<1, x>3"),
    ("1331, 1728", "1331,1728"),
    ("1728, 1331", "1331, 1728"),
    ("n=2,3,4", "2,3,4"),
    ("2,3,4", "n=2,3,4"),
    ("n=2,3,4", "n=4,3,2"),
    ("x=1, x=2", "1,2"),
    (r"x=1 \text{ or } x=2", "2, 1"),
    ("x=1,y=2", "(1,2)"),
    ("(1,2)", "x=1, y=2"),
    ("(x,y)=(1,2)", "(1,2)"),
    ("y=2x+3", "2x+3"),
    ("2x+3", "y=2x+3"),
    ("y=2x+3", "2x-y+3=0"),
    ("2x-y+3=0", "y=2x+3"),
    ("5", "x+y=5"),
    ("f(x)=x^2", "x^2"),
    ("x^2", "f(x)=x^2"),
    ("3x-y+13=0", "y=3x+13"),
    ("3x-y+13=0", "6x-2y+26=0"),
    ("x^2+y^2=4", "4-x^2=y^2"),
    (r"\frac{x^2}{16}-\frac{y^2}{9}=1", "9x^2-16y^2=144"),
    ("58,500", "58500"),
    ("58500", "58,500"),
    (r"\$32,\!348", "32348"),
    ("32348", r"\$32{,}348"),
    ("32348", "32,348"),
    ("10{,}000", "10,000"),
    ("1000000", r"1\,000\,000"),
    ("0.5", r"\frac12"),
    (r"\frac{1}{2}", "0.50"),
    (r"\frac{1}{2}", ".5"),
    (r"0.\overline{3}", r"\frac13"),
    (r"0.1\overline{6}", r"\frac16"),
    ("2.5", "2 1/2"),
    (r"2\frac12", "5/2"),
    (r"\frac83", "2 2/3"),
    (r"-2\frac12", "-2.5"),
    (r"3\times 10^8", "3e8"),
    (r"3\times10^{8}", r"3 \cdot 10^8"),
    (r"3\times10^{8}", "300,000,000"),
    ("1.5e-3", "0.0015"),
    (r"\frac{1}{2004!}", r"\frac{1}{2004!}"),
    (r"\frac{1}{2^{99}}", "2^{-99}"),
    ("10^{15}", "1000000000000000"),
    ("1-1/e", "1-e^{-1}"),
    (r"1-\frac{1}{\mathrm{e}}", r"\frac{e-1}{e}"),
    (r"\pm 2021", "-2021, 2021"),
    (r"\{2021,-2021\}", r"\pm2021"),
    (r"x=\pm 3", r"\{3,-3\}"),
    (r"1\pm\sqrt{19}", r"1+\sqrt{19},1-\sqrt{19}"),
    ("12:00", "12:00"),
    ("3:1", "3 : 1"),
    (r"4\sqrt{2}", r"4\sqrt(2)"),
    ("0.09", r"9\%"),
    (r"9\%", "0.09"),
    (r"7.41\%", "7.41%"),
    (r"50\%", r"\frac12"),
    (r"33\frac13\%", r"\frac13"),
    (r"65\%", r"65\text{ percent}"),
    (r"90^\circ", r"90^{\circ}"),
    ("90", "90\u00b0"),
    (r"90^\circ", "90 degrees"),
    (r"90^\circ", r"90\text{ degrees}"),
    (r"5\text{ cm}", r"5\text{ cm}^2"),
    ("5", r"5\text{ cm}"),
    ("5", "5 cm"),
    (r"5\text{ cm}", r"5\,\mathrm{cm}"),
    ("12", r"12 \text{ square inches}"),
    (r"\$5", "5"),
    ("5", r"\$5.00"),
    ("5", r"5 \text{ dollars}"),
    (r"5.4 \text{ cents}", "5.4"),
    (r"45\text{ mph}", "45"),
    (r"99\pi \text{ square inches}", r"99\pi"),
    ("a+b", "b+a"),
    ("ab", "ba"),
    ("x", "x"),
    (r"\frac{\sqrt2}{2}", r"\frac{1}{\sqrt{2}}"),
    (r"\sqrt8", r"2\sqrt2"),
    (r"2\pi", "2\u03c0"),
    ("\u221a2", r"\sqrt{2}"),
    (r"\sqrt{12}", "\u221a12"),
    ("(x+1)^2", "x^2+2x+1"),
    ("x(x+1)", "x^2+x"),
    ("(x-1)(x+2)", "x^2+x-2"),
    (r"\sin^2 x", r"1-\cos^2 x"),
    (r"\cos 58^\circ", r"\sin 32^\circ"),
    (r"\log_2 8", "3"),
    (r"\frac{x+2}{7}", r"\frac17x+\frac27"),
    ("3+4i", "4i+3"),
    ("2^{10}", "1024"),
    (r"\binom{5}{2}", "10"),
    ("5!", "120"),
    ("2516_8", "2516_{8}"),
    ("2516_8", "2516"),
    ("152A_{11}", "152A_{11}"),
    (r"\text{odd}", "Odd"),
    (r"\text{Evelyn}", "Evelyn"),
    (r"\text{Evelyn}", r"\text{evelyn}"),
    (r"\text{(C)}", "C"),
    (r"\text{C}", r"\text{(C)}"),
    ("C", "(C)"),
    (r"\text{east}", r"\textbf{east}"),
    (r"\text{1:03 PM}", r"1:03\text{ p.m.}"),
    ("(11,7)or(7,11)", "(7,11) or (11,7)"),
    (r"5 \text{ or } 6", "6, 5"),
    (r"\emptyset", r"\varnothing"),
    (r"\emptyset", r"\text{no solution}"),
    (r"\mathbb{R}", r"(-\infty,\infty)"),
    (r"\text{all real numbers}", r"\mathbb{R}"),
    (r"1,2,3,\ldots", r"1,2,3,\dots"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{bmatrix}1&2\\3&4\end{bmatrix}"),
    (r"\begin{pmatrix} 1/2 \\ 3 \end{pmatrix}", r"\begin{pmatrix} 0.5 \\[2pt] 3 \end{pmatrix}"),
    (r"\begin{pmatrix} 7 \\ -2 \end{pmatrix}", "(7,-2)"),
    (r"\left( 3, \frac{\pi}{2} \right)", r"(3,\frac{\pi}{2})"),
    ("5", r"\boxed{5}"),
    ("5", "x=5."),
    ("5", "5."),
    (r"\frac{3}{4}", r"\dfrac{3}{4}"),
    (r"\frac{3}{4}", r"\tfrac34"),
    (r"\frac{3}{4}", "3/4"),
    (r"-\frac{3}{4}", r"\frac{-3}{4}"),
    (r"-\frac34", r"\frac{3}{-4}"),
    ("\u22125", "-5"),
    ("\uff15", "5"),
    ("\u00bd", "0.5"),
    ("\u0663", "3"),
    ("009", "9"),
    ("025", "25"),
    ("27", "27.0"),
    (r"\text{5}", "5"),
    (r"\mathbf{5}", "5"),
    ("x^2+1", "x^{2}+1"),
    (r"\frac{1}{x+1}", r"\frac{1}{1+x}"),
    ("e^{2x}", "(e^x)^2"),
    (r"\ln 4", r"2\ln 2"),
    (r"\sqrt{x^2}", "|x|"),
    (r"\frac{n(n+1)}{2}", "n(n+1)/2"),
    (r"k \geq 1", r"k \ge 1"),
    ("0<x<12.5", "(0,12.5)"),
    (r"6\text{ and }7", "6,7"),
    ("A=5", "5"),
    ("S=37", "37"),
    ("x_1=1,x_2=2", "1,2"),
    ("AB=5", "5"),
    (r"\angle ABC=30^\circ", "30"),
    (r"\frac{1}{2} \approx 0.5", "0.5"),
    ("3", "2+1=3"),
    ("3.14", r"\approx 3.14"),
    (r"2\sqrt{3}+3\sqrt{2}", r"3\sqrt2+2\sqrt3"),
    (r"\frac{12}{5,\!525}", "12/5525"),
    ("100", "1e2"),
    ("6 - 5i", "6-5i"),
    (r"x \in \{1,2\}", r"\{1,2\}"),
    ("x=1,2", r"\{1,2\}"),
]
DIFFERENT = [
    (r"\sqrt{2}", r"1.414 \approx \sqrt{2}"),
    ("(2,5)", "x > 2 or x < 1"),
    (r"\{x \mid x > 2\}", r"\{x \mid x \geq 2\}"),
    ("+-2021", "2021"),
    ("1/2^99", "1/2^98"),
    ("$4$", r"4\sqrt(2)"),
    ("13", "x^2 + y^2 = 13"),
    ("(2,3)", "x=3, y=2"),
    (r"\text{A,D}", "A"),
    ("(1,2)", "(2,1)"),
    ("1,2", "(2,1)"),
    (r"\{1,2\}", "(1,2)"),
    ("(0,1)", "[0,1]"),
    ("[0,1)", "[0,1]"),
    ("[0,1)", "(0,1]"),
    ("x>2", "y>2"),
    (r"x \ge 2", r"(2,\infty)"),
    (r"(-\infty,1)\cup(3,\infty)", r"(-\infty,1]\cup(3,\infty)"),
    ("1331,1728", "1331, 1728, 5"),
    ("1728", "1331, 1728"),
    ("x=5", "y=5"),
    (r"y=-\frac14", r"x=-\frac14"),
    ("0", "3x-y+13=0"),
    (r"\frac{1}{3}", "0.333"),
    (r"\frac13", "0.333333333333"),
    (r"2\frac{2}{3}", "2"),
    ("2", "2 2/3"),
    ("2", r"2\frac{2}{3}"),
    ("10", "4 10/3"),
    ("4", "4 10/3"),
    (r"-2\frac12", "-1.5"),
    (r"3\times10^8", r"3\times10^9"),
    ("2^{-99}", "2^{-98}"),
    (r"\frac{1}{2004!}", r"\frac{1}{2005!}"),
    ("10^{15}", "1000000000000001"),
    (r"1-1/\mathrm{e}", r"1+1/\mathrm{e}"),
    (r"\pm 2021", "2021"),
    ("2021", r"\pm 2021"),
    (r"1\pm\sqrt{19}", r"1+\sqrt{19}"),
    ("12:00", "1:00"),
    ("3:1", "6:2"),
    ("3:1", "3"),
    ("3:1", "3/1"),
    ("1:2", r"\frac12"),
    ("4", r"4\sqrt(2)"),
    (r"4\sqrt{2}", "4"),
    (r"9\%", "9"),
    ("9", r"9\%"),
    (r"7.41\%", r"7.4\%"),
    (r"90^\circ", r"91^\circ"),
    (r"5\text{ cm}", r"5\text{ m}"),
    (r"5\text{ cm}", r"6\text{ cm}"),
    ("a+b", "c+b"),
    ("2a", "2"),
    ("2", "2m"),
    ("x", "y"),
    ("a", "b"),
    ("5m", "5"),
    ("4s", "4"),
    ("3x", "3"),
    (r"\frac{\sqrt2}{2}", "0.7071"),
    (r"\sqrt{8}", r"\sqrt{7}"),
    (r"\pi", "3.14"),
    (r"\pi", "3.14159"),
    (r"\frac{\pi}{2}", "90"),
    ("(x-1)(x+2)", "x^2+x+2"),
    ("3+4i", "3-4i"),
    ("i", "-i"),
    ("2516_8", "2516_9"),
    ("2516_8", "2517"),
    (r"\text{odd}", r"\text{even}"),
    (r"\text{C}", "D"),
    (r"\text{Monday}", "Tuesday"),
    ("5", "five"),
    (r"\text{1:03 PM}", r"1:03\text{ a.m.}"),
    (r"5 \text{ or } 6", "5"),
    ("5", r"5 \text{ or } 6"),
    (r"1,2,\ldots,10", r"1,2,\ldots,11"),
    (r"1,2,\ldots,10", "1,2,10"),
    ("1,3,5,7", r"1,3,5,\ldots"),
    (r"\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix}", r"\begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix}"),
    (r"(3,\pi/2)", "(3,1.57)"),
    ("|x|", "x"),
    ("k > 1", r"k \ge 1"),
    ("(0,12.5)", "0<x<12"),
    ("120000", "120001"),
    ("1:1", "1"),
]


@pytest.mark.parametrize(("gold", "answer"), SAME)
def test_the_same(gold: str, answer: str):
    assert equal(gold=gold, answer=answer) is True


@pytest.mark.parametrize(("gold", "answer"), DIFFERENT)
def test_not_the_same(gold: str, answer: str):
    assert equal(gold=gold, answer=answer) is False


def test_no_worker_is_needed_for_any_of_these():
    """What can be decided in this process is: a worker costs a thousand times as much, and more when it hangs."""
    undecided = [pair for pair in SAME + DIFFERENT if same(*map(read, pair)) is None]
    assert undecided == []


def test_each_answer_equals_itself_and_has_one_short_ascii_key():
    for answer in {answer for pair in SAME + DIFFERENT for answer in pair}:
        key = canonical_key(read(answer))
        assert equal(gold=answer, answer=answer) is True, answer
        assert key is not None, answer
        assert key.isascii(), key
        assert len(key) <= 100, key


def test_different_answers_never_share_a_key():
    shared = [
        (gold, answer)
        for gold, answer in DIFFERENT
        if canonical_key(read(gold)) == canonical_key(read(answer)) and not gold.startswith(("x", "y", "5\\text"))
    ]
    assert shared == []


@pytest.mark.parametrize(
    "answers",
    [
        ("1/2", "0.5", r"\frac{1}{2}", r"\dfrac12", "x = 0.50", r"50\%", "\u00bd"),
        ("2,1", "1, 2", r"\{1, 2\}", "x = 1 or x = 2", r"\boxed{2}, 1"),
        (r"\frac{\sqrt{2}}{2}", r"\frac{1}{\sqrt{2}}", r"\sqrt{0.5}", r"\sin 45^\circ", r"\cos\frac{\pi}{4}"),
        ("(x+1)^2", "x^2 + 2x + 1", "(1+x)(x+1)", "1+x(x+2)"),
        (r"(-\infty, 2]", r"x \leq 2", r"2 \ge x", r"x \in (-\infty, 2]"),
        (r"\text{odd}", "Odd", r"\mathrm{odd}", "odd."),
        (r"5 \text{ cm}", "5", r"\$5", "x=5", r"5^\circ", "5 cm"),
    ],
)
def test_equal_answers_share_a_key_that_knows_no_gold(answers: tuple[str, ...]):
    assert len({canonical_key(read(answer)) for answer in answers}) == 1


def test_a_verdict_is_not_transitive_but_keys_are():
    """math-verify has 9 = 9% and 9% = 0.09, so that pairwise verdicts make no classes; keys do."""
    keys = [canonical_key(read(answer)) for answer in ("9", r"9\%", "0.09")]
    assert keys == ["9", "9/100", "9/100"]


def test_long_answers_differ_after_any_number_of_characters():
    first, second = (r"\text{" + "so " * 60 + word + "}" for word in ("yes", "no"))
    assert equal(gold=first, answer=second) is False
    assert canonical_key(read(first)) != canonical_key(read(second))


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        (r"\sin 2", cmath.sin(2)),
        (r"\cos(-100)", cmath.cos(100)),
        (r"\tan 1 + \cot 1", cmath.tan(1) + 1 / cmath.tan(1)),
        (r"\arctan 5 - \arctan 0.01", cmath.atan(5) - cmath.atan(0.01)),
        (r"\arcsin 0.3 + \arccos 0.3", cmath.pi / 2),
        (r"\ln(-3)", cmath.log(-3)),
        (r"\log_{10} 7", cmath.log10(7)),
        (r"(2+3i)^{1/3}", (2 + 3j) ** (1 / 3)),
        (r"(1-2i)^{-3}", (1 - 2j) ** -3),
        (r"\sqrt{-3-4i}", cmath.sqrt(-3 - 4j)),
        (r"\sqrt[3]{-27}", -3),
        (r"e^{2+i}", cmath.exp(2 + 1j)),
        (r"\sinh 1 + \cosh 1", cmath.e),
        (r"-2^2 + 3 \cdot 2^{-1}", -2.5),
        (r"\lfloor -3.5 \rfloor + \lceil 3.5 \rceil + |3-4i|", 5),
        (r"5!/\binom{5}{2}", 12),
    ],
)
def test_values_agree_with_those_of_python(expression: str, expected: complex):
    found = value(parse(expression))
    number = complex(*map(float, found)) if isinstance(found, tuple) else complex(found)
    assert cmath.isclose(number, expected, rel_tol=1e-14, abs_tol=1e-15)


@pytest.mark.parametrize(
    "text",
    ["", "4 10/3", "2 3", "1.2.3", "2\\frac{10}{3}", "(1", "1)", "seven", "\\int x", "+", "1/0", "x_", "\\frac{1}"],
)
def test_what_is_no_expression_is_refused(text: str):
    with pytest.raises(Unreadable):
        key(parse(text))


@pytest.mark.parametrize("text", ["9^{9^{9}}", "3000!", "2^{10^{6}}", "e^{10^6}", "((9^{999})^{999})^{999}"])
def test_what_has_too_many_digits_is_refused(text: str):
    with pytest.raises(TooLarge):
        key(parse(text))
