"""Ten thousand answers made to hang, crash or swell a grader: every one gets its verdict, in bounded memory."""

import contextlib
import random
import resource
import time
from collections.abc import Callable

import psutil
import pytest

from tasks.parts.problem import Grade
from tasks.parts.verify import Asked, grade, grade_all

SEED = 20_26
NUM_ANSWERS = 10_000
GOLDS = {"gsm8k": "42", "math": r"\frac{1}{2}"}
ODD = (
    "\u200b", "\u200f", "\u202e", "\u2066", "\ufeff", "\x00", "\x1b[2J", "\ud800", "\udfff", "\u0663", "\uff14",
    "\u2212", "\xbd",
    "e\u0301", "\x7f", "\u2028",
)  # fmt: skip
COMMANDS = (
    "\\frac", "\\sqrt", "\\boxed", "\\text", "^", "_", "{", "}", "(", ")", "[", "]", "\\{", "\\}", "$", "\\\\", "&",
    "!", "%",
    ",", "=", "<", "|", "\\pm", "\\cup", "\\infty", "\\sum", "\\int", "\\begin{pmatrix}", "\\end{pmatrix}", "1",
    "9", "x", " ",
    "####", "answer is", "</think>", "<think>", "\n", ".", "\\le", "\\log", "i", "e", "\\pi",
)  # fmt: skip
COSTLY = (
    r"\binom{10^9}{10^8}", r"\sum_{n=1}^{10^9} \frac{1}{n^2}", r"\int_0^1 x^{x^x} dx", "(x+y+z)^{999}",
    r"\prod_{k=1}^{10^7} k",
    "x^{17}-x^3+x-1>0", r"\tan(10^{300})", r"\gcd(10^{99},2^{999})", "1" + "+1" * 400, r"\log_{1}{0}",
    r"\frac{0}{0}", "0^{-1}",
    r"\sin" * 30 + "x", r"10^{10^{-99}}", r"2^{1/2^{99}}", r"\sqrt[999999999]{2}",
)  # fmt: skip
BOMBS = (
    "%s" * 1000, "{0.__class__}", "{:>1000000000}", "%1000000000d", "${" + "x" * 999, "__import__('os')._exit(0)",
    "lambda: 0"
)  # fmt: skip
FRAMES = (
    "{}", "\\boxed{{{}}}", "#### {}", "The answer is ${}$.", "<think>\\boxed{{1}}</think>\\boxed{{{}}}", "\\boxed{{{}",
    "{} and \\boxed{{7}}",
)  # fmt: skip
Maker = Callable[[random.Random], str]


def power_tower(rng: random.Random) -> str:
    base = rng.choice(["9", "x", "10", "(1+1/9)", "e", "2003"])
    height = rng.choice([2, 3, 4, 5, 40, 5000])
    return "^{".join([base] * height) + "}" * (height - 1) if rng.random() < 0.7 else "^".join([base] * height)


def factorial_tower(rng: random.Random) -> str:
    return rng.choice(["9", "(9!)", "100000000"]) + "!" * rng.choice([1, 3, 10, 100_000])


def nested(rng: random.Random) -> str:
    opening, closing = rng.choice(
        [
            ("{", "}"),
            ("(", ")"),
            ("[", "]"),
            (r"\frac{1}{", "}"),
            (r"\sqrt{", "}"),
            (r"\boxed{", "}"),
            (r"\{", r"\}"),
            ("|", "|"),
        ]
    )
    depth = rng.choice([5, 11, 13, 30, 500, 20_000])
    return opening * depth + "1" + closing * rng.choice([depth, depth - 1, 0])


def megabyte(rng: random.Random) -> str:
    piece = rng.choice(
        [
            "9",
            "1,",
            "x+",
            " ",
            "\\",
            "{",
            "1 ",
            "####1\n",
            r"\boxed{",
            r"\frac12",
            "answer is ",
            "0.",
            "-",
            "a",
            "\u200b",
        ]
    )
    return piece * (rng.choice([20_000, 1_000_000]) // len(piece))


def invisible(rng: random.Random) -> str:
    return "".join(rng.choice([*ODD, "4", "2", "1/2"]) for _ in range(rng.randrange(1, 40)))


def costly(rng: random.Random) -> str:
    return rng.choice(COSTLY)


def format_bomb(rng: random.Random) -> str:
    return rng.choice(BOMBS)


def soup(rng: random.Random) -> str:
    return "".join(rng.choice([*COMMANDS, *ODD[:6]]) for _ in range(rng.randrange(1, 80)))


MAKERS: tuple[Maker, ...] = (power_tower, factorial_tower, nested, invisible, costly, format_bomb, soup, soup, megabyte)


def answers(number: int, seed: int) -> list[str]:
    """Completions, the same for the same seed; two kinds are mixed in some."""
    rng = random.Random(seed)
    found: list[str] = []
    for _ in range(number):
        weights = [1.0] * (len(MAKERS) - 1) + [0.25]
        first, second = rng.choices(MAKERS, weights, k=2)
        answer = first(rng) + (second(rng) if rng.random() < 0.2 else "")
        found.append(rng.choice(FRAMES).format(answer))
    return found


def resident_bytes() -> int:
    """Of this process and all its children, now."""
    process, total = psutil.Process(), 0
    for one in [process, *process.children(recursive=True)]:
        with contextlib.suppress(psutil.NoSuchProcess):  # a worker may end meanwhile
            total += one.memory_info().rss
    return total


def peak_bytes(whose: int) -> int:
    """The most that this process, or one of its children that have ended, has had in memory."""
    return resource.getrusage(whose).ru_maxrss * 1024


def well_formed(found: Grade) -> bool:
    key = found.answer_key or ""
    printable = key.isascii() and key.isprintable() and len(key) < 500
    return isinstance(found.correct, bool) and printable and not (found.correct and found.timed_out)


@pytest.mark.parametrize("style", ["gsm8k", "math"])
def test_a_few_in_the_default_run(style: str) -> None:
    """Without what takes its whole time limit."""
    asked = [Asked(answer, GOLDS[style]) for answer in answers(150, SEED) if len(answer) > 1000 or "1/2" in answer]
    found = grade_all(asked, style=style, limit_seconds=1.0)
    assert all(map(well_formed, found))


@pytest.mark.slow
@pytest.mark.parametrize("style", ["gsm8k", "math"])
def test_ten_thousand_adversarial_answers(style: str) -> None:
    """0.3 s each in the worst case; this process and its workers grow by 1 GiB at most, and no worker beyond 2 GiB."""
    before, peak = resident_bytes(), peak_bytes(resource.RUSAGE_SELF)
    earlier = peak_bytes(resource.RUSAGE_CHILDREN)
    most, start = 0, time.monotonic()
    for block in range(10):
        asked = [Asked(answer, GOLDS[style]) for answer in answers(NUM_ANSWERS // 10, SEED + block)]
        found = grade_all(asked, style=style, limit_seconds=0.3)
        assert all(map(well_formed, found))
        most = max(most, resident_bytes() - before)
    # On two quiet cores half a minute in style math, less than half of it in the other.
    assert time.monotonic() - start < 600
    assert most < 1 << 30
    assert peak_bytes(resource.RUSAGE_SELF) - peak < 1 << 30
    # The system keeps one peak for all children that have ended, those of earlier tests among them.
    assert peak_bytes(resource.RUSAGE_CHILDREN) <= max(earlier, 2 << 30)
    assert grade(r"\boxed{42}" if style == "math" else "#### 42", gold="42", style=style).correct
