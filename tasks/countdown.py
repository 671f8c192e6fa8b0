"""Countdown: reach a target from a few given numbers with + - * / and parentheses.

    Use each of the numbers 19, 36, 55 once, with + - * / and parentheses, to make 72. ...
    36-19=17
    55+17=72
    55+(36-19)=72

Every number is used exactly once, as in TinyZero's data; `use: at_most` is the rule of the television game. The answer
is the expression in the last <answer> tags, else in the last box, else on the last line; what it comes to is computed
exactly. Two right expressions are both right; wrong ones are the same answer where their values and numbers are.
"""

import math
import random
import re
from collections import Counter
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tasks.parts.arithmetic import MAX_LENGTH, Expression, as_ascii, parse
from tasks.parts.extract import balanced_boxes, final_text
from tasks.parts.permutation import split_item, split_size
from tasks.parts.problem import Grade, Problem, ProceduralTask, Split
from tasks.parts.tags import last_tagged

_RULE = {"all": "Use each of the numbers {} once", "at_most": "Use some of the numbers {}, each at most once"}
_PROMPT = "{rule}, with + - * / and parentheses, to make {target}. End with one line that holds only the expression."
_LEAD = re.compile(r"^(?:the\s+)?(?:final\s+)?(?:answer|expression|solution|result)?\s*(?:is)?\s*:?\s*", re.IGNORECASE)
_AROUND = "*_`$.,;! \t\r\n"
"""What may stand around an expression."""
_DRAWS = 200
"""Random expressions that are tried; then comes one that always reaches a target."""


class Countdown(ProceduralTask, frozen=True):
    """Countdown with `num_numbers` numbers from 1 to `max_number`; no numbers are given in two splits."""

    version: ClassVar[int] = 1
    alphabet: ClassVar[str] = "".join(sorted(set("".join(_RULE.values()) + _PROMPT + "0123456789()=\n") - set("{}_")))
    name: Literal["countdown"] = "countdown"
    num_numbers: Annotated[int, Field(ge=3, le=6)] = 3
    """Numbers that are given."""
    max_number: Annotated[int, Field(ge=10, le=999)] = 99
    """Largest number, and largest target."""
    use: Literal["all", "at_most"] = "all"
    """`all`: every number exactly once; `at_most`: each at most once, and the target is none of them."""

    def num_problems(self, split: Split) -> int | None:
        """Train comes round again after its last item; validation and test end, so that no item is counted twice."""
        return None if split == "train" else split_size(split, self._num_items)

    def generate(self, split: Split, index: int) -> Problem:
        size = split_size(split, self._num_items)
        if index >= size and split != "train":
            setting = f"num_numbers={self.num_numbers}, max_number={self.max_number}"
            raise ValueError(f"countdown with {setting} has {size} {split} problems, so there is no problem {index}")
        stream = f"countdown/{self.num_numbers}/{self.max_number}/{self.use}"
        item = split_item(split, index % size, self._num_items, stream)
        numbers = _multiset(item, self.num_numbers)
        rng = random.Random(f"{stream}/{item}")
        steps, expression, target = self._solved(numbers, rng)
        rng.shuffle(numbers)
        rule = _RULE[self.use].format(", ".join(map(str, numbers)))
        return Problem(
            id=f"countdown/{split}/{index}",
            prompt=_PROMPT.format(rule=rule, target=target),
            gold=expression,
            solution="\n".join([*steps, f"{expression}={target}"]),
            question=f"{' '.join(map(str, numbers))} = {target}",
            columns={"numbers": numbers, "target": target},
        )

    def grade(self, problem: Problem, completion: str, *, truncated: bool = False) -> Grade:
        text, method = _answer(completion, truncated=truncated)
        answer, gold = None if text is None else _expression(text), parse(problem.gold)
        right = answer is not None and gold is not None and answer.value == gold.value and self._fits(gold, answer)
        return Grade(
            correct=None if gold is None else right,
            answer_key=None if answer is None else f"{answer.value} of {' '.join(map(str, sorted(answer.numbers)))}",
            method="none" if answer is None else method,
            parsed=answer is not None,
            truncated=truncated,
        )

    def stated(self, problem: Problem) -> str:
        return problem.solution or problem.gold

    def corrupted(self, problem: Problem) -> str | None:
        return f"{problem.gold}+1"

    def format_score(self, problem: Problem, completion: str) -> float:
        """0 without an expression, 0.5 with one, 1 where it uses the given numbers as the rule says."""
        text, _ = _answer(completion, truncated=False)
        answer, gold = None if text is None else _expression(text), parse(problem.gold)
        return 0.0 if answer is None else 1.0 if gold is not None and self._fits(gold, answer) else 0.5

    def _fits(self, gold: Expression, answer: Expression) -> bool:
        """Whether an expression uses the given numbers as the rule says; the gold uses all of them once."""
        given, used = Counter(gold.numbers), Counter(answer.numbers)
        return used == given if self.use == "all" else used <= given

    @property
    def _num_items(self) -> int:
        """How many multisets of numbers there are."""
        return math.comb(self.max_number + self.num_numbers - 1, self.num_numbers)

    def _solved(self, numbers: list[int], rng: random.Random) -> tuple[list[str], str, int]:
        """Steps, expression and target: a random expression whose values are whole and positive all along."""
        for _ in range(_DRAWS):
            steps, expression, target = _random_expression(numbers, rng)
            if target <= self.max_number and not (self.use == "at_most" and target in numbers):
                return steps, expression, target
        return _certain_expression(numbers)


def _multiset(rank: int, size: int) -> list[int]:
    """Member `rank` of all multisets of `size` numbers from 1 on, rising: the combinatorial number system."""
    numbers: list[int] = []
    for place in range(size, 0, -1):
        low = place - 1
        high = low + 1
        while math.comb(high, place) <= rank:
            high *= 2
        while low + 1 < high:
            middle = (low + high) // 2
            low, high = (middle, high) if math.comb(middle, place) <= rank else (low, middle)
        rank -= math.comb(low, place)
        numbers.append(low - place + 2)
    return numbers[::-1]


def _random_expression(numbers: list[int], rng: random.Random) -> tuple[list[str], str, int]:
    """Join two values at a time, drawn at random, until one is left."""
    values = [(number, str(number)) for number in numbers]
    steps: list[str] = []
    while len(values) > 1:
        rng.shuffle(values)
        (a, left), (b, right) = sorted((values.pop(), values.pop()), key=lambda value: -value[0])
        results = {"+": a + b, "*": a * b} | ({"-": a - b} if a > b else {}) | ({"/": a // b} if a % b == 0 else {})
        sign = rng.choice(sorted(results))
        steps.append(f"{a}{sign}{b}={results[sign]}")
        values.append((results[sign], f"{_inner(left)}{sign}{_inner(right)}"))
    return steps, values[0][1], values[0][0]


def _certain_expression(numbers: list[int]) -> tuple[list[str], str, int]:
    """The alternating sum from the largest down, which is never more than the largest.

    It is 0 only where the numbers are pairs of equal ones; then the first pair is divided.
    """
    falling = sorted(numbers, reverse=True)
    value = sum(falling[::2]) - sum(falling[1::2])
    signs = ["-" if place % 2 else "+" for place in range(1, len(falling))]
    if value == 0:
        signs[0], value = "/", 1
    expression = str(falling[0]) + "".join(f"{sign}{n}" for sign, n in zip(signs, falling[1:], strict=True))
    return [], expression, value


def _inner(expression: str) -> str:
    return expression if expression.isdigit() else f"({expression})"


def _answer(completion: str, *, truncated: bool) -> tuple[str | None, str]:
    """The text of the answer and how it is marked: in tags, in a box, or as the last line with something on it.

    Of a truncated completion the last line may be half an expression, and is none.
    """
    text = final_text(completion)
    tagged = last_tagged(text, "answer")
    if tagged is not None:
        return tagged, "tag"
    box = next(balanced_boxes(text), None)
    if box is not None:
        return box, "box"
    lines = text.strip().splitlines()
    return (None, "none") if truncated or not lines else (lines[-1], "line")


def _expression(text: str) -> Expression | None:
    """The expression in an answer. A side of "=" that is one number is what the answer claims, and must be right."""
    if len(text) > 3 * MAX_LENGTH:
        return None
    text = _LEAD.sub("", as_ascii(text).strip(_AROUND), count=1).strip(_AROUND)
    left, equals, right = text.partition("=")
    if not equals:
        return parse(left)
    sides = parse(left), parse(right)
    if sides[0] is None or sides[1] is None or sides[0].value != sides[1].value:
        return None
    return sides[0] if len(sides[0].numbers) >= len(sides[1].numbers) else sides[1]
