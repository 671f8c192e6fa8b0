r"""What tasks share whose answer stands in a \boxed{}: the instruction, the grader, the format score, reading of rows.

The grader is `tasks.parts.verify`, style "math"; an answer in a box is the strict score.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from tasks.parts.extract import balanced_boxes, final_text
from tasks.parts.problem import DatasetTask, Grade, Problem
from tasks.parts.stated import math_answer
from tasks.parts.verify import Asked, equal, grade, grade_all

INSTRUCTION = r"Reason step by step. Then put the final answer, and nothing else, in \boxed{}."

# Beyond ASCII: what is met in public mathematics rows, by number because several look like something else.
_BEYOND_ASCII = "\u00a0\u00b0\u00b1\u00b7\u00d7\u00f7\u2013\u2014\u2018\u2019\u201c\u201d\u2026\u2212\u2264\u2265\u221a"
_ONE_OF_THEM = re.compile(r"\bnot both\b|\bonly one\b|\bnot all\b", re.IGNORECASE)
_EMPTY_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{\s*\}")


class BoxedTask(DatasetTask, frozen=True):
    r"""A data set of mathematics problems whose answers are asked for in \boxed{}."""

    alphabet: ClassVar[str] = "".join(map(chr, range(32, 127))) + "\t\n" + _BEYOND_ASCII
    strict_methods: ClassVar[frozenset[str]] = frozenset({"box"})

    def grade(self, problem: Problem, completion: str, *, truncated: bool = False) -> Grade:
        return grade(completion, gold=problem.gold, style="math", truncated=truncated)

    def grade_all(self, items: Sequence[tuple[Problem, str, bool]]) -> list[Grade]:
        asked = [Asked(completion, problem.gold, truncated) for problem, completion, truncated in items]
        return grade_all(asked, style="math")

    def stated(self, problem: Problem) -> str | None:
        return rf"\boxed{{{problem.gold}}}"

    def corrupted(self, problem: Problem) -> str | None:
        return rf"\boxed{{{another(problem.gold)}}}"

    def format_score(self, problem: Problem, completion: str) -> float:
        r"""A quarter each: there is a \boxed; it closes and is not empty; the last line has it; "=" shows some working.

        Graded in steps, because a weak model hardly ever keeps the whole form and would then learn nothing from it.
        """
        text = final_text(completion)
        closed = next(balanced_boxes(text), None) is not None
        last_line = text.rstrip().rpartition("\n")[2]
        in_last_line = next(balanced_boxes(last_line), None) is not None
        return (("\\boxed" in text) + closed + in_last_line + ("=" in completion)) / 4


def text_of(row: Mapping[str, Any], column: str) -> str:
    """The stripped text of a column.

    Raises:
        ValueError: it is not a text, or empty.
    """
    text = row[column]
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f"{column} is {text!r}, not a text")
    return text.strip()


def other_columns(row: Mapping[str, Any], used: Iterable[str]) -> dict[str, Any]:
    """The columns of a row that are not already a part of the problem; those without a value are left out."""
    return {name: value for name, value in row.items() if name not in used and value is not None}


def in_boxes(text: str) -> str | None:
    """The last box of a text, or those that it joins; None where there is none."""
    stated = math_answer(text)
    return stated.text if stated.method == "box" else None


def boxed_gold(question: str, solution: str) -> str | None:
    r"""What a worked solution boxes: the last box, or all that it joins by "and" or "or"; None where there is none.

    "\boxed{3} or \boxed{\frac{2}{5}}" are two answers, both of which are asked for, unless the question wants one
    of them ("not both") or they are the same (\boxed{x+11} or \boxed{11+x}): then it is the last.
    """
    joined, last = in_boxes(solution), next(balanced_boxes(solution), None)
    if joined is None or last is None or joined == last.strip():
        return joined
    first = joined.removesuffix(f", {last.strip()}")
    one_will_do = _ONE_OF_THEM.search(question) is not None or equal(gold=last.strip(), answer=first)
    return last.strip() if one_will_do else joined


def only_empty_box(solution: str) -> bool:
    """Whether a solution has a box and nothing in it."""
    return bool(_EMPTY_BOX.search(solution)) and in_boxes(solution) is None


def contest_problem(problem_id: str, row: Mapping[str, Any], *, question: str, largest: int | None = None) -> Problem:
    """A problem whose answer is one integer, from a row with an `answer` and a question in the column named.

    Raises:
        ValueError: the question is empty, the answer is no integer, or it is not from 0 to `largest`.
    """
    text, gold = text_of(row, question), integer_of(row["answer"], "answer")
    if largest is not None and not 0 <= int(gold) <= largest:
        raise ValueError(f"answer is {gold}, not from 0 to {largest}")
    columns = other_columns(row, (question, "answer"))
    return Problem(id=problem_id, prompt=f"{text}\n\n{INSTRUCTION}", gold=gold, question=text, columns=columns)


def integer_of(value: Any, column: str) -> str:
    """An answer that must be an integer, as published: 25, "25", "025", 25.0 and "$25$" are all "25".

    Raises:
        ValueError: it is not an integer.
    """
    text = str(value).strip().strip("$").replace(",", "") if isinstance(value, str | int | float) else ""
    text = text.removesuffix(r"^\circ").removesuffix(r"^{\circ}")
    match = re.fullmatch(r"([+-]?)([0-9]+)(?:\.0*)?", text)
    if match is None or isinstance(value, bool):
        raise ValueError(f"{column} is {value!r}, not an integer")
    sign, digits = match.groups()
    return str(int(digits) * (-1 if sign == "-" else 1))


def another(answer: str) -> str:
    r"""A different answer of the same form: the last digit of its first number, or else its last letter, is another.

    "\frac{1}{2}" -> "\frac{2}{2}", "\text{Evelyn}" -> "\text{Evelyo}"; a command's own letters stay.
    """
    number = re.search(r"[0-9]+", answer)
    places = [number] if number else list(re.finditer(r"(?<![\\A-Za-z])[A-Za-z]+", answer))
    if not places:
        return "7777"
    end = places[-1].end()
    last = answer[end - 1]
    following = {"9": "1", "z": "y", "Z": "Y"}.get(last, chr(ord(last) + 1))
    return answer[: end - 1] + following + answer[end:]
