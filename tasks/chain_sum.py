"""Chain sum: add several numbers, rewriting what is left of the sum until one number remains.

Prompt "12+34+56=", worked solution "46+56=102": each step adds the first two terms. The answer is what stands after the
last "=", up to the end of the text, so a completion that was cut has no answer.
"""

import re
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from tasks.parts.permutation import split_item, split_size
from tasks.parts.problem import Grade, Problem, ProceduralTask, Split

_SUM = re.compile(r"[0-9]+(?:\+[0-9]+)*")


class ChainSum(ProceduralTask, frozen=True):
    """Sums of `num_terms` numbers of `num_digits` digits each. All prompts of one setting have the same length."""

    version: ClassVar[int] = 1
    alphabet: ClassVar[str] = "0123456789+="
    name: Literal["chain_sum"] = "chain_sum"
    num_terms: Annotated[int, Field(ge=2, le=16)] = 3
    """Numbers to add; the worked solution has one step fewer."""
    num_digits: Annotated[int, Field(ge=1, le=12)] = 2
    """Digits of each number, which never starts with 0."""

    def num_problems(self, split: Split) -> int | None:
        """Train comes round again after its last item; validation and test end, so that no item is counted twice."""
        return None if split == "train" else split_size(split, self._num_items)

    def generate(self, split: Split, index: int) -> Problem:
        size = split_size(split, self._num_items)
        if index >= size and split != "train":
            setting = f"num_terms={self.num_terms}, num_digits={self.num_digits}"
            raise ValueError(f"chain_sum with {setting} has {size} {split} problems, so there is no problem {index}")
        item = split_item(split, index % size, self._num_items, f"chain_sum/{self.num_terms}/{self.num_digits}")
        terms: list[int] = []
        for _ in range(self.num_terms):
            item, remainder = divmod(item, self._num_values)
            terms.append(10 ** (self.num_digits - 1) + remainder)
        return Problem(
            id=f"chain_sum/{split}/{index}",
            prompt="+".join(map(str, terms)) + "=",
            gold=str(sum(terms)),
            solution=_worked_solution(terms),
        )

    def grade(self, problem: Problem, completion: str, *, truncated: bool = False) -> Grade:
        answer = None if truncated else _answer(completion)
        return Grade(
            correct=answer == problem.gold,
            answer_key=answer,
            method="none" if answer is None else "end",
            parsed=answer is not None,
            truncated=truncated,
        )

    def corrupted(self, problem: Problem) -> str | None:
        return f"{problem.gold}1"

    def format_score(self, problem: Problem, completion: str) -> float:
        """0 without an answer, 0.5 with one, 1 where it ends a chain of steps of which each has one term fewer."""
        if _answer(completion) is None:
            return 0.0
        steps = completion.split("=")
        num_terms = [step.count("+") + 1 for step in steps]
        chain = num_terms == list(range(self.num_terms - 1, 0, -1)) and all(map(_SUM.fullmatch, steps))
        return 1.0 if chain else 0.5

    @property
    def _num_values(self) -> int:
        """How many numbers of `num_digits` digits there are."""
        return 9 * 10 ** (self.num_digits - 1)

    @property
    def _num_items(self) -> int:
        return self._num_values**self.num_terms


def _worked_solution(terms: list[int]) -> str:
    """[12, 34, 56] -> "46+56=102"."""
    steps: list[str] = []
    while len(terms) > 1:
        terms = [terms[0] + terms[1], *terms[2:]]
        steps.append("+".join(map(str, terms)))
    return "=".join(steps)


def _answer(completion: str) -> str | None:
    """The integer after the last "=" without leading zeros; None where that is not an integer.

    Kept as text: `int` is slow on a megabyte of digits and refuses more than 4300.
    """
    text = completion.rpartition("=")[2]
    if not (text.isascii() and text.isdigit()):
        return None
    return text.lstrip("0") or "0"
